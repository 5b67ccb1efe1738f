"""The outbox: replies to people, each stored in the transaction that caused it.

A row starts as Markdown (`rendered = 0`). Before the first send it is rendered once, and each part is committed as a
row with the same `dedupe_key`. Every retry sends the same bytes. The state `sending` is committed before the request is
made. A new owner of the account changes `sending` to `ambiguous`, because the outcome of the request is unknown. Such a
row stays ambiguous until it is settled.

Each new owner of an account increases its epoch (a fencing token), and every send checks the epoch. So if several nodes
share a database, a stopped or disconnected owner can neither begin a send nor give up on a row.

A question about a tool call has the key `approval:<id>`. Its copies in admins' chats have the keys `approval:<id>:<chat
id>`. Closing the question stores an edit of each message with the key `<key>:closed`, which is sent after the message.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from hermes_state.chats import note_reach
from hermes_state.errors import StateError
from hermes_state.ratings import SignedMessage
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar, scalar_or_none, scalars, select, select_one
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


class AccountMoved(StateError):
    """The account may belong to another node now."""


class AccountClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Ownership of an account. It is valid while the stored epoch of the account is `epoch`."""

    account: str
    epoch: int


_IS_HELD = "EXISTS (SELECT 1 FROM accounts a WHERE a.account = :account AND a.epoch = :epoch)"


def _require_held(db: Connection, claim: AccountClaim) -> None:
    if not scalar(db, bool, f"SELECT {_IS_HELD}", asdict(claim)):
        raise AccountMoved(f"the account {claim.account} was taken by another node")


class OutboxKind(StrEnum):
    FINAL = "final"
    ERROR = "error"
    STATUS = "status"
    VOICE = "voice"
    """Spoken answer, sent after its text. The row counts as rendered when its recording is stored."""


class OutboxState(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    AMBIGUOUS = "ambiguous"
    DEAD = "dead"


class WrittenReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    markdown: str
    footer: str = ""
    """Last lines of the reply, above the buttons. They become a separate message if the whole reply is too long."""
    edited_at: Millis | None = None
    """Time shown in the footer, for a reply that only edits the message in `replaces`."""
    buttons: tuple[Button, ...] = ()
    attached: SentFile | None = None
    signed: SignedMessage | None = None
    """Reaction that replaces the reply if the platform accepts it. If there is no text, only the reaction is sent."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    kind: OutboxKind = OutboxKind.STATUS
    markdown: str
    dedupe_key: str  # what caused the reply (`turn:7`, `inbox:12`); each cause has only one reply
    turn_id: TurnId | None = None
    message_id: MessageId | None = None  # transcript row that contains the reply's text
    reply_to: str | None = None
    ticket: str | None = None
    replaces: str | None = None
    footer: str = ""
    edited_at: Millis | None = None
    buttons: tuple[Button, ...] = ()
    attached: SentFile | None = None  # file to send, captioned with `markdown`
    signed: SignedMessage | None = None  # reaction that replaces the text if the platform accepts it
    is_urgent: bool = False  # sent before all other replies to the chat


class RenderedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered reply that the account's owner wants to send immediately."""

    parts: Sequence[OutboundPart]
    ownership: AccountClaim


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored reply, or part of a reply, that is not settled."""

    id: OutboxId
    chat_id: ChatId
    message_id: MessageId | None
    dedupe_key: str
    part: int
    kind: OutboxKind
    written: WrittenReply | None
    rendered: OutboundPart | None
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
# Purpose: insert a reply once, as `sending` if its sender still owns the account.
_INSERT = f"""
INSERT INTO outbox (chat_id, turn_id, message_id, dedupe_key, kind, payload, rendered, reply_to, ticket, replaces,
  state, attempts, next_at, first_tried_at, created_at)
SELECT :chat_id, :turn_id, :message_id, :dedupe_key, :kind,
  CASE at_once WHEN 1 THEN CAST(:sent AS TEXT) ELSE :written END, at_once, :reply_to, :ticket, :replaces,
  CASE at_once WHEN 1 THEN 'sending' ELSE 'pending' END, at_once, :next_at,
  CASE at_once WHEN 1 THEN CAST(:now AS BIGINT) END, :now
FROM (SELECT CASE WHEN {_IS_HELD} THEN 1 ELSE 0 END AS at_once) AS held WHERE 1 = 1
ON CONFLICT (dedupe_key, part) DO NOTHING RETURNING {_COLUMNS}
"""
OPEN = "state IN ('pending','sending','ambiguous')"  # SQL condition for rows that are not settled


@locks(chat="reply.chat_id")
def enqueue(db: Connection, reply: Reply, now: Millis, rendered: RenderedReply | None = None) -> OutboxRow | None:
    """Store a reply. Return None if its `dedupe_key` is already stored.

    `rendered` holds the parts of a reply that the caller will send as soon as this is committed. If the caller still
    owns the account, this stores the parts and begins the send, like `begin_send`.
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
    query = """INSERT INTO outbox
      (chat_id, turn_id, message_id, dedupe_key, part, kind, payload, rendered, ticket, next_at, created_at)
    SELECT chat_id, turn_id, message_id, dedupe_key, ?, kind, ?, 1, ticket, next_at, created_at
    FROM outbox WHERE id = ?"""
    for number, part in enumerate(parts[1:], start=1):
        db.execute(query, (number, _encode(part).decode(), row_id))


def find_recipient(db: Connection, dedupe_key: str) -> ChatId | None:
    """Return the chat of the stored reply with this `dedupe_key`, or None if there is none."""
    return scalar_or_none(db, ChatId, "SELECT chat_id FROM outbox WHERE dedupe_key = ?", (dedupe_key,))


def replace_preview(db: Connection, turn_id: TurnId, ref: str) -> None:
    """Make the turn's reply replace its preview (the message `ref`), unless sending the reply has begun."""
    query = "UPDATE outbox SET replaces = ? WHERE dedupe_key = ? AND part = 0 AND state = 'pending' AND attempts = 0"
    db.execute(query, (ref, f"turn:{turn_id}"))


def load_open(db: Connection, chat_id: ChatId, limit: int = 50) -> list[OutboxRow]:
    """Load a chat's unsettled rows in sending order: urgent rows first, and the parts of a reply together."""
    # A voice message without a recording comes last, so that no other row waits for it.
    query = f"""SELECT {_COLUMNS} FROM outbox o WHERE chat_id = ? AND {OPEN}
    ORDER BY kind = 'voice' AND rendered = 0, next_at > 0,
      (SELECT min(f.id) FROM outbox f WHERE f.dedupe_key = o.dedupe_key), part LIMIT ?"""
    return select(db, OutboxRow, query, (chat_id, limit))


def load_chats_owed_questions(db: Connection) -> list[ChatId]:
    """Load the chats that have an unsent question, or an unsent edit of a question that was closed."""
    return scalars(db, ChatId, f"SELECT DISTINCT chat_id FROM outbox WHERE {OPEN} AND dedupe_key LIKE 'approval:%'")


def load_chats_owed(db: Connection, account: str) -> list[ChatId]:
    query = f"SELECT DISTINCT o.chat_id FROM outbox o JOIN chats c ON c.id = o.chat_id WHERE c.account = ? AND o.{OPEN}"
    return scalars(db, ChatId, query, (account,))


@locks(outbox="row_id")
def begin_send(
    db: Connection, row_id: OutboxId, parts: Sequence[OutboundPart] | None, claim: AccountClaim, now: Millis
) -> OutboxRow | None:
    """Record that a send begins, and store `parts` if the row was not rendered yet. Return None if the row is settled.

    The returned state is `ambiguous` if an earlier attempt may have reached the chat. Use only this state, because a
    row that was read earlier may be older than a change of the account's owner. Raises `AccountMoved` if another node
    has taken the account.
    """
    # A row stays ambiguous until it is settled, because its sender might not learn whether this statement succeeded.
    query = f"""UPDATE outbox SET state = CASE state WHEN 'ambiguous' THEN state ELSE 'sending' END,
      attempts = attempts + 1, first_tried_at = coalesce(first_tried_at, :now),
      payload = coalesce(:payload, payload), rendered = 1
    WHERE id = :row_id AND settled_at IS NULL AND {_IS_HELD} RETURNING {_COLUMNS}"""
    payload = None if parts is None else _encode(parts[0]).decode()
    row = select_one(db, OutboxRow, query, {"now": now, "payload": payload, "row_id": row_id, **asdict(claim)})
    if row is None:
        _require_held(db, claim)
    elif parts is not None:
        _insert_parts(db, row_id, parts)
    return row


OfferTopic: TypeAlias = Literal["retry", "undo"]


@locks(chat="reply.chat_id")
def offer(db: Connection, reply: Reply, topic: OfferTopic, now: Millis) -> OutboxRow | None:
    """Store a reply whose buttons apply until `end_offer`. A chat has one such reply for each topic."""
    end_offer(db, reply.chat_id, topic, now)
    row = enqueue(db, reply, now)
    if row is not None and reply.buttons:
        values = (reply.chat_id, topic, reply.dedupe_key, reply.markdown)
        db.execute("INSERT INTO live_buttons (chat_id, topic, dedupe_key, markdown) VALUES (?, ?, ?, ?)", values)
    return row


def end_offer(db: Connection, chat_id: ChatId, topic: OfferTopic, now: Millis) -> str | None:
    """Enqueue an edit that removes the buttons of the chat's reply. Return its `dedupe_key`; None if there is none."""
    query = "DELETE FROM live_buttons WHERE chat_id = ? AND topic = ? RETURNING dedupe_key, markdown"
    ended = db.execute(query, (chat_id, topic)).fetchone()
    if ended is None:
        return None
    key, markdown = ended
    query = "SELECT platform_ref FROM outbox WHERE dedupe_key = ? ORDER BY part DESC LIMIT 1"
    ref = scalar_or_none(db, str, query, (key,))
    if ref is not None:  # else it was not sent, and its button says that it no longer applies
        enqueue(db, Reply(chat_id=chat_id, markdown=markdown, dedupe_key=f"{key}{ENDED}", replaces=ref), now)
    return str(key)


def forget_offer(db: Connection, chat_id: ChatId, ref: str) -> None:
    """Forget the buttons of the message `ref`, because a new text has replaced its text and its buttons."""
    query = """DELETE FROM live_buttons WHERE chat_id = ? AND EXISTS (SELECT 1 FROM outbox o
      WHERE o.dedupe_key = live_buttons.dedupe_key AND o.platform_ref = ?)"""
    db.execute(query, (chat_id, ref))


def load_offer(db: Connection, chat_id: ChatId, topic: OfferTopic) -> str | None:
    """Load the `dedupe_key` of the chat's reply whose buttons apply; None if there is none."""
    query = "SELECT dedupe_key FROM live_buttons WHERE chat_id = ? AND topic = ?"
    return scalar_or_none(db, str, query, (chat_id, topic))


HOOK_PREFIX = "hook:"  # start of the dedupe key of a webhook's event; then follows the id of the chat it is about
CLOSED = ":closed"  # end of the dedupe key of an edit that closes a question
ENDED = ":ended"  # end of the dedupe key of an edit that only removes buttons


@locks(outbox="row_id")
def mark_sent(db: Connection, row_id: OutboxId, ref: str, now: Millis) -> bool:
    """Settle a delivered row, even if the account has a new owner. Return True if the chat has more unsent rows."""
    query = f"""UPDATE outbox SET state = 'sent', platform_ref = ?, payload = '', settled_at = ?, error = NULL
    WHERE id = ? RETURNING chat_id, message_id, part, dedupe_key,
      EXISTS (SELECT 1 FROM outbox o WHERE o.chat_id = outbox.chat_id AND o.id <> outbox.id AND o.{OPEN})"""
    sent = db.execute(query, (ref, now, row_id)).fetchone()
    chat_id, message_id, part, key, is_owed = sent or (None, None, 0, "", 0)
    if message_id is not None:
        query = """INSERT INTO platform_messages SELECT ?, ?, id, ? FROM messages WHERE id = ?
        ON CONFLICT (chat_id, ref) DO NOTHING"""  # the message may have been deleted
        db.execute(query, (chat_id, ref, part, message_id))
    # If the question was answered while it was being sent, its edit needs the message's id.
    if key.startswith("approval:"):
        query = "UPDATE outbox SET replaces = ? WHERE dedupe_key = ? AND part = 0 AND attempts = 0"
        db.execute(query, (ref, f"{key}{CLOSED}"))
    return bool(is_owed)


@locks(outbox="row.id")
def mark_retry(
    db: Connection, row: OutboxRow, is_ambiguous: bool, error: str, claim: AccountClaim, next_at: Millis
) -> None:
    """Record that an attempt to send `row` failed. Unless the row is settled, it is due again at `next_at`.

    `is_ambiguous` means that this or an earlier attempt may have reached the chat. Raises `AccountMoved` if another
    node has taken the account.
    """
    state = OutboxState.AMBIGUOUS if is_ambiguous else OutboxState.PENDING
    _end_attempt(db, row, claim, {"state": state, "error": error, "next_at": next_at, "settled_at": None})


@locks(outbox="row.id")
def mark_dead(
    db: Connection, row: OutboxRow, error: str, claim: AccountClaim, now: Millis, *, is_unreachable: bool = False
) -> bool:
    """Give up on an undeliverable row (a dead letter). Its payload is kept for the operator.

    `is_unreachable` means that the bot cannot write to the chat at all. Return True if that was not known before.
    Raises `AccountMoved` if another node has taken the account.
    """
    ended = {"state": OutboxState.DEAD, "error": error, "next_at": row.next_at, "settled_at": now}
    _end_attempt(db, row, claim, ended)
    return is_unreachable and note_reach(db, row.chat_id, now)


def _end_attempt(db: Connection, row: OutboxRow, claim: AccountClaim, ended: Mapping[str, object]) -> None:
    query = f"""UPDATE outbox SET state = :state, error = :error, next_at = :next_at,
      settled_at = CAST(:settled_at AS BIGINT)
    WHERE id = :id AND attempts = :attempts AND settled_at IS NULL AND {_IS_HELD}"""
    values = {"id": row.id, "attempts": row.attempts, **ended, **asdict(claim)}
    if not db.execute(query, values).rowcount:
        _require_held(db, claim)


def stop_delivery(
    db: Connection, chat_id: ChatId, person: UserRef | None, before: InboxId, now: Millis
) -> set[OutboxKind]:
    """Give up on the chat's unsent answers, and return their kinds. A part that is being sent can still arrive.

    `person` limits this to turns that the person started, and `before` to turns that began with an earlier inbox row.
    """
    values = {"chat_id": chat_id, "person": person, "before": before, "now": now}
    query = f"""UPDATE outbox SET state = 'dead', error = 'stopped with /stop', settled_at = :now
    WHERE chat_id = :chat_id AND {OPEN} AND (kind IN ('final','voice') OR part > 0)
    AND (turn_id IS NULL OR (SELECT min(i.id) FROM inbox i WHERE i.turn_id = outbox.turn_id) < :before)
    AND (CAST(:person AS TEXT) IS NULL OR (SELECT started_by FROM turns WHERE id = turn_id) = :person)
    RETURNING kind"""
    return {OutboxKind(kind) for (kind,) in db.execute(query, values).fetchall()}


def load_words(db: Connection, row_id: OutboxId) -> str | None:
    """Load the text of the answer to speak. None if it is already recorded, or was stopped or undone."""
    query = """SELECT coalesce(m.text, '') FROM outbox o JOIN messages m ON m.id = o.message_id
    WHERE o.id = ? AND o.rendered = 0 AND o.settled_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM outbox t WHERE t.dedupe_key = 'turn:' || o.turn_id AND t.state = 'dead')
    AND NOT EXISTS (SELECT 1 FROM view_edits v WHERE v.message_id = m.id AND v.replacement_id IS NULL)"""
    return scalar_or_none(db, str, query, (row_id,))


def keep_voice(db: Connection, row_id: OutboxId, part: OutboundPart) -> None:
    """Store the recording of a voice message, so that it can be sent. It is part 1, because the text is part 0."""
    query = "UPDATE outbox SET payload = ?, rendered = 1, part = 1 WHERE id = ?"
    db.execute(query, (_encode(part).decode(), row_id))


@locks(outbox="row.id", chat="row.chat_id")
def drop_voice(db: Connection, row: OutboxRow, error: str, notice: str, now: Millis) -> None:
    """Give up on a voice message without a recording, and send `notice` if it is given."""
    changes, where = "state = 'dead', error = ?, settled_at = ?", "id = ? AND rendered = 0 AND settled_at IS NULL"
    if db.execute(f"UPDATE outbox SET {changes} WHERE {where}", (error, now, row.id)).rowcount and notice:
        enqueue(db, Reply(chat_id=row.chat_id, markdown=notice, dedupe_key=f"voice:{row.id}"), now)


def close_question(
    db: Connection, number: int, state: str, by: str, reason: str | None, outcome: str, now: Millis
) -> None:
    """Store the answer to a question about a tool call. Enqueue edits that replace the buttons with `outcome`."""
    query = """UPDATE approvals SET state = ?, decided_by = ?, decided_at = ?, reason = ?
    WHERE id = ? AND state = 'pending' RETURNING question"""
    statement = """SELECT o.chat_id, o.dedupe_key,
      (SELECT l.platform_ref FROM outbox l WHERE l.dedupe_key = o.dedupe_key ORDER BY l.part DESC LIMIT 1)
    FROM outbox o WHERE o.part = 0 AND (o.dedupe_key = :key
      OR o.dedupe_key IN (SELECT :key || ':' || c.id FROM chats c WHERE c.kind IN ('direct','local')))"""
    for (question,) in db.execute(query, (state, by, now, reason, number)).fetchall():
        for chat_id, key, ref in db.execute(statement, {"key": f"approval:{number}"}).fetchall():
            edit = Reply(chat_id=chat_id, markdown=question, dedupe_key=f"{key}{CLOSED}", replaces=ref)
            enqueue(db, replace(edit, footer=outcome, edited_at=now), now)


def close_questions(db: Connection, turn_id: TurnId, now: Millis) -> None:
    for number in scalars(db, int, "SELECT id FROM approvals WHERE turn_id = ? AND state = 'pending'", (turn_id,)):
        close_question(db, number, "expired", "", None, "Withdrawn because the turn ended,", now)


@locks(EVERYTHING)
def take_account(
    db: Connection, account: str, is_certain: Callable[[], bool] = lambda: True
) -> tuple[AccountClaim, int]:
    """Become the owner of an account. Return the claim, and the number of sends that the last owner left unfinished.

    `is_certain` is called inside the transaction. It returns True if the caller still owns the account's lock.
    Without this check, a node that was stopped for a while could get a newer epoch than its successor.
    Raises `AccountMoved` if `is_certain` returns False.
    """
    if not is_certain():
        raise AccountMoved(f"the account {account} may belong to another node now")
    query = """INSERT INTO accounts (account, epoch) VALUES (?, 1)
    ON CONFLICT (account) DO UPDATE SET epoch = accounts.epoch + 1 RETURNING epoch"""
    epoch = scalar(db, int, query, (account,))
    statement = """UPDATE outbox SET state = 'ambiguous'
    WHERE state = 'sending' AND chat_id IN (SELECT id FROM chats WHERE account = ?)"""
    return AccountClaim(account=account, epoch=epoch), db.execute(statement, (account,)).rowcount
