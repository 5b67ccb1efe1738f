"""The outbox: replies owed to people, stored in the transaction that decided them.

A row starts with the Markdown as written (`rendered = 0`). Before the first send it is rendered once and its parts are
committed, each a row of its own with the same `dedupe_key`; every retry sends those bytes. `sending` is
committed before the request leaves. A new owner of the account turns it into `ambiguous`: the outcome is unknown. A row
stays ambiguous until it is settled, however often it is sent.

An attempt states whose it is and which one: what an earlier owner of the account, or an earlier attempt, has still to
say of a row gives up nothing that another one is sending. Only that the platform has it is true whoever says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import msgspec

from hermes_state.accounts import IS_HELD, AccountClaim, require_held
from hermes_state.chats import note_reach
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none, scalars, select, select_one
from hermes_state.values import (
    Button,
    ChatId,
    InboxId,
    MessageId,
    Millis,
    OutboundPart,
    OutboxId,
    SentFile,
    TurnId,
    UserRef,
)


class OutboxKind(StrEnum):
    FINAL = "final"
    ERROR = "error"
    STATUS = "status"


class OutboxState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    AMBIGUOUS = "ambiguous"
    DEAD = "dead"


class WrittenReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply before it is rendered."""

    markdown: str
    footer: str = ""
    """Last lines, with the buttons below them: a message of their own where all of it does not fit into one."""
    edited_at: Millis | None = None
    """Time of the event that the footer tells, for a reply that only changes the message that it replaces."""
    buttons: tuple[Button, ...] = ()
    attached: SentFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Something to tell a chat."""

    chat_id: ChatId
    kind: OutboxKind = OutboxKind.STATUS
    markdown: str
    dedupe_key: str
    """Reason for which it is sent (`turn:7`, `inbox:12`): the same reason never sends twice."""
    turn_id: TurnId | None = None
    message_id: MessageId | None = None
    """The transcript row that it shows."""
    reply_to: str | None = None
    ticket: str | None = None
    replaces: str | None = None
    footer: str = ""
    edited_at: Millis | None = None
    buttons: tuple[Button, ...] = ()
    attached: SentFile | None = None
    """File that is given to the chat; `markdown` is its caption then."""
    is_urgent: bool = False
    """Due before whatever else is owed to the chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedReply:
    """A reply as it is sent at once, by the owner of its chat's account."""

    parts: Sequence[OutboundPart]
    ownership: AccountClaim


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One unsettled row."""

    id: OutboxId
    chat_id: ChatId
    message_id: MessageId | None
    dedupe_key: str
    part: int
    kind: OutboxKind
    written: WrittenReply | None
    """Before rendering."""
    rendered: OutboundPart | None
    """After it."""
    reply_to: str | None
    ticket: str | None
    replaces: str | None
    state: OutboxState
    attempts: int
    next_at: Millis
    first_tried_at: Millis | None


_encode = msgspec.json.Encoder().encode

_COLUMNS = """id, chat_id, message_id, dedupe_key, part, kind, reply_to, ticket, replaces, state, attempts, next_at,
first_tried_at,
CASE rendered WHEN 0 THEN payload END AS written, CASE rendered WHEN 1 THEN payload END AS rendered"""
# Purpose: a reply unless the same was stored before; as it is sent at once if its sender still serves the account.
_INSERT = f"""
INSERT INTO outbox (chat_id, turn_id, message_id, dedupe_key, kind, payload, rendered, reply_to, ticket, replaces,
  state, attempts, next_at, first_tried_at, created_at)
SELECT :chat_id, :turn_id, :message_id, :dedupe_key, :kind,
  CASE at_once WHEN 1 THEN CAST(:sent AS TEXT) ELSE :written END, at_once, :reply_to, :ticket, :replaces,
  CASE at_once WHEN 1 THEN 'sending' ELSE 'pending' END, at_once, :next_at,
  CASE at_once WHEN 1 THEN CAST(:now AS BIGINT) END, :now
FROM (SELECT CASE WHEN {IS_HELD} THEN 1 ELSE 0 END AS at_once) AS held WHERE 1 = 1
ON CONFLICT (dedupe_key, part) DO NOTHING RETURNING {_COLUMNS}
"""
# Purpose: the later parts of a reply, placed behind its first one.
_INSERT_PART = """
INSERT INTO outbox (chat_id, turn_id, message_id, dedupe_key, part, kind, payload, rendered, next_at, created_at)
SELECT chat_id, turn_id, message_id, dedupe_key, ?, kind, ?, 1, next_at, created_at FROM outbox WHERE id = ?
"""
OPEN = "state IN ('pending','sending','ambiguous')"
"""Condition for a row that is still owed."""

# Purpose: what a chat is still owed, first what is urgent (due at 0). Parts stand together even when another reply was
# stored meanwhile.
_OPEN = f"""
SELECT {_COLUMNS} FROM outbox o WHERE chat_id = ? AND {OPEN}
ORDER BY next_at > 0, (SELECT min(f.id) FROM outbox f WHERE f.dedupe_key = o.dedupe_key), part LIMIT ?
"""


@locks(chat="reply.chat_id")
def enqueue(db: Connection, reply: Reply, now: Millis, rendered: RenderedReply | None = None) -> OutboxRow | None:
    """Store a reply; None when the same `dedupe_key` was stored before.

    `rendered`: for a reply that is sent as soon as this is on disk, by whoever still serves the account then; it is
    stored as `begin_send` would leave it.
    """
    written = WrittenReply(**{name: getattr(reply, name) for name in WrittenReply.__struct_fields__})
    values = {"written": _encode(written).decode(), "now": now, "next_at": 0 if reply.is_urgent else now}
    sent: dict[str, str | int | None] = {"sent": None, "account": None, "epoch": None}
    if rendered is not None:
        sent = {"sent": _encode(rendered.parts[0]).decode(), **asdict(rendered.ownership)}
    row = select_one(db, OutboxRow, _INSERT, asdict(reply) | values | sent)
    if row is not None and row.rendered is not None and rendered is not None:
        _insert_parts(db, row.id, rendered.parts)
    return row


def _insert_parts(db: Connection, row_id: OutboxId, parts: Sequence[OutboundPart]) -> None:
    for number, part in enumerate(parts[1:], start=1):
        db.execute(_INSERT_PART, (number, _encode(part).decode(), row_id))


def find_recipient(db: Connection, dedupe_key: str) -> ChatId | None:
    """The chat that a reply was stored for, None when it is not known any more."""
    return scalar_or_none(db, ChatId, "SELECT chat_id FROM outbox WHERE dedupe_key = ?", (dedupe_key,))


def replace_preview(db: Connection, turn_id: TurnId, ref: str) -> None:
    """Let what is owed for a turn take the place of its preview, unless it was tried already."""
    query = "UPDATE outbox SET replaces = ? WHERE turn_id = ? AND part = 0 AND state = 'pending' AND attempts = 0"
    db.execute(query, (ref, turn_id))


def load_open(db: Connection, chat_id: ChatId, limit: int = 50) -> list[OutboxRow]:
    """Rows owed to a chat, in the order in which they must be sent."""
    return select(db, OutboxRow, _OPEN, (chat_id, limit))


# Purpose: the chats of an account that something is owed to.
_OWED = f"""
SELECT DISTINCT o.chat_id FROM outbox o JOIN chats c ON c.id = o.chat_id WHERE c.account = ? AND o.{OPEN}
"""


def load_chats_owed_questions(db: Connection) -> list[ChatId]:
    """Chats that are owed a question, or the edit of an answered one."""
    return scalars(db, ChatId, f"SELECT DISTINCT chat_id FROM outbox WHERE {OPEN} AND dedupe_key LIKE 'approval:%'")


def load_chats_owed(db: Connection, account: str) -> list[ChatId]:
    """Chats of an account that something is owed to."""
    return scalars(db, ChatId, _OWED, (account,))


# Purpose: the beginning of a send; what was rendered for it replaces what was written. A row stays ambiguous until it
# is sent: if nobody learns the outcome of this statement, the next attempt is still a repeat.
_BEGIN = f"""
UPDATE outbox SET state = CASE state WHEN 'ambiguous' THEN state ELSE 'sending' END, attempts = attempts + 1,
  first_tried_at = coalesce(first_tried_at, :now), payload = coalesce(:payload, payload), rendered = 1
WHERE id = :row_id AND settled_at IS NULL AND {IS_HELD} RETURNING {_COLUMNS}
"""


@locks(outbox="row_id")
def begin_send(
    db: Connection, row_id: OutboxId, parts: Sequence[OutboundPart] | None, claim: AccountClaim, now: Millis
) -> OutboxRow | None:
    """Commit that a send begins; None where the row was settled, and nothing is to be sent.

    The returned state is `ambiguous` if an earlier attempt may have reached the chat. Only this answer counts: a row
    that was read earlier may be older than the last change of owner.

    `parts`, for a row that was not rendered yet, are stored with it. Raises `AccountMoved`.
    """
    payload = None if parts is None else _encode(parts[0]).decode()
    values = {"now": now, "payload": payload, "row_id": row_id, **asdict(claim)}
    row = select_one(db, OutboxRow, _BEGIN, values)
    if row is None:
        require_held(db, claim)
    elif parts is not None:
        _insert_parts(db, row_id, parts)
    return row


# Purpose: settle a row that was sent; tells what it shows, and whether its chat is owed anything else.
_SENT = f"""
UPDATE outbox SET state = 'sent', platform_ref = ?, payload = '', settled_at = ?, error = NULL WHERE id = ?
RETURNING chat_id, message_id, part, dedupe_key,
  EXISTS (SELECT 1 FROM outbox o WHERE o.chat_id = outbox.chat_id AND o.id <> outbox.id AND o.{OPEN})
"""


CLOSED = ":closed"
"""End of the dedupe key of the edit that closes a question."""
_PLACE_EDIT = "UPDATE outbox SET replaces = ? WHERE dedupe_key = ? AND part = 0 AND attempts = 0"

# Purpose: a platform message and the transcript row of which it shows a part.
_SHOWN = "INSERT INTO platform_messages VALUES (?, ?, ?, ?) ON CONFLICT (chat_id, ref) DO NOTHING"


@locks(outbox="row_id")
def mark_sent(db: Connection, row_id: OutboxId, ref: str, now: Millis) -> bool:
    """Settle a row that the platform has, and remember which transcript row it shows; True when more is owed.

    It has it whoever serves the account by now: who would send it again finds it settled.
    """
    sent = db.execute(_SENT, (ref, now, row_id)).fetchone()
    chat_id, message_id, part, key, is_owed = sent or (None, None, 0, "", 0)
    if message_id is not None:
        db.execute(_SHOWN, (chat_id, ref, message_id, part))
    if key.startswith("approval:"):  # answered while it was on its way: the edit learns where it stands
        db.execute(_PLACE_EDIT, (ref, f"{key}{CLOSED}"))
    return bool(is_owed)


# Purpose: the end of a row's newest attempt, which was not sent; `settled_at` is NULL where another one follows.
_END_ATTEMPT = f"""
UPDATE outbox SET state = :state, error = :error, next_at = :next_at, settled_at = CAST(:settled_at AS BIGINT)
WHERE id = :id AND attempts = :attempts AND settled_at IS NULL AND {IS_HELD}
"""


@locks(outbox="row.id")
def mark_retry(
    db: Connection, row: OutboxRow, is_ambiguous: bool, error: str, claim: AccountClaim, next_at: Millis
) -> None:
    """Note that the attempt that began with `row` failed; `next_at` is when the next one is due.

    There is none where the row was settled meanwhile. Raises `AccountMoved`: the new owner knows what is to be done.

    `is_ambiguous`: this or an earlier attempt may have been seen by people.
    """
    state = OutboxState.AMBIGUOUS if is_ambiguous else OutboxState.PENDING
    _end_attempt(db, row, claim, {"state": state, "error": error, "next_at": next_at, "settled_at": None})


@locks(outbox="row.id")
def mark_dead(
    db: Connection, row: OutboxRow, error: str, claim: AccountClaim, now: Millis, *, is_unreachable: bool = False
) -> bool:
    """Give up a row that the attempt that began with `row` has found undeliverable (a dead letter).

    `is_unreachable`: the bot cannot write in the chat at all. Returns True when that is new.
    The payload stays for the operator. Raises `AccountMoved`: the new owner finds out by itself.
    """
    ended = {"state": OutboxState.DEAD, "error": error, "next_at": row.next_at, "settled_at": now}
    _end_attempt(db, row, claim, ended)
    return is_unreachable and note_reach(db, row.chat_id, now)


def _end_attempt(db: Connection, row: OutboxRow, claim: AccountClaim, ended: Mapping[str, object]) -> None:
    values = {"id": row.id, "attempts": row.attempts, **ended, **asdict(claim)}
    if not db.execute(_END_ATTEMPT, values).rowcount:
        require_held(db, claim)


# Purpose: give up answers that are not delivered yet, and what follows a first part; for a person, only their own.
_STOP = """
UPDATE outbox SET state = 'dead', error = 'stopped by the person', settled_at = :now
WHERE chat_id = :chat_id AND settled_at IS NULL AND (kind = 'final' OR part > 0)
AND (turn_id IS NULL OR (SELECT min(i.id) FROM inbox i WHERE i.turn_id = outbox.turn_id) < :before)
AND (CAST(:person AS TEXT) IS NULL OR (SELECT started_by FROM turns WHERE id = turn_id) = :person)
"""


def stop_delivery(db: Connection, chat_id: ChatId, person: UserRef | None, before: InboxId, now: Millis) -> bool:
    """Give up what of the chat's answers is not delivered; False when nothing was left of them.

    `person`: only answers of turns that they started. `before`: only of turns that an earlier inbox row began. A part
    whose request is under way may still arrive.
    """
    values = {"chat_id": chat_id, "person": person, "before": before, "now": now}
    return db.execute(_STOP, values).rowcount > 0
