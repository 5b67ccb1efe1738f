"""Delivery: every reply arrives once, complete and in order, whatever the platform does."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Connection

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.model.base import FinishReason, ModelReply, ModelRequest
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import RENDERED_AT_ONCE
from hermes_state import outbox
from hermes_state.aio import Backoff
from hermes_state.chats import ensure_chat, load_chat
from hermes_state.errors import (
    ChatMoved,
    ChatUnreachable,
    MessageRejected,
    PlatformUnavailable,
    RateLimited,
    SendAmbiguous,
    StoreUnavailable,
)
from hermes_state.outbox import OutboxKind, OutboxRow, OutboxState, RenderedReply, Reply, take_account
from hermes_state.store.writer import Store
from hermes_state.values import Button, ChatId, ChatKey, ChatKind, OutboundPart, TurnId
from platforms.base import AdapterState
from tests.gateway.helpers import (
    ANN,
    DIRECT,
    GROUP,
    PLATFORM,
    Hang,
    MemoryAdapter,
    Serve,
    TestGateway,
    eventually,
    settled,
)
from tests.gateway.turns.test_previews import TURN as RUNNING
from tests.hermes_state.helpers import one_batch


async def owe(
    gateway: TestGateway, text: str, key: str = "k", buttons: tuple[Button, ...] = (), to: ChatKey = DIRECT
) -> ChatId:
    """Store a reply for a chat and wake its delivery."""
    now = gateway.clock.now()
    kind = ChatKind.THREAD if to.thread_ref else ChatKind.DIRECT
    chat = await gateway.store.write(ensure_chat, to, kind, None, now)
    reply = Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown=text, dedupe_key=key, buttons=buttons)
    await gateway.store.write(outbox.enqueue, reply, now)
    gateway.delivery.wake(chat)
    return chat


def events(logs: Sequence[Mapping[str, object]]) -> list[object]:
    """Return the log events without details."""
    return [log["event"] for log in logs]


async def test_parts_arrive_in_order_with_keys_of_their_own(serve: Serve) -> None:
    async with serve(adapter=MemoryAdapter(max_part_units=5)) as gateway:
        await owe(gateway, "one__two__three")
        assert await gateway.replies(3) == ["one__", "two__", "three"]
        keys = [request.key for request in gateway.adapter.requests]
        assert len(set(keys)) == 3
        assert all(len(key) <= 25 and key.isascii() for key in keys)


class BrokenRenderer(MemoryAdapter):
    """Adapter that fails to render text with a brace."""

    def render(self, text: str) -> Sequence[OutboundPart]:
        if "{" in text:
            raise RecursionError("too deep")
        return super().render(text)


@pytest.mark.parametrize("size", [20, 10_000])
async def test_an_answer_that_cannot_be_rendered_arrives_as_it_was_written(serve: Serve, size: int) -> None:
    async with serve(adapter=BrokenRenderer(max_part_units=1_000)) as gateway:
        await owe(gateway, "{" * size, "broken")
        await owe(gateway, "next", "next")
        await eventually(lambda: "next" in gateway.adapter.texts(), "what follows is not held up")
        assert "".join(gateway.adapter.texts()) == "{" * size + "next"


class ThreadNotingAdapter(MemoryAdapter):
    """Adapter that records the rendering thread."""

    def render(self, text: str) -> Sequence[OutboundPart]:
        self.rendered_in = threading.current_thread()
        return super().render(text)


async def test_a_long_answer_is_rendered_in_a_thread(serve: Serve) -> None:
    adapter = ThreadNotingAdapter()
    async with serve(adapter=adapter) as gateway:
        await owe(gateway, "x" * (RENDERED_AT_ONCE + 1))
        await gateway.replies(1)
        assert adapter.rendered_in is not threading.current_thread()


async def test_replies_stored_meanwhile_do_not_come_between_the_parts(serve: Serve) -> None:
    async with serve(adapter=MemoryAdapter(max_part_units=3)) as gateway:
        gateway.adapter.may_send.clear()
        await owe(gateway, "aaabbbccc", "long")
        await eventually(lambda: gateway.adapter.requests, "the first part is on its way")
        await owe(gateway, "zzz", "short")
        gateway.adapter.may_send.set()
        assert await gateway.replies(4) == ["aaa", "bbb", "ccc", "zzz"]


async def test_the_last_part_has_the_buttons(serve: Serve) -> None:
    button = Button(label="Yes", command="/approve")
    async with serve(adapter=MemoryAdapter(max_part_units=3)) as gateway:
        await owe(gateway, "aaabbb", buttons=(button,))
        await gateway.replies(2)
        assert [request.part.buttons for request in gateway.adapter.requests] == [(), (button,)]


async def test_a_platform_without_buttons_gets_none(serve: Serve) -> None:
    async with serve(adapter=MemoryAdapter(has_buttons=False)) as gateway:
        await owe(gateway, "aaa", buttons=(Button(label="Yes", command="/approve"),))
        await gateway.replies(1)
        assert gateway.adapter.requests[0].part.buttons == ()


@pytest.mark.parametrize(
    ("troubles", "text", "repeats"),
    [
        ([PlatformUnavailable("down"), PlatformUnavailable("down")], "hello", [False, False, False]),
        ([SendAmbiguous("broke"), PlatformUnavailable("down")], "hello", [False, True, True]),
        ([KeyError("bug of the SDK")], "hello", [False, True]),
        ([asyncio.CancelledError()], "hello", [False, True]),
        ([MessageRejected("cannot parse")], "plain hello", [False, False]),
    ],
    ids=["without effect", "ambiguous", "bug", "closed connection", "rejected markup"],
)
async def test_a_failed_attempt_is_repeated_with_the_same_part_and_key_and_marked_if_it_may_have_arrived(
    gateway: TestGateway, monkeypatch: pytest.MonkeyPatch, troubles: list[BaseException], text: str, repeats: list[bool]
) -> None:
    monkeypatch.setattr("gateway.outbound.delivery.RETRY_BACKOFF", Backoff(0.05, 0.1))
    gateway.adapter.troubles.extend(troubles)
    await owe(gateway, "hello")
    assert await gateway.replies(1) == [text]
    first, *others = gateway.adapter.requests
    assert [request.is_repeat for request in (first, *others)] == repeats
    assert all(
        (one.key, one.part, one.first_tried_at) == (first.key, first.part, first.first_tried_at) for one in others
    )


async def test_an_answer_whose_first_request_fails_is_sent_again_with_the_same_key(gateway: TestGateway) -> None:
    gateway.adapter.troubles.append(PlatformUnavailable("away"))
    assert await gateway.ask("q") == "echo: q"
    first, second = gateway.adapter.requests
    assert (first.key, first.is_repeat) == (second.key, second.is_repeat)
    assert await gateway.rows("SELECT state, attempts FROM outbox") == [("sent", 2)]


async def test_an_answer_stored_for_a_cancelled_turn_is_not_marked_as_a_repeat(serve: Serve, store: Store) -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def answer(request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        asked.set()
        await told.wait()
        return ModelReply(text="finally", finish=FinishReason.STOP, usage=None)

    async with serve(adapter=MemoryAdapter(has_previews=False)) as gateway:
        gateway.model.script.append(answer)
        await gateway.say("q")
        await asked.wait()
        async with one_batch(store):
            told.set()
            await settled()  # the end of the turn waits for the writer now
            stopping = gateway.lanes.stop_from_memory(DIRECT, ANN.ref, is_admin=False)
            assert stopping is not None
            stopping.settle_stop()
            await settled()
        assert await gateway.replies(1) == ["finally"]
        assert [state for state, _ in await gateway.turns_of()] == ["finished"]
        [request] = gateway.adapter.requests
        assert not request.is_repeat, "nobody has sent it before"


async def test_content_refused_twice_is_given_up_and_later_replies_continue(gateway: TestGateway) -> None:
    gateway.adapter.troubles.extend([MessageRejected("no"), MessageRejected("no")])
    await owe(gateway, "bad", "bad")
    await owe(gateway, "good", "good")
    assert await gateway.replies(1) == ["good"]
    assert await gateway.rows("SELECT state FROM outbox ORDER BY id") == [("dead",), ("sent",)]


async def test_an_unreachable_chat_is_not_tried_again(gateway: TestGateway) -> None:
    gateway.adapter.troubles.append(ChatUnreachable("blocked"))
    await owe(gateway, "hello")
    await gateway.until_rows("SELECT 1 FROM outbox WHERE state = 'dead'")
    await settled()
    assert len(gateway.adapter.requests) == 1


async def test_a_reply_follows_its_chat_to_the_new_id(gateway: TestGateway) -> None:
    gateway.adapter.troubles.append(ChatMoved("-200"))
    chat = await owe(gateway, "hello")
    moved = (await gateway.store.read(load_chat, chat)).key
    await eventually(lambda: len(gateway.adapter.requests) == 2, "a second attempt")
    moved = (await gateway.store.read(load_chat, chat)).key
    assert moved.chat_ref == "-200"
    assert await gateway.replies(1, moved) == ["hello"]


async def test_a_reply_follows_its_chat_into_an_existing_chat(gateway: TestGateway) -> None:
    await gateway.ask("hi", chat=GROUP)
    gateway.adapter.troubles.append(ChatMoved(GROUP.chat_ref))
    await owe(gateway, "hello")
    assert await gateway.replies(2, GROUP) == ["echo: hi", "hello"]


async def test_a_moved_reply_waits_for_the_request_in_flight(gateway: TestGateway) -> None:
    await gateway.ask("hi", chat=GROUP)
    gateway.adapter.may_send.clear()
    await owe(gateway, "hello")
    await eventually(lambda: len(gateway.adapter.requests) == 2, "the request is on its way")
    await gateway.intake.move_chat(PLATFORM, DIRECT.account, DIRECT.chat_ref, GROUP.chat_ref)
    await settled()
    gateway.adapter.may_send.set()
    await gateway.quiet(GROUP)
    assert [request.part.text for request in gateway.adapter.requests] == ["echo: hi", "hello"]
    assert await gateway.rows("SELECT state FROM outbox") == [("sent",)] * 2


async def test_a_moved_reply_is_sent_after_its_old_request_failed(gateway: TestGateway) -> None:
    await gateway.ask("hi", chat=GROUP)
    gateway.adapter.may_send.clear()
    gateway.adapter.troubles.append(PlatformUnavailable("the group is being moved"))
    await owe(gateway, "hello")
    await eventually(lambda: len(gateway.adapter.requests) == 2, "the request is on its way")
    await gateway.intake.move_chat(PLATFORM, DIRECT.account, DIRECT.chat_ref, GROUP.chat_ref)
    await settled()
    gateway.adapter.may_send.set()
    assert await gateway.replies(2, GROUP) == ["echo: hi", "hello"]
    assert [request.is_repeat for request in gateway.adapter.requests] == [False, False, False]


async def test_without_its_platform_a_reply_waits_for_the_next_start(serve: Serve) -> None:
    async with serve() as gateway:
        gateway.delivery.adapters = AdapterRegistry({})
        await owe(gateway, "hello")
        await eventually(lambda: not gateway.delivery._wakes, "delivery gives up for now")
        assert gateway.adapter.requests == []
    async with serve() as again:
        assert await again.replies(1) == ["hello"]


async def test_a_later_part_in_flight_at_a_crash_is_marked_as_a_repeat(serve: Serve) -> None:
    async with serve(adapter=MemoryAdapter(max_part_units=3)) as gateway:
        gateway.adapter.may_send.clear()
        await owe(gateway, "aaabbbccc")
        await eventually(lambda: gateway.adapter.requests, "the first part is on its way")
        gateway.adapter.may_send.set()
        gateway.adapter.may_send.clear()
        await eventually(lambda: len(gateway.adapter.requests) == 2, "the second part is on its way")
    async with serve(adapter=MemoryAdapter(max_part_units=100)) as again:
        assert await again.replies(2) == ["bbb", "ccc"]
        assert [request.is_repeat for request in again.adapter.requests] == [True, False]
        assert again.adapter.requests[0].key == gateway.adapter.requests[1].key


async def test_a_late_refusal_to_a_former_owner_gives_up_nothing(gateway: TestGateway) -> None:
    gateway.adapter.may_send.clear()
    gateway.adapter.troubles.append(ChatUnreachable("kicked"))
    await owe(gateway, "hello")
    await eventually(lambda: gateway.adapter.requests, "the request is on its way")
    await gateway.store.write(take_account, DIRECT.account)  # another node, which has noticed before this one
    with capture_logs() as logs:
        gateway.adapter.may_send.set()
        await eventually(lambda: "delivery.delayed" in events(logs), "it is refused")
    assert await gateway.rows("SELECT state FROM outbox") == [("ambiguous",)]


async def test_a_node_that_lost_its_account_starts_no_sends(gateway: TestGateway) -> None:
    await gateway.store.write(take_account, DIRECT.account)
    with capture_logs() as logs:
        await owe(gateway, "hello")
        await eventually(lambda: "delivery.delayed" in events(logs), "it is refused")
        await settled()
    assert (events(logs).count("delivery.delayed"), gateway.adapter.requests) == (1, [])
    assert await gateway.rows("SELECT state, attempts FROM outbox") == [("pending", 0)]


async def owed_and_begun(gateway: TestGateway) -> ChatId:
    """Store a reply whose sender was killed between the start of the request and its outcome."""
    claim = gateway.adapters.ownership_of(DIRECT)
    assert claim is not None
    gateway.adapters.supervised[DIRECT.account].ownership = None
    chat = await owe(gateway, "hello")
    await eventually(lambda: not gateway.delivery._wakes, "this node leaves the reply to the owner")
    [row] = await gateway.store.read(outbox.load_open, chat)
    parts = [OutboundPart(text="hello", plain="hello")]
    assert await gateway.store.write(outbox.begin_send, row.id, parts, claim, gateway.clock.now()) is not None
    return chat


async def test_a_row_read_before_the_account_was_taken_is_sent_as_a_repeat(gateway: TestGateway) -> None:
    chat = await owed_and_begun(gateway)

    async def take_over(_: ChatId) -> Mapping[TurnId, str]:
        gateway.delivery.close_remote = None
        await gateway.delivery.start(DIRECT.account)
        return {}

    gateway.delivery.close_remote = take_over  # runs after the row was read and before its owner is looked up
    gateway.delivery.wake(chat)
    assert await gateway.replies(1) == ["hello"]
    assert [request.is_repeat for request in gateway.adapter.requests] == [True]


class LostAnswer:
    """Store whose first `begin_send` commits but reports a failure."""

    def __init__(self, store: Store) -> None:
        self.store, self.is_lost = store, False

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    async def write(self, fn: Callable[..., object], *args: object) -> object:
        result = await self.store.write(fn, *args)
        if fn is outbox.begin_send and not self.is_lost:
            self.is_lost = True
            raise StoreUnavailable("the connection broke at the commit")
        return result


@pytest.mark.parametrize("was_tried", [True, False], ids=["tried", "new"])
async def test_a_row_stays_a_repeat_if_the_next_attempt_is_not_confirmed(
    serve: Serve, store: Store, was_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.outbound.delivery.STORE_PAUSE_SECONDS", 0.01)
    async with serve() as gateway:
        lost = LostAnswer(store)
        gateway.delivery.store = lost  # type: ignore[assignment]  # as far as one reply goes
        if was_tried:
            await owed_and_begun(gateway)
            await gateway.delivery.start(DIRECT.account)
        else:
            await owe(gateway, "hello")
        assert await gateway.replies(1) == ["hello"]
        assert lost.is_lost
        assert [request.is_repeat for request in gateway.adapter.requests] == [was_tried]


async def test_an_answer_stored_while_the_account_was_lost_is_left_to_the_new_owner(gateway: TestGateway) -> None:
    asked = await gateway.ask("hi")
    [(turn_id,)] = await gateway.rows("SELECT id FROM turns")
    chat = await gateway.store.write(ensure_chat, DIRECT, ChatKind.DIRECT, None, gateway.clock.now())
    turn = msgspec.structs.replace(RUNNING, id=TurnId(turn_id), chat_id=chat)

    async def store_reply(rendered: RenderedReply | None) -> OutboxRow | None:
        reply = Reply(chat_id=chat, markdown="late", dedupe_key="late")
        row = await gateway.store.write(outbox.enqueue, reply, gateway.clock.now(), rendered)
        assert row is not None
        assert row.state is OutboxState.SENDING
        await gateway.delivery.abandon()
        await gateway.store.write(take_account, DIRECT.account)  # another node, while this one stood still
        return row

    with capture_logs() as logs:
        await gateway.delivery.store_and_send(turn, "late", store_reply)
        await eventually(lambda: "delivery.delayed" in events(logs), "it is refused")
    assert gateway.adapter.texts() == [asked]
    assert await gateway.rows("SELECT state FROM outbox WHERE dedupe_key = 'late'") == [("ambiguous",)]


async def test_a_sender_cancelled_before_it_begins_releases_its_chat(gateway: TestGateway) -> None:
    chat = await owe(gateway, "hello")
    assert await gateway.replies(1) == ["hello"]
    asyncio.get_running_loop().call_soon(gateway.delivery.wake, chat)  # a hint, in the moment between
    await gateway.delivery.abandon()
    await gateway.delivery.start(DIRECT.account)
    await owe(gateway, "again", "again")
    assert await gateway.replies(2) == ["hello", "again"]


async def test_only_the_owner_of_an_account_records_its_voice_messages(gateway: TestGateway) -> None:
    recorded: list[OutboxKind] = []
    gateway.delivery.record = lambda row: recorded.append(row.kind)
    one = gateway.adapters.supervised[DIRECT.account]
    claim, one.ownership = one.ownership, None
    now = gateway.clock.now()
    chat = await gateway.store.write(ensure_chat, DIRECT, ChatKind.DIRECT, None, now)
    voice = Reply(chat_id=chat, kind=OutboxKind.VOICE, markdown="", dedupe_key="v")
    await gateway.store.write(outbox.enqueue, voice, now)
    for owner in (None, claim):
        one.ownership = owner
        gateway.delivery.wake(chat)
        await eventually(lambda: not gateway.delivery._wakes, "the sender has ended")
        assert recorded == [OutboxKind.VOICE] * (owner is not None)


class Unreadable:
    """Store that can be written but not read."""

    def __init__(self, store: Store) -> None:
        self.write_with_retry = store.write_with_retry

    async def read(self, *_: object) -> None:
        raise StoreUnavailable("the readers have no connection")


async def test_an_account_whose_unsent_rows_cannot_be_read_is_not_served(serve: Serve, store: Store) -> None:
    async with serve(is_started=False) as gateway:
        gateway.delivery.store = Unreadable(store)  # type: ignore[assignment]  # as far as a start goes
        with pytest.raises(StoreUnavailable):
            await gateway.delivery.start(DIRECT.account)
        assert gateway.adapters.ownership_of(DIRECT) is None, "its lock is given back, and nothing runs"


async def test_flood_control_applies_to_all_topics_of_a_group(gateway: TestGateway) -> None:
    topics = [replace(GROUP, thread_ref=ref) for ref in ("17", "18")]
    gateway.adapter.troubles.append(RateLimited(0.3))
    began = time.monotonic()
    await owe(gateway, "one", "one", to=topics[0])
    await eventually(lambda: gateway.adapter.requests, "the first attempt")
    await owe(gateway, "two", "two", to=topics[1])
    unstored = gateway.message("/status", chat=topics[1])
    assert not await gateway.delivery.send_unstored(unstored, topics[1], "all is well")
    await owe(gateway, "elsewhere")
    assert await gateway.replies(1) == ["elsewhere"]
    assert len(gateway.adapter.requests) == 2, "every request would make the penalty longer"
    assert [await gateway.replies(1, topic) for topic in topics] == [["one"], ["two"]]
    assert time.monotonic() - began >= 0.29
    assert [attempts for (attempts,) in await gateway.rows("SELECT attempts FROM outbox ORDER BY id")] == [2, 1, 1]


async def test_one_chat_in_trouble_does_not_delay_another(gateway: TestGateway) -> None:
    gateway.adapter.troubles.append(RateLimited(60))
    await owe(gateway, "slow")
    await eventually(lambda: gateway.adapter.requests, "the first attempt")
    assert await asyncio.wait_for(gateway.ask("hi", chat=GROUP), 20) == "echo: hi"


async def test_closing_sends_due_replies_and_leaves_the_rest_for_later(serve: Serve) -> None:
    async with serve() as gateway:
        await owe(gateway, "hello")
        await gateway.delivery.flush(5.0)
        assert gateway.adapter.texts() == ["hello"]
    async with serve() as gateway:
        gateway.adapter.troubles.extend([PlatformUnavailable("down")] * 50)
        await owe(gateway, "later", "later")
        await eventually(lambda: gateway.adapter.requests, "an attempt")
        await asyncio.wait_for(gateway.delivery.flush(0.1), 10)
        assert not gateway.delivery._tasks
        await owe(gateway, "too late", "too late")
        await settled()
        assert not gateway.delivery._tasks
    async with serve() as again:
        assert await again.replies(2) == ["later", "too late"]


async def test_closing_does_not_wait_for_the_address_of_a_webhook(serve: Serve) -> None:
    async with serve() as gateway:
        gateway.adapter.troubles.extend([PlatformUnavailable("down")] * 50)
        await owe(gateway, "event")
        await eventually(lambda: gateway.adapter.requests, "an attempt")
        [(chat_id,)] = await gateway.rows("SELECT chat_id FROM outbox")
        gateway.delivery.note_hook(chat_id)
        with capture_logs() as said:
            await asyncio.wait_for(gateway.delivery.flush(60.0), 10)
        assert "delivery.flush_timed_out" not in [one["event"] for one in said]


async def test_closing_waits_for_a_request_in_flight(gateway: TestGateway) -> None:
    gateway.adapter.may_send.clear()
    await owe(gateway, "hello")
    await eventually(lambda: gateway.adapter.requests, "the request")
    closing = asyncio.create_task(gateway.delivery.flush(0.0))
    await settled(0.02)
    gateway.adapter.may_send.set()
    await closing
    assert await gateway.rows("SELECT state FROM outbox") == [("sent",)]


async def test_closing_without_unsent_rows_logs_nothing(gateway: TestGateway) -> None:
    with capture_logs() as said:
        await gateway.delivery.flush(0.0)
    assert said == []


@pytest.mark.parametrize("is_effective", [False, True])
async def test_a_placeholder_is_replaced_by_a_lost_answer_without_a_second_copy(
    gateway: TestGateway, is_effective: bool
) -> None:
    hang = Hang(says="growing")
    gateway.model.script.append(hang)
    await gateway.say("q")
    await eventually(lambda: gateway.adapter.texts() == ["growing"], "a placeholder")
    gateway.adapter.is_effective_when_broken = is_effective
    gateway.adapter.troubles.append(SendAmbiguous("lost"))
    hang.release()
    await gateway.quiet()
    assert gateway.adapter.texts() == ["finally"]


async def test_no_attempt_before_the_platform_is_connected(serve: Serve) -> None:
    adapter = MemoryAdapter()
    adapter.state = AdapterState.STARTING
    async with serve(adapter=adapter) as gateway:
        chat = await owe(gateway, "hello")
        await asyncio.sleep(0.3)  # longer than delivery pauses before it looks again
        assert await gateway.store.read(attempts_of, chat) == [0]
        adapter.state = AdapterState.RUNNING
        assert await gateway.replies(1) == ["hello"]
        assert await gateway.store.read(attempts_of, chat) == [1]


def attempts_of(db: Connection, chat_id: ChatId) -> list[int]:
    return [row[0] for row in db.execute("SELECT attempts FROM outbox WHERE chat_id = ?", (chat_id,))]
