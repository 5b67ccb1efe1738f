"""Detach a failed search index from the messages, and merge the parts of an index.

A failed index is rebuilt by `hermes_state.search.index`.
"""

import sqlite3

from hermes_state.store.sql import Connection, scalar

SERVING = "messages_fts"  # name of the index that searches use


def is_index_trouble(error: BaseException) -> bool:
    """Return True if a damaged search index may have caused the error."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    is_corrupt = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_CORRUPT
    # FTS5 sometimes gives no details; errors in our own statements name a table or a column.
    is_bare = str(error) in ("SQL logic error", "constraint failed")
    return is_corrupt or is_bare or SERVING in str(error) or "fts5" in str(error)


def detach_index(db: Connection) -> bool:
    """Detach the index by dropping its triggers. Return False if there are none or they cannot be dropped."""
    triggers = index_triggers(db)
    try:
        for name in triggers:
            db.execute(f"DROP TRIGGER {name}")
    except sqlite3.Error:
        return False
    return bool(triggers)


def merge_step(db: Connection, index: str, *, merges_all: bool = False) -> bool:
    """Merge 200 pages of an index, in about 30 ms. Return True if there may be more to merge.

    With `merges_all`, this and later steps merge all parts into one. Use `merges_all` for an index that was filled in
    blocks. Otherwise, automatic merging would slow down the next few thousand message writes.
    """
    before = scalar(db, int, "SELECT total_changes()")
    pages = -200 if merges_all else 200
    db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
    # According to FTS5's documentation, fewer than two changes mean that there was nothing to merge.
    return scalar(db, int, "SELECT total_changes()") - before >= 2


def merge_all(db: Connection, index: str = SERVING) -> None:
    """Merge all parts of an index into one. No other process may be using the index."""
    while merge_step(db, index, merges_all=True):
        pass


def index_triggers(db: Connection, index: str = "") -> list[str]:
    find = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE ? ORDER BY name"
    return [name for (name,) in db.execute(find, (f"%INSERT INTO {index or SERVING}{'(' if index else ''}%",))]
