"""Overview of a PostgreSQL database: its server, its schema, its size, and what our role may do there."""

from hermes_state.engines.postgres.migrate import load_server
from hermes_state.store.sql import Connection, scalars

SCHEMA = "(SELECT CAST(value AS bigint) FROM meta WHERE key = 'schema_version')"
BYTES = "pg_database_size(current_database())"

# Purpose: tables that the role cannot use. `has_table_privilege` with a list is true for any one of it.
_CLOSED = """
SELECT relname FROM pg_class
WHERE relkind = 'r' AND relnamespace = CAST(CAST(current_schema() AS text) AS regnamespace)
  AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
    AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
ORDER BY relname"""


def find_fault(db: Connection) -> str | None:
    """Obstacle that keeps the gateway from using the database; None: nothing. The pages are the server's to check."""
    if closed := scalars(db, str, _CLOSED):
        role = load_server(db).role
        return f"The role {role} may not read and write every table, such as {closed[0]}: make it their owner."
    return None


def describe(db: Connection) -> str:
    """The database in a few words: server, encoding, role."""
    server = load_server(db)
    return f"PostgreSQL {server.release} has the database {server.database} ({server.encoding}) for {server.role}"
