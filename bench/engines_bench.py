"""Compare PostgreSQL with SQLite, without a gateway.

Both sync every commit to the same disk. The benchmark starts its own PostgreSQL server with default settings, on the
same CPUs as the store. A round trip therefore costs the CPU time of both sides. The two engines take turns, so that
other load on the machine affects both.
"""

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.corpus import Corpus
from bench.measure import Measure
from bench.plain_turn import NOW, count_on_postgres, count_on_sqlite, plain_turn
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.sessions import start_session
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append, load_view
from hermes_state.values import (
    ChatKey,
    ChatKind,
    LineageId,
    MessageRole,
    Millis,
    Origin,
)
from tests.postgres import Postgres, running_server

CHATS = 100
WRITERS = 4
SPLIT_ROWS = 500
MOST_STATEMENTS = 18


def run(quick: bool) -> list[Measure]:
    """Run every measurement on a server started for this purpose. `quick`: fewer rounds."""
    with (
        tempfile.TemporaryDirectory(prefix="engines-bench-", ignore_cleanup_errors=True) as folder,
        running_server(Path(folder), {}) as server,
    ):
        return [*asyncio.run(_run(Path(folder), server, 3 if quick else 9)), *_statements(server)]


async def _run(folder: Path, server: Postgres, rounds: int) -> list[Measure]:
    async with AsyncExitStack() as stack:

        async def postgres(writers: int) -> Store:
            url = stack.enter_context(server.fresh_database())
            return await stack.enter_async_context(_open(PostgresStore.open(url, writers=writers)))

        sqlite = await stack.enter_async_context(_open(SqliteStore.open(folder / "state.db")))
        single, several = await postgres(1), await postgres(WRITERS)
        return [
            await _awaited_writes(single, sqlite, rounds),
            await _three_commits(single, sqlite, rounds),
            *await _turn_rates(several, single, sqlite, rounds),
            await _splits(single, sqlite, rounds),
        ]


@contextlib.asynccontextmanager
async def _open(opening: Awaitable[Store]) -> AsyncIterator[Store]:
    store = await opening
    try:
        yield store
    finally:
        await store.close()


# --- sequential


async def _awaited_writes(ours: Store, theirs: Store, rounds: int) -> Measure:
    """Measure the time to store and await one row, as `make bench` does for SQLite alone."""
    texts = list(Corpus().messages(200))
    for store in (ours, theirs):
        await store.write(_create)
    times: dict[Store, list[float]] = {ours: [], theirs: []}
    for _, store in itertools.product(range(rounds), times):
        times[store].append(statistics.median([await _timed(store.write(_insert, text)) for text in texts]))
    return _compared("awaited write, p50", times[ours], times[theirs], 2.5)


async def _three_commits(ours: Store, theirs: Store, rounds: int) -> Measure:
    """Measure a turn while nothing else is waiting."""
    times: dict[Store, list[float]] = {ours: [], theirs: []}
    for round_, store in itertools.product(range(rounds + 1), times):
        took = [await _timed(plain_turn(store.write, 0)) for _ in range(50)]
        if round_:  # the first round is a warm-up
            times[store].append(statistics.median(took))
    return _compared("one turn's three commits, p50", times[ours], times[theirs], 2.7)


async def _splits(ours: Store, theirs: Store, rounds: int) -> Measure:
    """Measure a compression that keeps every row of a long view, which is the largest possible split."""
    times: dict[Store, list[float]] = {ours: [], theirs: []}
    lineages = {store: await store.write(_long_session) for store in times}
    for _, store in itertools.product(range(rounds), times):
        view = await store.read(load_view, lineages[store])
        plan = SplitPlan(
            parent=view.session,
            context=[row.id for row in view.transcript],
            row=CompressionRow(layer="manual", summary_kind="deterministic"),
        )
        now = Millis(NOW + 60_000 * len(times[store]))  # session keys contain the time
        times[store].append(await _timed(store.write(_split, plan, now)))
    print(f"a split of {SPLIT_ROWS} rows takes SQLite {statistics.median(times[theirs]) * 1e3:.1f} ms")
    return Measure(name=f"split of {SPLIT_ROWS} rows, p50", ours=_milliseconds(times[ours]), unit="ms", bar=10)


def _compared(name: str, ours: Sequence[float], theirs: Sequence[float], bar: float) -> Measure:
    return Measure(name=name, ours=_milliseconds(ours), yardstick=_milliseconds(theirs), unit="ms", bar=bar)


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [one * 1e3 for one in seconds]


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


# --- many chats


async def _turn_rates(several: Store, single: Store, sqlite: Store, rounds: int) -> list[Measure]:
    """Return the turns per second of a hundred chats. Each chat starts a turn when its previous turn has ended."""
    rates: dict[Store, list[float]] = {several: [], single: [], sqlite: []}
    for round_, store in itertools.product(range(rounds + 1), rates):
        rate = await _rate(store, 3)
        if round_:  # the first round creates the chats
            rates[store].append(rate)
    ours, one, file = rates.values()
    print(f"turns/s of SQLite's store alone: {statistics.median(file):.0f}")
    return [
        Measure(name=f"turns of {CHATS} chats, {WRITERS} writers", ours=ours, unit="turns/s", bar=450, at_least=True),
        Measure(
            name=f"turns of {CHATS} chats, {WRITERS} writers against one",
            ours=ours,
            yardstick=one,
            unit="turns/s",
            bar=1.3,
            at_least=True,
        ),
    ]


async def _rate(store: Store, turns: int) -> float:
    async def converse(number: int) -> None:
        for _ in range(turns):
            await plain_turn(store.write, number)

    return CHATS * turns / await _timed(asyncio.gather(*map(converse, range(CHATS))))


# --- statements


def _statements(server: Postgres) -> list[Measure]:
    """Count the statements of a plain turn on each engine, from the first BEGIN to the last COMMIT."""
    with server.fresh_database() as url:
        counts = {"PostgreSQL": count_on_postgres(url), "SQLite": count_on_sqlite()}
    return [
        Measure(name=f"statements of a plain turn, {engine}", ours=count, unit="", bar=MOST_STATEMENTS)
        for engine, count in counts.items()
    ]


# --- the written row


def _create(db: Connection) -> None:
    db.execute("CREATE TABLE bench (id bigint, text text NOT NULL)")


@locks("bench")
def _insert(db: Connection, text: str) -> None:
    db.execute("INSERT INTO bench (text) VALUES (?)", (text,))


def _long_session(db: Connection) -> LineageId:
    key = ChatKey(platform="local", account="local", chat_ref="long")
    session = start_session(db, ensure_chat(db, key, ChatKind.LOCAL, None, NOW), NOW)
    for text in Corpus().messages(SPLIT_ROWS):
        append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), NOW)
    return session.lineage_id


@locks(chat="plan.parent.chat_id")
def _split(db: Connection, plan: SplitPlan, now: Millis) -> None:
    split(db, plan, now)
