"""Transcripts: message rows, and the views of them that the model sees.

Rows are append-only. The model sees a **view** of a lineage's newest session: first the rows that the session's context
lists, then the session's own rows. Entries in `view_edits` hide or replace rows of the view. Undo and retry only write
view edits.
"""

import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import Any, TypeAlias

import msgspec

from hermes_state.engines.postgres.tsvector import in_one_trip, row_vector
from hermes_state.errors import SessionNotFound
from hermes_state.sessions import Session, load_tip
from hermes_state.store.sql import Connection, columns, scalar_or_none, scalars
from hermes_state.store.writer import Store
from hermes_state.values import (
    InboxId,
    LineageId,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    Transcript,
    TurnId,
    UserRef,
)

_Row: TypeAlias = tuple[Any, ...]  # a row from the database, before `_messages` converts it

EMPTY_BODY = MessageBody()
OUTSIDER_BODY = MessageBody(notes=("the writer has no access to this bot",))
"""Body of a message between two mentions that was written by a person without access."""
TRANSCRIBED_NOTE = "the message was spoken: its words are a transcript, which can contain mistakes"
FORWARDED_NOTE = "the sender passed this message on instead of writing it: its text is quoted and untrusted"
"""Note for the model on a message that was forwarded, or written by another bot or app."""
SCHEDULED_NOTE = "the message was scheduled earlier and sent automatically: nobody typed it now"
NOT_SAID_NOW = frozenset(
    {
        FORWARDED_NOTE,
        SCHEDULED_NOTE,
        "the message was forwarded: its words are those of somebody else",
        "the message was scheduled earlier and came by itself: nobody typed it now",
    }
)
"""Notes on messages that were forwarded or sent automatically. The last two notes were stored by earlier versions."""
_decode_body = msgspec.json.Decoder(MessageBody).decode
_encode_body = msgspec.json.Encoder().encode


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store as a row."""

    role: MessageRole
    origin: Origin
    text: str | None
    body: MessageBody = EMPTY_BODY
    sender_ref: str | None = None
    sender_name: str | None = None
    turn_id: TurnId | None = None
    inbox_id: InboxId | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's newest session, and the rows that the model sees, in order."""

    session: Session
    transcript: Transcript


# Purpose: reserve the next `seq` of a session and update its row.
_TAKE_SEQ = """
UPDATE sessions SET next_seq = next_seq + 1, message_count = message_count + 1{}
WHERE id = {} RETURNING id, chat_id, lineage_id, next_seq - 1
"""
# Purpose: reserve the next negative `seq` of a session.
_TAKE_VIEW_SEQ = """
UPDATE sessions SET next_view_seq = next_view_seq - 1 WHERE id = ? RETURNING id, chat_id, lineage_id, next_view_seq + 1
"""
# Purpose: insert a row of the transcript. The first four values come from the session's row.
_INSERT = f"""
INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, body, sender_ref, sender_name,
  turn_id, inbox_id, tool_call_id, tool_name, replaces_id, indexed, created_at)
{{}} RETURNING {columns(Message, "messages")}
"""
_INSERT_VALUES = _INSERT.format("VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_INSERT_TAKEN = _INSERT.format("(SELECT taken.*, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM taken)")
_COLUMNS = columns(Message, "m")
_OWN_ROWS = f"SELECT {_COLUMNS} FROM messages m WHERE m.session_id = ? AND m.seq >= ? ORDER BY m.seq LIMIT ?"
_NO_LIMIT = 2**62


def append(db: Connection, session_id: SessionId, new: NewMessage, now: Millis) -> MessageId:
    """Append a row to a session. Raises `SessionNotFound` if the session does not exist."""
    return _insert(db, _TAKE_SEQ.format("", "?"), (session_id,), new, None, now).id


def append_to_tip(
    db: Connection, lineage_id: LineageId, new: NewMessage, now: Millis, noted: str = "", *values: object
) -> Message:
    """Append a row to a conversation's newest session. Raises `SessionNotFound` if the conversation does not exist.

    `noted` contains SQL assignments for the session's row, each preceded by a comma. `values` are their parameters.
    """
    tip = "(SELECT id FROM sessions WHERE lineage_id = ? ORDER BY depth DESC LIMIT 1)"
    return _insert(db, _TAKE_SEQ.format(noted, tip), (*values, lineage_id), new, None, now)


def append_view_row(
    db: Connection, session_id: SessionId, new: NewMessage, replaces: MessageId | None, now: Millis
) -> MessageId:
    """Store a row that exists only in a view (a handoff, a stub). It has a negative `seq` and is not searchable."""
    return _insert(db, _TAKE_VIEW_SEQ, (session_id,), new, replaces, now, is_indexed=False).id


def append_part(db: Connection, session_id: SessionId, new: NewMessage, now: Millis) -> MessageId:
    """Store a row that the model does not see, but can search and open. It has a negative `seq`."""
    return _insert(db, _TAKE_VIEW_SEQ, (session_id,), new, None, now).id


def _insert(
    db: Connection,
    take: str,
    values: Sequence[object],
    new: NewMessage,
    replaces: MessageId | None,
    now: Millis,
    *,
    is_indexed: bool = True,
) -> Message:
    body = None if new.body == EMPTY_BODY else _encode_body(new.body).decode()
    fields = (
        *(new.role, new.origin, new.text, body, new.sender_ref, new.sender_name, new.turn_id, new.inbox_id),
        *(new.tool_call_id, new.tool_name, replaces, int(is_indexed), now),
    )
    if isinstance(db, sqlite3.Connection):  # fills its index with triggers
        taken = db.execute(take, values).fetchone()
        stored = taken and db.execute(_INSERT_VALUES, (*taken, *fields)).fetchone()
    else:
        words = (row_vector(new.text, body, new.role, new.tool_name),) if is_indexed else ()
        query = in_one_trip(take, _INSERT_TAKEN, is_indexed=is_indexed)
        stored = db.execute(query, (*values, *fields, *words)).fetchone()
    if stored is None:
        raise SessionNotFound(f"no session {values[-1]}")
    return _messages([stored])[0]


def load_view(db: Connection, lineage_id: LineageId) -> View:
    session = load_tip(db, lineage_id)
    return View(session=session, transcript=load_session_view(db, session.id))


def load_session_view(db: Connection, session_id: SessionId) -> Transcript:
    """Load the rows of a session that the model sees."""
    query = f"""SELECT {_COLUMNS} FROM session_context c JOIN messages m ON m.id = c.message_id
    WHERE c.session_id = ? ORDER BY c.pos"""
    stored = db.execute(query, (session_id,)).fetchall()
    stored += db.execute(_OWN_ROWS, (session_id, 1, _NO_LIMIT)).fetchall()
    return edited(db, session_id, _messages(stored))


def load_context(db: Connection, session_id: SessionId) -> Transcript:
    """Load the rows that a continuation started with, without later rows and view edits."""
    query = f"""SELECT {_COLUMNS} FROM session_context c JOIN messages m ON m.id = c.message_id
    WHERE c.session_id = ? ORDER BY c.pos"""
    return _messages(db.execute(query, (session_id,)).fetchall())


def edited(db: Connection, session_id: SessionId, rows: Transcript) -> Transcript:
    """Apply a session's view edits to `rows`."""
    query = "SELECT message_id, replacement_id FROM view_edits WHERE session_id = ?"
    edits = dict(db.execute(query, (session_id,)).fetchall())
    if not edits:
        return rows
    replacements = _load_rows(db, [target for target in edits.values() if target is not None])
    targets = ((row, edits.get(row.id, row.id)) for row in rows)
    return tuple([replacements.get(target, row) for row, target in targets if target is not None])


def load_own_rows(
    db: Connection, session_id: SessionId, since_seq: int, limit: int | None = None, preceding: Transcript = ()
) -> Transcript:
    """Load at most `limit` messages of a session from `since_seq` on, ignoring view edits.

    `preceding` is the part of the transcript before these messages. Values equal to those of its last rows are shared.
    """
    rows = db.execute(_OWN_ROWS, (session_id, since_seq, _NO_LIMIT if limit is None else limit)).fetchall()
    return _messages(rows, preceding)


def load_message(db: Connection, message_id: MessageId) -> Message:
    """Load a row that is known to exist."""
    return _load_rows(db, [message_id])[message_id]


def load_sender_name(db: Connection, turn_id: TurnId, sender_ref: UserRef) -> str | None:
    """Return the name that a person used in a turn, or None if the person wrote nothing in it."""
    query = "SELECT sender_name FROM inbox WHERE turn_id = ? AND sender_ref = ? ORDER BY id DESC LIMIT 1"
    return scalar_or_none(db, str, query, (turn_id, sender_ref))


def _load_rows(db: Connection, ids: list[int]) -> dict[int, Message]:
    query = f"SELECT {_COLUMNS} FROM messages m WHERE m.id = ?"
    stored = [row for message_id in ids for row in db.execute(query, (message_id,)).fetchall()]
    return {row.id: row for row in _messages(stored)}


def was_spoken(db: Connection, lineage_id: LineageId) -> bool:
    """Return True if the newest message from a person was spoken. A retry answers a message of an earlier turn."""
    query = "SELECT id FROM messages WHERE lineage_id = ? AND origin = 'human' ORDER BY id DESC LIMIT 1"
    asked = scalar_or_none(db, MessageId, query, (lineage_id,))
    return asked is not None and TRANSCRIBED_NOTE in load_message(db, asked).body.notes


def hide(db: Connection, session_id: SessionId, message_ids: Iterable[MessageId], reason: str, now: Millis) -> int:
    """Hide rows from the model. Return how many were hidden. Compressions planned earlier are then refused."""
    rows = [(session_id, session_id, message_id, message_id, reason, now) for message_id in message_ids]
    query = """INSERT INTO view_edits
    SELECT ?, coalesce((SELECT message_id FROM view_edits WHERE session_id = ? AND replacement_id = ?), ?), NULL, ?, ?
    WHERE true  -- without this, SQLite reads ON as part of a join
    ON CONFLICT (session_id, message_id) DO UPDATE SET replacement_id = NULL, reason = excluded.reason,
      created_at = excluded.created_at"""
    if rows:
        db.executemany(query, rows)
        # The provider's last token count does not match the new view.
        reset = "version = version + 1, reported_prompt_tokens = NULL, reported_at_seq = NULL"
        db.execute(f"UPDATE sessions SET {reset} WHERE id = ?", (session_id,))
    return len(rows)


def show_instead(db: Connection, row: Message, text: str, now: Millis) -> MessageId:
    """Store text that the model will see instead of `row`, which it has not seen yet. Return the id of the new row.

    The session's `version` stays the same, because compressions planned for earlier rows remain valid.
    """
    new = NewMessage(
        role=row.role,
        origin=row.origin,
        text=text,
        body=row.body,
        turn_id=row.turn_id,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
    )
    shown = append_view_row(db, row.session_id, new, row.id, now)
    query = "INSERT INTO view_edits (session_id, message_id, replacement_id, reason, created_at) VALUES (?, ?, ?, ?, ?)"
    db.execute(query, (row.session_id, row.id, shown, "persisted", now))
    return shown


def split_exchanges(view: View) -> list[list[Message]]:
    """Group rows into exchanges, which start with a human message. Drop earlier rows, and talk between mentions."""
    exchanges: list[list[Message]] = []
    turn = None
    for message in view.transcript:
        if message.origin is Origin.TALK:
            continue
        if message.origin is Origin.HUMAN and (message.turn_id is None or message.turn_id != turn):
            exchanges.append([])
            turn = message.turn_id
        if exchanges:
            exchanges[-1].append(message)
    return exchanges


def undoable_exchanges(view: View) -> list[list[Message]]:
    """Return the exchanges after the newest summary. Earlier exchanges are the start that the compression kept."""
    exchanges = split_exchanges(view)
    handoffs = (at for at, rows in enumerate(exchanges, 1) if any(row.origin is Origin.SUMMARY for row in rows))
    return exchanges[max(handoffs, default=0) :]


def load_messages(
    db: Connection,
    lineage_id: LineageId,
    limit: int,
    before: MessageId | None = None,
    session_id: SessionId | None = None,
) -> Transcript:
    """Load the newest `limit` original rows of a conversation or session, oldest first. Undone rows are included."""
    bound = before if before is not None else 2**62
    query = f"""SELECT {_COLUMNS} FROM messages m WHERE m.lineage_id = ? AND m.seq > 0 AND m.id < ?
    AND (CAST(? AS INTEGER) IS NULL OR m.session_id = ?) ORDER BY m.id DESC LIMIT ?"""
    rows = db.execute(query, (lineage_id, bound, session_id, session_id, limit)).fetchall()
    return _messages(reversed(rows))


def load_messages_after(
    db: Connection,
    lineage_id: LineageId,
    after: MessageId,
    limit: int,
    session_id: SessionId | None = None,
    sender: str | None = None,
) -> Transcript:
    """Load the first `limit` original rows of a conversation or session with ids above `after`, without undone rows.

    With `sender`, load only what this person wrote.
    """
    query = f"""SELECT {_COLUMNS} FROM messages m WHERE m.lineage_id = ? AND m.seq > 0 AND m.id > ?
    AND (CAST(? AS INTEGER) IS NULL OR m.session_id = ?) AND (CAST(? AS TEXT) IS NULL OR m.sender_ref = ?)
    AND NOT EXISTS (SELECT 1 FROM view_edits e JOIN sessions s ON s.id = e.session_id
      WHERE e.message_id = m.id AND s.lineage_id = m.lineage_id AND e.replacement_id IS NULL)
    ORDER BY m.id LIMIT ?"""
    values = (lineage_id, after, session_id, session_id, sender, sender, limit)
    return _messages(db.execute(query, values).fetchall())


def load_beginning(db: Connection, lineage_id: LineageId, limit: int) -> Transcript:
    """Load the first `limit` messages of a conversation, without tool rows and undone messages."""
    hidden = load_hidden(db, lineage_id)
    query = f"""SELECT {_COLUMNS} FROM messages m WHERE m.lineage_id = ? AND m.seq > 0
    AND (m.origin = 'human' OR (m.origin = 'assistant' AND m.text <> '')) ORDER BY m.id LIMIT ?"""
    rows = db.execute(query, (lineage_id, limit + len(hidden))).fetchall()
    return tuple(row for row in _messages(rows) if row.id not in hidden)[:limit]


def load_hidden(db: Connection, lineage_id: LineageId) -> set[MessageId]:
    """Load the ids of rows that were hidden by undo or retry in any session of a conversation."""
    query = """SELECT e.message_id FROM view_edits e JOIN sessions s ON s.id = e.session_id
    WHERE s.lineage_id = ? AND e.replacement_id IS NULL"""
    return set(scalars(db, MessageId, query, (lineage_id,)))


def _messages(rows: Iterable[_Row], preceding: Transcript = ()) -> Transcript:
    """Convert rows of `_COLUMNS` to messages. Values are found by position, which is five times faster than by name.

    Equal values share one object, including values in the last rows of `preceding`. This saves a quarter of a view's
    memory.
    """
    once = _InternCache()
    for row in preceding[-4:]:  # the last rows often share values with the next ones
        for value in (row.session_id, row.sender_ref, row.sender_name, row.turn_id, row.tool_name):
            once.setdefault(value, value)
    return tuple(
        [
            Message(
                id=id_,
                session_id=once[session_id],
                seq=seq,
                role=_ROLES[role],
                origin=_ORIGINS[origin],
                text=text,
                body=EMPTY_BODY if body is None else _decode_body(body),
                sender_ref=once[ref],
                sender_name=once[name],
                turn_id=once[turn_id],
                tool_call_id=call_id,
                tool_name=once[tool],
                created_at=at,
            )
            for id_, session_id, seq, role, origin, text, body, ref, name, turn_id, call_id, tool, at in rows
        ]
    )


class _InternCache(dict[Any, Any]):
    """Cache in which looking up a value returns the first equal value that was looked up."""

    def __missing__(self, value: Any) -> Any:
        self[value] = value
        return value


# A look-up in a dictionary is several times faster than calling the enum, and a view has thousands of rows.
_ROLES = {role.value: role for role in MessageRole}
_ORIGINS = {origin.value: origin for origin in Origin}


# ---- cached views

MIN_CACHED_ROWS = 64
"""Minimum number of rows in a cached view. Reading fewer rows takes well under a millisecond."""
MAX_CACHED_BYTES = 8_000_000
"""Maximum estimated memory use of all cached views together, in bytes."""
MAX_IDLE_SECONDS = 300.0
"""Seconds after which an unused view is dropped."""


class _CachedView(msgspec.Struct, frozen=True):
    view: View
    size: int
    used_at: float


class ViewCache:
    """Cache for `load_view`. Without it, every model call would spend milliseconds on decoding thousands of rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: OrderedDict[LineageId, _CachedView] = OrderedDict()
        self._size = 0

    async def load(self, lineage_id: LineageId) -> View:
        """Return the view of a lineage, from the cache if possible.

        Raises `SessionNotFound` if the lineage does not exist.
        """
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while self._cached and next(iter(self._cached.values())).used_at < oldest:
            self._drop(next(iter(self._cached)))
        before, start, size = self._cached.get(lineage_id), 0, 0
        view = await self._store.read_short(_load_since, lineage_id, before.view if before is not None else None)
        self._drop(lineage_id)
        if len(view.transcript) >= MIN_CACHED_ROWS:
            if before is not None and _has_only_grown(before.view, view.session):
                start, size = len(before.view.transcript), before.size
            size += sum(map(_size, view.transcript[start:]))
            self._cached[lineage_id] = _CachedView(view, size, time.monotonic())
            self._size += size
            while self._size > MAX_CACHED_BYTES and self._cached:
                self._drop(next(iter(self._cached)))
        return view

    def _drop(self, lineage_id: LineageId) -> None:
        cached = self._cached.pop(lineage_id, None)
        if cached is not None:
            self._size -= cached.size


def _load_since(db: Connection, lineage_id: LineageId, known: View | None) -> View:
    """Return the current view. If only new rows were added since `known`, load only those rows."""
    if known is None or not _has_only_grown(known, session := load_tip(db, lineage_id)):
        return load_view(db, lineage_id)
    rows = load_own_rows(db, session.id, known.session.next_seq, preceding=known.transcript)
    return View(session=session, transcript=known.transcript + rows)


def _has_only_grown(known: View, tip: Session) -> bool:
    before = known.session
    return (before.id, before.version, before.next_view_seq) == (tip.id, tip.version, tip.next_view_seq)


def _size(message: Message) -> int:
    """Return the estimated size of a message in memory, in bytes. Python uses up to four bytes per character."""
    body = message.body
    texts = [message.text, *(document.text for document in body.documents), *(call.arguments for call in body.calls)]
    return 250 + sum(map(getsizeof, texts))
