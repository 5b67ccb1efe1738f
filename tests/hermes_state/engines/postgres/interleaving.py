"""Two writing functions in parallel on a real server: one stops before a statement while the other runs.

Each table's ids have their own range, so that they are recognised in columns, keys and sentences. The comparison uses a
row's place in its chat instead, because two functions of different chats may take their ids in an order that no serial
run has.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import psycopg

from hermes_state.engines.postgres.connection import PostgresConnection, Result
from hermes_state.engines.postgres.reads import run_pipelined
from hermes_state.engines.postgres.store import RULES
from hermes_state.store.sql import Connection, TransactionRules, WriteRequest, run_batch
from tests.postgres import Postgres


def _begin_unlocked(db: Connection, batch: Sequence[WriteRequest]) -> list[Sequence[WriteRequest]]:
    db.execute("BEGIN")
    return [batch]


UNLOCKED = replace(RULES, begin=_begin_unlocked)
"""The store's transactions without the declared locks."""

Outcome: TypeAlias = tuple[str, str, str]
"""Rows of all tables after both functions, and the result or error of each."""

_FIRST_ID, _IDS = 1_000_000, 10_000  # of the first table, and number of ids per table
_ID = re.compile(r"(?<!\d)1\d{6}(?!\d)")
_KEY = re.compile(r"\b([0-9a-z]{9})[0-9a-z]{9}\b")
"""Public id of a session: time and random part."""
# Purpose: find each table's id sequence, if any.
_TABLES = """
SELECT t.tablename, (SELECT pg_get_serial_sequence(t.tablename, c.column_name) FROM information_schema.columns c
  WHERE c.table_name = t.tablename AND c.column_name = 'id')
FROM pg_tables t WHERE t.schemaname = 'public' ORDER BY t.tablename"""
_IS_BLOCKED = "SELECT CAST(%s AS integer) = ANY (pg_blocking_pids(%s))"


def write(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> WriteRequest:
    """Return the call `fn(db, *args, **kwargs)`."""
    nobody_waits: Any = None
    return WriteRequest(nobody_waits, fn, args, kwargs)


class _SteppedConnection(PostgresConnection):
    """Connection that counts statements after the ones that begin a batch, and calls `meanwhile` before one of them."""

    count = 0
    stops_at = 0
    meanwhile: Callable[[], None] | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> Result:
        if not sql.startswith("BEGIN") and "pg_advisory_xact_lock" not in sql:
            self.count += 1
            if self.count == self.stops_at and self.meanwhile is not None:
                self.meanwhile()
        result = super().execute(sql, parameters)
        self.sync()  # makes the count true: the statement has run before the next one is counted
        return result


class Arena:
    """A database that is reset before each run, and two connections to it."""

    def __init__(self, url: str, observer: Any, thread: ThreadPoolExecutor) -> None:
        self.first, self.second = _SteppedConnection.open(url), PostgresConnection.open(url)
        self._observer, self._thread = observer, thread
        self._prepared: tuple[Any, Any] | None = None
        self._restore = ""
        self._tables: dict[str, str | None] = dict(observer.execute(_TABLES).fetchall())
        self._dump = " UNION ALL ".join(f"SELECT '{name}', to_jsonb(t) FROM {name} t" for name in self._tables)

    def prepare(self, build: Callable[[Connection], Any]) -> Any:
        """Start every run with the state made by `build`. Return its result."""
        if self._prepared is None or self._prepared[0] is not build:
            self._prepared = build, self._keep(build)
        return self._prepared[1]

    def _keep(self, build: Callable[[Connection], Any]) -> Any:
        self._observer.execute("DROP SCHEMA IF EXISTS kept CASCADE; CREATE SCHEMA kept")
        for at, (name, sequence) in enumerate(self._tables.items()):
            self._observer.execute(f"DELETE FROM {name}")
            if sequence is not None:
                self._observer.execute(f"SELECT setval('{sequence}', {_FIRST_ID + at * _IDS}, true)")
        self.second.execute("BEGIN")
        built = build(self.second)
        self.second.execute("COMMIT")
        steps = []
        for name, sequence in self._tables.items():
            self._observer.execute(f"CREATE TABLE kept.{name} AS TABLE {name}")
            steps.append(f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM kept.{name}")
            if sequence is not None:
                (last,) = self._observer.execute(f"SELECT last_value FROM {sequence}").fetchone()
                steps.append(f"SELECT setval('{sequence}', {last}, true)")
        self._restore = ";".join(steps)
        return built

    def serial(self, first: WriteRequest, second: WriteRequest, *, is_swapped: bool = False) -> tuple[Outcome, int]:
        """Run one function after the other. Return the outcome and the number of statements of the first."""
        self._observer.execute(self._restore)
        self.first.count = self.first.stops_at = 0
        runs = [(self.first, first), (self.second, second)]
        for db, request in reversed(runs) if is_swapped else runs:
            _run(db, [request], RULES)
        return self._outcome(first, second), self.first.count

    def interleaved(
        self, first: WriteRequest, second: WriteRequest, at: int, rules: TransactionRules = RULES
    ) -> Outcome:
        """Stop `first` before its statement `at` until `second` ends or waits for its locks. Return the outcome."""
        self._observer.execute(self._restore)
        running: list[Future[None]] = []

        def run_second() -> None:
            running.append(self._thread.submit(_run, self.second, [second], rules))
            pids = (self.first.raw.info.backend_pid, self.second.raw.info.backend_pid)
            while not wait(running, 0.0005).done:  # the server does not announce waiting sessions, so poll it
                if self._observer.execute(_IS_BLOCKED, pids).fetchone() == (True,):
                    break

        self.first.count, self.first.stops_at, self.first.meanwhile = 0, at, run_second
        _run(self.first, [first], rules)
        running[0].result(30)
        return self._outcome(first, second)

    def pipelined(self, first: WriteRequest, second: WriteRequest, late: int) -> Outcome:
        """Run both in one batch, the second this many round trips later if possible. Return the outcome."""
        self._observer.execute(self._restore)
        _run(self.second, [first, second], replace(RULES, run_all=partial(_run_late, late)))
        return self._outcome(first, second)

    def _outcome(self, first: WriteRequest, second: WriteRequest) -> Outcome:
        rows = self._observer.execute(self._dump).fetchall()
        labels = _labels(rows)

        def told(text: str) -> str:
            return _ID.sub(lambda found: labels.get(int(found[0]), found[0]), _KEY.sub(r"\1", text))

        lines = sorted(told(f"{table} {json.dumps(row, ensure_ascii=False)}") for table, row in rows)
        results = [
            f"{type(one.error).__name__}: {one.error}" if one.error else repr(one.result) for one in (first, second)
        ]
        return "\n".join(lines), told(results[0]), told(results[1])


@contextmanager
def opened_arena(postgres: Postgres) -> Iterator[Arena]:
    """Open an arena with its own database."""
    with ExitStack() as stack:
        url = stack.enter_context(postgres.fresh_database())
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        postgres.run(f"ALTER DATABASE {name} SET deadlock_timeout = '5ms'")
        observer = stack.enter_context(psycopg.connect(postgres.url(str(name), "postgres"), autocommit=True))
        observer.execute("SET session_replication_role = replica")  # allows filling the tables in any order
        arena = Arena(url, observer, stack.enter_context(ThreadPoolExecutor(1)))
        stack.enter_context(closing(arena.first))
        stack.enter_context(closing(arena.second))
        yield arena


def _run(db: Connection, batch: Sequence[WriteRequest], rules: TransactionRules) -> None:
    """Run functions in a transaction like the store, with a retry after aborts by the server."""
    while True:
        try:
            run_batch(db, batch, rules)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            continue
        except psycopg.Error as error:  # a constraint checked at the commit
            batch[0].error = error
        return


def _run_late(late: int, db: PostgresConnection, functions: Sequence[Callable[[], None]]) -> None:
    def wait(function: Callable[[], None]) -> None:
        for _ in range(late):
            db.execute("SELECT ?", (0,)).fetchone()
        function()

    run_pipelined(db, [*functions[:1], *(partial(wait, function) for function in functions[1:])])


def _labels(rows: list[tuple[str, dict[str, Any]]]) -> dict[int, str]:
    """Return names of rows that are independent of the order of ids: table, chat, and place in the chat."""
    chats = {row["id"]: f"{row['chat_ref']}/{row['user_ref']}" for table, row in rows if table == "chats"}
    found = defaultdict[tuple[str, str], list[int]](list)
    for table, row in rows:
        if "id" in row and table != "chats":
            found[table, chats.get(row.get("chat_id"), "")].append(row["id"])
    places = ((name, at, row_id) for name, ids in found.items() for at, row_id in enumerate(sorted(ids)))
    return {id_: f"<chat {ref}>" for id_, ref in chats.items()} | {
        row_id: f"<{table} {chat} {at}>" for (table, chat), at, row_id in places
    }
