"""Cluster node whose seats the test ends and grants."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.model.base import ModelReply, ModelRequest
from gateway.cluster.lanes import MIN_TURN_SECONDS, LockedChats
from gateway.cluster.node import Duty, Node, NodeState
from gateway.inbound.admission import admit_all
from gateway.turns.previews import REQUEST_SECONDS
from gateway.turns.runner import MAX_RESTARTS
from hermes_state.aio import Backoff, cancel_all
from hermes_state.errors import StoreUnavailable
from hermes_state.store.seats import (
    KEEPER,
    Hint,
    HintKind,
    OnHint,
    OnlySeat,
    Seat,
    SeatLock,
    SeatLost,
    account_lock,
    chat_lock,
)
from hermes_state.store.writer import Store
from hermes_state.turns import find_open_turn, take_up
from hermes_state.values import AttachmentKind, ChatId, IncomingAttachment
from tests.gateway.helpers import (
    DIRECT,
    WAIT_SECONDS,
    Hang,
    Serve,
    TestGateway,
    calls,
    chat,
    eventually,
    hanging,
    settled,
)
from tests.hermes_state.helpers import set_max_pages
from tests.hermes_state.rows import finish, receive


class SharedSeat(OnlySeat):
    """Seat in a cluster in which other nodes hold the locks in `taken`."""

    is_shared = True  # type: ignore[assignment]  # a property of the base

    def __init__(self, on_hint: OnHint, taken: Collection[SeatLock]) -> None:
        super().__init__()
        self.on_hint = on_hint
        self.taken = set(taken)
        self.let_go_of: list[SeatLock] = []
        self.is_closed = False
        self.bug: Exception | None = None

    @property
    def is_certain(self) -> bool:
        return not self.lost.is_set()

    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        if self.bug is not None:
            raise self.bug
        if self.lost.is_set():
            raise SeatLost("ended")
        await asyncio.sleep(0)  # a server answers later
        return set([lock for lock in locks if lock not in self.taken][:most])

    async def let_go(self, lock: SeatLock) -> None:
        self.let_go_of.append(lock)

    async def close(self) -> None:
        self.is_closed = True


class Seats:
    """Opens seats. The first `refusals` attempts fail."""

    def __init__(self) -> None:
        self.opened: list[SharedSeat] = []
        self.taken: set[SeatLock] = set()
        self.refusals = 0

    async def open(self, on_hint: OnHint) -> Seat:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the server is away")
        self.opened.append(SharedSeat(on_hint, self.taken))
        return self.opened[-1]


class Work:
    """Duty that reports if it runs, and fails as scripted."""

    def __init__(self, name: str, lock: SeatLock) -> None:
        self.begun = self.ended = 0
        self.crashes: deque[Exception] = deque()
        """Errors that end the next runs."""
        self.troubles: deque[Exception] = deque()
        """Results of the next calls of `take_up`."""
        self.duty = Duty(name=name, lock=lock, run=self.run, take_up=self.take_up)

    async def take_up(self) -> None:
        if self.troubles:
            raise self.troubles.popleft()

    async def run(self) -> None:
        self.begun += 1
        if self.crashes:
            raise self.crashes.popleft()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


@asynccontextmanager
async def node_of(gateway: TestGateway, seats: Seats, *work: Work) -> AsyncIterator[Node]:
    async def abandon() -> None:
        await gateway.delivery.abandon()
        gateway.adapters.supervised["telegram"].ownership = None

    async def serve() -> None:
        await gateway.delivery.start("telegram")

    account = Duty(name="telegram", lock=account_lock("telegram"), take_up=serve, run=asyncio.Event().wait)  # type: ignore[arg-type]
    node = Node(
        state=(state := NodeState()),
        open_seat=seats.open,
        duties=[account, *(one.duty for one in work)],
        lanes=gateway.lanes,
        run_command=gateway.commands.run_queued,
        on_hint={HintKind.ASKED: lambda _: gateway.asked.wake()},
        abandon=abandon,
    )
    gateway.adapters.is_certain = state.is_certain
    await gateway.access.load()
    await node.start()
    task = asyncio.create_task(node.run(), name="node")
    try:
        yield node
    finally:
        await cancel_all([task])
        await node.close()


async def test_a_duty_of_another_node_is_taken_when_it_becomes_free(serve: Serve) -> None:
    seats, keeping = Seats(), Work("keeping", KEEPER)
    seats.taken = {KEEPER}
    async with serve(is_started=False) as gateway, node_of(gateway, seats, keeping):
        await gateway.ask("hello")
        assert not keeping.begun
        seats.opened[0].taken.clear()
        await eventually(lambda: keeping.begun == 1, "it is kept now")


@pytest.mark.parametrize("trouble", [StoreUnavailable("away"), RuntimeError("a bug")], ids=["store", "bug"])
async def test_a_duty_that_fails_to_start_is_left_to_others_and_blocks_no_other_duty(
    serve: Serve, trouble: Exception
) -> None:
    seats, first, second = Seats(), Work("first", account_lock("first")), Work("second", KEEPER)
    seats.taken = {first.duty.lock, second.duty.lock}
    first.troubles.append(trouble)
    async with serve(is_started=False) as gateway, node_of(gateway, seats, first, second) as node:
        seats.opened[0].taken.clear()
        await eventually(lambda: second.begun, "the other is taken")
        assert (first.begun, seats.opened[0].let_go_of) == (0, [first.duty.lock])
        await eventually(lambda: first.begun, "it is taken up at the next look")
        assert [duty.name for duty in node.state.duties] == ["telegram", "second", "first"]


async def test_a_crashed_duty_is_restarted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cluster.node.DUTY_BACKOFF", Backoff(0.01))
    keeping = Work("keeping", KEEPER)
    keeping.crashes.extend([KeyError("a bug"), StoreUnavailable("away")])
    async with serve(is_started=False) as gateway, node_of(gateway, Seats(), keeping):
        with capture_logs() as logs:
            await eventually(lambda: keeping.begun == 3, "it is kept again")
        assert [log["log_level"] for log in logs if log["event"] == "duty.crashed"] == ["error", "error"]


async def test_a_bug_in_the_sweep_ends_the_process_instead_of_the_sweep_alone(serve: Serve) -> None:
    seats, keeping = Seats(), Work("keeping", KEEPER)
    seats.taken = {KEEPER}
    async with serve(is_started=False) as gateway, node_of(gateway, seats, keeping):
        [running] = [task for task in asyncio.all_tasks() if task.get_name() == "node"]
        seats.opened[0].bug = RuntimeError("a bug")
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(running, WAIT_SECONDS)


async def test_a_lost_seat_ends_all_work_and_the_next_seat_continues_it(serve: Serve) -> None:
    seats, keeping = Seats(), Work("keeping", KEEPER)
    async with serve(is_started=False) as gateway, node_of(gateway, seats, keeping):
        first, again = await hanging(gateway, "first"), Hang()
        gateway.model.script.append(again)
        seats.refusals = 2
        seats.opened[0].lost.set()
        await eventually(lambda: seats.opened[0].is_closed, "it is given up")
        assert (keeping.begun, keeping.ended) == (1, 1)
        assert not gateway.lanes.active
        first.release()  # nobody hears it
        await again.begun.wait()
        assert (keeping.begun, keeping.ended, len(seats.opened)) == (2, 1, 2)
        assert gateway.adapters.is_certain()
        again.release()
        assert await gateway.replies(1) == ["finally"]
        assert await gateway.rows("SELECT state, restarts, epoch FROM turns") == [("finished", 0, 2)]


async def test_a_seat_can_be_lost_while_leftover_work_is_started(serve: Serve) -> None:
    seats, keeping = Seats(), Work("keeping", KEEPER)
    hangs, was_cut = asyncio.Event(), asyncio.Event()

    async def hang_once() -> None:
        if not hangs.is_set():
            hangs.set()
            try:
                await asyncio.Event().wait()
            finally:
                was_cut.set()

    async with serve(is_started=False) as gateway:
        node = Node(
            state=NodeState(),
            open_seat=seats.open,
            duties=[replace(keeping.duty, take_up=hang_once)],
            lanes=gateway.lanes,
            run_command=gateway.commands.run_queued,
            on_hint={},
            abandon=gateway.delivery.abandon,
        )
        starting = asyncio.create_task(node.start())
        await hangs.wait()
        seats.opened[0].lost.set()
        with pytest.raises(SeatLost):
            await asyncio.wait_for(starting, 30)
        assert was_cut.is_set()
        assert seats.opened[0].is_closed
        await node.start()
        assert [one.lost.is_set() for one in seats.opened] == [True, False]


async def test_a_request_in_flight_at_the_loss_of_the_seat_is_repeated(serve: Serve) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        gateway.adapter.may_send.clear()
        await gateway.say("q")
        await eventually(lambda: gateway.adapter.requests, "the request is on its way")
        seats.refusals = 1
        seats.opened[0].lost.set()
        await eventually(lambda: seats.opened[0].is_closed, "it is given up")
        assert await gateway.rows("SELECT state, attempts, error FROM outbox") == [("sending", 1, None)]
        gateway.adapter.may_send.set()
        assert await gateway.replies(1) == ["echo: q"]
        assert [request.is_repeat for request in gateway.adapter.requests] == [False, True]
        assert await gateway.rows("SELECT state, attempts FROM outbox") == [("sent", 2)]


async def test_a_preview_in_flight_is_cancelled_with_the_seat(serve: Serve) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        gateway.adapter.may_show.clear()
        gateway.model.script.append(Hang(says="so far"))
        await gateway.say("q")
        await eventually(lambda: gateway.adapter.previews, "a preview is on its way")
        seats.opened[0].lost.set()
        await eventually(lambda: seats.opened[0].is_closed, "it is given up", REQUEST_SECONDS / 2)
        gateway.adapter.may_show.set()
        assert await gateway.replies(1) == ["echo: q"]


@pytest.mark.parametrize("is_at_a_step", [False, True])
async def test_database_outages_do_not_count_as_restarts_of_a_turn(
    serve: Serve, store: Store, is_at_a_step: bool
) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        await gateway.ask("hello")
        for outage in range(MAX_RESTARTS + 1):
            begun, may_answer = asyncio.Event(), asyncio.Event()

            async def ask_for_a_tool(
                _request: ModelRequest,
                _on_text: Callable[[str], None],
                begun: asyncio.Event = begun,
                may: asyncio.Event = may_answer,
            ) -> ModelReply:
                begun.set()
                await may.wait()
                return calls("look", text="x" * 200_000)

            gateway.model.script.append(ask_for_a_tool)
            if not outage:
                await gateway.say("q")
            await begun.wait()
            await store.write(set_max_pages, 0)
            if is_at_a_step:
                may_answer.set()
                await eventually(lambda: not gateway.lanes.active, "its lane waits for the database")
            seats.refusals = 1
            seats.opened[-1].lost.set()
            await eventually(lambda: seats.opened[-1].is_closed, "it is given up")
            await settled()  # the time in which it cannot say what it has left
            await store.write(set_max_pages, None)
        assert await gateway.replies(2) == ["echo: hello", "echo: q"]
        assert await gateway.rows("SELECT state, restarts FROM turns WHERE id = 2") == [("finished", 0)]


async def test_a_turn_stored_here_and_started_elsewhere_is_no_restart(serve: Serve, store: Store) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        chat_id = await chat_of(gateway)
        seats.opened[0].taken.add(chat_lock(chat_id))
        await gateway.say("q")
        turn = await store.read(find_open_turn, chat_id)
        assert turn is not None
        await store.write(take_up, turn, True)
        await gateway.until_rows("SELECT 1 FROM turns WHERE state = 'running' AND epoch = 2 AND restarts = 0")


async def test_a_turn_that_already_ended_elsewhere_calls_no_model(
    serve: Serve, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats, write = Seats(), store.write

    async def write_and_stand_still(fn: Callable[..., Any], *args: Any) -> Any:
        result = await write(fn, *args)
        if fn is admit_all:  # a process that is stopped here hears of it much later
            [(chat_id,)] = await gateway.rows("SELECT chat_id FROM turns WHERE state = 'running'")
            turn = await store.read(find_open_turn, chat_id)
            await write(finish, await write(take_up, turn, False), "from elsewhere")
            await asyncio.sleep(1.5 * MIN_TURN_SECONDS)
        return result

    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        chat_id = await chat_of(gateway)
        monkeypatch.setattr(store, "write", write_and_stand_still)
        await gateway.say("q")
        gateway.delivery.wake(chat_id)  # the other node's hint
        assert await gateway.replies(2) == ["echo: hello", "from elsewhere"]
        await gateway.quiet()
        assert len(gateway.model.requests) == 1


async def test_a_seat_can_be_lost_at_the_moment_work_starts(serve: Serve, store: Store) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        chat_id = await chat_of(gateway)
        await store.write(receive, chat_id, "from elsewhere")
        gateway.lanes.wake(chat_id)
        await gateway.lanes.abandon()
        gateway.delivery.wake(chat_id)
        await gateway.delivery.abandon()
        seats.opened[0].lost.set()
        assert len(await gateway.replies(2)) == 2


async def chat_of(gateway: TestGateway) -> ChatId:
    """Return a chat with one answered message."""
    await gateway.ask("hello")
    [(chat_id,)] = await gateway.rows("SELECT id FROM chats")
    return ChatId(chat_id)


async def test_a_chat_of_another_node_is_not_touched_until_it_is_free(serve: Serve) -> None:
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        chat_id = await chat_of(gateway)
        seats.opened[0].taken.add(chat_lock(chat_id))
        await gateway.say("are you there?")
        await eventually(lambda: not gateway.lanes._lanes, "its lane goes")
        assert len(gateway.adapter.texts(DIRECT)) == 1
        seats.opened[0].taken.clear()
        assert len(await gateway.replies(2)) == 2


async def test_the_chat_that_waited_longest_gets_the_free_slot(serve: Serve) -> None:
    settings = {"max_turns": 1, "merge_seconds": 0}
    async with serve(is_started=False, sessions=settings) as gateway, node_of(gateway, Seats()):
        hang = await hanging(gateway, "first", chat=chat(9))
        await gateway.say("first again", chat=chat(9))
        for number in (3, 2, 4):
            await gateway.say(f"from {number}", chat=chat(number))
        late = asyncio.create_task(gateway.say("late", chat=chat(1)))
        hang.release()
        await late
        await gateway.replies(2, chat(9))
        await gateway.replies(1, chat(1))
        assert gateway.model.heard[:4] == [["first"], ["from 3"], ["from 2"], ["from 4"]]


async def test_a_file_waits_for_the_owner_of_its_account(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, can_fetch = list[bool](), LockedChats.can_fetch

    async def noted(ownership: LockedChats, chat_id: ChatId) -> bool:
        answers.append(await can_fetch(ownership, chat_id))
        return answers[-1]

    monkeypatch.setattr(LockedChats, "can_fetch", noted)
    plan = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref="1", name="plan.txt", mime="text/plain")
    async with serve(is_started=False) as gateway, node_of(gateway, Seats()):
        await chat_of(gateway)
        gateway.adapter.files["1"] = b"step one"
        account = gateway.adapters.supervised[DIRECT.account]
        account.ownership, claim = None, account.ownership
        await gateway.say("read this", files=[plan])
        await eventually(lambda: answers and not gateway.lanes._lanes, "its lane goes")
        assert (await gateway.inbox_states(), gateway.adapter.downloads) == (["done", "new"], [])
        assert not any(answers)
        account.ownership = claim
        assert await gateway.replies(2) == ["echo: hello", "echo: read this"]
        assert gateway.adapter.downloads == ["1"]


async def test_a_node_without_accounts_does_not_look_for_unsent_rows(gateway: TestGateway) -> None:
    chat_id = await chat_of(gateway)
    await eventually(lambda: not gateway.delivery._wakes, "its sender goes")
    gateway.adapters.is_shared = True
    gateway.adapters.supervised[DIRECT.account].ownership = None
    gateway.delivery.wake(chat_id)
    assert not gateway.delivery._wakes
    gateway.adapters.is_shared = False  # what is owed is looked at, and its adapter missed, where it is alone
    gateway.delivery.wake(chat_id)
    assert gateway.delivery._wakes


async def test_a_busy_node_leaves_new_messages_to_their_hints(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cluster.node.SWEEP_SECONDS", 600.0)
    seats = Seats()
    async with serve(is_started=False, sessions={"max_turns": 8}) as gateway, node_of(gateway, seats):
        other = replace(DIRECT, chat_ref="77")
        await gateway.ask("hello", chat=other)
        await hanging(gateway, "one that takes long")
        await gateway.say("another", chat=other)
        assert await gateway.inbox_states() == ["done", "claimed", "new"]
        ownership = gateway.lanes._ownership
        assert isinstance(ownership, LockedChats)
        assert (bool(ownership._queue), len(gateway.lanes.served)) == (False, 1), "an idler node may take it up"
        [(chat_id,)] = await gateway.rows("SELECT id FROM chats WHERE chat_ref = '77'")
        seats.opened[0].on_hint(Hint(HintKind.WORK, chat_id))
        assert await gateway.replies(2, chat=other) == ["echo: hello", "echo: another"]


async def test_a_message_stored_by_another_node_is_answered_after_its_hint(
    serve: Serve, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.node.SWEEP_SECONDS", 600.0)
    seats = Seats()
    async with serve(is_started=False) as gateway, node_of(gateway, seats):
        chat_id = await chat_of(gateway)
        await store.write(receive, chat_id, "from elsewhere")
        seats.opened[0].on_hint(Hint(HintKind.WORK, chat_id))
        assert await gateway.replies(2) == ["echo: hello", "echo: from elsewhere"]
