"""Previews of growing answers, whose failures never affect the answer."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from agent.model.base import ModelReply, ModelRequest
from gateway.outbound.adapters import FloodControl, Gate
from gateway.turns.previews import LivePreview
from hermes_state.errors import PlatformUnavailable, RateLimited, StoreUnavailable
from hermes_state.turns import RunningTurn, TurnClaim, note_preview
from hermes_state.values import ChatId, ChatKind, LineageId, TurnId
from tests.gateway.helpers import (
    ANN,
    DIRECT,
    GROUP,
    Hang,
    MemoryAdapter,
    Serve,
    TestGateway,
    answer,
    eventually,
    hanging,
    settled,
)
from tests.hermes_state.rows import START

TURN = RunningTurn(
    id=TurnId(1),
    epoch=1,
    chat_id=ChatId(1),
    lineage_id=LineageId(1),
    started_by=ANN.ref,
    chat=DIRECT,
    chat_kind=ChatKind.DIRECT,
    restarts=0,
    preview_ref=None,
    started_at=START,
)


class Growing:
    """Model whose answer grows under the test's control."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.done = asyncio.Event()
        self.grow: Callable[[str], None] = lambda _text: None

    async def __call__(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        self.grow = on_text
        self.begun.set()
        await self.done.wait()
        return answer("the whole answer")


async def nothing(_turn: TurnClaim, _ref: str) -> None:
    """Ignore the placeholder."""


async def grow(gateway: TestGateway, text: str = "the") -> Growing:
    """Run a turn whose preview shows `text`."""
    growing = Growing()
    gateway.model.script.append(growing)
    await gateway.say("q")
    await growing.begun.wait()
    growing.grow(text)
    return growing


async def test_the_answer_grows_in_one_message_and_the_final_replaces_it(gateway: TestGateway) -> None:
    growing = await grow(gateway)
    await eventually(lambda: gateway.adapter.texts() == ["the"], "a preview")
    growing.grow("the whole")
    await eventually(lambda: gateway.adapter.texts() == ["the whole"], "it grows")
    growing.done.set()
    assert await gateway.replies(1) == ["the whole answer"]
    assert {preview.number for preview in gateway.adapter.previews} == {1}
    assert not gateway.adapter.previews[0].is_shared
    assert gateway.adapter.previews[0].reply_to is None


async def test_the_same_text_is_not_shown_twice(gateway: TestGateway) -> None:
    growing = await grow(gateway)
    await eventually(lambda: gateway.adapter.previews, "a preview")
    for _ in range(5):
        growing.grow("the")
        await settled(0.02)
    assert len(gateway.adapter.previews) == 1
    growing.done.set()
    await gateway.quiet()


async def test_a_fading_preview_is_renewed_while_tools_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.turns.previews.PREVIEW_OVERLAP_SECONDS", 0.0)
    shown = {}
    for makes_placeholders in (False, True):
        adapter = MemoryAdapter()
        adapter.makes_placeholders = makes_placeholders
        adapter.capabilities = replace(adapter.capabilities, preview_seconds=0.05)
        preview = LivePreview(TURN, adapter, Gate(), FloodControl(), nothing)
        preview.open()
        preview.show("the")
        if not makes_placeholders:
            await eventually(lambda adapter=adapter: len(adapter.previews) >= 3, "it is renewed")  # type: ignore[misc]
        await settled(0.3)
        await preview.close()
        shown[makes_placeholders] = adapter.previews
    assert {one.text for one in shown[False]} == {"the"}
    assert len(shown[True]) == 1, "a message stays by itself"


async def test_a_quick_answer_needs_no_preview_and_no_typing(serve: Serve) -> None:
    async with serve(adapter=MemoryAdapter(has_previews=False)) as gateway:
        assert await gateway.ask("q") == "echo: q"
        assert (gateway.adapter.previews, gateway.adapter.typed) == ([], [])


async def test_typing_is_shown_until_there_is_text(gateway: TestGateway) -> None:
    hang = Hang()
    gateway.model.script.append(hang)
    await gateway.say("q")
    await eventually(lambda: gateway.adapter.typed, "typing")
    hang.release()
    await gateway.quiet()
    typed = len(gateway.adapter.typed)
    await settled()
    assert len(gateway.adapter.typed) == typed == 1


@pytest.mark.parametrize(
    "trouble", [PlatformUnavailable("down"), KeyError("a bug of the SDK"), ValueError("bug"), asyncio.CancelledError()]
)
async def test_a_failed_preview_does_not_affect_the_answer(gateway: TestGateway, trouble: BaseException) -> None:
    gateway.adapter.show_trouble = trouble
    growing = await grow(gateway)
    await eventually(lambda: gateway.adapter.previews, "a preview is tried")
    growing.done.set()
    assert await gateway.replies(1) == ["the whole answer"]
    assert len(gateway.model.requests) == 1


async def test_a_placeholder_that_cannot_be_stored_is_stored_at_the_end_or_dropped() -> None:
    noted: list[str] = []
    troubles = [StoreUnavailable("full"), None, StoreUnavailable("full"), StoreUnavailable("full")]

    async def note(_turn: TurnClaim, ref: str) -> None:
        trouble = troubles.pop(0)
        if trouble is not None:
            raise trouble
        noted.append(ref)

    for _ in range(2):
        preview = LivePreview(TURN, MemoryAdapter(), Gate(), FloodControl(), note)
        preview.open()
        preview.show("the")
        left = len(troubles)
        await eventually(lambda left=left: len(troubles) < left, "a first try")  # type: ignore[misc]
        await preview.close()
    assert (noted, troubles) == (["s1000"], [])


async def test_a_preview_waits_until_flood_control_ends(gateway: TestGateway) -> None:
    gateway.adapter.show_trouble = RateLimited(0.2)
    growing = await grow(gateway)
    await eventually(lambda: gateway.adapter.previews, "a preview is tried")
    gateway.adapter.show_trouble = None
    growing.grow("the whole")
    await settled(0.1)
    assert len(gateway.adapter.previews) == 1
    await eventually(lambda: gateway.adapter.texts() == ["the whole"], "it goes on after the penalty")
    growing.done.set()
    await gateway.quiet()


async def test_the_final_answer_waits_for_a_preview_in_flight(gateway: TestGateway) -> None:
    gateway.adapter.may_show.clear()
    growing = await grow(gateway)
    await eventually(lambda: gateway.adapter.previews, "a preview is in flight")
    growing.done.set()
    await settled()
    assert gateway.adapter.requests == []
    gateway.adapter.may_show.set()
    assert await gateway.replies(1) == ["the whole answer"]


async def test_a_stop_while_the_first_preview_is_in_flight_leaves_one_copy(gateway: TestGateway) -> None:
    gateway.adapter.may_show.clear()
    await grow(gateway)
    await eventually(lambda: gateway.adapter.previews, "a preview is in flight")
    await gateway.say("/stop")
    await gateway.until_rows("SELECT 1 FROM turns WHERE state = 'stopped'")
    gateway.adapter.may_show.set()
    assert await gateway.replies(2) == ["the …", "Stopped."]


async def test_a_stopped_preview_without_an_answer_reads_stopped(gateway: TestGateway) -> None:
    await hanging(gateway)
    turn = gateway.lanes.running_in(DIRECT)
    assert turn is not None
    await gateway.store.write(note_preview, turn, "p1")
    await gateway.say("/stop")
    assert await gateway.replies(2) == ["Stopped.", "(stopped)"]


async def test_a_resumed_turn_continues_in_the_same_message(serve: Serve) -> None:
    adapter = MemoryAdapter()
    async with serve(adapter=adapter) as gateway:
        await grow(gateway)
        await gateway.until_rows("SELECT 1 FROM turns WHERE preview_ref IS NOT NULL")
    async with serve(adapter=adapter) as again:
        assert await again.replies(1) == ["echo: q"]


async def test_groups_are_shown_as_shared(gateway: TestGateway) -> None:
    hang = Hang(says="the")
    gateway.model.script.append(hang)
    asked = await gateway.say("q", chat=GROUP)
    await eventually(lambda: gateway.adapter.previews, "a preview")
    assert gateway.adapter.previews[0].is_shared
    assert gateway.adapter.previews[0].reply_to == asked.message_ref, "people see whom the answer is for"
    hang.release()
    await gateway.quiet(GROUP)
