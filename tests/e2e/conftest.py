"""Worlds for end-to-end tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.world import World, world_in


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Telegram and a model, the gateway not started yet."""
    async with world_in(tmp_path) as made:
        yield made


@pytest.fixture
async def discord_world(tmp_path: Path) -> AsyncIterator[World]:
    """Discord and a model, the gateway not started yet."""
    async with world_in(tmp_path, telegram=False, discord=True) as made:
        yield made
