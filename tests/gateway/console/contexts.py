"""What the pages of the console read from, without a running daemon."""

from collections.abc import Mapping
from typing import NoReturn

from gateway.console.registry import ConsoleContext
from hermes_state.values import LOCAL_OWNER, UserRef
from platforms.console import WebPerson
from tests.gateway.helpers import TestGateway

OWNER = WebPerson(ref=LOCAL_OWNER, name="Owner", is_admin=True)
GUEST = WebPerson(ref=UserRef("local:guest"), name="Guest", is_admin=False)


def context_of(gateway: TestGateway) -> ConsoleContext:
    return ConsoleContext(
        store=gateway.store,
        live=gateway.live.live,
        runtime=gateway.live,
        access=gateway.access,
        adapters=gateway.adapters,
        servers=gateway.servers,
        delivery=gateway.delivery,
        clock=gateway.clock,
        started_at=gateway.clock.now(),
        preview_settings=_no_settings,
        save_settings=_no_settings,
    )


async def _no_settings(_answers: Mapping[str, str]) -> NoReturn:
    raise AssertionError("these tests change no settings")
