"""PostgreSQL migrations.

Each migration is a transaction that first takes an advisory lock and then reads the schema version. If several nodes
start together, only the first one migrates.

During an upgrade, nodes of the previous version continue to work with the new schema. A migration that would break them
sets the note `READABLE_FROM`.
"""

from collections.abc import Sequence

import msgspec
import psycopg

from hermes_state.engines.postgres.tsvector import VERSION_NOTE
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.store.migrations import Migration, check_applied, newer_version, note_applied, read_migrations
from hermes_state.store.segment import SEGMENT_VERSION
from hermes_state.store.sql import Connection, load_note, save_note, scalars, select

FIRST = 13  # number of the first migration; earlier versions did not support PostgreSQL

_MARK, _OURS = "application", "hermes-gateway"
_VERSION = "schema_version"
READABLE_FROM = "schema_readable_from"
"""Key of the note that stores the minimum schema version a gateway must support to use the database."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Server, database and role that a connection uses."""

    database: str
    role: str
    schema: str | None  # schema of new tables; None if the search path contains no existing schema
    version: int  # 150018 for 15.18
    encoding: str
    is_read_only: bool
    may_create: bool

    @property
    def release(self) -> str:
        """Version in the usual notation, such as `15.18`."""
        return f"{self.version // 10000}.{self.version % 10000}"

    @property
    def name(self) -> str:
        """Name of the database for use in messages."""
        return f"the PostgreSQL database {self.database}"


def shipped_migrations() -> tuple[Migration, ...]:
    return read_migrations("hermes_state.engines.postgres", FIRST)


def migrate(db: Connection, migrations: Sequence[Migration] | None = None, lock_seconds: float = 60.0) -> None:
    """Apply all pending migrations with `db`, outside a transaction.

    Waits at most `lock_seconds` for another node's migration or a locked table. Raises `DatabaseRejected` for an
    unusable database or server, `StoreUnavailable` if the database cannot be written now, and PostgreSQL's error if a
    migration fails. After a failed migration, the database keeps its previous schema version.
    """
    migrations = shipped_migrations() if migrations is None else migrations
    while _apply_next(db, migrations, lock_seconds):
        pass


def load_server(db: Connection) -> Server:
    query = """SELECT current_database() AS database, current_user AS role, current_schema() AS schema,
      CAST(current_setting('server_version_num') AS bigint) AS version, current_setting('server_encoding') AS encoding,
      current_setting('transaction_read_only') = 'on' AS is_read_only,
      coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create"""
    (server,) = select(db, Server, query)
    return server


def load_version(db: Connection) -> int:
    """Return the schema version of the database (0: empty). Raises the errors of `migrate`."""
    server, migrations = load_server(db), shipped_migrations()
    check_server(server)
    version = _version(db, server, migrations)
    if version < migrations[-1].number:
        _check_may_create(server)
    return version


def _apply_next(db: Connection, migrations: Sequence[Migration], lock_seconds: float) -> bool:
    """Apply the first pending migration. Return True if there are more."""
    db.execute("BEGIN")
    try:
        db.execute(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
        db.execute("SELECT pg_advisory_xact_lock(1212634969, 0)")  # HGWY; keys of two integers never equal bigint keys
        server = load_server(db)
        check_server(server)
        version = _version(db, server, migrations)
        pending = [migration for migration in migrations if migration.number > version]
        if pending:
            _check_may_create(server)
            db.execute(pending[0].sql)
            note_applied(db, pending[0])
            if pending[0].number == FIRST:  # no words are stored yet
                save_note(db, VERSION_NOTE, str(SEGMENT_VERSION))
            save_note(db, _MARK, _OURS)
            save_note(db, _VERSION, str(pending[0].number))
            db.execute("COMMIT")
        return len(pending) > 1
    except psycopg.errors.LockNotAvailable as error:
        raise StoreUnavailable(
            f"the database was not migrated, because another node or a query locked it for {lock_seconds:g} seconds"
        ) from error
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def check_server(server: Server) -> None:
    """Raise `DatabaseRejected` for a server that is too old or not UTF-8, or `StoreUnavailable` if it is read-only."""
    if server.version < 140000:
        raise DatabaseRejected(
            f"PostgreSQL 14 or newer is needed, but the server of {server.database} has {server.release}"
        )
    if server.encoding != "UTF8":
        raise DatabaseRejected(
            f"{server.name} has the encoding {server.encoding}: create a database with ENCODING 'UTF8' "
            "TEMPLATE template0"
        )
    if server.is_read_only:
        raise StoreUnavailable(f"{server.name} is read-only: set store.url to the primary server, not to a replica")


def _version(db: Connection, server: Server, migrations: Sequence[Migration]) -> int:
    """Return the schema version of the database (0: empty). Raises `DatabaseRejected` if another program uses it."""
    query = """SELECT relname FROM pg_class
    WHERE pg_table_is_visible(oid) AND relkind IN ('r', 'p', 'v', 'm', 'f') AND relpersistence <> 't'
      AND relnamespace <> (SELECT oid FROM pg_namespace WHERE nspname = 'pg_catalog')
      AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE classid = CAST('pg_class' AS regclass)
        AND objid = pg_class.oid AND deptype = 'e')  -- an extension's
    ORDER BY relname"""
    tables = scalars(db, str, query)
    if not tables:
        return 0
    if "meta" not in tables or not _is_ours(db, server):
        shown = ", ".join(tables[:3]) + (", …" if len(tables) > 3 else "")
        raise DatabaseRejected(f"{server.name} belongs to another program (tables: {shown}): use an empty database")
    version = int(load_note(db, _VERSION) or 0)
    newest = migrations[-1].number
    if version > newest + 1 or newest < int(load_note(db, READABLE_FROM) or 0):
        raise newer_version(server.name, version, newest)
    check_applied(db, server.name, [migration for migration in migrations if migration.number <= version])
    return version


def _is_ours(db: Connection, server: Server) -> bool:
    try:
        return load_note(db, _MARK) == _OURS
    except psycopg.errors.InsufficientPrivilege as error:
        raise DatabaseRejected(
            f"the role {server.role} cannot read the tables of {server.name}: make this role their owner"
        ) from error
    except psycopg.errors.UndefinedColumn:
        return False


def _check_may_create(server: Server) -> None:
    if not server.may_create:
        where = f"schema {server.schema}" if server.schema else "any schema on its search path"
        raise DatabaseRejected(
            f"the role {server.role} cannot create tables in {where} of {server.name}: grant it CREATE there, "
            "or make it the owner"
        )
