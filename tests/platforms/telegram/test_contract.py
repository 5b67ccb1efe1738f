"""Telegram keeps the contract of platform adapters, by polling and by webhook."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from platforms.telegram import WebhookSettings
from tests.platforms.contract import AdapterContract, RecordingIntake, running
from tests.platforms.telegram.harness import TOKEN, TelegramHarness, free_port


class TestTelegramByPolling(AdapterContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[TelegramHarness]:
        async with TelegramHarness(tmp_path) as harness:
            yield harness


class TestTelegramByWebhook(AdapterContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[TelegramHarness]:
        port = free_port()
        webhook = WebhookSettings(url=f"http://127.0.0.1:{port}/telegram", secret=SecretStr("s3cret"), port=port)
        async with TelegramHarness(tmp_path, webhook=webhook) as harness:
            yield harness


class TestOneOfTwoTelegramBots(AdapterContract):
    """A further bot keeps the contract next to the first bot, which gets none of its events."""

    test_a_cancelled_run_ends_at_once_and_leaves_no_task = None  # type: ignore[assignment]  # the first bot has tasks

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[TelegramHarness]:
        async with TelegramHarness(tmp_path, account="telegram/operations") as harness:
            await harness.post("expire", {"token": TOKEN})  # makes it the bot to which people write
            first, intake = harness.another_adapter(account="telegram", token=SecretStr("1:FIRST")), RecordingIntake()
            async with running(first, intake):
                yield harness
            assert intake.events == []
