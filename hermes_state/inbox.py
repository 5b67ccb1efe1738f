"""The inbox: platform events, stored before they are acknowledged.

A row is `new` until a turn claims it (`claimed`, then `done`), a command settles it (`done`), `/stop all` or a full
queue drops it (`dropped`), or its author deletes it (`withdrawn`). Settling empties the payload. The unique key stays
for 30 days, so a redelivered event has no effect.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

import msgspec

from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, scalar, scalar_or_none, scalars, select, select_one
from hermes_state.store.sql import Cursor as Result
from hermes_state.values import (
    ChatId,
    Cursor,
    InboxId,
    IncomingAttachment,
    InputKind,
    LineageId,
    Millis,
    PlatformEvent,
    Quote,
    TurnId,
    UserRef,
)


class InboxKind(StrEnum):
    MESSAGE = "message"
    COMMAND = "command"
    NOTICE = "notice"
    """A note that the model reads in the next turn.

    It contains the new text of an edited message. If it has no `message_ref`, the gateway wrote its text.
    """


class InboxMode(StrEnum):
    QUEUE = "queue"
    STEER = "steer"
    """A message that joins the running turn before its next model call, or starts the next turn."""
    ALONE = "alone"
    """A row that is not merged with neighbouring rows: a `/queue` message, or a command that runs immediately."""


class InboxState(StrEnum):
    NEW = "new"
    CLAIMED = "claimed"
    DONE = "done"
    DROPPED = "dropped"
    WITHDRAWN = "withdrawn"
    DEAD = "dead"


class InboxPayload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of an unsettled event, stored as JSON."""

    text: str
    attachments: tuple[IncomingAttachment, ...] = ()
    transcripts: tuple[str, ...] = msgspec.field(default=(), name="heard")
    """Transcripts of recordings. Each one replaced its recording in `attachments`."""
    quote: Quote | None = None
    is_forwarded: bool = False  # set only by earlier versions
    words_by: str | None = None
    via: InputKind = InputKind.TYPED
    ticket: str | None = None
    notes: tuple[str, ...] = ()  # facts about the message, for the model
    agent: str = ""  # agent to which a scheduled message belongs


class NewInboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted event to store."""

    platform: str
    account: str
    event_ref: str
    chat_id: ChatId
    kind: InboxKind
    mode: InboxMode
    sender_ref: UserRef
    sender_name: str
    message_ref: str
    payload: InboxPayload
    expects_more: bool
    sent_at: Millis


class InboxRow(NewInboxRow, frozen=True, kw_only=True):
    """A stored event that is not settled."""

    id: InboxId
    state: InboxState = InboxState.NEW
    received_at: Millis

    @property
    def runs_at_once(self) -> bool:
        """True for a command that the account's node runs immediately, without waiting for the chat's lane."""
        return self.kind is InboxKind.COMMAND and self.mode is InboxMode.ALONE

    @property
    def asks_for_agent(self) -> bool:
        """True for the command `/agent`, which can take back a choice before its agent answers."""
        return self.kind is InboxKind.COMMAND and self.payload.text.split(maxsplit=1)[0].lower() == "/agent"


_encode = msgspec.json.Encoder().encode

SCHEDULE_PREFIX = "schedule:"
"""Prefix of a scheduled message's event key. A platform's event key starts with the bot's id."""
IS_SCHEDULED = f"event_ref LIKE '{SCHEDULE_PREFIX}_%'"

WAITS = "state = 'new'"  # SQL condition for rows that no turn has claimed

_COLUMNS = columns(InboxRow, "inbox")


def is_stored(db: Connection, event: PlatformEvent) -> bool:
    """Return True if this event was stored before."""
    query = "SELECT 1 FROM inbox WHERE platform = ? AND account = ? AND event_ref = ?"
    return db.execute(query, (event.chat.platform, event.chat.account, event.event_ref)).fetchone() is not None


def find_new(db: Connection, platform: str, account: str, event_ref: str) -> InboxId | None:
    """Return the id of a stored event if its state is `new`, otherwise None."""
    query = "SELECT id FROM inbox WHERE platform = ? AND account = ? AND event_ref = ? AND state = 'new'"
    return scalar_or_none(db, InboxId, query, (platform, account, event_ref))


def find_accounts(db: Connection, platform: str, bot_id: str) -> list[str]:
    """Return the accounts whose newest platform event is from this bot. Such events begin with the id of their bot."""
    query = """SELECT account FROM inbox WHERE event_ref LIKE ? AND id IN (
      SELECT max(id) FROM inbox WHERE platform = ? AND substr(event_ref, 1, 1) BETWEEN '0' AND '9' GROUP BY account)
    ORDER BY account"""
    return scalars(db, str, query, (f"{bot_id}:%", platform))


_INSERT = """INSERT INTO inbox (platform, account, event_ref, chat_id, kind, mode, sender_ref, sender_name,
  message_ref, payload, expects_more, sent_at, received_at, state, turn_id)
VALUES (:platform, :account, :event_ref, :chat_id, :kind, :mode, :sender_ref, :sender_name, :message_ref, :payload,
  :expects_more, :sent_at, :received_at, :state, :turn_id)
ON CONFLICT (platform, account, event_ref) DO NOTHING RETURNING id"""
_EARLIER = f"""(SELECT count(*) FROM inbox i WHERE i.chat_id = inbox.chat_id AND i.{WAITS} AND i.kind <> 'notice'
  AND NOT i.{IS_SCHEDULED} AND i.sender_ref = inbox.sender_ref AND i.id <> inbox.id)"""
_IS_BUSY = """EXISTS (SELECT 1 FROM turns t
  WHERE t.chat_id = inbox.chat_id AND t.parent_turn_id IS NULL AND t.state IN ('running','waiting'))"""


def insert(db: Connection, row: NewInboxRow, now: Millis, turn_id: TurnId | None = None) -> InboxId | None:
    """Store an event, claimed by the turn `turn_id` if given. Return None if the event is already stored."""
    return scalar_or_none(db, InboxId, _INSERT, _values(row, now, turn_id))


def insert_waiting(db: Connection, row: NewInboxRow, now: Millis) -> tuple[InboxId, int, bool] | None:
    """Store an event. Return its id, how many earlier ones of its sender wait, and if the chat has an open turn.

    Return None if the event is already stored.
    """
    found = db.execute(f"{_INSERT}, {_EARLIER}, {_IS_BUSY}", _values(row, now, None)).fetchone()
    return found and (InboxId(found[0]), found[1], bool(found[2]))


def _values(row: NewInboxRow, now: Millis, turn_id: TurnId | None) -> dict[str, object]:
    state = InboxState.NEW if turn_id is None else InboxState.CLAIMED
    stored = {"payload": _encode(row.payload).decode(), "received_at": now, "state": state, "turn_id": turn_id}
    return msgspec.structs.asdict(row) | stored


def stored_form(row: NewInboxRow, inbox_id: InboxId, now: Millis) -> InboxRow:
    """Return `row` as a stored row, as if loaded after `insert`."""
    return InboxRow(**msgspec.structs.asdict(row), id=inbox_id, received_at=now)


def load(db: Connection, inbox_id: InboxId) -> InboxRow | None:
    """Load an unsettled row. Return None if the row is settled or unknown."""
    query = f"SELECT {_COLUMNS} FROM inbox WHERE id = ? AND state IN ('new','claimed')"
    return select_one(db, InboxRow, query, (inbox_id,))


def load_waiting(db: Connection, chat_id: ChatId) -> list[InboxRow]:
    """Load the unclaimed rows in order of arrival."""
    query = f"SELECT {_COLUMNS} FROM inbox WHERE chat_id = ? AND {WAITS} ORDER BY id"
    return select(db, InboxRow, query, (chat_id,))


def load_waiting_commands(db: Connection, account: str) -> list[InboxId]:
    """Load the account's commands that have not run, oldest first."""
    query = f"SELECT id FROM inbox WHERE {WAITS} AND kind = 'command' AND account = ? ORDER BY id"
    return scalars(db, InboxId, query, (account,))


def load_chats_with_waiting(db: Connection) -> list[ChatId]:
    """Load the chats whose lane has work: a waiting row or a running turn.

    Chats with a running turn come first, then the others, oldest waiting row first. Chats whose turn is waiting for a
    decision are left out.
    """
    query = f"""WITH opened AS (
      SELECT chat_id, state FROM turns WHERE parent_turn_id IS NULL AND state IN ('running','waiting'))
    SELECT chat_id FROM (
      SELECT chat_id, id FROM inbox WHERE {WAITS} AND kind <> 'notice' AND NOT (kind = 'command' AND mode = 'alone')
        AND chat_id NOT IN (SELECT chat_id FROM opened WHERE state = 'waiting')
      UNION ALL SELECT chat_id, 0 FROM opened WHERE state = 'running') AS work
    GROUP BY chat_id ORDER BY min(id), chat_id"""
    return scalars(db, ChatId, query)


def is_behind_work(db: Connection, inbox_id: InboxId) -> bool:
    """Return True if the row's chat has an earlier message that is waiting or belongs to a turn in progress."""
    query = f"""SELECT EXISTS (SELECT 1 FROM inbox i
        WHERE i.chat_id = own.chat_id AND i.{WAITS} AND i.id < own.id AND i.kind = 'message')
      OR EXISTS (SELECT 1 FROM turns t
        WHERE t.chat_id = own.chat_id AND t.parent_turn_id IS NULL AND t.state IN ('running','waiting'))
    FROM inbox own WHERE own.id = ?"""
    return scalar(db, bool, query, (inbox_id,))


@locks(inbox="inbox_id")
def settle(db: Connection, inbox_id: InboxId, state: InboxState, now: Millis) -> bool:
    """Settle an open row. Return False if it is already settled."""
    return settle_where(db, state, now, "id = ? AND state IN ('new','claimed')", inbox_id).rowcount == 1


def remove(db: Connection, inbox_id: InboxId) -> None:
    """Remove a row that the same transaction stored, so that its event can come again."""
    db.execute("DELETE FROM inbox WHERE id = ?", (inbox_id,))


def settle_where(db: Connection, state: InboxState, now: Millis, where: str, *parameters: object) -> Result:
    """Settle the rows that match `where`, which must exclude settled rows. The result has their number."""
    query = f"UPDATE inbox SET state = ?, settled_at = ?, payload = '' WHERE {where}"
    return db.execute(query, (state, now, *parameters))


def drop_waiting(db: Connection, chat_id: ChatId, sender_ref: UserRef | None, now: Millis) -> int:
    """Drop the waiting messages of a chat, or of one person in it. Return how many were dropped."""
    where = f"chat_id = ? AND {WAITS} AND kind <> 'command' AND sender_ref = coalesce(?, sender_ref)"
    return settle_where(db, InboxState.DROPPED, now, where, chat_id, sender_ref).rowcount


def let_join(db: Connection, inbox_id: InboxId) -> None:
    """Turn a waiting message into a steer, so that it joins the running turn."""
    db.execute(f"UPDATE inbox SET mode = 'steer' WHERE id = ? AND {WAITS}", (inbox_id,))


def queue_late_steers(db: Connection, chat_id: ChatId) -> int:
    """Queue a chat's waiting steers for the next turn, because their turn has ended. Return how many were queued."""
    query = f"UPDATE inbox SET mode = 'queue' WHERE chat_id = ? AND {WAITS} AND mode = 'steer'"
    return db.execute(query, (chat_id,)).rowcount


@locks(EVERYTHING)
def queue_steers(db: Connection, may_steer: Callable[[UserRef], bool]) -> int:
    """Turn the waiting steers of users who can no longer steer into queued messages. Return the number of changes.

    `may_steer` is called inside the transaction, so that no new steer is missed.
    """
    query = f"SELECT id, sender_ref FROM inbox WHERE {WAITS} AND mode = 'steer'"
    late = [(inbox_id,) for inbox_id, ref in db.execute(query).fetchall() if not may_steer(UserRef(ref))]
    db.executemany("UPDATE inbox SET mode = 'queue' WHERE id = ?", late)
    return len(late)


class EditedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Stored state of a message that was edited."""

    inbox_id: InboxId
    state: InboxState
    kind: InboxKind
    sender_ref: UserRef
    text: str  # newest version of the text
    lineage_id: LineageId | None  # None while the message waits for a turn
    waiting_notice: InboxId | None = None  # notice about an earlier edit, if no turn has claimed the notice


EDIT_PREFIX = "(changed an earlier message, which now reads) "  # start of the text of a notice about an edit

# A settled row has no payload, so the text comes from its message.
_TEXT = "coalesce({1}.text, CASE {0}.payload WHEN '' THEN '' ELSE json_extract({0}.payload, '$.text') END)"


def find_edited(db: Connection, chat_id: ChatId, message_ref: str) -> EditedMessage | None:
    """Load the stored message with this platform id, or return None if there is none."""
    parameters = {"chat_id": chat_id, "ref": message_ref, "prefix": len(EDIT_PREFIX)}
    query = f"""SELECT i.id AS inbox_id, i.state, i.kind, i.sender_ref, m.lineage_id,
      CASE WHEN n.id IS NULL THEN {_TEXT.format("i", "m")}
        ELSE substr({_TEXT.format("n", "t")}, CAST(:prefix + 1 AS integer)) END AS text,
      CASE n.state WHEN 'new' THEN n.id END AS waiting_notice
    FROM inbox i LEFT JOIN messages m ON m.inbox_id = i.id
    LEFT JOIN inbox n ON n.id = (SELECT max(e.id) FROM inbox e
      WHERE e.chat_id = i.chat_id AND e.message_ref = i.message_ref AND e.kind = 'notice')
    LEFT JOIN messages t ON t.inbox_id = n.id
    WHERE i.message_ref = :ref AND i.id = coalesce(
      (SELECT max(w.id) FROM inbox w
        WHERE w.chat_id = :chat_id AND w.{WAITS} AND w.message_ref = :ref AND w.kind <> 'notice'),
      (SELECT s.inbox_id FROM platform_messages p JOIN messages s ON s.id = p.message_id
        WHERE p.chat_id = :chat_id AND p.ref = :ref))"""
    return select_one(db, EditedMessage, query, parameters)


def replace_text(db: Connection, inbox_id: InboxId, text: str, words_by: str | None = None) -> bool:
    """Replace the text of a waiting message. Return False if a turn has claimed it."""
    row = _load_new(db, inbox_id)
    if row is None:
        return False
    words_by = row.payload.words_by if words_by is None else words_by
    _save_payload(db, inbox_id, msgspec.structs.replace(row.payload, text=text, words_by=words_by))
    return True


def save_transcript(db: Connection, inbox_id: InboxId, recording: IncomingAttachment, transcript: str) -> None:
    """Replace a recording with its transcript, unless the message is settled."""
    row = _load_new(db, inbox_id)
    if row is None:
        return
    heard: dict[str, object] = {"transcripts": (*row.payload.transcripts, transcript)}
    if recording.is_quoted and (quote := row.payload.quote) is not None:
        heard = {"quote": msgspec.structs.replace(quote, text=f"{quote.text}\n{transcript}".strip())}
    attachments = tuple(one for one in row.payload.attachments if one != recording)
    payload = msgspec.structs.replace(row.payload, attachments=attachments, **heard)
    _save_payload(db, inbox_id, payload)


def _load_new(db: Connection, inbox_id: InboxId) -> InboxRow | None:
    row = load(db, inbox_id)
    return row if row is not None and row.state is InboxState.NEW else None


def _save_payload(db: Connection, inbox_id: InboxId, payload: InboxPayload) -> None:
    db.execute("UPDATE inbox SET payload = ? WHERE id = ?", (_encode(payload).decode(), inbox_id))


def is_known(db: Connection, chat_id: ChatId, message_ref: str) -> bool:
    """Return True if the model sees this message anyway, because it is waiting or belongs to the active session."""
    query = f"""SELECT EXISTS (SELECT 1 FROM inbox
      WHERE chat_id = :chat_id AND {WAITS} AND kind = 'message' AND message_ref = :ref)
    OR EXISTS (SELECT 1 FROM platform_messages p JOIN messages m ON m.id = p.message_id JOIN chats c ON c.id = p.chat_id
      WHERE p.chat_id = :chat_id AND p.ref = :ref AND m.session_id = c.active_session_id)"""
    return bool(message_ref) and scalar(db, bool, query, {"chat_id": chat_id, "ref": message_ref})


def withdraw(db: Connection, chat_id: ChatId, message_ref: str, now: Millis) -> int:
    """Settle the waiting row of a deleted message. Return the number of settled rows."""
    where = "chat_id = ? AND message_ref = ? AND state = 'new'"
    return settle_where(db, InboxState.WITHDRAWN, now, where, chat_id, message_ref).rowcount


@locks(chat="cursor")
def advance_cursor(db: Connection, cursor: Cursor | None) -> None:
    """Move a channel's cursor forward, never back. Does nothing for None."""
    # Platform ids are decimal numbers, which grow longer with time.
    query = """INSERT INTO cursors VALUES (?, ?, ?, ?)
    ON CONFLICT (platform, account, channel_ref) DO UPDATE SET seen_ref = excluded.seen_ref
    WHERE (length(excluded.seen_ref), excluded.seen_ref) > (length(cursors.seen_ref), cursors.seen_ref)"""
    if cursor is not None:
        db.execute(query, (cursor.platform, cursor.account, cursor.channel_ref, cursor.seen_ref))


def load_cursors(db: Connection, platform: str, account: str) -> Mapping[str, str]:
    """Load the cursor of each channel: the id of the last message seen (`seen_ref`), by `channel_ref`."""
    query = "SELECT channel_ref, seen_ref FROM cursors WHERE platform = ? AND account = ?"
    return dict(db.execute(query, (platform, account)).fetchall())


def load_rows(db: Connection, ids: Collection[InboxId]) -> list[InboxRow]:
    query = f"SELECT {_COLUMNS} FROM inbox WHERE id IN ({', '.join('?' * len(ids))}) AND state = 'new' ORDER BY id"
    return select(db, InboxRow, query, tuple(ids))
