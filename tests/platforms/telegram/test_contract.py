"""Telegram keeps the contract of platform adapters, by polling and by webhook."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from platforms.telegram import WebhookSettings
from tests.platforms.contract import AdapterContract
from tests.platforms.telegram.harness import TelegramHarness, free_port


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
