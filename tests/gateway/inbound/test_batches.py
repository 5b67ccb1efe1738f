"""Batches of events share a commit, keep their order, and stop at the first event that cannot be stored."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.inbound.intake import MAX_WAITING
from hermes_state.chats import ensure_chat
from hermes_state.errors import StoreUnavailable
from hermes_state.sessions import ensure_active
from hermes_state.store import sql
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import AttachmentKind, ChatKey, Cursor, InboundMessage, IncomingAttachment, Millis
from platforms.base import ReceivedEvent
from tests.databases import open_store
from tests.gateway.helpers import BOB, DIRECT, GROUP, PLATFORM, Hang, Serve, TestGateway, serving
from tests.hermes_state.helpers import set_max_pages


def chat(number: int) -> ChatKey:
    return ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref=str(100 + number))


async def deliver(gateway: TestGateway, received: Sequence[ReceivedEvent]) -> list[int]:
    """Deliver all events like an adapter. Return the lengths of the batches."""
    lengths: list[int] = []
    while rest := received[sum(lengths) :]:
        lengths.append(await gateway.intake.accept_batch(rest))
    return lengths


async def texts(gateway: TestGateway) -> list[str]:
    rows = await gateway.rows("SELECT text FROM messages WHERE origin = 'human' ORDER BY inbox_id")
    return [text for (text,) in rows]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Functions of every later commit."""
    seen: list[list[str]] = []
    real = sql.run_batch

    def noted(db, requests, rules):  # type: ignore[no-untyped-def]
        real(db, requests, rules)
        seen.append([request.fn.__name__ for request in requests])

    for engine in ("sqlite", "postgres"):
        monkeypatch.setattr(f"hermes_state.engines.{engine}.store.run_batch", noted)
    return seen


async def test_an_empty_batch_returns_at_once(serve: Serve) -> None:
    async with serve() as gateway, asyncio.timeout(5):
        assert await gateway.intake.accept_batch([]) == 0


async def test_a_batch_is_stored_in_one_commit_and_in_order(gateway: TestGateway, commits: list[list[str]]) -> None:
    messages = [gateway.message(f"m{number}", chat=chat(number % 7)) for number in range(40)]
    commits.clear()
    assert await deliver(gateway, [ReceivedEvent(message) for message in messages]) == [40]
    assert commits[0] == ["admit_all"]
    assert [names for names in commits if "admit_all" in names or "admit" in names] == [["admit_all"]]
    refs = await gateway.rows("SELECT event_ref FROM inbox ORDER BY id")
    assert [ref for (ref,) in refs] == [message.event_ref for message in messages]
    for number in range(7):
        await gateway.quiet(chat(number))
    assert await gateway.inbox_states() == ["done"] * 40


async def test_a_batch_starts_no_more_turns_than_allowed(serve: Serve, store: Store) -> None:
    hangs = [Hang() for _ in range(2)]
    async with serve(sessions={"max_turns": 2}) as gateway:
        await store.write(open_conversations, [gateway.message("", chat=chat(number)) for number in range(5)])
        gateway.model.script += hangs
        await deliver(gateway, [ReceivedEvent(gateway.message("hi", chat=chat(number))) for number in range(5)])
        for hang in hangs:
            await hang.begun.wait()
        assert await gateway.inbox_states() == ["claimed"] * 2 + ["new"] * 3
        for hang in hangs:
            hang.release()
        for number in range(5):
            assert len(await gateway.replies(1, chat(number))) == 1


def open_conversations(db: Connection, messages: Sequence[InboundMessage]) -> None:
    """Chats in which a message can start its turn at once."""
    for message in messages:
        ensure_active(db, ensure_chat(db, message.chat, message.chat_kind, "", Millis(1)), Millis(1))


async def test_cursors_of_ignored_messages_move_in_the_same_commit(
    gateway: TestGateway, commits: list[list[str]]
) -> None:
    commits.clear()
    received = []
    for number in range(10):
        moved = Cursor(platform=PLATFORM, account=PLATFORM, channel_ref=f"c{number % 2}", seen_ref=str(number))
        overheard = gateway.message("talk", chat=GROUP, is_addressed=False) if number % 3 else None
        received.append(ReceivedEvent(gateway.message("you there?", chat=GROUP) if number == 5 else overheard, moved))
    assert await deliver(gateway, received) == [10]
    assert commits[0] == ["admit_all"]
    assert not any("advance_cursor" in names for names in commits)
    assert await gateway.intake.load_cursors(PLATFORM, PLATFORM) == {"c0": "8", "c1": "9"}
    await gateway.quiet(GROUP)
    assert len(await gateway.inbox_states()) == 1


async def test_events_without_a_row_need_no_commit(gateway: TestGateway, commits: list[list[str]]) -> None:
    commits.clear()
    overheard = [gateway.message("talk", chat=GROUP, is_addressed=False) for _ in range(10)]
    assert await deliver(gateway, [ReceivedEvent(message) for message in overheard]) == [10]
    assert commits == []


async def test_a_command_among_messages_keeps_its_place(serve: Serve) -> None:
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        lines = ("one", "two", "/new", "three", "/queue four", "five", "six")
        assert await deliver(gateway, [ReceivedEvent(gateway.message(line)) for line in lines]) == [2, 1, 1, 1, 2]
        await gateway.quiet()
        assert await texts(gateway) == ["one", "two", "three", "four", "five", "six"]
        [(before, after)] = await gateway.rows(
            """SELECT (SELECT count(*) FROM messages WHERE origin = 'human' AND session_id = min(s.id)),
                (SELECT count(*) FROM messages WHERE origin = 'human' AND session_id = max(s.id)) FROM sessions s"""
        )
        assert (before, after) == (2, 4), "what was written before a /new belongs to the old conversation"


async def test_an_edit_finds_the_message_that_came_with_it(serve: Serve) -> None:
    async with serve(sessions={"groups": "per_user"}, is_started=False) as gateway:
        message = gateway.message("wrnog", chat=GROUP, sender=BOB)
        await deliver(gateway, [ReceivedEvent(message), ReceivedEvent(gateway.message("next", chat=GROUP, sender=BOB))])
        await gateway.edit(message, "right")
        rows = await gateway.rows("SELECT payload FROM inbox ORDER BY id")
        assert "right" in str(rows[0])
        assert len(rows) == 2


async def test_a_database_that_fills_up_stores_only_the_events_before(serve: Serve, store: Store) -> None:
    async with serve(is_started=False) as gateway:
        lines = ["first", "second", "/new", *("x" * 20_000 for _ in range(5)), "last"]
        received = [ReceivedEvent(gateway.message(line, chat=chat(number))) for number, line in enumerate(lines)]
        done = await gateway.intake.accept_batch(received)
        done += await gateway.intake.accept_batch(received[done:])
        assert done == 3
        await store.write(set_max_pages, 1)
        with pytest.raises(StoreUnavailable):
            await gateway.intake.accept_batch(received[done:])
        assert len(await gateway.inbox_states()) == 3
        await store.write(set_max_pages, None)
        assert await deliver(gateway, received[done:]) == [6]
        refs = await gateway.rows("SELECT event_ref FROM inbox ORDER BY id")
        assert [ref for (ref,) in refs] == [str(one.event.event_ref) for one in received if one.event is not None]


async def test_an_event_that_cannot_be_stored_is_isolated(gateway: TestGateway) -> None:
    messages = [gateway.message(f"m{number}", chat=chat(number)) for number in range(9)]
    poison = replace(messages[4], message_ref="\ud800")
    received = [ReceivedEvent(message) for message in (*messages[:4], poison, *messages[5:])]
    done = 0

    async def take_all() -> None:
        nonlocal done
        while done < len(received):
            done += await gateway.intake.accept_batch(received[done:])

    with pytest.raises(UnicodeEncodeError):
        await take_all()
    assert done == 4
    assert len(await gateway.inbox_states()) == 4
    assert await deliver(gateway, received[done + 1 :]) == [4]


async def test_a_message_in_a_batch_can_interrupt_the_turn_of_an_earlier_one(serve: Serve) -> None:
    async with serve(sessions={"busy_mode": "interrupt"}) as gateway:
        lines = [("a", DIRECT), ("b", GROUP), ("c", DIRECT)]
        assert await deliver(gateway, [ReceivedEvent(gateway.message(line, chat=key)) for line, key in lines]) == [2, 1]
        await gateway.quiet()
        await gateway.quiet(GROUP)


async def test_a_flood_in_one_batch_fills_the_queue_and_the_rest_is_refused_once(serve: Serve) -> None:
    async with serve(sessions={"messages_per_minute": 0}, is_started=False) as gateway:
        flood = [ReceivedEvent(gateway.message(f"m{number}")) for number in range(MAX_WAITING + 3)]
        assert await deliver(gateway, flood) == [100, 3]
        assert await gateway.inbox_states() == ["new"] * MAX_WAITING + ["dropped"] * 3
        assert await gateway.rows("SELECT count(*) FROM outbox") == [(1,)]


@pytest.mark.parametrize("seed", range(8))
async def test_batches_store_the_same_rows_as_single_events(serve: Serve, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    limits = {"messages_per_minute": 12}
    async with serve(sessions=limits, is_started=False) as gateway:
        script: list[InboundMessage] = []
        for _ in range(60):
            line = dice.choice(("hello", "hello", "hello", "/new", "/queue later", "/nonsense"))
            key = dice.choice((DIRECT, GROUP))
            file = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref="f", name="f.txt")
            message = gateway.message(line, chat=key, files=[file] if dice.random() < 0.1 else ())
            script.append(replace(message, is_addressed=key is DIRECT or dice.random() < 0.6))
        await deliver(gateway, [ReceivedEvent(message) for message in script])
        state = "CASE kind WHEN 'command' THEN '' ELSE state END"  # commands are run meanwhile
        query = f"SELECT event_ref, chat_id, kind, mode, {state}, sent_at FROM inbox ORDER BY id"
        together = await gateway.rows(query)
    await asyncio.to_thread((tmp_path / "again").mkdir)
    again = await open_store(tmp_path / "again" / "state.db")
    try:
        async with serving(again, tmp_path / "again", sessions=limits, is_started=False) as other:
            for message in script:
                await other.intake.accept(message)
            assert await other.rows(query) == together
            assert len(together) > 15
    finally:
        await again.close()


async def test_a_batch_in_an_idle_chat_is_one_turn(gateway: TestGateway) -> None:
    assert await gateway.ask("before") == "echo: before"
    now = gateway.clock.now()
    await deliver(gateway, [ReceivedEvent(gateway.message(f"m{number}", at=now)) for number in range(3)])
    assert await gateway.replies(2) == ["echo: before", "echo: m0 | m1 | m2"]
