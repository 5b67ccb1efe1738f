import asyncio
import sqlite3
import threading

from hermes_state.admin.retention import SLICE_ROWS, checkpoint, load_old, maintain, merge_index, remove_expired
from hermes_state.sessions import reset
from hermes_state.store.sql import Connection, save_note
from hermes_state.store.writer import Store
from hermes_state.values import Millis
from tests.databases import sqlite_only
from tests.hermes_state.helpers import add_all_words, check_index
from tests.hermes_state.rows import exchange, make_chat

MAX_AGE_MILLIS = 30 * 24 * 3_600_000
NOW = Millis(10 * MAX_AGE_MILLIS)
OLD = Millis(NOW - MAX_AGE_MILLIS - 1)
RECENT = Millis(NOW - MAX_AGE_MILLIS + 1)


def add_inbox(db: sqlite3.Connection, key: str, state: str, settled_at: int | None) -> None:
    db.execute(
        """INSERT INTO inbox (platform, account, event_ref, chat_id, kind, sender_ref, sender_name, message_ref,
          payload, state, sent_at, received_at, settled_at)
        VALUES ('local', 'local', ?, 1, 'message', 'local:a', 'A', ?, '', ?, 0, 0, ?)""",
        (key, key, state, settled_at),
    )


def add_outbox(db: sqlite3.Connection, key: str, state: str, settled_at: int | None) -> None:
    db.execute(
        """INSERT INTO outbox (chat_id, dedupe_key, kind, payload, state, next_at, created_at, settled_at)
        VALUES (1, ?, 'final', '', ?, 0, 0, ?)""",
        (key, state, settled_at),
    )


def add_pairing(db: sqlite3.Connection, code: str, state: str, expires_at: int) -> None:
    db.execute(
        """INSERT INTO pairings (code_hash, platform, user_ref, display_name, state, expires_at, created_at)
        VALUES (?, 'local', 'local:a', 'A', ?, ?, 0)""",
        (code, state, expires_at),
    )


def keys(db: sqlite3.Connection, table: str, column: str) -> set[str]:
    return {row[0] for row in db.execute(f"SELECT {column} FROM {table}")}


def add_schedule(db: sqlite3.Connection, state: str, next_at: int | None, fired_at: int) -> None:
    db.execute(
        """INSERT INTO schedules (chat_id, creator_ref, creator_name, spec, zone, text, created_at, state,
        next_at, fired_at) VALUES (1, 'telegram:1', 'Ann', '@daily', 'UTC', 'look', 1, ?, ?, ?)""",
        (state, next_at, fired_at),
    )


async def test_only_old_settled_rows_are_removed(store: Store) -> None:
    def fill(db: sqlite3.Connection) -> None:
        make_chat(db)
        for row in (("old", "done", OLD), ("recent", "done", RECENT), ("waiting", "new", None)):
            add_inbox(db, *row)
        outbox = ("old", "sent", OLD), ("dead", "dead", OLD), ("recent", "sent", RECENT), ("owed", "pending", None)
        for row in outbox:
            add_outbox(db, *row)
        for code, state in (("expired", "pending"), ("approved", "approved"), ("revoked", "revoked")):
            add_pairing(db, code, state, NOW - 1)
        add_pairing(db, "open", "pending", NOW + 1)
        for schedule in (("done", None, OLD), ("done", None, RECENT), ("paused", None, OLD), ("active", 5, OLD)):
            add_schedule(db, *schedule)
        for ref, sent_at in (("old", NOW - 86_400_001), ("recent", NOW - 1)):
            db.execute("INSERT INTO talk VALUES (?, 1, ?, 'local:a', 'A', 1, 'hi', ?)", (sent_at, ref, sent_at))

    await store.write(fill)
    removed = await remove_expired(store, NOW, MAX_AGE_MILLIS)
    assert removed == {"inbox": 1, "outbox": 2, "schedules": 1, "pairings": 1, "talk": 1}
    assert await store.read(keys, "inbox", "event_ref") == {"recent", "waiting"}
    assert await store.read(keys, "outbox", "dedupe_key") == {"recent", "owed"}
    assert await store.read(keys, "pairings", "code_hash") == {"open", "approved", "revoked"}
    assert await store.read(keys, "schedules", "id || state") == {"2done", "3paused", "4active"}


async def test_rows_stored_while_the_clock_was_ahead_do_not_keep_later_rows(store: Store) -> None:
    def fill(db: sqlite3.Connection) -> None:
        make_chat(db)
        for number in range(SLICE_ROWS):
            add_inbox(db, f"ahead {number}", "done", NOW + 1)
        db.execute("UPDATE inbox SET received_at = ?", (NOW + 1,))
        add_inbox(db, "old", "done", OLD)

    await store.write(fill)
    assert (await remove_expired(store, NOW, MAX_AGE_MILLIS))["inbox"] == 1


async def test_a_message_survives_the_removal_of_its_inbox_key(store: Store) -> None:
    def settle(db: sqlite3.Connection) -> None:
        exchange(db, make_chat(db), "kept", "a")
        db.execute("UPDATE inbox SET settled_at = ?", (OLD,))

    await store.write(settle)
    await remove_expired(store, NOW, MAX_AGE_MILLIS)
    rows = await store.read(lambda db: db.execute("SELECT text, inbox_id FROM messages ORDER BY id").fetchall())
    assert rows[0] == ("kept", None)


async def test_many_rows_are_removed_in_slices(store: Store) -> None:
    def fill(db: sqlite3.Connection) -> None:
        make_chat(db)
        for number in range(SLICE_ROWS * 2 + 1):
            add_inbox(db, str(number), "done", OLD)

    await store.write(fill)
    assert (await remove_expired(store, NOW, MAX_AGE_MILLIS))["inbox"] == SLICE_ROWS * 2 + 1
    assert await store.read(keys, "inbox", "event_ref") == set()


@sqlite_only
async def test_maintenance_copies_the_log_and_merges_the_index(store: Store) -> None:
    chat = await store.write(make_chat)
    for number in range(1, 30):
        await store.write(exchange, chat, f"word{number} and more", "yes")
        await add_all_words(store)
    pages, copied = await maintain(store)
    assert copied == pages > 0
    assert not await store.write(merge_index), "there was still something to merge"
    await check_index(store)


@sqlite_only
async def test_a_checkpoint_does_not_wait_for_readers_and_reports_the_rest(store: Store) -> None:
    entered, release = threading.Event(), threading.Event()

    def long_read(db: sqlite3.Connection) -> None:
        db.execute("SELECT count(*) FROM meta").fetchone()
        entered.set()
        assert release.wait(10)

    await asyncio.to_thread(checkpoint, store.path)
    await store.write(save_note, "n", "before")
    reading = asyncio.ensure_future(store.read(long_read))
    await asyncio.to_thread(entered.wait)
    await store.write(save_note, "n", "after")
    pages, copied = await asyncio.to_thread(checkpoint, store.path)
    assert copied < pages
    release.set()
    await reading
    pages, copied = await asyncio.to_thread(checkpoint, store.path)
    assert copied == pages


async def test_the_oldest_closed_conversations_exceed_a_limit(store: Store) -> None:
    def fill(db: Connection) -> list[int]:
        chat, lineages = make_chat(db), []
        for number in range(4):
            turn = exchange(db, chat, "x" * 500, "y" * 500, at=1_000 * (number + 1))
            db.execute("UPDATE sessions SET last_human_at = ? WHERE id = ?", (1_000 * (number + 1), turn.lineage_id))
            lineages.append(int(turn.lineage_id))
            if number < 3:
                reset(db, chat, Millis(1_000 * (number + 1)))
        return lineages

    oldest, second, third, _ = await store.write(fill)
    cases = [
        ((None, None), []),
        ((Millis(2_500), None), [oldest, second]),
        ((Millis(9_000), None), [oldest, second, third]),
        ((None, 2_500), [oldest, second]),
        ((None, 4_000), []),
        ((Millis(1_500), 3_000), [oldest]),
    ]
    for (before, most), old in cases:
        assert await store.read(load_old, before, most, 9) == old, (before, most)
    assert await store.read(load_old, Millis(9_000), None, 1) == [oldest]
