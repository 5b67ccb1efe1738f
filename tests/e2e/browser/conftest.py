"""Fixtures for tests of the web chat in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.browser.chromium import Chromium
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import Program, World, world_in


@pytest.fixture
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, protocol: ModelProtocol, program: Program
) -> AsyncIterator[World]:
    """A running gateway with a model, the web chat and the `SETTINGS` of the test's module, but no other platform."""
    async with world_in(tmp_path / "world", protocol, telegram=False, program=program) as made:
        await made.gateway.start(**made.web_chat(), **getattr(request.module, "SETTINGS", {}))
        yield made


@pytest.fixture
async def telegram_world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    """A world with Telegram and a model. The gateway is not started yet."""
    async with world_in(tmp_path / "world", protocol) as made:
        yield made


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Chromium]:
    async with Chromium(tmp_path / "profile") as opened:
        yield opened
