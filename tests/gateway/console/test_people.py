"""Invitations to the web chat on the page of people."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.console.people import invite, revoke
from gateway.console.registry import ConsoleContext
from gateway.outbound.adapters import AdapterRegistry
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError
from hermes_state.values import UserRef
from tests.gateway.console.contexts import OWNER, context_of
from tests.gateway.helpers import TestGateway
from tests.gateway.operator.test_handlers import web_chat
from tests.platforms.contract import RecordingIntake, running

ANN = UserRef("local:ann")


@pytest.fixture
async def context(gateway: TestGateway, tmp_path: Path) -> AsyncIterator[ConsoleContext]:
    """A console next to a running web chat."""
    local = web_chat(gateway, tmp_path)
    async with running(local, RecordingIntake()):
        yield replace(context_of(gateway), adapters=AdapterRegistry({"local": local}))


async def test_a_second_link_keeps_the_role_or_raises_it(context: ConsoleContext) -> None:
    roles = []
    for chosen in ("user", "admin", "user"):
        assert "?token=" in await invite(context, OWNER, {"name": "Ann", "role": chosen})
        roles.append(context.access.role_of(ANN))
    assert roles == [UserRole.USER, UserRole.ADMIN, UserRole.ADMIN]
    await revoke(context, OWNER, {"person": ANN})
    await invite(context, OWNER, {"name": "ann", "role": "user"})
    assert context.access.role_of(ANN) is UserRole.USER


@pytest.mark.parametrize("has_left", [False, True])
async def test_a_name_with_the_id_of_another_person_is_refused(context: ConsoleContext, has_left: bool) -> None:
    await invite(context, OWNER, {"name": "Ann", "role": "user"})
    if has_left:
        await revoke(context, OWNER, {"person": ANN})
    with pytest.raises(CommandError, match="belongs to “Ann”"):
        await invite(context, OWNER, {"name": "ann!", "role": "user"})
    assert (context.access.role_of(ANN) is None) == has_left
