"""Discord keeps the contract of every adapter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.platforms.contract import AdapterContract
from tests.platforms.discord.harness import DiscordHarness


class TestDiscordContract(AdapterContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[DiscordHarness]:
        async with DiscordHarness(tmp_path) as harness:
            yield harness
