"""The search index as the writer sees it: derived from the messages, and taken off them when it fails.

`hermes_state.search.index` makes it anew. Until then nothing that is written reaches it.
"""

import sqlite3

from hermes_state.store.sql import Connection

SERVING = "messages_fts"
"""Table of the index that searches look into."""


def is_index_trouble(error: BaseException) -> bool:
    """True for errors that a damaged search index may have caused."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    is_corrupt = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF == sqlite3.SQLITE_CORRUPT
    # Its module says no more in some cases; errors of our own statements name a table or a column.
    is_bare = str(error) in ("SQL logic error", "constraint failed")
    return is_corrupt or is_bare or SERVING in str(error) or "fts5" in str(error)


def detach_index(db: Connection) -> bool:
    """Take the index off the messages; False when it is off, or cannot be taken off. In no transaction."""
    triggers = index_triggers(db)
    try:
        for name in triggers:
            db.execute(f"DROP TRIGGER {name}")
    except sqlite3.Error:
        return False
    return bool(triggers)


def index_triggers(db: Connection, index: str = "") -> list[str]:
    """Names of the triggers that bring messages into `index`, or into any."""
    find = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE ? ORDER BY name"
    return [name for (name,) in db.execute(find, (f"%INSERT INTO {index or SERVING}{'(' if index else ''}%",))]
