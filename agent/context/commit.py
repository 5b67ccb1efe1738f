"""Transactions that commit or undo a compression.

A commit splits the session and stores all related changes, or records a failed attempt. After an undo, the model sees
the earlier view again, followed by all messages since then.
"""

import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import assert_never

import msgspec
import orjson
import structlog
from msgspec.structs import replace

from agent.context.cuts import SkipReason
from agent.context.job import (
    Aborted,
    BlockedEvent,
    Compressed,
    CompressionJob,
    CompressionOutcome,
    CompressionResult,
    ContextEvent,
    MessageLimitEvent,
    NotNeeded,
    PreparedCompression,
    PressureEvent,
)
from agent.context.limits import Limits
from agent.context.state import ContextState, state_of, stored_form
from agent.handoff import SYSTEM_NOTE
from agent.model.usage import estimated_text_tokens
from hermes_state import sessions
from hermes_state.compressions import (
    CompressionRow,
    ContextItem,
    SplitPlan,
    UndoPlan,
    count_compressions,
    record_compression,
    split,
    undo_compression,
)
from hermes_state.errors import LineageMoved
from hermes_state.sessions import Session, load_session
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, nested
from hermes_state.tools.todos import OPEN_STATES, TodoRow, TodoState, load_todos
from hermes_state.transcripts import NewMessage
from hermes_state.values import EstimatedTokens, Message, MessageRole, Millis, Origin, SessionId, ToolCall

log = structlog.get_logger()

READ_AGAIN = "Instructions that have left your view, read again before you go on: "
MAX_NAMED = 8
"""Maximum number of instruction files that the model is told to read again. The most recently read are named."""
_READING = re.compile(r"read|view|open|cat|get_|terminal|shell|bash|command|more_tools|skill")
_NAME = re.compile(
    r"(?<![\w.-])(?:(?:AGENTS?|CLAUDE|GEMINI|QWEN|CRUSH|WARP|HERMES|SOUL|SKILL|CONVENTIONS|CONTRIBUTING|RULES|GUIDELINES"
    r"|(?:[\w-]{1,40}[-.])?INSTRUCTIONS)(?:\.\w+)?\.md|[\w-]{1,60}\.mdc"
    r"|(?:\.?\w{0,20}rules|skills|steering|instructions)/[\w./-]{1,100}\.md|\.\w{0,20}(?:rules|hints))(?![\w.-])",
    re.IGNORECASE,
)
_SKILL = re.compile(r'"name":"([^"]+)"(?:.*?"file":"([^"]+)")?')


def commit_compression(
    db: Connection, attempt: CompressionResult, now: Millis
) -> tuple[CompressionOutcome, list[ContextEvent]]:
    """Commit a prepared compression, or record a failed attempt. Write nothing if the conversation has changed."""
    job, prepared = attempt.job, attempt.result
    session, conversation = load_session(db, job.view.session.id), job.conversation
    # A turn may have changed the state while the summary was written, so keep its changes.
    before = state_of(session.context_state)
    attempt = replace(attempt, state=before.rebased(state_of(job.view.session.context_state), attempt.state))
    if not isinstance(prepared, PreparedCompression):
        if session.ended_at is not None:
            return job.not_needed(SkipReason.MOVED), []
        return prepared, _keep_attempt(db, attempt, prepared, before, now)
    outcome = None
    plan = SplitPlan(
        parent=job.view.session,
        context=_with_todos(job, prepared.context, load_todos(db, conversation.lineage_id)),
        row=_row(attempt),
        system_prompt=_child_prompt(job, attempt.system_prompt),
        context_state=stored_form(attempt.state.compressed(job.tokens_before, job.grown)),
    )
    with suppress(LineageMoved), nested(db):
        child = load_session(db, split(db, plan, now))
        count = count_compressions(db, conversation.lineage_id)
        outcome = Compressed(job=job, prepared=prepared, child=child, compressions=count)
    if outcome is None:
        return job.not_needed(SkipReason.MOVED), []
    limit, messages = job.message_limit, job.messages_before
    reasons = [] if limit is None else [MessageLimitEvent(messages=messages, limit=limit)]
    return outcome, [*reasons, outcome]


def keep_debt(db: Connection, session_id: SessionId, *, owes_notes: bool) -> None:
    state = msgspec.structs.replace(state_of(load_session(db, session_id).context_state), owes_notes=owes_notes)
    sessions.set_context_state(db, session_id, stored_form(state))


@locks(chat="job.conversation.chat_id")
def settle_notes(db: Connection, job: CompressionJob, system: str) -> None:
    """Record that a job's notes have been taken. Replace the child's system prompt, unless a model may have seen it."""
    keep_debt(db, job.view.session.id, owes_notes=False)
    sessions.renew_system_prompt(db, job.conversation.lineage_id, _child_prompt(job, system))


def _child_prompt(job: CompressionJob, system: str) -> str:
    return f"{system}\n\n{SYSTEM_NOTE}" if job.settings.note_in_system else system


def _with_todos(job: CompressionJob, context: Sequence[ContextItem], todos: Sequence[TodoRow]) -> list[ContextItem]:
    """Return the child session's context. A row after the handoff lists open to-do items and files to read again.

    Each child session gets a new row, so an undo restores the parent's list.
    """
    earlier = {row.id for row in job.view.transcript if row.origin is Origin.TODO}
    items = [item for item in context if isinstance(item, NewMessage) or item not in earlier]
    # Limit the list, because a long list could fill a small window again after every compression.
    lines = _open_lines(todos, job.limits.threshold // 10)
    again = to_read_again(job.view.transcript, set(items))
    if text := "\n\n".join(filter(None, ("\n".join(lines), again))):
        is_handoff = [isinstance(item, NewMessage) and item.origin is Origin.SUMMARY for item in items]
        index = max((index for index, found in enumerate(is_handoff, 1) if found), default=len(items))
        items.insert(index, NewMessage(role=MessageRole.USER, origin=Origin.TODO, text=text))
    return items


def _open_lines(todos: Sequence[TodoRow], room: int) -> list[str]:
    """Return a title, the open to-do items that fit (those in progress first), and a note if there are more items."""
    is_open = [todo for todo in todos if todo.state in OPEN_STATES]
    if not is_open:
        return []
    shown: set[int] = set()
    for todo in sorted(is_open, key=lambda todo: todo.state is not TodoState.IN_PROGRESS):
        room -= estimated_text_tokens(todo.line)
        if room < 0:
            break
        shown.add(todo.id)
    lines = ["Open items of your to-do list at the time when older messages left your view:"]
    lines += [todo.line for todo in is_open if todo.id in shown]
    if more := len(is_open) - len(shown):
        lines.append(f"({more} more open items did not fit here: call `todo` to read them)")
    return lines


def to_read_again(rows: Sequence[Message], kept: Container[object]) -> str | None:
    """Return a line that names the instruction files read or listed in these rows, except files read in `kept` rows."""
    failed = {
        row.tool_call_id for row in rows if row.role is MessageRole.TOOL and (row.text or "").startswith("Error:")
    }
    found = dict[str, None]()
    for row in rows:
        text = row.text or ""
        names = text.partition(READ_AGAIN)[2].split("; ") if row.origin is Origin.TODO and READ_AGAIN in text else []
        names += [name for call in row.body.calls if call.id not in failed for name in _read_by(call)]
        for name in names:
            found.pop(name, None)
            if row.id not in kept or row.origin is Origin.TODO:
                found[name] = None
    return READ_AGAIN + "; ".join([*found][-MAX_NAMED:]) if found else None


def _read_by(call: ToolCall) -> list[str]:
    given = call.arguments
    if len(given) > 1_000 or not _READING.search(call.name):  # a call with longer arguments does more than read a file
        return []
    with suppress(orjson.JSONDecodeError):
        given = orjson.dumps(orjson.loads(given)).decode()
    if call.name == "skill" or '"tool":"skill"' in given:
        return [f"skill {name}{f' ({file})' if file else ''}" for name, file in _SKILL.findall(given)]
    return [f"file {_folder(given[: found.start()])}{found[0]}" for found in _NAME.finditer(given)]


def _folder(before: str) -> str:
    """Return the folder at the end of `before`. It starts after `"path":"` or the last space, quote or operator."""
    folder = before.rpartition('"path":"')[2]
    return folder if '"path":"' in before and '"' not in folder else re.split(r"[\s\"'<>|;&=()]", before)[-1]


def _row(attempt: CompressionResult) -> CompressionRow:
    job, result = attempt.job, attempt.result
    row = CompressionRow(
        layer=job.layer,
        focus=job.focus,
        tokens_before=job.tokens_before,
        messages_before=job.messages_before,
        took_ms=attempt.took_ms,
    )
    match result:
        case PreparedCompression(summary_kind=kind, model=model, tokens_after=after):
            return msgspec.structs.replace(row, summary_kind=kind, model=model, tokens_after=after)
        case NotNeeded():
            return msgspec.structs.replace(row, outcome="not_needed", reason=result.why)
        case Aborted():
            return msgspec.structs.replace(row, outcome="aborted", reason=result.kind)
        case _:
            assert_never(result)


def _keep_attempt(
    db: Connection, attempt: CompressionResult, result: NotNeeded | Aborted, before: ContextState, now: Millis
) -> list[ContextEvent]:
    """Record an attempt that compressed nothing, if it changed the state or caused events. Return the events."""
    job, events = attempt.job, list[ContextEvent]()
    if isinstance(result, Aborted) and job.layer != "manual":  # `/compress` sends its own reply
        events.append(result)
    if attempt.state.is_blocked and not before.is_blocked:
        events.append(BlockedEvent(tokens=job.tokens_before, threshold=job.threshold))
    if attempt.state != before or events:
        session_id = job.view.session.id
        sessions.set_context_state(db, session_id, stored_form(attempt.state))
        record_compression(db, session_id, _row(attempt), now)
    return events


def note_pressure(db: Connection, pressure: PressureEvent) -> None:
    """Record a warning about the prompt size. Call this in the transaction that stores the answer with the warning."""
    state = state_of(sessions.load_session(db, pressure.session_id).context_state)
    sessions.set_context_state(db, pressure.session_id, stored_form(state.told_of(pressure.level)))


class UndoPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A compression that can be undone."""

    plan: UndoPlan
    tokens: EstimatedTokens
    limits: Limits

    @property
    def fits(self) -> bool:
        """True if the restored view fits into the window. If not, the next message would trigger a new compression."""
        return self.limits.fits(self.tokens)


def settle_undo(db: Connection, undoing: UndoPreview, now: Millis) -> Session:
    """Undo a compression inside the caller's transaction. Raises `LineageMoved` if the conversation has changed."""
    state = state_of(undoing.plan.tip.context_state).undone(undoing.tokens)
    return load_session(db, undo_compression(db, undoing.plan, now, context_state=stored_form(state)))


def log_outcome(attempt: CompressionResult, outcome: CompressionOutcome) -> None:
    job, lineage_id = attempt.job, attempt.job.conversation.lineage_id
    match outcome:
        case Compressed():
            log.info(
                "session.compressed",
                layer=job.layer,
                parent_id=outcome.parent.id,
                child_id=outcome.child.id,
                messages_before=job.messages_before,
                messages_after=outcome.prepared.messages_after,
                tokens_before=job.tokens_before,
                tokens_after=outcome.prepared.tokens_after,
                summary_kind=outcome.prepared.summary_kind,
                took_ms=attempt.took_ms,
            )
        case NotNeeded(why=why, messages=messages):
            log.info("compression.not_needed", layer=job.layer, lineage_id=lineage_id, why=why, messages=messages)
        case Aborted(kind=kind):
            log.warning("compression.aborted", layer=job.layer, lineage_id=lineage_id, kind=kind)
        case _:
            assert_never(outcome)
