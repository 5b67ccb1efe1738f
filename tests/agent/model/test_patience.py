"""Time limits for replies: silence, keep-alive without content, and models that think for a long time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.model.base import ChatModel, Endpoint
from hermes_state.errors import ModelTimeout
from tests.agent.model.asking import ask, request, script
from tests.agent.model.ways import MIXED_WAYS, WAYS, Way
from tests.fakes import fake_llm
from tests.fakes.labkit import Server
from tests.sampling import crossed
from tests.side_by_side import side_by_side

STREAMED = [way for way in WAYS if way.streams]


def elapsed_since(began: float) -> float:
    return asyncio.get_running_loop().time() - began


async def over_each(ways: Iterable[Way], case: Callable[[Way], Awaitable[None]]) -> None:
    """Run a case over all ways in parallel."""
    await side_by_side({str(way): case(way) for way in ways})


@asynccontextmanager
async def replying(way: Way, reply: dict[str, Any], **patience: float) -> AsyncIterator[tuple[ChatModel, fake_llm.LLM]]:
    """Yield a model with its own server, which gives this reply to every request."""
    async with Server(fake_llm.make_app()) as server:
        llm = server.app[fake_llm.LLM_KEY]
        script(llm, **reply)
        async with way.dialled(server.url, **patience) as model:
            yield model, llm


@pytest.mark.fuzz
async def test_thinking_may_last_longer_than_a_silence() -> None:
    async def thinks(way: Way, filler: str) -> None:
        kept_open = {"keep_open": way.before_text, "keep_open_with": filler, "keep_open_seconds": 2.0}
        async with replying(way, {"text": "done", **kept_open}, read_seconds=1.5, first_piece_seconds=20.0) as (
            model,
            _,
        ):
            reply, _ = await ask(model)
        assert reply.text == "done"

    cells = crossed(2, ["comment", "event"], MIXED_WAYS)
    await side_by_side({f"{filler} {way}": thinks(way, filler) for filler, way in cells})


async def test_a_silent_server_times_out() -> None:
    async def is_silent(way: Way) -> None:
        async with replying(way, {"hang": 30}, read_seconds=0.2, first_piece_seconds=20.0) as (model, _):
            began = asyncio.get_running_loop().time()
            with pytest.raises(ModelTimeout):
                await ask(model)
            assert elapsed_since(began) < 20

    await over_each(WAYS, is_silent)


async def test_the_first_piece_has_its_own_time_limit() -> None:
    async def says_nothing(way: Way) -> None:
        reply = {"text": "done", "keep_open": 0}
        async with replying(way, reply, read_seconds=20.0, first_piece_seconds=0.8) as (model, llm):
            began = asyncio.get_running_loop().time()
            with pytest.raises(ModelTimeout):
                await ask(model)
            assert 0.7 <= elapsed_since(began) < 20  # uvloop counts in whole milliseconds
            assert len(llm.requests.rows) == 1

    await over_each(WAYS, says_nothing)


async def test_after_the_first_piece_keep_alives_do_not_count() -> None:
    async def goes_on_without_words(way: Way) -> None:
        reply = {"text": "one two three", "chunk_chars": 4, "keep_open": way.before_text + 1}
        async with replying(way, reply, read_seconds=0.4, first_piece_seconds=60.0) as (model, _):
            began = asyncio.get_running_loop().time()
            with pytest.raises(ModelTimeout):
                await ask(model)
            assert elapsed_since(began) < 20

    await over_each(STREAMED, goes_on_without_words)


async def test_silence_in_the_middle_is_a_timeout_after_showing_the_text() -> None:
    async def falls_silent(way: Way) -> None:
        reply = {"text": "one two three", "chunk_chars": 4, "hang_after": way.before_text + 2}
        shown: list[str] = []
        async with replying(way, reply, read_seconds=1.0, first_piece_seconds=20.0) as (model, _):
            with pytest.raises(ModelTimeout):
                await model.complete(request(), shown.append)
        assert shown[-1] == "one two "

    await over_each(STREAMED, falls_silent)


async def test_a_slow_reply_is_read_to_its_end() -> None:
    async def takes_long(way: Way) -> None:
        reply = {"text": "x" * 12, "chunk_chars": 1, "chunk_delay": 0.15}
        async with replying(way, reply, read_seconds=1.5, first_piece_seconds=1.5) as (model, _):
            assert (await ask(model))[0].text == "x" * 12

    await over_each(STREAMED, takes_long)


async def test_reasoning_counts_as_a_piece() -> None:
    [way] = [way for way in STREAMED if way.protocol == "chat_completions"]
    reply = {"reasoning": "x" * 12, "text": "done", "chunk_chars": 1, "chunk_delay": 0.15}
    async with replying(way, reply, read_seconds=1.5, first_piece_seconds=1.5) as (model, _):
        assert (await ask(model))[0].text == "done"


async def test_reasoning_of_the_responses_api_counts_as_a_piece() -> None:
    raw = "".join(
        f"data: {one}\n\n"
        for one in (
            '{"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}',
            '{"type": "response.output_text.delta", "output_index": 1, "delta": "done"}',
            '{"type": "response.completed", "response": {"status": "completed", "output": []}}',
        )
    )
    [way] = [way for way in STREAMED if way.protocol == "responses"]
    async with replying(way, {"raw": raw}) as (model, _):
        assert (await ask(model))[0].text == "done"


async def test_a_complete_reply_needs_no_end_of_the_stream() -> None:
    async def stays_open(way: Way) -> None:
        reply = {"text": "done", "keep_open": 99, "no_done": True}
        async with replying(way, reply, read_seconds=1.5, first_piece_seconds=20.0) as (model, _):
            assert (await ask(model))[0].text == "done"

    await over_each(STREAMED, stays_open)


def test_the_time_limits_match_the_documentation() -> None:
    endpoint = Endpoint(model="m", api_key="k")
    assert (endpoint.read_seconds, endpoint.first_piece_seconds) == (120.0, 300.0)
