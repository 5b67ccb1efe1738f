"""Add the words of new messages to the search index, detach a failed index, and merge the parts of an index.

The mark, a note in `meta`, is the id up to which the index is complete. Triggers keep it so. Words of newer messages
are added in batches, because a batch writes far fewer pages than a commit for each message. Until then, searches read
these messages themselves. A failed index is rebuilt by `hermes_state.search.index`.
"""

import sqlite3

from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.store.sql import Connection, load_note, save_note, scalar, scalar_or_none

SERVING = "messages_fts"  # name of the index that searches use
MAKING = f"{SERVING}_next"  # name of the unfinished index that will replace it
MARK_NOTE = "search_mark"
"""Key of the mark. A database in which triggers still add all words has no mark."""
BLOCK_ROWS, BLOCK_CHARACTERS = 500, 500_000
"""Maximum rows and characters per block. A block keeps the writer busy for about 30 ms. A single row can be larger."""


def load_mark(db: Connection) -> int:
    """Load the id up to which the index contains every message."""
    mark = load_note(db, MARK_NOTE)
    return newest_id(db) if mark is None else int(mark)


def newest_id(db: Connection) -> int:
    return scalar(db, int, "SELECT coalesce(max(id), 0) FROM messages")


@locks(EVERYTHING)
def add_words(db: Connection) -> bool:
    """Add the words of the first block of messages above the mark. Return True if there may be more."""
    mark, newest = load_mark(db), newest_id(db)
    kept_up = [index for index in (SERVING, MAKING) if is_kept_up(db, index)]
    if mark >= newest or not kept_up:
        return False
    until = block_end(db, mark, newest, "ASC") or newest
    for index in kept_up:
        copy_words(db, index, mark + 1, until)
    save_note(db, MARK_NOTE, str(until))
    return until < newest


def copy_words(db: Connection, index: str, first: int, last: int) -> None:
    """Add the words of the messages with ids from `first` to `last` to an index."""
    copy = f"INSERT INTO {index}(rowid, text, scope) SELECT id, text, scope FROM messages_search"
    db.execute(f"{copy} WHERE id BETWEEN ? AND ? ORDER BY id", (first, last))


def block_end(db: Connection, above: int, below: int, order: str) -> int | None:
    """Return the last id of a block among ids from `above` + 1 to `below`, read in this order. None: there is none."""
    query = f"""SELECT id FROM (
      SELECT id, sum(min(length, {INDEXED_CHARACTERS})) OVER (ORDER BY id {order}) AS characters,
        row_number() OVER (ORDER BY id {order}) AS place
      FROM (SELECT id, length(coalesce(text, '')) + length(coalesce(body, '')) AS length FROM messages
        WHERE indexed = 1 AND id > ? AND id <= ? ORDER BY id {order} LIMIT {BLOCK_ROWS}))
    WHERE characters <= {BLOCK_CHARACTERS} OR place = 1 ORDER BY place DESC LIMIT 1"""
    return scalar_or_none(db, int, query, (above, below))


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


def complete_index(db: Connection, index: str = SERVING) -> None:
    """Add all words to an index, and merge all its parts into one. No other process may be using the index."""
    while add_words(db):
        pass
    while merge_step(db, index, merges_all=True):
        pass


def index_triggers(db: Connection, index: str = "") -> list[str]:
    find = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE ? ORDER BY name"
    return [name for (name,) in db.execute(find, (f"%INSERT INTO {index or SERVING}{'(' if index else ''}%",))]


def is_kept_up(db: Connection, index: str) -> bool:
    return has_table(db, index) and len(index_triggers(db, index)) == 4


def has_table(db: Connection, name: str) -> bool:
    return scalar(db, bool, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)", (name,))
