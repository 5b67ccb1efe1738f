"""Fixture for models on the fake server with custom settings."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent.model.base import Endpoint
from agent.model.protocols.chat_completions import ChatCompletionsModel
from tests.fakes import labkit


@pytest.fixture
async def dial(server: labkit.Server) -> AsyncIterator[Callable[..., ChatCompletionsModel]]:
    """Factory for models on the fake server with custom settings."""
    made: list[ChatCompletionsModel] = []

    def make(**changes: Any) -> ChatCompletionsModel:
        values = {"model": "lab-128k", "api_key": "lab-key", "base_url": f"{server.url}/v1"} | changes
        made.append(ChatCompletionsModel(Endpoint(**values)))
        return made[-1]

    yield make
    for model in made:
        await model.close()
