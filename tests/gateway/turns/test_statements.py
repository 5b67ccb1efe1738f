"""Number of SQL statements and transactions of a turn, counted at the database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from sqlite3 import Connection
from typing import Any

from msgspec.structs import replace

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.store.writer import Store
from tests.databases import IS_POSTGRES, sqlite_only
from tests.gateway.helpers import DIRECT, MemoryAdapter, Serve, eventually


class StatementLog:
    """SQL statements of a store in order, without triggers and the search index."""

    def __init__(self) -> None:
        self.writers: list[list[str]] = []
        self.reads: list[str] = []
        """Statements of reader threads."""
        self.short_reads: list[str] = []
        """Statements on the event loop, which reads only from SQLite."""

    def writer(self) -> list[str]:
        """Return the list for the statements of another writer."""
        self.writers.append([])
        return self.writers[-1]

    def commits(self) -> list[list[str]]:
        """Statements of the writers by transaction, including `BEGIN` and `COMMIT`."""
        found: list[list[str]] = []
        for statement in chain.from_iterable(self.writers):
            if statement.startswith("BEGIN"):
                found.append([])
            found[-1].append(statement)
        return [commit for commit in found if not _is_calibration(commit)]


def _is_calibration(commit: list[str]) -> bool:
    """Ignore learned model facts, which are stored only after a large change and not in each turn."""
    return any("model_profiles" in statement for statement in commit)


def _traced(db: Connection, seen: list[str]) -> None:
    def note(statement: str) -> None:
        # A trigger shows the statement that set it off once more, and what virtual tables do as a comment.
        if not statement.startswith("--") and (not seen or seen[-1] != statement):
            seen.append(statement)

    db.set_trace_callback(note)


def _noted(db: PostgresConnection, seen: list[str]) -> None:
    execute = type(db).execute

    def noting(sql: str, parameters: Any = (), /) -> Any:
        if "advisory_xact_lock" not in sql:  # the locks travel with the BEGIN
            seen.append(sql)
        return execute(db, sql, parameters)

    db.execute = noting  # type: ignore[method-assign]  # libpq can only trace into a file


@asynccontextmanager
async def counting(store: Store) -> AsyncIterator[StatementLog]:
    log = StatementLog()
    if IS_POSTGRES:
        for session in store._writers:
            await session.run(_noted, log.writer())
        for session in store._readers:
            await session.run(_noted, log.reads)
        yield log
        return
    await store._writer.run(_traced, log.writer())
    for reader in store._readers:
        await reader.connection.run(_traced, log.reads)
    _traced(store._short_reader._db, log.short_reads)
    yield log
    store._short_reader._db.set_trace_callback(None)
    for connection in (store._writer, *(reader.connection for reader in store._readers)):
        await connection.run(lambda db: db.set_trace_callback(None))


async def test_a_plain_turn_takes_at_most_eighteen_statements_and_three_transactions(
    serve: Serve, store: Store
) -> None:
    """Of a chat's second turn, from its message to its delivered answer, without streaming."""
    async with serve(adapter=MemoryAdapter(has_previews=False)) as gateway:
        assert await gateway.ask("one") == "echo: one"
        await eventually(lambda: not gateway.lanes._lanes and not gateway.delivery._wakes, "the chat rests")
        async with counting(store) as log:
            await gateway.say("two")
            await eventually(lambda: len(gateway.adapter.texts()) == 2, "the answer")
            await eventually(lambda: not gateway.lanes._lanes and not gateway.delivery._wakes, "the chat rests")
        assert (await gateway.turns_of())[-1] == ("finished", "two")
    commits = log.commits()
    assert len(commits) == 3, commits
    told = [commit for commit in commits if not any("'sent'" in statement for statement in commit)]
    assert sum(map(len, told)) <= 18, "\n".join(" ".join(statement.split()) for commit in told for statement in commit)
    if not IS_POSTGRES:  # which reads on its threads
        assert log.reads == []
        assert log.short_reads.count("BEGIN") == 2, "its view, and whether anything waits behind it"


@sqlite_only
async def test_a_new_conversation_reads_on_no_thread(serve: Serve, store: Store) -> None:
    other = replace(DIRECT, chat_ref="2")
    async with serve(adapter=MemoryAdapter(has_previews=False)) as gateway:
        assert await gateway.ask("one") == "echo: one"  # what is known of the model is loaded
        async with counting(store) as log:
            await gateway.say("two", chat=other)
            await eventually(lambda: gateway.adapter.texts(other) == ["echo: two"], "the answer")
        assert log.reads == []
