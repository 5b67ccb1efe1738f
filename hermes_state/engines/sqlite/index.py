"""The search index for the writer, which detaches it from the messages when it fails.

`hermes_state.search.index` rebuilds it.
"""

import sqlite3

from hermes_state.store.sql import Connection, scalar

SERVING = "messages_fts"  # table of the index that searches look into


def is_index_trouble(error: BaseException) -> bool:
    """Return True for errors that a damaged search index may have caused."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    is_corrupt = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_CORRUPT
    # FTS5 says no more in some cases; errors of our own statements name a table or a column.
    is_bare = str(error) in ("SQL logic error", "constraint failed")
    return is_corrupt or is_bare or SERVING in str(error) or "fts5" in str(error)


def detach_index(db: Connection) -> bool:
    """Detach the index outside of a transaction; False when it is detached already or cannot be."""
    triggers = index_triggers(db)
    try:
        for name in triggers:
            db.execute(f"DROP TRIGGER {name}")
    except sqlite3.Error:
        return False
    return bool(triggers)


def merge_step(db: Connection, index: str, *, merges_all: bool = False) -> bool:
    """Merge 200 pages of an index, in about 30 ms; True when there may be more to merge.

    With `merges_all`, begin to merge all parts into one, which later steps continue. An index that was filled in blocks
    needs that, or the next thousands of messages have to do it.
    """
    before = scalar(db, int, "SELECT total_changes()")
    pages = -200 if merges_all else 200
    db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
    return scalar(db, int, "SELECT total_changes()") - before >= 2  # documented: fewer mean that nothing was left


def merge_all(db: Connection, index: str = SERVING) -> None:
    """Merge all parts of an index that no other process uses."""
    while merge_step(db, index, merges_all=True):
        pass


def index_triggers(db: Connection, index: str = "") -> list[str]:
    """Return the names of the triggers that fill `index`, or any index."""
    find = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE ? ORDER BY name"
    return [name for (name,) in db.execute(find, (f"%INSERT INTO {index or SERVING}{'(' if index else ''}%",))]
