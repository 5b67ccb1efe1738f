"""Overview of a database file: its schema, its size, its soundness."""

from hermes_state.store.sql import Connection, scalar

SCHEMA = "(SELECT user_version FROM pragma_user_version)"
BYTES = "(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)"


def find_fault(db: Connection) -> str | None:
    """First complaint of SQLite's check of the file; None: it is sound. Reads every page: seconds per gigabyte."""
    verdict = scalar(db, str, "PRAGMA quick_check(1)")
    return f"The database is damaged: {verdict}" if verdict != "ok" else None


def describe(_db: Connection) -> str:
    """The database in a few words."""
    return "The database is sound"
