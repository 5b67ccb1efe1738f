"""Fixtures of the Discord tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.platforms.discord.harness import DiscordHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DiscordHarness]:
    """A Discord adapter, not running yet, and the fake server that it connects to."""
    async with DiscordHarness(tmp_path) as harness:
        yield harness


@pytest.fixture
async def live(harness: DiscordHarness) -> AsyncIterator[DiscordHarness]:
    """The same harness with a running adapter."""
    async with harness.running():
        yield harness
