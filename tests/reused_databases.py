"""Databases that are emptied and reused by the next test, because creating one takes hundreds of milliseconds.

After a test, its sessions are ended, its rows are deleted, and its ids restart, as in a database from
`Postgres.fresh_database`. If the test changed the schema or settings, or if the database is large, it is dropped
instead.
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache

from tests.postgres import PlainConnection, Postgres, connect

LARGE = 32 * 1024 * 1024
"""Size in bytes from which a database is dropped instead of emptied. An empty one has nine million."""

# Purpose: end all other sessions, waiting up to ten seconds for each.
_END_OTHERS = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""

# Purpose: compute a hash of the schema and settings that a test can change.
_SHAPE = """SELECT md5(string_agg(one, ';' ORDER BY one)) FROM (
  SELECT concat_ws(',', 'table', relname, relkind, relowner, relacl, reloptions, relpersistence) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(',', 'column', attrelid, attname, atttypid, attcollation, attnotnull, atthasdef, attacl)
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(',', 'default', adrelid, adnum, adbin) FROM pg_attrdef
  UNION ALL SELECT concat_ws(',', 'constraint', conrelid, conname, convalidated) FROM pg_constraint
  UNION ALL SELECT concat_ws(',', 'trigger', tgrelid, tgname, tgenabled) FROM pg_trigger
  UNION ALL SELECT concat_ws(',', 'function', proname, prosrc, proacl) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
  UNION ALL SELECT concat_ws(',', 'schema', nspname, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_'
  UNION ALL SELECT concat_ws(',', 'extension', extname) FROM pg_extension
  UNION ALL SELECT concat_ws(',', 'setting', setrole, setconfig) FROM pg_db_role_setting s
    JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()
) AS parts (one)"""

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
_COUNT_ANEW = """SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
FROM pg_sequences WHERE last_value IS NOT NULL"""


@cache
def reused_databases(server: Postgres) -> "ReusedDatabases":
    """Return the databases of this process. They are dropped with the server."""
    return ReusedDatabases(server)


class ReusedDatabases:
    """Databases of one process on one server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._made: dict[str, ExitStack] = {}
        """Exit stacks that drop the databases, by address."""
        self._free: list[str] = []
        self._shape = ""
        self._tables: list[str] = []
        self._rows: dict[str, list[tuple[object, ...]]] = {}
        """Rows that the migrations have inserted, by table."""

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Yield the address of a database that is like a new one with the newest schema."""
        url = self._free.pop() if self._free else self._make()
        try:
            yield url
        finally:
            if self._empty(url):
                self._free.append(url)
            else:
                self._made.pop(url).close()

    def _make(self) -> str:
        stack = ExitStack()
        url = stack.enter_context(self._server.fresh_database())
        self._made[url] = stack
        if not self._shape:
            with self._connect(url) as db:
                [(self._shape,)] = db.execute(_SHAPE).fetchall()
                self._tables = [name for (name,) in db.execute(_TABLES).fetchall()]
                self._rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in self._filled(db)}
        return url

    def _empty(self, url: str) -> bool:
        """Remove the rows that a test has left. Return False if the database cannot be reused."""
        with self._connect(url) as db:
            db.execute(_END_OTHERS)
            [(size, shape)] = db.execute(f"SELECT pg_database_size(current_database()), ({_SHAPE})").fetchall()
            if size > LARGE or shape != self._shape:
                return False
            db.execute("SET session_replication_role = replica")  # no triggers and no foreign keys
            filled = self._filled(db)
            for name in filled:
                db.execute(f"DELETE FROM {name}")
            db.execute(f"VACUUM {', '.join(filled)}")  # afterwards, rows are stored in insertion order
            for name, rows in self._rows.items():
                db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            db.execute(_COUNT_ANEW)
        return True

    def _filled(self, db: PlainConnection) -> list[str]:
        looks = [f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in self._tables]
        return [name for (name,) in db.execute(" UNION ALL ".join(looks)).fetchall()]

    def _connect(self, url: str) -> contextlib.AbstractContextManager[PlainConnection]:
        return connect(self._server.url(url.rpartition("/")[2], "postgres"))
