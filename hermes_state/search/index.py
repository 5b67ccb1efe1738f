"""The search index: how it is defined, whether it is sound, and how it is made: in the background, block by block.

A new index is filled beside the one that serves, from the newest message back to the oldest; a note tells from which
message on it is complete, and from there its triggers keep it so. A restart goes on where the note stands. When it is
complete, it takes the place of the old one. A damaged index is removed at once, and the new one serves while it grows.
"""

import contextlib
import re
import sqlite3
from functools import reduce
from pathlib import Path

from hermes_state.engines.postgres.words import load_renewed
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import SERVING, index_triggers, is_index_trouble, merge_step
from hermes_state.engines.sqlite.migrate import VERSION_NOTE, define_index, drop_index_triggers
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.meta import load_note, save_note
from hermes_state.store.segment import INDEXED_CHARACTERS, SEGMENT_VERSION, phrase
from hermes_state.store.sql import Connection, scalar, scalar_or_none

MAKING = f"{SERVING}_next"
BLOCK_ROWS = 500
BLOCK_CHARACTERS = 500_000
"""Most text of one block, beyond its first row: about 30 ms of the writer's time."""
SAMPLED_ROWS = 60
OUTDATED = "this version finds more words"
"""Fault of an index that can serve until there is a new one."""
_SAMPLED_CHARACTERS = 60

_FLOOR_NOTE = "search_floor"
"""Id of the oldest message that the index in the making holds."""
_MADE_NOTE = "search_making_version"

_TRIGGERS = 4


def serving_index(db: Connection) -> str:
    """Table that searches look into: the one in the making while there is no other."""
    return SERVING if _has_table(db, SERVING) else MAKING


def is_current(db: Connection) -> bool:
    """True when the index that serves holds what this version would put into it."""
    return load_note(db, VERSION_NOTE) == str(SEGMENT_VERSION)


def load_progress(db: Connection) -> int | None:
    """Share of the messages that the index in the making holds, in percent; None when none is being made."""
    if not isinstance(db, sqlite3.Connection):
        done = load_renewed(db)
        return None if done is None else 100 * done // max(1, done, _newest(db))
    floor = load_note(db, _FLOOR_NOTE)
    if floor is None or not _is_kept_up(db, MAKING):
        return None if index_triggers(db, SERVING) else 0
    top = _newest(db)
    return 100 * (top - max(0, int(floor) - 1)) // max(1, top)


def load_totals(db: Connection, index: str) -> list[int]:
    """Numbers of rows, of words of their texts, and of words of their scopes; others if they are damaged."""
    totals = scalar(db, sizes_of, f"SELECT CAST(coalesce((SELECT block FROM {index}_data WHERE id = 1), '') AS BLOB)")
    return totals or [0, 0, 0]  # an index that never held a row has none


def sizes_of(blob: bytes) -> list[int]:
    """Numbers as FTS5 keeps them: seven bits a byte, and the eighth in all but the last."""
    varints = re.findall(rb"[\x80-\xff]*[\x00-\x7f]", blob)
    return [reduce(lambda value, byte: value << 7 | byte & 0x7F, varint, 0) for varint in varints]


def find_fault(path: Path) -> str | None:
    """Fault of the index of the database at `path`, if it has one.

    Reads all of it, on a connection of its own: seconds per million messages. FTS5's own check would keep everybody
    from writing meanwhile.

    Raises `sqlite3.Error` if the database cannot be read.
    """
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        register_functions(db)
        db.execute("BEGIN")
        try:
            return _damage(db) or (_misfit(db) if is_current(db) else OUTDATED)
        except sqlite3.DatabaseError as error:
            if not is_index_trouble(error):
                raise
            return str(error)


def _damage(db: Connection) -> str | None:
    if not _is_kept_up(db, SERVING):
        return "it was taken off the messages because it failed"
    # Rows without an entry, and entries without a row, or with damaged sizes (of up to 200,000 words, and 3 or 4).
    query = f"""SELECT (SELECT count(*) FROM messages m WHERE m.indexed = 1 AND NOT EXISTS (
        SELECT 1 FROM {SERVING}_docsize d WHERE d.id = m.id))
      + (SELECT count(*) FROM {SERVING}_docsize d WHERE NOT EXISTS (
        SELECT 1 FROM messages m WHERE m.id = d.id AND m.indexed = 1) OR NOT (hex(d.sz) GLOB '[0-7]?0[34]'
          OR hex(d.sz) GLOB '[89A-F]?[0-7]?0[34]' OR hex(d.sz) GLOB '[89A-F]?[89A-F]?[0-7]?0[34]'))"""
    if stray := scalar(db, int, query):
        return f"{stray} messages are in it and should not be, or the other way round"
    db.execute(f"CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, {SERVING}, 'col')")
    words = dict(db.execute("SELECT col, sum(cnt) FROM temp.terms GROUP BY col"))
    rows = scalar(db, int, f"SELECT count(*) FROM {SERVING}_docsize")
    if load_totals(db, SERVING) != [rows, words.get("text", 0), words.get("scope", 0)]:
        return f"it holds {sum(words.values())} words of {rows} messages and counts others"
    return None


def _misfit(db: Connection) -> str | None:
    """Sampled message whose words are not found, in words; text in ASCII is cut in one way everywhere."""
    query = f"""SELECT id, substr(fts_row(text, body), 1, {_SAMPLED_CHARACTERS + 1}) FROM messages WHERE indexed = 1
    AND (id > :top - {SAMPLED_ROWS // 2} OR id % (1 + :top / {SAMPLED_ROWS // 2}) = 0) LIMIT {SAMPLED_ROWS}"""
    for row_id, text in db.execute(query, {"top": _newest(db)}).fetchall():
        start = text.rpartition(" ")[0] if text and len(text) > _SAMPLED_CHARACTERS else text
        if start and start.isascii() and any(map(str.isalnum, start)):
            match = (f"text:({phrase(start)})", row_id)
            if scalar_or_none(db, int, f"SELECT 1 FROM {SERVING} WHERE {SERVING} MATCH ? AND rowid = ?", match) is None:
                return f"it does not hold the words of message {row_id}"
    return None


@locks(EVERYTHING)
def begin_index(db: Connection, *, keeps_old: bool) -> None:
    """Begin to make a new index; without `keeps_old` the one that served is removed."""
    for index in (MAKING,) if keeps_old else (MAKING, SERVING):
        _drop(db, index)
    save_note(db, _FLOOR_NOTE, str(_newest(db) + 1))
    save_note(db, _MADE_NOTE, str(SEGMENT_VERSION))
    covered = f" AND {{}}.id >= (SELECT CAST(value AS INTEGER) FROM meta WHERE key = '{_FLOOR_NOTE}')"
    define_index(db, MAKING, covered)


def is_being_made(db: Connection) -> bool:
    """True when what was begun, by this process or an earlier one, can be gone on with."""
    return load_note(db, _MADE_NOTE) == str(SEGMENT_VERSION) and _is_kept_up(db, MAKING)


@locks(EVERYTHING)
def extend_index(db: Connection) -> bool:
    """Take the next block of messages into the index in the making, or merge some of its parts when it holds all.

    True when that was all, and it serves now.
    """
    floor = int(load_note(db, _FLOOR_NOTE) or 0)
    query = f"""SELECT min(id) FROM (
      SELECT id, sum(min(length, {INDEXED_CHARACTERS})) OVER (ORDER BY id DESC) AS characters,
        row_number() OVER (ORDER BY id DESC) AS place
      FROM (SELECT id, length(coalesce(text, '')) + length(coalesce(body, '')) AS length FROM messages
        WHERE indexed = 1 AND id < ? ORDER BY id DESC LIMIT {BLOCK_ROWS}))
    WHERE characters <= {BLOCK_CHARACTERS} OR place = 1"""
    low = scalar_or_none(db, int, query, (floor,))
    if low is None:
        save_note(db, _FLOOR_NOTE, "0")
        if merge_step(db, MAKING, merges_all=floor > 0):
            return False
        _finish(db)
        return True
    copy = f"INSERT INTO {MAKING}(rowid, text, scope) SELECT id, text, scope FROM messages_search"
    db.execute(f"{copy} WHERE id >= ? AND id < ? ORDER BY id", (low, floor))
    save_note(db, _FLOOR_NOTE, str(low))
    return False


def _finish(db: Connection) -> None:
    _drop(db, SERVING)
    drop_index_triggers(db, MAKING)
    db.execute(f"ALTER TABLE {MAKING} RENAME TO {SERVING}")
    define_index(db, SERVING, only="CREATE TRIGGER")
    save_note(db, VERSION_NOTE, str(SEGMENT_VERSION))
    db.execute("DELETE FROM meta WHERE key IN (?, ?)", (_FLOOR_NOTE, _MADE_NOTE))


def _drop(db: Connection, index: str) -> None:
    """Remove an index, however damaged: what SQLite cannot open, it cannot drop as a whole."""
    drop_index_triggers(db, index)
    try:
        db.execute(f"DROP TABLE IF EXISTS {index}")
    except sqlite3.DatabaseError as error:
        if not is_index_trouble(error):
            raise
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE type = 'table' AND name = ?", (index,))
        db.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "content", "docsize", "config"):
            db.execute(f"DROP TABLE IF EXISTS {index}_{part}")


def _is_kept_up(db: Connection, index: str) -> bool:
    return _has_table(db, index) and len(index_triggers(db, index)) == _TRIGGERS


def _has_table(db: Connection, name: str) -> bool:
    return scalar(db, bool, "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)", (name,))


def _newest(db: Connection) -> int:
    return scalar(db, int, "SELECT coalesce(max(id), 0) FROM messages")
