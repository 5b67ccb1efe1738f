"""Measure the speed of the store.

The yardsticks are plain sqlite3 on the same disk in the same run. They and our store take turns, so that other load on
the machine affects both.
"""

import asyncio
import contextlib
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from bench.bare_writer import BareWriter
from bench.compression_bench import heartbeat
from bench.corpus import RARE, TWO_COMMON, Corpus
from bench.measure import Measure
from bench.searches import (
    NOW,
    Search,
    batched,
    full_home,
    message,
    raw_connection,
    start,
    stored_messages,
    timed_searches,
    usual_searches,
)
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.sessions import Session, load_tip
from hermes_state.store.writer import Store
from hermes_state.transcripts import append
from hermes_state.values import LineageId

P = ParamSpec("P")
T = TypeVar("T")

_SEARCHES = [
    *usual_searches(rare=5, phrase=20, common=8, chinese=10),
    Search(name="two common words in one chat", query=TWO_COMMON, bar=10, is_in_one_chat=True),
    Search(name="a misspelt word", query=RARE.replace("i", ""), bar=40),
]


def run(quick: bool) -> list[Measure]:
    """Run every measurement of the store."""
    with tempfile.TemporaryDirectory(prefix="store-bench-") as folder:
        return asyncio.run(_run(Path(folder), stored_messages(quick), 5 if quick else 9))


async def _run(folder: Path, messages: int, rounds: int) -> list[Measure]:
    measures = [
        *await _awaited_writes(folder, rounds),
        await _search_index_cost(folder, rounds),
        _search_index_size(folder),
        await _tip_lookup(folder, rounds),
    ]
    store = await SqliteStore.open(await full_home(messages) / "state.db")
    try:
        searches = await timed_searches(store, f"{messages:,} messages", _SEARCHES)
        return [*measures, *searches, *await _stalls(store, messages, rounds)]
    finally:
        await store.close()


# --- writing


def _insert(db: sqlite3.Connection, text: str) -> None:
    db.execute("INSERT INTO bench (text) VALUES (?)", (text,))


def _create(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE bench (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT")


def _insert_and_commit(db: sqlite3.Connection, text: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    _insert(db, text)
    db.execute("COMMIT")


async def _awaited_writes(folder: Path, rounds: int) -> list[Measure]:
    """Measure one coroutine and a hundred coroutines that await each write, compared with one commit per row.

    A shared commit saves less on disks that sync fast. So the hundred writers are also compared with a minimal
    group-commit writer (`BareWriter`) on the same disk.
    """
    texts = list(Corpus().messages(1_000))
    store = await SqliteStore.open(folder / "writes.db")
    await store.write(_create)
    raw_times, our_times, raw_rates, our_rates, bare_rates = [], [], [], [], []
    with raw_connection(folder / "raw.db") as raw, _bare(folder / "bare.db") as bare:
        _create(raw)
        for _ in range(rounds):
            times = [_timed(_insert_and_commit, raw, text) for text in texts]
            raw_times.append(statistics.median(times) * 1e6)
            raw_rates.append(len(texts) / sum(times))
            times = []
            for text in texts:
                began = time.perf_counter()
                await store.write(_insert, text)
                times.append(time.perf_counter() - began)
            our_times.append(statistics.median(times) * 1e6)
            our_rates.append(await _rate_of_a_hundred(lambda text: store.write(_insert, text), texts[:50]))
            bare_rates.append(await _rate_of_a_hundred(bare.write, texts[:50]))
    await store.close()
    return [
        Measure(name="awaited write, p50", ours=our_times, yardstick=raw_times, unit="µs", bar=2),
        Measure(
            name="100 writers, each awaiting its commit",
            ours=our_rates,
            yardstick=raw_rates,
            unit="writes/s",
            bar=10,
            at_least=True,
        ),
        Measure(
            name="100 writers, against bare futures and one executemany",
            ours=our_rates,
            yardstick=bare_rates,
            unit="writes/s",
            bar=0.8,
            at_least=True,
        ),
    ]


async def _rate_of_a_hundred(write: Callable[[str], Awaitable[None]], texts: list[str]) -> float:
    """Return the writes per second of a hundred coroutines that each write `texts` one by one."""

    async def write_all() -> None:
        for text in texts:
            await write(text)

    began = time.perf_counter()
    await asyncio.gather(*(write_all() for _ in range(100)))
    return 100 * len(texts) / (time.perf_counter() - began)


@contextlib.contextmanager
def _bare(path: Path) -> Iterator[BareWriter]:
    with raw_connection(path, check_same_thread=False) as db:
        _create(db)
        with contextlib.closing(BareWriter(db)) as bare:
            yield bare


# --- the search index


async def _search_index_cost(folder: Path, rounds: int) -> Measure:
    """Measure awaited appends and the batches that add their words, compared with appends without batches."""
    texts = list(Corpus(2).messages(500))
    stores = [await SqliteStore.open(folder / "indexed.db"), await SqliteStore.open(folder / "plain.db")]
    sessions = [await store.write(start, "a") for store in stores]
    times: list[list[float]] = [[], []]
    for _, side in itertools.product(range(rounds), (0, 1)):
        began = time.perf_counter()
        for text in texts:
            await stores[side].write(append, sessions[side].id, message(text), NOW)
        while side == 0 and await stores[0].write(add_words):
            pass
        times[side].append((time.perf_counter() - began) * 1e6 / len(texts))
    for store in stores:
        await store.close()
    return Measure(
        name="awaited append with search index, against without",
        ours=times[0],
        yardstick=times[1],
        unit="µs",
        bar=2.2,
    )


def _search_index_size(folder: Path) -> Measure:
    texts = list(Corpus(3).messages(50_000))
    sizes = {}
    for indexed in (True, False):
        with _schema_only(folder / f"size-{indexed}.db") as db:
            session = start(db, "a")
            for batch in batched(texts, 1_000):
                db.execute("BEGIN")
                for text in batch:
                    append(db, session.id, message(text), NOW)
                while indexed and add_words(db):
                    pass
                db.execute("COMMIT")
            pages, page_size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            sizes[indexed] = pages * page_size
    return Measure(
        name="search index, bytes per byte of text",
        ours=(sizes[True] - sizes[False]) / len(texts),
        yardstick=sum(len(text.encode()) for text in texts) / len(texts),
        unit="B",
        bar=0.8,
    )


# --- lineage


async def _tip_lookup(folder: Path, rounds: int) -> Measure:
    """Measure the look-up of a conversation's newest session, among 1,000 sessions compared with one."""

    def chain(db: sqlite3.Connection, chat_ref: str, length: int) -> LineageId:
        root = start(db, chat_ref)
        insert = """INSERT INTO sessions (key, chat_id, parent_session_id, lineage_id, depth, kind, started_at)
                    VALUES (?, ?, ?, ?, ?, 'continuation', 0)"""
        parent = int(root.id)
        for depth in range(1, length):
            key = f"{chat_ref}-{depth}"
            parent = int(db.execute(insert, (key, root.chat_id, parent, root.lineage_id, depth)).lastrowid or 0)
        return root.lineage_id

    def look_up(db: sqlite3.Connection, lineages: tuple[LineageId, LineageId]) -> tuple[float, float]:
        times = [[_timed(load_tip, db, lineage) for lineage in lineages] for _ in range(1_000)]
        short, long = zip(*times, strict=True)
        return statistics.median(short) * 1e6, statistics.median(long) * 1e6

    store = await SqliteStore.open(folder / "lineage.db")
    for number in range(2_000):
        await store.write(start, f"other-{number}")
    lineages = await store.write(chain, "short", 1), await store.write(chain, "long", 1_000)
    await store.write(lambda db: db.execute("ANALYZE"))
    short, long = zip(*[await store.read(look_up, lineages) for _ in range(rounds)], strict=True)
    await store.close()
    return Measure(name="tip look-up, chain of 1,000", ours=long, yardstick=short, unit="µs", bar=1.5)


# --- many messages


async def _stalls(store: Store, messages: int, rounds: int) -> list[Measure]:
    """Measure the longest waits while ten chats append 10,000 messages to a full database."""
    sessions = [await store.write(start, f"stall-{number}") for number in range(10)]
    texts = list(Corpus(5).messages(1_000))

    async def longest_wait(session: Session) -> float:
        longest = 0.0
        for text in texts:
            began = time.perf_counter()
            await store.write(append, session.id, message(text), NOW)
            longest = max(longest, time.perf_counter() - began)
        return longest * 1e3

    stalls, waits = [], []
    for _ in range(rounds):
        async with heartbeat() as lags:
            waits.append(max(await asyncio.gather(*map(longest_wait, sessions))))
        stalls.append(max(lags) * 1e3)
    name = f"10,000 appends to {messages:,} messages: longest"
    return [
        Measure(name=f"{name} stall of the event loop", ours=stalls, unit="ms", bar=100),
        Measure(name=f"{name} wait for the writer", ours=waits, unit="ms", bar=100),
    ]


# --- shared


def _timed(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    began = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - began


@contextlib.contextmanager
def _schema_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database with our schema but without our writer."""
    with raw_connection(path) as db:
        migrate(db, path)
        yield db
