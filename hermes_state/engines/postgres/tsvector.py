"""Convert a message's words to a `tsvector`, for PostgreSQL's full-text search.

SQLite's FTS5 tokenizer folds the characters here too, so both engines find the same messages.

>>> tokens("Café, 数据库 😀")
['cafe', '数据', '据库', '库', 'xe1f600']
>>> vector("no, no door", ["c7"])
"'no':1,2 'door':3 ':c7'"
"""

import contextlib
import sqlite3
from collections.abc import Iterable
from functools import cache

from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.segment import SEGMENT_VERSION, fts_row, fts_scope, segment, segment_query
from hermes_state.store.sql import Connection, load_note, save_note

MAX_WORD_BYTES = 2_046  # PostgreSQL's limit; longer words are cut

MAX_POSITION, MAX_PLACES = 16_000, 255
"""Highest word position (PostgreSQL's limit: 16,383), and maximum number of positions stored for each word."""


_BLOCK = 256


class _Folding(dict[int, str]):
    """Map from characters to token text: a letter's folded form, '' for an accent, and a space for a separator."""

    def __missing__(self, code: int) -> str:
        first = code - code % _BLOCK
        block = dict.fromkeys(range(first, first + _BLOCK), " ")
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE VIRTUAL TABLE sample USING fts5(text, tokenize='unicode61 remove_diacritics 2')")
            db.execute("CREATE VIRTUAL TABLE token USING fts5vocab(sample, instance)")
            between = [(one, f"x{chr(one)}x") for one in block if not 0xD800 <= one <= 0xDFFF]
            db.executemany("INSERT INTO sample(rowid, text) VALUES (?, ?)", between)
            # If the text is still one token, the character is part of a word. An accent is missing from the token.
            joined = db.execute("SELECT doc, max(term) FROM token GROUP BY doc HAVING count(*) = 1")
            block.update((one, term[1:-1]) for one, term in joined)
        self.update(block)
        return block[code]


_folding = _Folding()


def tokens(text: str, *, is_query: bool = False) -> list[str]:
    """Return the words of a row's text, or of a phrase in a query, split and folded as FTS5's tokenizer does."""
    cut = segment_query(text.rstrip()) if is_query else segment(text)
    words = filter(None, cut.translate(_folding).split(" "))
    return [
        word if len(word) * 4 <= MAX_WORD_BYTES else word.encode()[:MAX_WORD_BYTES].decode(errors="ignore")
        for word in words
    ]


def mark(scope: str) -> str:
    """Return the token for a scope, such as `:c7` for chat 7. No word of a text has this form."""
    return f":{scope}"


def vector(text: str, scopes: Iterable[str]) -> str:
    """Return the `tsvector` of a row: words with their positions, then the scopes."""
    places: dict[str, list[int]] = {}
    room = 900_000  # PostgreSQL rejects a `tsvector` above 1 MiB, so later words are left out and not found
    for position, word in enumerate(tokens(text), 1):
        found = places.get(word)
        if found is None:
            room -= len(word.encode()) + 4  # length and padding
            if room < 0:
                break
            found = places[word] = []
        if position <= MAX_POSITION and len(found) < MAX_PLACES:
            found.append(position)
            room -= 2
    words = [f"'{word}'" + (f":{','.join(map(str, at))}" if at else "") for word, at in places.items()]
    return " ".join([*words, *(f"'{mark(scope)}'" for scope in scopes)])


def row_vector(text: str | None, body: str | None, role: str, tool_name: str | None) -> str:
    """Return the `tsvector` of a message row, from its columns. `_INSERT_WORDS` adds the chat and the conversation."""
    return vector(fts_row(text, body), fts_scope(0, 0, role, tool_name).split()[2:])


# Purpose: store the words of a message, with the scopes of its chat and conversation.
_INSERT_WORDS = f"""INSERT INTO message_words (message_id, words) SELECT {{}},
CAST(? AS tsvector) || array_to_tsvector(ARRAY['{mark("c")}' || chat_id, '{mark("l")}' || lineage_id]) FROM {{}}"""


@cache
def in_one_trip(take: str, insert: str, *, is_indexed: bool) -> str:
    """Return a statement that updates a session (`take`) and inserts a message that reads from this update as `taken`.

    If the message `is_indexed`, its `row_vector` is the last parameter.
    """
    words = f", indexed AS ({_INSERT_WORDS.format('stored.id', 'stored, taken')})" if is_indexed else ""
    return f"WITH taken AS ({take}), stored AS ({insert}){words} SELECT * FROM stored"


def store_words(db: Connection, after: int, limit: int) -> int | None:
    """Store the words of up to `limit` messages with ids above `after`. Return the last id (None: no messages left)."""
    query = "SELECT id, text, body, role, tool_name FROM messages WHERE indexed = 1 AND id > ? ORDER BY id LIMIT ?"
    rows = db.execute(query, (after, limit)).fetchall()
    statement = f"""{_INSERT_WORDS.format("id", "messages WHERE id = ?")}
    ON CONFLICT (message_id) DO UPDATE SET words = excluded.words"""
    db.executemany(statement, [(row_vector(*columns), row_id) for row_id, *columns in rows])
    return rows[-1][0] if rows else None


RENEWED_ROWS = 100  # rows per step of `renew_words`, which blocks other writes for about 20 ms
VERSION_NOTE = "segment_version"  # version of all stored words, or of those up to a message id (`3:1200`)


def load_renewed(db: Connection) -> int | None:
    """Return the id of the last message that this version has indexed (0: none), or None if it has indexed all."""
    version, _, last = (load_note(db, VERSION_NOTE) or "").partition(":")
    return (int(last) if last else None) if version == str(SEGMENT_VERSION) else 0


@locks(EVERYTHING)
def renew_words(db: Connection) -> bool:
    """Replace the next messages' words if an earlier version stored them. Return True when all messages are done."""
    done = load_renewed(db)
    last = store_words(db, done, RENEWED_ROWS) if done is not None else None
    save_note(db, VERSION_NOTE, f"{SEGMENT_VERSION}:{last}" if last is not None else str(SEGMENT_VERSION))
    return last is None
