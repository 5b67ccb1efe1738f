"""Fixtures of the platform tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.platforms.contract import RecordingIntake
from tests.platforms.telegram.harness import TelegramHarness


@pytest.fixture
def intake() -> RecordingIntake:
    return RecordingIntake()


@pytest.fixture
async def telegram(tmp_path: Path) -> AsyncIterator[TelegramHarness]:
    """A Telegram adapter, not running yet, that polls a fake Bot API."""
    async with TelegramHarness(tmp_path) as harness:
        yield harness


@pytest.fixture
async def live(telegram: TelegramHarness) -> AsyncIterator[TelegramHarness]:
    """The same harness with a running adapter."""
    async with telegram.running():
        yield telegram
