"""The search index as the writer sees it: derived from the messages, and taken off them when it fails.

`hermes_state.search.index` makes it anew. Until then nothing that is written reaches it.
"""

import sqlite3

from hermes_state.store.sql import Connection, scalar

SERVING = "messages_fts"  # table of the index that searches look into

MERGED_PAGES = 200  # pages of an index that one step merges, in about 30 ms of the writer's time


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


def merge_step(db: Connection, index: str, *, merges_all: bool = False) -> bool:
    """Merge a few pages of an index; True when there may be more to merge.

    With `merges_all` it begins to merge all parts of the index into one, which later steps go on with. An index that
    was filled in blocks needs that, or the next thousands of messages have to do it.
    """
    before = scalar(db, int, "SELECT total_changes()")
    pages = -MERGED_PAGES if merges_all else MERGED_PAGES
    db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
    return scalar(db, int, "SELECT total_changes()") - before >= 2  # documented: fewer mean that nothing was left


def merge_all(db: Connection, index: str = SERVING) -> None:
    """Merge all parts of an index that nobody else uses."""
    while merge_step(db, index, merges_all=True):
        pass


def index_triggers(db: Connection, index: str = "") -> list[str]:
    """Names of the triggers that bring messages into `index`, or into any."""
    find = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE ? ORDER BY name"
    return [name for (name,) in db.execute(find, (f"%INSERT INTO {index or SERVING}{'(' if index else ''}%",))]
