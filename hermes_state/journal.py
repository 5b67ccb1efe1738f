"""The journal of turns: each step is committed before the next one begins.

A turn is `running`, or `waiting` for a decision, until it is `finished`, `stopped` or `failed`. After a crash the rows
alone say where to continue. A call without a `tool_runs` row never began, so it is run after the crash. A call whose
row is still `started` has an unknown outcome, so it is run again only if its tool is read-only.

A turn belongs to a lineage. If a compression splits the session during the turn, later rows are stored in the newest
session. A sub-agent is a turn inside a turn. It has its own lineage, reports to the call that started it, and ends no
later than its parent.

Each new owner of a turn increases its epoch (a fencing token). Every function that writes for a turn checks the epoch,
so a slow or disconnected earlier owner cannot write.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from hermes_state import attachments, inbox, outbox, ratings, talk, tool_runs, turns
from hermes_state.agents import NEXT_AGENT, UNROUTED, RoutedAgent
from hermes_state.errors import SessionNotFound, StateError
from hermes_state.inbox import InboxKind, InboxRow, InboxState, NewInboxRow
from hermes_state.models import ledger
from hermes_state.models.ledger import ModelCall
from hermes_state.outbox import OutboxKind, OutboxRow, RenderedReply, Reply
from hermes_state.sessions import EndReason, end_session, ensure_active, load_tip
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, insert_row, scalar_or_none, scalars
from hermes_state.tool_runs import ToolResult, ToolRunState
from hermes_state.transcripts import (
    EMPTY_BODY,
    FORWARDED_NOTE,
    SCHEDULED_NOTE,
    TRANSCRIBED_NOTE,
    NewMessage,
    append_to_tip,
    was_spoken,
)
from hermes_state.turns import RunningTurn, TurnClaim, TurnMoved
from hermes_state.values import (
    AttachmentId,
    Button,
    ChatId,
    InboxId,
    InputKind,
    LineageId,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    Reasoning,
    ToolCall,
    TurnId,
    TurnState,
    UserRef,
)


class InboxMoved(StateError):
    """A row that the new turn should claim was withdrawn or dropped, or was prepared for another conversation."""


class PreparedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is ready for a turn: its attachments have been read and stored."""

    body: MessageBody = EMPTY_BODY
    attachment_ids: tuple[AttachmentId, ...] = ()
    parts: tuple[MessageId, ...] = ()
    """Rows of `attachments.store_part`, which become parts of this message."""
    notes: tuple[str, ...] = ()


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer, which either calls tools or ends the turn."""

    text: str
    call: ModelCall
    reported_prompt_tokens: int | None
    calls: tuple[ToolCall, ...] = ()
    reasoning: Reasoning | None = None
    markdown: str = ""
    """Text for the chat if it differs from `text`, for example because a notice was added."""
    speaks: Literal["off", "same", "always"] = "off"
    """Voice messages after answers: `same` adds one if the person's message was spoken, `always` always adds one."""


def start_turn(
    db: Connection,
    chat_id: ChatId,
    inbox_ids: Sequence[InboxId],
    prepared: Mapping[InboxId, PreparedMessage],
    now: Millis,
    *,
    shows_talk: bool = False,
) -> RunningTurn:
    """Start a turn and store the messages of its inbox rows. Raises `InboxMoved` if a row is no longer waiting.

    `shows_talk`: also store what was said in the group since the last turn.
    """
    ids = {f"id_{at}": inbox_id for at, inbox_id in enumerate(inbox_ids)}
    first = f"""coalesce((SELECT i.sender_ref FROM inbox i WHERE i.id IN (:{", :".join(ids)})
      ORDER BY CASE i.kind WHEN 'message' THEN 0 ELSE 1 END, i.id LIMIT 1), '')"""
    started = db.execute(turns.START.format(first, ""), {"now": now, "chat_id": chat_id, **ids})  # read with the rows
    rows, turn = inbox.load_rows(db, inbox_ids), started.fetchone()
    if len(rows) != len(set(inbox_ids)):
        raise InboxMoved(f"chat {chat_id}: {len(set(inbox_ids)) - len(rows)} of {len(inbox_ids)} rows are gone")
    starter = next((row for row in rows if row.kind is InboxKind.MESSAGE), rows[0]).sender_ref
    turn_id, lineage_id, has_ratings = turn or (*_insert_turn(db, chat_id, starter, now), True)
    if shows_talk:
        talk.show(db, chat_id, lineage_id, turn_id, now)
    _bind(db, turn_id, lineage_id, rows, prepared, now, has_ratings=has_ratings)
    return turns.load_running(db, turn_id)


def start_at_once(
    db: Connection, row: NewInboxRow, now: Millis, routed: RoutedAgent = UNROUTED, *, shows_talk: bool = False
) -> tuple[InboxId, RunningTurn] | None:
    """Store an event and start its turn, but only if the chat is idle, in an open conversation with the right agent."""
    values = {"starter": row.sender_ref, "now": now, "chat_id": row.chat_id, **routed.values}
    nothing_waits = f"NOT EXISTS (SELECT 1 FROM inbox i WHERE i.chat_id = c.id AND i.{inbox.WAITS})"
    query = turns.START.format(":starter", f"AND c.agent = {NEXT_AGENT} AND {nothing_waits}")
    started = db.execute(query, values).fetchone()
    if started is None:
        return None
    turn_id, lineage_id, has_ratings = started
    inbox_id = inbox.insert(db, row, now, turn_id)
    if inbox_id is None:  # the event was stored before
        db.execute("DELETE FROM turns WHERE id = ?", (turn_id,))
        return None
    if shows_talk:
        talk.show(db, row.chat_id, lineage_id, turn_id, now)
    told = ratings.tell(db, row.chat_id, lineage_id) if has_ratings else ()
    _store_human_row(db, turn_id, lineage_id, inbox.stored_form(row, inbox_id, now), PreparedMessage(notes=told), now)
    return inbox_id, turns.load_running(db, turn_id)


def start_retry(db: Connection, command: InboxId, chat_id: ChatId, starter: UserRef, now: Millis) -> RunningTurn:
    """Start a turn for the `/retry` command, which answers the user's newest messages again."""
    turn_id, _ = _insert_turn(db, chat_id, starter, now)
    outbox.end_offer(db, chat_id, "retry", now)
    claim = "UPDATE inbox SET state = 'claimed', turn_id = ? WHERE id = ? AND state = 'new'"
    if db.execute(claim, (turn_id, command)).rowcount != 1:
        raise InboxMoved(f"command {command} was already settled")
    return turns.load_running(db, turn_id)


def join_steers(db: Connection, claim: TurnClaim, now: Millis) -> int:
    """Add the chat's waiting steers to its turn. Return how many were added.

    A sub-agent gets copies of the texts. The messages keep waiting for the turn that called it. Raises `TurnMoved` if
    the turn is not running or `claim` is outdated.
    """
    turn = turns.require_running(db, claim)
    rows = [row for row in inbox.load_waiting(db, turn.chat_id) if row.mode is inbox.InboxMode.STEER]
    if turn.parent is not None:
        return _copy_steers(db, turn, rows, now)
    if rows:
        _bind(db, turn.id, turn.lineage_id, rows, {}, now)
    return len(rows)


def _copy_steers(db: Connection, turn: RunningTurn, rows: Sequence[InboxRow], now: Millis) -> int:
    """Add the texts of people's messages, but no notices, to a sub-agent's turn, each once. Return their number."""
    query = "SELECT text FROM messages WHERE lineage_id = ? AND turn_id = ? AND role = 'user'"
    known = set(scalars(db, str, query, (turn.lineage_id, turn.id))) if rows else set()
    said = (row.payload.text for row in rows if row.kind is InboxKind.MESSAGE and row.payload.text)
    texts = (f"Message from a person, sent while you work: {text}" for text in said)
    new = [text for text in dict.fromkeys(texts) if text not in known]
    for text in new:
        copy = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text, turn_id=turn.id)
        append_to_tip(db, turn.lineage_id, copy, now)
    return len(new)


def _insert_turn(db: Connection, chat_id: ChatId, starter: UserRef, now: Millis) -> tuple[TurnId, LineageId]:
    lineage_id = ensure_active(db, chat_id, now).lineage_id
    query = "INSERT INTO turns (chat_id, lineage_id, state, started_by, started_at) VALUES (?, ?, 'running', ?, ?)"
    return insert_row(db, TurnId, query, (chat_id, lineage_id, starter, now)), lineage_id


def _bind(
    db: Connection,
    turn_id: TurnId,
    lineage_id: LineageId,
    rows: Sequence[InboxRow],
    prepared: Mapping[InboxId, PreparedMessage],
    now: Millis,
    has_ratings: bool = True,
) -> None:
    for row in rows:
        db.execute("UPDATE inbox SET state = 'claimed', turn_id = ? WHERE id = ?", (turn_id, row.id))
        told = ratings.tell(db, row.chat_id, lineage_id) if has_ratings and row.kind is InboxKind.MESSAGE else ()
        ready = replace(prepared.get(row.id, PreparedMessage()), notes=told)
        _store_human_row(db, turn_id, lineage_id, row, ready, now)


# Purpose: store which row contains a platform's message. A person's own row counts more than one that quotes it.
_SHOWN = """
INSERT INTO platform_messages VALUES (?, ?, ?, ?) ON CONFLICT (chat_id, ref)
DO UPDATE SET message_id = excluded.message_id, part = excluded.part WHERE excluded.part < platform_messages.part
"""


def _store_human_row(
    db: Connection, turn_id: TurnId, lineage_id: LineageId, row: InboxRow, ready: PreparedMessage, now: Millis
) -> None:
    body = replace(ready.body, notes=(*ready.body.notes, *ready.notes)) if ready.notes else ready.body
    said = _human_row(db, row, turn_id, body)
    message_id = append_to_tip(db, lineage_id, said, row.sent_at, ", last_human_at = ?", now).id
    if ready.parts and not attachments.bind_parts(db, row.chat_id, lineage_id, message_id, ready.parts):
        raise InboxMoved(f"chat {row.chat_id}: parts of a document belong to an earlier conversation")
    quote = row.payload.quote
    quoted = quote.message_ref if quote is not None and not quote.is_from_bot else ""
    for part, ref in enumerate((row.message_ref, quoted) if row.kind is InboxKind.MESSAGE else ()):
        if ref:
            db.execute(_SHOWN, (row.chat_id, ref, message_id, part))
    for attachment_id in ready.attachment_ids:
        db.execute("UPDATE attachments SET message_id = ? WHERE id = ?", (message_id, attachment_id))


# Purpose: check if a quoted message is the model's newest answer, which the model need not see again as a quote.
_NEWEST_ANSWER = """
SELECT p.message_id = (SELECT max(m.id) FROM messages m WHERE m.lineage_id = q.lineage_id AND m.role = 'assistant')
FROM platform_messages p JOIN messages q ON q.id = p.message_id WHERE p.chat_id = ? AND p.ref = ?
"""


def _human_row(db: Connection, row: InboxRow, turn_id: TurnId, body: MessageBody) -> NewMessage:
    quote = row.payload.quote
    known = (row.chat_id, quote.message_ref) if quote is not None else ()
    if quote is not None and (quote.is_selection or not any(scalars(db, bool, _NEWEST_ANSWER, known))):
        body = replace(body, quote=quote)
    if row.payload.transcripts:
        body = replace(body, notes=(*body.notes, TRANSCRIBED_NOTE))
    words_by = "" if row.payload.is_forwarded else row.payload.words_by
    if words_by is not None:
        body = replace(body, notes=(*body.notes, FORWARDED_NOTE), words_by=words_by)
    if row.payload.via is InputKind.SCHEDULED:
        body = replace(body, notes=(*body.notes, SCHEDULED_NOTE, *row.payload.notes))
    is_own = row.kind is InboxKind.NOTICE and not row.message_ref  # written by the gateway
    return NewMessage(
        role=MessageRole.USER,
        origin=Origin.NOTICE if row.kind is InboxKind.NOTICE else Origin.HUMAN,
        text="\n".join(filter(None, (row.payload.text, *row.payload.transcripts))),
        body=body,
        sender_ref=None if is_own else row.sender_ref,
        sender_name=None if is_own else row.sender_name,
        turn_id=turn_id,
        inbox_id=row.id,
    )


@locks(turn="claim.id")
def append_calls(db: Connection, claim: TurnClaim, answer: ModelAnswer, now: Millis) -> Message:
    """Store an answer that calls tools, and record the model call in the ledger.

    Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    return _append_answer(db, turns.require_running(db, claim), answer, answer.text or None, now)


def _append_answer(db: Connection, turn: RunningTurn, answer: ModelAnswer, text: str | None, now: Millis) -> Message:
    noted, values = "", list[object]()
    if turn.parent is None:
        noted, values = f", {ledger.ADD_USAGE}", list[object](ledger.usage_of(answer.call))
    if answer.reported_prompt_tokens is not None:
        # The provider's count excludes the answer. The next estimate starts from this count and model.
        noted += ", reported_prompt_tokens = ?, model = ?, reported_at_seq = next_seq - 1"
        values += [answer.reported_prompt_tokens, answer.call.model]
    body = MessageBody(calls=answer.calls, reasoning=answer.reasoning)
    row = NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=text, body=body, turn_id=turn.id)
    message = append_to_tip(db, turn.lineage_id, row, now, noted, *values)
    if turn.parent is None:
        ledger.insert_call(db, (turn.chat_id, turn.lineage_id, message.session_id, turn.id), answer.call, now)
    else:
        ledger.record(db, turn.parent.id, turn.parent.lineage_id, answer.call, now)
    return message


@locks(turn="claim.id")
def start_tools(
    db: Connection, claim: TurnClaim, call_message_id: MessageId, calls: Sequence[ToolCall], now: Millis
) -> None:
    """Record that these calls are about to run. Calls that have already begun keep their row.

    Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    turns.require_running(db, claim)
    tool_runs.begin(db, claim.id, call_message_id, calls, now)


@locks(turn="claim.id")
def finish_tool(db: Connection, claim: TurnClaim, result: ToolResult, now: Millis) -> Message:
    """Store the result of a call and the state of its run.

    Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    return tool_runs.store_result(db, turns.require_running(db, claim), result, now)


_QUESTION = "(SELECT {} FROM inbox q WHERE q.turn_id = turns.id AND q.kind <> 'notice' ORDER BY q.id DESC LIMIT 1)"
# Purpose: end a running turn. Return facts that may have changed since it began, and whether its chat has open rows.
_FINISH = f"""
UPDATE turns SET state = 'finished', ended_at = ? WHERE id = ? AND epoch = ? AND state = 'running'
RETURNING preview_ref, {_QUESTION.format("nullif(q.message_ref, '')")}, {_QUESTION.format(turns.TICKET)},
  EXISTS (SELECT 1 FROM inbox l WHERE l.chat_id = turns.chat_id AND l.{inbox.WAITS} AND l.mode = 'steer'),
  EXISTS (SELECT 1 FROM outbox o WHERE o.chat_id = turns.chat_id AND o.{outbox.OPEN}),
  EXISTS (SELECT 1 FROM turns k WHERE k.parent_turn_id = turns.id AND k.state = 'running'),
  EXISTS (SELECT 1 FROM live_buttons b WHERE b.chat_id = turns.chat_id AND b.topic = 'retry')
"""


@locks(chat="turn.chat_id")
def finish_turn(
    db: Connection, turn: RunningTurn, answer: ModelAnswer, now: Millis, rendered: RenderedReply | None = None
) -> tuple[MessageId, OutboxRow | None]:
    """Store the answer, settle the inbox and enqueue the reply.

    A caller that can send the reply immediately passes it as `rendered`. Then, if the chat has no other unsent reply,
    the reply is stored as `sending` and its row is returned. A sub-agent sends no reply: its answer is its report.
    Raises `TurnMoved` if the turn is not running or has another owner.
    """
    assert not answer.calls, "an answer that calls tools does not end the turn"
    ended, closed = db.execute(_FINISH, (now, turn.id, turn.epoch)), None
    with contextlib.suppress(SessionNotFound):  # the conversation and its turns were deleted
        message = _append_answer(db, turn, answer, answer.text, now)
        closed = ended.fetchone()  # on PostgreSQL, both statements are sent together
    if closed is None:
        raise TurnMoved(f"turn {turn.id} is not running in epoch {turn.epoch}")
    preview_ref, question_ref, ticket, has_late_steers, is_owed, has_subagents, has_retry = closed
    if has_subagents:  # a sub-agent's end was not stored, because the store failed
        _stop_subagents(db, turn, "the turn continued without this sub-agent", now)
    turn = replace(turn, preview_ref=preview_ref, question_ref=question_ref, ticket=ticket)
    if turn.parent is not None:
        end_session(db, load_tip(db, turn.lineage_id).id, EndReason.FINISHED, now)
        return message.id, None
    _settle_inbox(db, turn, has_late_steers, now)
    reply = _reply(turn, OutboxKind.FINAL, answer.markdown or answer.text, message.id)
    row = outbox.enqueue(db, reply, now, None if is_owed else rendered)
    if answer.speaks == "always" or (answer.speaks == "same" and was_spoken(db, turn.lineage_id)):
        key = f"{reply.dedupe_key}:voice"
        voice = replace(reply, kind=OutboxKind.VOICE, markdown="", dedupe_key=key, ticket=None, replaces=None)
        outbox.enqueue(db, voice, now)
    if has_retry:
        outbox.end_offer(db, turn.chat_id, "retry", now)
    return message.id, row if row is not None and row.rendered is not None else None


@locks(turn="claim.id")
def stop_turn(
    db: Connection, claim: TurnClaim, partial_text: str | None, reason: str, now: Millis, *, notice: str
) -> bool:
    """End a turn that a user stopped, but keep its messages. Return False if it has ended or has a new owner.

    The partial answer is kept as an interrupted message. `reason` becomes the result of unfinished tool calls, because
    a valid transcript has a result for each call. If there is no partial answer, `notice` replaces the preview. If
    another node runs the turn, `partial_text` is None, and the last stored preview is used.
    """
    turn = turns.find_unended(db, claim)
    if turn is None:
        return False
    _stop_subagents(db, turn, reason, now)
    tool_runs.answer_open_calls(db, turn, reason, ToolRunState.STOPPED, now)
    query = """SELECT text FROM messages WHERE turn_id = ? AND role = 'assistant' AND body IS NOT NULL AND seq > 0
    ORDER BY id DESC LIMIT 1"""
    shown = (scalar_or_none(db, str, query, (turn.id,)) or "").strip()
    if partial_text is None:
        preview = scalar_or_none(db, str, "SELECT text FROM previews WHERE turn_id = ?", (turn.id,)) or ""
        # While tools run, the preview still shows the last stored answer, which must not be stored twice.
        partial_text = "" if shown.startswith(preview.strip()) else preview
    text = partial_text.strip()
    if text and text != shown:
        body = MessageBody(was_interrupted=True)
        row = NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=text, body=body, turn_id=turn.id)
        message = append_to_tip(db, turn.lineage_id, row, now)
        outbox.enqueue(db, _reply(turn, OutboxKind.FINAL, f"{text} …", message.id), now)
    elif turn.preview_ref is not None:
        outbox.enqueue(db, _reply(turn, OutboxKind.STATUS, notice, None), now)
    outbox.end_offer(db, turn.chat_id, "retry", now)
    _close(db, turn, TurnState.STOPPED, reason, now)
    return True


@locks(turn="claim.id")
def fail_turn(
    db: Connection, claim: TurnClaim, error: str, sentence: str, now: Millis, buttons: tuple[Button, ...] = ()
) -> bool:
    """End a turn that cannot continue, and reply with `sentence`. Return False if it has ended or has a new owner.

    `error` names the kind of failure for operators. A sub-agent's `sentence` goes to its caller. `buttons`
    belong to the reply until the chat's next turn ends.
    """
    turn = turns.find_unended(db, claim)
    if turn is None:
        return False
    _stop_subagents(db, turn, "the turn has failed", now)
    result = "outcome unknown: the turn failed before the result arrived"
    tool_runs.answer_open_calls(db, turn, result, ToolRunState.UNKNOWN, now)
    if turn.parent is None:
        reply = replace(_reply(turn, OutboxKind.ERROR, sentence, None), buttons=buttons)
        outbox.offer(db, reply, "retry", now)
    _close(db, turn, TurnState.FAILED, error if turn.parent is None else sentence, now)
    return True


def _stop_subagents(db: Connection, turn: RunningTurn, reason: str, now: Millis) -> None:
    for subagent in turns.find_subagents(db, turn.id) if turn.parent is None else []:
        tool_runs.answer_open_calls(db, subagent, reason, ToolRunState.STOPPED, now)
        _close(db, subagent, TurnState.STOPPED, reason, now)


def _reply(turn: RunningTurn, kind: OutboxKind, markdown: str, message_id: MessageId | None) -> Reply:
    return Reply(
        chat_id=turn.chat_id,
        kind=kind,
        markdown=markdown,
        dedupe_key=f"turn:{turn.id}",
        turn_id=turn.id,
        message_id=message_id,
        reply_to=turn.question_ref if turn.chat_kind.is_shared else None,
        ticket=turn.ticket,
        replaces=turn.preview_ref,
    )


def _close(db: Connection, turn: RunningTurn, state: TurnState, error: str | None, now: Millis) -> None:
    db.execute("UPDATE turns SET state = ?, error = ?, ended_at = ? WHERE id = ?", (state, error, now, turn.id))
    turns.remove_preview(db, turn.id)
    outbox.close_questions(db, turn.id, now)
    if turn.parent is None:
        _settle_inbox(db, turn, True, now)
    else:
        end_session(db, load_tip(db, turn.lineage_id).id, EndReason.FINISHED, now)


def _settle_inbox(db: Connection, turn: RunningTurn, has_late_steers: bool, now: Millis) -> None:
    inbox.settle_where(db, InboxState.DONE, now, "turn_id = ? AND state = 'claimed'", turn.id)
    if has_late_steers:
        inbox.queue_late_steers(db, turn.chat_id)
