"""Fixture for models on the fake server with custom settings."""

from collections.abc import AsyncIterator

import pytest

from agent.model.protocols.chat_completions import ChatCompletionsModel
from tests.agent.model.asking import Dial, dialling
from tests.fakes.labkit import Server


@pytest.fixture
async def dial(server: Server) -> AsyncIterator[Dial]:
    """Factory for models on the fake server with custom settings."""
    async with dialling(ChatCompletionsModel, f"{server.url}/v1", "lab-128k") as make:
        yield make
