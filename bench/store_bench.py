"""Measure the speed of the store: `python -m bench.store_bench [--quick | --messages N]`.

The yardsticks are plain sqlite3 on the same disk in the same run. They and our store take turns, so that other load on
the machine affects both. Each run creates a large database in a temporary folder (about a minute and 600 MB). `--quick`
uses a tenth of the messages. `--messages` measures only searches, in N messages.
"""

import argparse
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
from bench.corpus import PHRASE, RARE, Corpus
from bench.measure import Measure, table
from bench.searches import NOW, batched, fill, message, raw_connection, start, timed_searches, usual_searches
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.search.full_text import search_and_tell
from hermes_state.sessions import Session, load_tip
from hermes_state.store.writer import Store
from hermes_state.transcripts import append
from hermes_state.values import LineageId

P = ParamSpec("P")
T = TypeVar("T")

RARE_CHAT = 17
"""Number of the chat that contains the rare word."""
DIFFERENT_MESSAGES = 1_000_000
"""Maximum number of distinct messages. A larger database repeats them."""


def run(quick: bool) -> list[Measure]:
    """Run every measurement of the store. `quick`: with a tenth of the rows."""
    with tempfile.TemporaryDirectory(prefix="store-bench-") as folder:
        return asyncio.run(_run(Path(folder), 100_000 if quick else 1_000_000, 5 if quick else 9))


def run_searches(messages: int) -> list[Measure]:
    """Run only the search measurements, in this many messages."""
    with tempfile.TemporaryDirectory(prefix="store-bench-") as folder:
        return asyncio.run(_run_searches(Path(folder) / "big.db", messages))


async def _run_searches(path: Path, messages: int) -> list[Measure]:
    await (await SqliteStore.open(path)).close()
    fill(path, min(messages, DIFFERENT_MESSAGES))
    _repeat(path, messages)
    store = await SqliteStore.open(path)
    try:
        return await _searches(store, messages)
    finally:
        await store.close()


async def _run(folder: Path, messages: int, rounds: int) -> list[Measure]:
    measures = [
        *await _awaited_writes(folder, rounds),
        await _search_index_cost(folder, rounds),
        _search_index_size(folder),
        await _tip_lookup(folder),
    ]
    big = folder / "big.db"
    await (await SqliteStore.open(big)).close()
    fill(big, messages)
    store = await SqliteStore.open(big)
    try:
        return [*measures, *await _searches(store, messages), *await _stalls(store, messages)]
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
            raw_times += [_timed(_insert_and_commit, raw, text) for text in texts]
            raw_rates.append(len(texts) / sum(raw_times[-len(texts) :]))
            for text in texts:
                began = time.perf_counter()
                await store.write(_insert, text)
                our_times.append(time.perf_counter() - began)
            our_rates.append(await _rate_of_a_hundred(lambda text: store.write(_insert, text), texts[:50]))
            bare_rates.append(await _rate_of_a_hundred(bare.write, texts[:50]))
    await store.close()
    return [
        Measure(
            name="awaited write, p50",
            ours=statistics.median(our_times) * 1e6,
            yardstick=statistics.median(raw_times) * 1e6,
            unit="µs",
            bar=2,
        ),
        Measure(
            name="100 writers, each awaiting its commit",
            ours=statistics.median(our_rates),
            yardstick=statistics.median(raw_rates),
            unit="writes/s",
            bar=10,
            at_least=True,
        ),
        Measure(
            name="100 writers, against bare futures and one executemany",
            ours=statistics.median(our_rates),
            yardstick=statistics.median(bare_rates),
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
        times[side].append((time.perf_counter() - began) / len(texts))
    for store in stores:
        await store.close()
    return Measure(
        name="awaited append with search index, against without",
        ours=statistics.median(times[0]) * 1e6,
        yardstick=statistics.median(times[1]) * 1e6,
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


async def _tip_lookup(folder: Path) -> Measure:
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
        times = [[_timed(load_tip, db, lineage) for lineage in lineages] for _ in range(5_000)]
        short, long = zip(*times, strict=True)
        return statistics.median(short), statistics.median(long)

    store = await SqliteStore.open(folder / "lineage.db")
    for number in range(2_000):
        await store.write(start, f"other-{number}")
    lineages = await store.write(chain, "short", 1), await store.write(chain, "long", 1_000)
    await store.write(lambda db: db.execute("ANALYZE"))
    short, long = await store.read(look_up, lineages)
    await store.close()
    return Measure(name="tip look-up, chain of 1,000", ours=long * 1e6, yardstick=short * 1e6, unit="µs", bar=1.5)


# --- a million messages


def _repeat(path: Path, messages: int) -> None:
    """Copy the messages until the database has `messages` messages."""
    again = """INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, indexed, created_at)
      SELECT session_id, chat_id, lineage_id, seq + :first, role, origin, text, 1, created_at
      FROM messages WHERE id > :said AND id <= :until"""
    with raw_connection(path) as db:
        for first in range(DIFFERENT_MESSAGES, messages, 5_000):
            said = first % DIFFERENT_MESSAGES
            until = said + min(5_000, messages - first)
            db.execute(again, {"first": first // DIFFERENT_MESSAGES * DIFFERENT_MESSAGES, "said": said, "until": until})
            while add_words(db):
                pass


async def _searches(store: Store, messages: int) -> list[Measure]:
    searches = usual_searches(rare=5, phrase=5, common=5 if messages <= DIFFERENT_MESSAGES else 8, chinese=10)
    measures = await timed_searches(store, f"{messages:,} messages", searches)
    return [*measures, await _search_in_other_words(store, messages)]


async def _search_in_other_words(store: Store, messages: int) -> Measure:
    """Measure a search in one chat for common words, a word that only other chats contain, and a misspelt rare word."""
    lineage_of = "SELECT s.lineage_id FROM sessions s JOIN chats c ON c.id = s.chat_id WHERE c.chat_ref = ?"
    lineage_id = await store.read(lambda db: LineageId(db.execute(lineage_of, (f"chat-{RARE_CHAT}",)).fetchone()[0]))
    query = f"the of and {PHRASE.split()[-1]} {RARE.replace('i', '')}"
    times = []
    for _ in range(30):
        began = time.perf_counter()
        hits, words = await store.read(search_and_tell, query, lineage_id=lineage_id)
        times.append(time.perf_counter() - began)
        assert any(RARE in hit.text for hit in hits), f"{RARE} must be found"
        assert words == (RARE,), f"{words} is not the word that only this chat contains"
    name = f"search {messages:,} messages: by fewer words and one misspelt, p50"
    return Measure(name=name, ours=statistics.median(times) * 1e3, unit="ms", bar=150)


async def _stalls(store: Store, messages: int) -> list[Measure]:
    """Measure the longest waits while ten chats append 10,000 messages to a full database."""
    sessions = [await store.write(start, f"stall-{number}") for number in range(10)]
    texts = list(Corpus(5).messages(1_000))
    waits: list[float] = []
    lags: list[float] = []

    async def converse(session: Session) -> None:
        for text in texts:
            began = time.perf_counter()
            await store.write(append, session.id, message(text), NOW)
            waits.append(time.perf_counter() - began)

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - began - 0.001)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(converse(session) for session in sessions))
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    name = f"10,000 appends to {messages:,} messages: longest"
    return [
        Measure(name=f"{name} stall of the event loop", ours=max(lags) * 1e3, unit="ms", bar=100),
        Measure(name=f"{name} wait for the writer", ours=max(waits) * 1e3, unit="ms", bar=100),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 messages instead of a million")
    parser.add_argument("--messages", type=int, help="searches alone, among so many messages")
    args = parser.parse_args()
    measures = run_searches(args.messages) if args.messages is not None else run(args.quick)
    print(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)


if __name__ == "__main__":
    main()
