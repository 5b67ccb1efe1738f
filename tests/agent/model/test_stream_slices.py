"""Fast streams let other tasks of the event loop run in between."""

import asyncio
import time

import pytest

from agent.model.base import ChatModel, Endpoint
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.responses import ResponsesModel
from agent.model.replies import SLICE_SECONDS, checkpoint
from tests.agent.model.asking import request, script
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server


@pytest.fixture(params=["chat_completions", "responses", "anthropic"])
def model(request: pytest.FixtureRequest, server: Server) -> ChatModel:
    match request.param:
        case "chat_completions":
            return ChatCompletionsModel(Endpoint(model="lab-128k", api_key="key", base_url=f"{server.url}/v1"))
        case "responses":
            return ResponsesModel(Endpoint(model="lab-128k", api_key="key", base_url=f"{server.url}/v1"))
        case _:
            return AnthropicModel(Endpoint(model="lab-128k", api_key="key", base_url=server.url))


async def test_other_tasks_run_while_a_stream_has_data(model: ChatModel, llm: LLM) -> None:
    """All events arrive at once. Here, each event takes a full slice."""
    script(llm, text="x" * 40, chunk_chars=1)
    rounds = 0
    seen: list[int] = []

    async def somebody_else() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    def show(text: str) -> None:
        seen.append(rounds)
        time.sleep(2 * SLICE_SECONDS)  # busy work, during which no other task can run

    other = asyncio.create_task(somebody_else())
    try:
        await model.complete(request(), show)
    finally:
        other.cancel()
        await model.close()
    assert len(seen) == len(set(seen)) == 40


@pytest.mark.parametrize(("slice_seconds", "others"), [(60.0, []), (0.0, ["somebody else"])])
async def test_a_stream_keeps_the_event_loop_for_one_slice(slice_seconds: float, others: list[str]) -> None:
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "somebody else")
    await checkpoint(time.perf_counter() + slice_seconds)
    assert ran == others
