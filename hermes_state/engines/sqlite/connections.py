"""Open and configure the store's SQLite connections, each on its own thread.

aiosqlite owns every connection and its thread. A transaction is one function call on that thread, without an `await`.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast

import aiosqlite

from hermes_state.disk import Room
from hermes_state.engines.sqlite.file_loss import marker_of, side_files
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.errors import ConfigError, DatabaseRejected, StoreBroken, StoreUnavailable
from hermes_state.store.migrations import newer_version
from hermes_state.store.segment import fts_row, fts_scope, segment
from hermes_state.store.sql import scalar

P = ParamSpec("P")
T = TypeVar("T")

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
"""FULL: acknowledged writes survive a power failure. NORMAL: the last commits may be lost."""


_TROUBLE = {
    sqlite3.SQLITE_PERM: "permission denied",
    sqlite3.SQLITE_BUSY: "another process has locked the database",
    sqlite3.SQLITE_LOCKED: "another connection has locked the database",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_READONLY: "the database is not writable",
    sqlite3.SQLITE_INTERRUPT: "the query took too long and was stopped",
    sqlite3.SQLITE_IOERR: "reading or writing the disk failed",
    sqlite3.SQLITE_CORRUPT: "the database is damaged",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "the database's locks do not work, perhaps because of a network file system",
    sqlite3.SQLITE_NOTADB: "the file is not a database",
}


def is_trouble(error: BaseException) -> bool:
    """Return True for errors caused by the disk, the file or its locks, not by the statement."""
    return _primary_code(error) in _TROUBLE


def is_busy(error: BaseException) -> bool:
    """Return True if another process or connection holds a lock, so a retry may help."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def unavailable(path: Path, error: BaseException) -> StoreUnavailable:
    """Return a `StoreUnavailable` that describes a failure of the database at `path`."""
    code = _primary_code(error)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and Room.is_used_up(path.parent):
        code = sqlite3.SQLITE_FULL
    text = f"{path.name}: {_TROUBLE.get(code, 'the database failed')} ({error})"
    is_derived = getattr(error, "sqlite_errorcode", code) == sqlite3.SQLITE_CORRUPT_VTAB  # an error of the search index
    is_broken = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) and not is_derived
    hint = "stop the gateway and run `hermes-gateway doctor --repair` to save all readable rows"
    told = StoreBroken(f"{text}; {hint}") if is_broken else StoreUnavailable(text)
    told.__cause__ = error
    return told


def _primary_code(error: BaseException) -> int:
    if not isinstance(error, sqlite3.Error):
        return sqlite3.SQLITE_OK
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)  # absent in errors of the driver itself
    return int(code) & 0xFF


def check_engine() -> None:
    """Raise `StoreUnavailable` if this Python's SQLite lacks features that the schema needs."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise StoreUnavailable(f"SQLite 3.37 or newer is needed, but this Python has {sqlite3.sqlite_version}")
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        if not scalar(db, bool, "SELECT sqlite_compileoption_used('ENABLE_FTS5')"):
            raise StoreUnavailable("this Python's SQLite has no full-text search (FTS5): use another Python")


_ELSEWHERE = "move it away, or set HERMES_HOME to a different directory"


def check_ours(path: Path) -> None:
    """Raise `DatabaseRejected` if another program or a newer version wrote the file. Can also raise `StoreUnavailable`.

    To read the header, SQLite opens the file as immutable, without locks or side files. Reading the file directly would
    release the locks of this process's other connections when the file is closed.
    """
    log, _ = side_files(path)
    try:
        size, log_size = (file.stat().st_size if file.exists() else 0 for file in (path, log))
    except OSError as error:
        raise StoreUnavailable(f"cannot read {path}: {error.strerror or error}") from error
    if not size:
        if log_size:
            raise DatabaseRejected(
                f"{log} exists without its database {path.name}: restore the database, or move the log away"
            )
        return
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            application_id = scalar(db, int, "PRAGMA application_id")
            version = scalar(db, int, "PRAGMA user_version")
    except sqlite3.DatabaseError as error:
        if _primary_code(error) == sqlite3.SQLITE_NOTADB and not marker_of(path).exists():
            raise DatabaseRejected(f"{path} is not a database: {_ELSEWHERE}") from error
        raise unavailable(path, error) from error
    if application_id != APPLICATION_ID:
        raise DatabaseRejected(f"{path} belongs to another program: {_ELSEWHERE}")
    if version > newest_schema():
        raise newer_version(str(path), version, newest_schema())


def ensure_private(path: Path) -> None:
    """Create the database file (mode 0600) and its directory (0700). Raises `StoreUnavailable` if this fails."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise StoreUnavailable(f"cannot create {path}: {error.strerror or error}") from error


class StoreConnection(aiosqlite.Connection):
    """Connection in autocommit mode that runs whole functions on its own thread.

    aiosqlite has no public call for that, so `run` calls the inherited `_execute`. No other code uses private names of
    aiosqlite, and a test fails if they disappear. The thread is a daemon thread: a connection that was not closed loses
    its unacknowledged writes, but does not keep the process alive.
    """

    def __init__(self, path: Path) -> None:
        connector = partial(sqlite3.connect, path, isolation_level=None, cached_statements=512)
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True

    async def run(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, ...)` as one job on the connection's thread."""
        job = self._execute(fn, self._conn, *args, **kwargs)  # type: ignore[no-untyped-call]  # aiosqlite is untyped
        return cast("T", await job)


async def connect(path: Path) -> StoreConnection:
    """Open a connection, and register the schema's SQL functions. The caller closes it."""
    connection = StoreConnection(path)
    try:
        await connection
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(connection.close)
        await connection.run(register_functions)
        undo.pop_all()
    return connection


def register_functions(db: sqlite3.Connection) -> None:
    """Register the SQL functions that the schema's triggers and views call."""
    db.create_function("fts_text", 1, segment, deterministic=True)
    db.create_function("fts_row", 2, fts_row, deterministic=True)
    db.create_function("fts_scope", 4, fts_scope, deterministic=True)


def prepare_writer(db: sqlite3.Connection, path: Path, synchronous: Synchronous, busy_seconds: float) -> None:
    """Configure the connection for writing. Mark a new file as a database of the gateway."""
    db.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
    if not scalar(db, int, "PRAGMA page_count"):
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    if (mode := scalar(db, str, "PRAGMA journal_mode = WAL")) != "wal":
        raise StoreUnavailable(f"{path.name}: this file system does not support the write-ahead log (mode {mode})")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")  # overwrite what is deleted; costs nothing that can be measured
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -1024")  # KiB; 64 MiB was no faster with a million messages
    db.execute("PRAGMA journal_size_limit = 67108864")  # bytes kept on disk after a checkpoint


def limit_busy_wait(db: sqlite3.Connection, busy_seconds: float) -> None:
    """Let SQLite wait at most a second for a lock, because waiting blocks the thread. The writer retries after that."""
    db.execute(f"PRAGMA busy_timeout = {int(min(1.0, busy_seconds) * 1000)}")


def prepare_reader(db: sqlite3.Connection, busy_seconds: float) -> None:
    db.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -128")  # KiB; every commit empties the cache, and 512 KiB was no faster


NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "davfs", "fuse.sshfs", "fuse.rclone", "fuse.davfs2"}
)


def refuse_network_disk(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise `ConfigError` if `path` is on a network file system. Does nothing if the system has no mount table."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    kind = _kind_of(path.resolve(), table)
    if kind in NETWORK_KINDS:
        raise ConfigError(
            f"{path} is on a network file system ({kind}), whose locks are unreliable: "
            "set HERMES_HOME to a folder on a local disk"
        )


def _kind_of(path: Path, table: str) -> str:
    """Return the type of the file system that contains `path`: the last one mounted at the deepest mount point."""
    found, depth = "", -1
    for line in table.splitlines():
        fields = line.split(" ")
        mount = Path(fields[4].replace("\\040", " "))
        if len(mount.parts) >= depth and path.is_relative_to(mount):
            found, depth = fields[fields.index("-") + 1], len(mount.parts)
    return found
