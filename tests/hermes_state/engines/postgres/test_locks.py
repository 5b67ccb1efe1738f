import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from random import Random

import psycopg
import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.locks import begin
from hermes_state.store.locks import EVERYTHING, LockKeys, place_of
from hermes_state.values import ChatKey
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster

ALL = LockKeys(names=frozenset({EVERYTHING}))
CHATS = 20
SCHEMA = f"""
CREATE TABLE chats (id bigint PRIMARY KEY, platform text, account text, chat_ref text, thread_ref text, user_ref text);
INSERT INTO chats SELECT n, 'telegram', 'bot', (-n)::text, '', '' FROM generate_series(1, {CHATS}) n;
CREATE TABLE sessions (id bigint PRIMARY KEY, chat_id bigint, lineage_id bigint);
INSERT INTO sessions SELECT 100 + n, 1 + n % {CHATS}, 100 + n % {CHATS} FROM generate_series(0, {2 * CHATS - 1}) n;
CREATE TABLE turns (id bigint PRIMARY KEY, chat_id bigint);
INSERT INTO turns SELECT 200 + n, n FROM generate_series(1, {CHATS}) n;
CREATE TABLE inbox AS TABLE turns;
CREATE TABLE outbox AS TABLE turns;
"""


@pytest.fixture(scope="module")
def address(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        with psycopg.connect(address) as db:
            db.execute(SCHEMA)
        yield address


class Batch:
    """A connection that begins batches. Waiting calls run on its own thread."""

    def __init__(self, address: str) -> None:
        self.db = PostgresConnection.open(address)
        self.pid = self.db.raw.info.backend_pid
        self._thread: threading.Thread | None = None

    def take(self, keys: LockKeys) -> None:
        begin(self.db, [keys])
        self.db.sync()

    def start(self, keys: LockKeys) -> None:
        self._thread = threading.Thread(target=self.take, args=(keys,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(10)
        assert not self._thread.is_alive()

    def end(self) -> None:
        self.db.execute("COMMIT")


@pytest.fixture
def batches(address: str) -> Iterator[list[Batch]]:
    with ExitStack() as stack:
        found = [Batch(address) for _ in range(3)]
        for batch in found:
            stack.callback(batch.db.close)
        yield found


def rows(*found: tuple[str, int]) -> LockKeys:
    return LockKeys(rows=frozenset(found))


def named(*names: str) -> LockKeys:
    return LockKeys(names=frozenset(names))


def key_of(chat: int) -> ChatKey:
    return ChatKey(platform="telegram", account="bot", chat_ref=str(-chat))


def held(observer: Batch, batch: Batch) -> set[int]:
    """Return the keys of a batch's locks, held or awaited, without the lock of everything."""
    query = """SELECT (classid::bigint << 32) + objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = ?"""
    return {key for (key,) in observer.db.execute(query, (batch.pid,)).fetchall()}


def waits(observer: Batch, batch: Batch) -> bool:
    """Return True as soon as a batch waits for a lock, or False after two seconds."""
    query = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pid = ?)"
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if observer.db.execute(query, (batch.pid,)).fetchone() == (True,):
            return True
    return False


@pytest.mark.parametrize("row", [("session", 100), ("session", 120), ("lineage", 100), ("turn", 201), ("inbox", 201)])
def test_rows_of_a_chat_and_its_key_share_a_lock(batches: list[Batch], row: tuple[str, int]) -> None:
    one, other, observer = batches
    one.take(rows(("chat", 1)))
    other.start(rows(row))
    assert waits(observer, other)
    one.end()
    other.join()
    before = held(observer, other)
    other.end()
    other.take(LockKeys(names=frozenset({place_of(key_of(1))})))  # like a chat that is not stored yet
    assert held(observer, other) == before


def test_batches_of_different_chats_run_side_by_side(batches: list[Batch]) -> None:
    one, other, observer = batches
    one.take(rows(("chat", 1), ("turn", 202)) | LockKeys(names=frozenset({"notes"})))
    other.take(rows(("chat", 3)) | LockKeys(names=frozenset({"profiles"})))
    assert len(held(observer, one)) == 3
    assert len(held(observer, other)) == 2


def test_locks_are_taken_in_ascending_order(batches: list[Batch]) -> None:
    one, other, observer = batches
    everyone = rows(*(("chat", chat) for chat in range(1, CHATS + 1)))
    one.take(everyone)
    keys = sorted(held(observer, one))
    one.end()
    one.db.execute("BEGIN")
    one.db.execute("SELECT pg_advisory_xact_lock(?)", (keys[CHATS // 2],)).fetchone()
    other.start(everyone)
    assert waits(observer, other)
    assert held(observer, other) == set(keys[: CHATS // 2 + 1])
    one.end()
    other.join()


def test_the_lock_of_everything_excludes_all_others(batches: list[Batch]) -> None:
    one, other, observer = batches
    one.take(rows())  # touches no chat
    other.start(ALL)
    assert waits(observer, other)
    one.end()
    other.join()
    one.start(rows())
    assert waits(observer, one)
    other.end()
    one.join()


def test_a_batch_waiting_for_a_move_locks_the_new_chat(batches: list[Batch]) -> None:
    one, other, observer = batches
    one.take(ALL)
    one.db.execute("UPDATE outbox SET chat_id = 9 WHERE id = 208")
    other.start(rows(("outbox", 208)))
    assert waits(observer, other)
    one.end()
    other.join()
    one.take(rows(("chat", 8)))  # no other batch has this lock
    one.end()
    one.start(rows(("chat", 9)))
    assert waits(observer, one)
    other.end()
    one.join()


def test_batches_with_the_same_chats_never_deadlock(address: str) -> None:
    taken: list[int] = []

    def work(seed: int) -> None:
        random, batch = Random(seed), Batch(address)
        with closing(batch.db):
            for _ in range(150):
                chats = frozenset(("turn", 200 + random.randint(1, CHATS)) for _ in range(8))
                names = frozenset(place_of(key_of(random.randint(1, CHATS))) for _ in range(3))
                batch.take(ALL if random.random() < 0.05 else LockKeys(chats, names))
                batch.end()
        taken.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [0, 1, 2, 3]  # an aborted batch would be missing


QUEUES = {
    "nothing": ([rows(), rows(), LockKeys()], [[0], [1], [2]]),
    "chats": ([rows(("chat", 1)), rows(("chat", 2)), rows(("chat", 3))], [[0], [1], [2]]),
    "one chat by many kinds": (
        [rows(("turn", 201)), rows(("session", 100)), rows(("lineage", 100)), rows(("inbox", 201), ("outbox", 201))],
        [[0, 1, 2, 3]],
    ),
    "one that joins two": ([rows(("turn", 201)), rows(("turn", 202)), rows(("chat", 1), ("chat", 2))], [[0, 1, 2]]),
    "a chat's key and its row": ([rows(("turn", 201)), named(place_of(key_of(1))), named("people")], [[0, 1], [2]]),
    "one name": ([named("people"), rows(("chat", 1)), named("people", "costs")], [[0, 2], [1]]),
    "what is not stored": ([rows(("turn", 999)), rows(("turn", 998)), rows(("turn", 999))], [[0, 2], [1]]),
    "everything": ([rows(("chat", 1)), ALL, rows(("chat", 2))], [[0, 1, 2]]),
}


@pytest.mark.parametrize(("batch", "queues"), QUEUES.values(), ids=QUEUES)
def test_functions_that_share_a_lock_run_in_order(
    batches: list[Batch], batch: list[LockKeys], queues: list[list[int]]
) -> None:
    db = batches[0].db
    assert sorted(begin(db, batch)) == queues
    db.execute("ROLLBACK")
