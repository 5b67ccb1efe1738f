"""Turned clocks: a jump of a day, either way, holds nothing up and changes what nothing is about."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from hermes_state import outbox
from hermes_state.aio import Backoff
from hermes_state.chats import load_history
from hermes_state.errors import PlatformUnavailable
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.writer import Store
from tests.clocks import TurnedClock
from tests.databases import place_of
from tests.gateway.helpers import DIRECT, MemoryAdapter, Serve, TestGateway, eventually, hanging
from tests.hermes_state.helpers import locked_by_another_process, set_max_pages

DAY_MS = 86_400_000
JUMPS = pytest.mark.parametrize("jump", [-DAY_MS, DAY_MS], ids=["back", "forward"])


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def gateway(serve: Serve, clock: TurnedClock) -> AsyncIterator[TestGateway]:
    async with serve(clock=clock) as running:
        yield running


async def failed_once(gateway: TestGateway) -> None:
    """The first attempt at an answer has failed, and its retry waits."""
    query = "SELECT 1 FROM outbox WHERE state = 'pending' AND attempts = 1 AND error IS NOT NULL"
    await gateway.until_rows(query)


@JUMPS
async def test_an_answer_whose_retry_waits_is_not_held_up(gateway: TestGateway, clock: TurnedClock, jump: int) -> None:
    gateway.adapter.troubles.append(PlatformUnavailable("down"))
    await gateway.say("hello")
    await failed_once(gateway)
    clock.offset = jump
    assert await gateway.replies(1) == ["echo: hello"]


@JUMPS
async def test_what_is_owed_at_a_start_goes_out(
    serve: Serve, clock: TurnedClock, jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(clock=clock) as gateway:
        gateway.adapter.troubles.append(PlatformUnavailable("down"))
        await gateway.say("hello")
        await failed_once(gateway)
    clock.offset = jump
    monkeypatch.setattr("gateway.outbound.delivery.RETRY_BACKOFF", Backoff(0.1, 0.2))
    async with serve(clock=clock) as again:
        assert await again.replies(1) == ["echo: hello"]


@JUMPS
async def test_an_answer_that_was_never_tried_goes_out_at_once(
    serve: Serve, clock: TurnedClock, store: Store, jump: int
) -> None:
    adapter = MemoryAdapter()
    async with serve(clock=clock, adapter=adapter) as gateway:
        await gateway.ask("one")
        [(chat,)] = await gateway.rows("SELECT id FROM chats")
    reply = Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown="owed", dedupe_key="k")
    await store.write(outbox.enqueue, reply, clock.now())
    clock.offset = jump
    async with serve(clock=clock, adapter=adapter) as again:
        assert await again.replies(2) == ["echo: one", "owed"]


@JUMPS
async def test_a_paste_waits_no_longer_for_its_next_piece(gateway: TestGateway, clock: TurnedClock, jump: int) -> None:
    await gateway.say("long", expects_more=True)
    clock.offset = jump
    for lane in gateway.lanes._lanes.values():
        lane.woken.set()  # it looks again, by the clock of now
    assert await gateway.replies(1) == ["echo: long"]


async def test_a_paste_that_waited_at_a_restart_is_answered(serve: Serve, clock: TurnedClock) -> None:
    async with serve(clock=clock) as gateway:
        await gateway.say("long", expects_more=True)
    clock.offset = -DAY_MS
    async with serve(clock=clock) as again:
        assert await again.replies(1) == ["echo: long"]


@JUMPS
async def test_stop_from_memory_is_confirmed(gateway: TestGateway, clock: TurnedClock, jump: int) -> None:
    await hanging(gateway)
    with locked_by_another_process(place_of(gateway.store), 1.5):
        saying = asyncio.create_task(gateway.say("/stop"))
        await eventually(lambda: gateway.model.running == 0, "the model is let go")
        clock.offset = jump
        await saying
    assert (await gateway.replies(2))[-1] == "Stopped."
    assert await gateway.turns_of() == [("stopped", "q")]


@JUMPS
async def test_a_turn_that_crosses_the_jump_is_answered_and_status_counts_no_days(
    gateway: TestGateway, clock: TurnedClock, jump: int
) -> None:
    hang = await hanging(gateway)
    clock.offset = jump
    await gateway.say("/status")
    await eventually(gateway.adapter.texts, "an answer")
    [said] = gateway.adapter.texts()
    assert "Working on an answer (" in said
    assert "Working on an answer (-" not in said
    hang.release()
    assert (await gateway.replies(2))[-1] == "finally"


async def test_a_conversation_begun_before_the_clock_was_set_back_stays_the_older_one(
    gateway: TestGateway, clock: TurnedClock
) -> None:
    await gateway.ask("older")
    clock.offset = -DAY_MS
    await gateway.ask("/new")
    await gateway.ask("newer")
    [(chat,)] = await gateway.rows("SELECT id FROM chats WHERE chat_ref = ?", DIRECT.chat_ref)
    history = await gateway.store.read(load_history, chat, 10)
    assert [row.text for row in history if row.role == "user"] in (["older", "newer"], ["newer", "older"])
    newest_first = await gateway.store.read(lambda db: load_history(db, chat, 2))
    assert {row.text for row in newest_first} == {"newer", "echo: newer"}


async def test_an_answer_that_waited_long_for_a_full_disk_costs_the_day_on_which_it_is_stored(
    gateway: TestGateway, clock: TurnedClock
) -> None:
    hang = await hanging(gateway)
    await gateway.store.write(set_max_pages, 0)
    with capture_logs() as logs:
        hang.text = "x" * 200_000
        hang.release()
        await eventually(lambda: any(log["event"] == "store.write_delayed" for log in logs), "the disk is full")
    clock.offset = DAY_MS
    await gateway.store.write(set_max_pages, None)
    await gateway.replies(1)
    [(at,)] = await gateway.rows("SELECT created_at FROM model_calls")
    assert at >= clock.now() - DAY_MS // 2
