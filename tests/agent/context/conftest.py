"""Models of the fake server with a small and a medium window."""

from collections.abc import AsyncIterator

import pytest

from agent.model.protocols.chat_completions import ChatCompletionsModel
from tests.agent.context.contexts import dialled
from tests.fakes import labkit


@pytest.fixture
async def small(server: labkit.Server) -> AsyncIterator[ChatCompletionsModel]:
    async with dialled(server, "lab-8k") as model:
        yield model


@pytest.fixture
async def medium(server: labkit.Server) -> AsyncIterator[ChatCompletionsModel]:
    async with dialled(server, "lab-32k") as model:
        yield model
