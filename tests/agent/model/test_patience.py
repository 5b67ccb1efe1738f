"""How long a reply is waited for: silence, a line that is only kept open, and models that think for long."""

import asyncio

import pytest

from agent.model.http import EndpointSettings
from hermes_state.errors import ModelTimeout
from tests.agent.model.asking import ask, request, script
from tests.agent.model.ways import MIXED_WAYS, WAYS, Way
from tests.fakes import labkit
from tests.fakes.fake_llm import LLM
from tests.sampling import crossed


def elapsed_since(began: float) -> float:
    return asyncio.get_running_loop().time() - began


@pytest.mark.fuzz
@pytest.mark.parametrize(("filler", "way"), crossed(2, ["comment", "event"], MIXED_WAYS), ids=str)
async def test_a_model_may_think_for_longer_than_it_may_be_silent(
    server: labkit.Server, llm: LLM, way: Way, filler: str
) -> None:
    script(llm, text="done", keep_open=way.before_text, keep_open_with=filler, keep_open_seconds=2.0)
    async with way.dialled(server.url, read_seconds=1.5, first_piece_seconds=20.0) as model:
        reply, _ = await ask(model)
    assert reply.text == "done"


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_server_that_sends_nothing_at_all_is_given_up_after_its_silence(
    server: labkit.Server, llm: LLM, way: Way
) -> None:
    script(llm, hang=30)
    began = asyncio.get_running_loop().time()
    async with way.dialled(server.url, read_seconds=0.2, first_piece_seconds=20.0) as model:
        with pytest.raises(ModelTimeout):
            await ask(model)
    assert elapsed_since(began) < 20


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_first_piece_has_a_bound_of_its_own(server: labkit.Server, llm: LLM, way: Way) -> None:
    script(llm, text="done", keep_open=0)
    began = asyncio.get_running_loop().time()
    async with way.dialled(server.url, read_seconds=20.0, first_piece_seconds=0.8) as model:
        with pytest.raises(ModelTimeout):
            await ask(model)
    assert 0.8 <= elapsed_since(began) < 20
    assert len(llm.requests.rows) == 1


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
async def test_after_the_first_piece_only_pieces_count(server: labkit.Server, llm: LLM, way: Way) -> None:
    script(llm, text="one two three", chunk_chars=4, keep_open=way.before_text + 1)
    began = asyncio.get_running_loop().time()
    async with way.dialled(server.url, read_seconds=0.4, first_piece_seconds=60.0) as model:
        with pytest.raises(ModelTimeout):
            await ask(model)
    assert elapsed_since(began) < 20


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
async def test_silence_in_the_middle_is_a_timeout_and_what_came_was_shown(
    server: labkit.Server, llm: LLM, way: Way
) -> None:
    script(llm, text="one two three", chunk_chars=4, hang_after=way.before_text + 2)
    shown: list[str] = []
    async with way.dialled(server.url, read_seconds=1.0, first_piece_seconds=20.0) as model:
        with pytest.raises(ModelTimeout):
            await model.complete(request(), shown.append)
    assert shown[-1] == "one two "


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
async def test_a_reply_that_takes_long_is_read_to_its_end_while_it_goes_on(
    server: labkit.Server, llm: LLM, way: Way
) -> None:
    script(llm, text="x" * 12, chunk_chars=1, chunk_delay=0.15)
    async with way.dialled(server.url, read_seconds=1.5, first_piece_seconds=1.5) as model:
        assert (await ask(model))[0].text == "x" * 12


@pytest.mark.parametrize("way", [way for way in WAYS if way.protocol == "chat_completions" and way.streams], ids=str)
async def test_reasoning_is_a_piece(server: labkit.Server, llm: LLM, way: Way) -> None:
    script(llm, reasoning="x" * 12, text="done", chunk_chars=1, chunk_delay=0.15)
    async with way.dialled(server.url, read_seconds=1.5, first_piece_seconds=1.5) as model:
        assert (await ask(model))[0].text == "done"


async def test_reasoning_of_responses_is_a_piece(server: labkit.Server, llm: LLM) -> None:
    raw = "".join(
        f"data: {one}\n\n"
        for one in (
            '{"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}',
            '{"type": "response.output_text.delta", "output_index": 1, "delta": "done"}',
            '{"type": "response.completed", "response": {"status": "completed", "output": []}}',
        )
    )
    script(llm, raw=raw)
    (way, *_) = [way for way in WAYS if way.protocol == "responses"]
    async with way.dialled(server.url) as model:
        assert (await ask(model))[0].text == "done"


@pytest.mark.parametrize("way", [way for way in WAYS if way.streams], ids=str)
async def test_a_reply_whose_stream_is_never_closed_is_whole(server: labkit.Server, llm: LLM, way: Way) -> None:
    script(llm, text="done", keep_open=99, no_done=True)
    async with way.dialled(server.url, read_seconds=1.5, first_piece_seconds=20.0) as model:
        assert (await ask(model))[0].text == "done"


def test_the_bounds_are_as_documented() -> None:
    endpoint = EndpointSettings(model="m", api_key="k")
    assert (endpoint.read_seconds, endpoint.first_piece_seconds) == (120.0, 300.0)
