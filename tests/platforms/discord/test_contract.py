"""Discord keeps the contract of platform adapters."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import fake_discord
from tests.fakes.labkit import Server
from tests.platforms.contract import AdapterContract, RecordingIntake, running
from tests.platforms.discord.harness import DiscordHarness


class TestDiscordContract(AdapterContract):
    pass


class TestOneOfTwoDiscordBots(AdapterContract):
    """A further bot keeps the contract next to the first bot, which gets none of its events."""

    test_a_cancelled_run_ends_at_once_and_leaves_no_task = None  # type: ignore[assignment]  # the first bot has tasks

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[DiscordHarness]:
        intake = RecordingIntake()
        async with (
            DiscordHarness(tmp_path, account="discord/operations") as harness,
            Server(fake_discord.make_app()) as one,
        ):
            socket = f"{one.url.replace('http', 'ws', 1)}/gateway"
            first = harness.another_adapter(account="discord", api_url=one.url, gateway_url=socket)
            async with running(first, intake):
                yield harness
            assert intake.events == []
