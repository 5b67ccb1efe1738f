import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from hermes_state.engines.sqlite.connections import prepare_writer, register_functions
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.store.sql import Connection, save_note
from hermes_state.store.writer import Store

S = TypeVar("S", bound=Store)
ROOT = Path(__file__).parents[2]


def start_python(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a separate Python process that can import our packages."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


_LOCKER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("ROLLBACK")
"""

_POSTGRES_LOCKER = """
import psycopg, sys, time
db = psycopg.connect(sys.argv[1])
names = [name for (name,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]
db.execute(f"LOCK TABLE {', '.join(names)} IN EXCLUSIVE MODE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
db.rollback()
"""


@contextmanager
def locked_by_another_process(database: Path | str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Lock the file or address for writing in another process, for `seconds` from now."""
    process = start_python(_LOCKER if isinstance(database, Path) else _POSTGRES_LOCKER, database, seconds)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def one_batch(store: Store) -> AsyncIterator[None]:
    """Combine all writes of this block into one batch by blocking the writer until the block ends.

    On PostgreSQL, with two writers, the other one waits for the lock of everything.
    """
    release, entered = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(db: Connection) -> None:
        db.execute("SELECT 1").fetchone()  # the transaction has begun and holds its locks
        loop.call_soon_threadsafe(entered.set)
        assert release.wait(10)

    holding = asyncio.ensure_future(store.write(hold))
    await entered.wait()
    try:
        yield
        await asyncio.sleep(0)  # lets the block's tasks reach the queue
    finally:
        release.set()
        await holding


async def in_one_batch(store: Store, *writes: Callable[[Connection], object]) -> list[object]:
    """Store `writes` in one batch. Return the result or the error of each."""
    async with one_batch(store):
        tasks = [asyncio.ensure_future(store.write(write)) for write in writes]
    return await asyncio.gather(*tasks, return_exceptions=True)


def noting(key: str, value: str = "") -> Callable[[Connection], None]:
    """Return a write that stores a note."""
    return lambda db: save_note(db, key, value)


def connected_nowhere(db: Connection) -> None:
    """Store a row whose reference is checked only at the commit, and rejected then."""
    db.execute(
        "INSERT INTO chats (platform, account, chat_ref, kind, active_session_id, created_at, updated_at)"
        " VALUES ('local', 'local', 'a', 'local', 99, 0, 0)"
    )


@asynccontextmanager
async def closed_after(opening: Awaitable[S]) -> AsyncIterator[S]:
    """Open a store for the block, and close it at the end."""
    store = await opening
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a plain connection, like any other program."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


@contextmanager
def opened_as_ours(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a writer's connection without migrating."""
    with opened(path) as db:
        register_functions(db)
        prepare_writer(db, path, "FULL", 1.0)
        yield db


async def add_all_words(store: Store) -> None:
    """Add the words of new messages to SQLite's search index, as the gateway does after a second."""
    while isinstance(store, SqliteStore) and await store.write(add_words):
        pass


async def check_index(store: Store) -> None:
    """Let SQLite compare the search index with the messages. Raises its error if they differ."""
    await add_all_words(store)
    check = "INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)"
    await store.write(lambda db: db.execute(check))


def execute(store: Store, sql: str, *parameters: object) -> Awaitable[object]:
    """Run one statement as a write."""
    return store.write(lambda db: db.execute(sql, parameters))


def file_states(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return content, modification time and mode of every file, to show that nothing has changed."""
    files = sorted(folder.iterdir())
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode) for file in files}


def commits_in_log(path: Path) -> int:
    """Count the transactions in the write-ahead log: the last frame of each contains the size of the file."""
    log = path.with_name(path.name + "-wal").read_bytes()
    page_size, salt = int.from_bytes(log[8:12], "big"), log[16:24]
    frames = (log[at : at + 24] for at in range(32, len(log), 24 + page_size))
    return sum(frame[8:16] == salt and frame[4:8] != bytes(4) for frame in frames)


def set_max_pages(db: Connection, spare: int | None) -> None:
    """Limit the database's growth to `spare` pages, like a full disk. None removes the limit.

    PostgreSQL has no such limit. There, every statement fails like on a full disk, or, with spare pages, every row that
    is larger.
    """
    if isinstance(db, sqlite3.Connection):
        pages = db.execute("PRAGMA page_count").fetchone()[0] + spare if spare is not None else 1_073_741_823
        db.execute(f"PRAGMA max_page_count = {pages}")
        return
    db.execute("DROP FUNCTION IF EXISTS refuse_as_full CASCADE")
    if spare is not None:
        condition = f"FOR EACH ROW WHEN (pg_column_size(NEW) > {8_192 * spare})" if spare else "FOR EACH STATEMENT"
        db.execute(_FULL_DISK.format(event="INSERT OR UPDATE" + " OR DELETE" * (not spare), condition=condition))


_FULL_DISK = """
CREATE FUNCTION refuse_as_full() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN RAISE disk_full USING MESSAGE = ''could not extend file: No space left on device''; END';
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1 LOOP
    EXECUTE format('CREATE TRIGGER full_disk BEFORE {event} ON %I {condition} EXECUTE FUNCTION refuse_as_full()', name);
  END LOOP;
END $$
"""


def refuse_rows(db: Connection, event: str, condition: str) -> None:
    """Fail statements such as `UPDATE ON turns` at the first row (called `NEW`) that meets a condition."""
    if isinstance(db, sqlite3.Connection):
        db.execute(f"CREATE TRIGGER refuse BEFORE {event} WHEN {condition} BEGIN SELECT RAISE(ABORT, 'refused'); END")
        return
    db.execute(f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN RAISE integrity_constraint_violation; END';
        CREATE TRIGGER refuse BEFORE {event} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()""")


def accept_rows(db: Connection) -> None:
    """Undo `refuse_rows`."""
    db.execute("DROP TRIGGER refuse" if isinstance(db, sqlite3.Connection) else "DROP FUNCTION refuse CASCADE")


def raising(error: BaseException) -> Callable[[sqlite3.Connection], None]:
    def fn(_: sqlite3.Connection) -> None:
        raise error

    return fn
