"""Commands about conversations: /new /title /sessions /resume /history /rules."""

import asyncio
from collections.abc import Sequence
from datetime import tzinfo
from functools import partial

from agent.context.carried.rules import Rule, drop_notice
from agent.context.carried.sections import rules_in_view
from gateway.commands.registry import CommandRequest, CommandResult, say, set_in_session, transaction
from gateway.config.fields import secrets_of
from gateway.times import format_time
from hermes_state import sessions
from hermes_state.errors import CommandError, LookupReason, LookupRejected
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection
from hermes_state.text import counted, shortened
from hermes_state.transcripts import NewMessage, append_to_tip, load_hidden, load_messages, load_view
from hermes_state.values import (
    Button,
    ChatId,
    LineageId,
    Message,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    Transcript,
    parse_recall_id,
    recall_id,
)

MAX_SESSIONS = 15
MAX_BUTTONS = 5
MAX_BUTTON_CHARS = 30
DEFAULT_HISTORY = 10
MAX_HISTORY = 50
MAX_HISTORY_CHARS = 280
MAX_TITLE_CHARS = 100
RULES_HINT = "Write `/rules`, or `/rules drop m12` with the id of one."


async def new(request: CommandRequest) -> CommandResult:
    title = _title(request.argument) if request.argument else None
    context = request.context
    before = await request.load_open_session()

    async def tell_context() -> None:
        if before is not None:
            await context.runtime.agent.context.ended(before.id, was_reset=True)

    return CommandResult(apply=partial(_new, request.chat.id, title), after=tell_context)


def _new(chat_id: ChatId, title: str | None, db: Connection, now: Millis) -> str:
    before = sessions.load_active(db, chat_id)
    started = sessions.reset(db, chat_id, now)
    if title is not None:
        sessions.set_title(db, started.id, title)
    text = "Started a new conversation." if title is None else f"Started a new conversation, “{title}”."
    if before is not None and sessions.count_messages(db, before.lineage_id):
        text += f" The last one is kept: `/resume {before.short_key}` goes back to it."
    return text


async def title(request: CommandRequest) -> CommandResult:
    if request.argument:
        text = _title(request.argument)
        return set_in_session(request, sessions.set_title, text, f"This conversation is called “{text}” now.")
    session = await request.context.store.read(sessions.load_active, request.chat.id)
    current = await request.context.store.read(sessions.load_title, session.lineage_id) if session else None
    return say(
        f"This conversation is called “{current}”." if current else "This conversation has no title: `/title <words>`."
    )


def _title(argument: str) -> str:
    text = " ".join(argument.split())
    if len(text) > MAX_TITLE_CHARS:
        raise CommandError(f"A title has at most {MAX_TITLE_CHARS} characters; this one has {len(text)}.")
    return text


async def list_sessions(request: CommandRequest) -> CommandResult:
    found = await request.context.store.read(sessions.list_conversations, request.chat.id, MAX_SESSIONS)
    if not found:
        return say("This chat has no conversation yet.")
    lines, buttons = [], []
    for conversation in found:
        key, name = conversation.tip.short_key, _name(conversation)
        mark = " (active)" if conversation.is_active else ""
        used = format_time(conversation.last_human_at or conversation.tip.started_at, request.zone)
        lines.append(f"- `{key}` {name}, {counted(conversation.message_count, 'message')}, {used}{mark}")
        if not conversation.is_active:
            buttons.append(Button(label=shortened(name, MAX_BUTTON_CHARS), command=f"/resume {key}"))
    listed = "Conversations of this chat:\n" + "\n".join(lines) + "\n\n`/resume <id>` goes back to one."
    return say(listed, *buttons[:MAX_BUTTONS])


def _name(conversation: sessions.Conversation) -> str:
    begun = shortened(conversation.first_words)
    return conversation.title or (f"“{begun}”" if begun else "untitled")


_RESUME_REFUSALS = {
    LookupReason.MALFORMED: "Give the id that /sessions shows, at least four characters of it.",
    LookupReason.NOT_FOUND: "No conversation of this chat has an id that starts with “{name}”. /sessions lists them.",
    LookupReason.AMBIGUOUS_SESSION: "More than one conversation starts with “{name}”: give more characters.",
    LookupReason.ALREADY_ACTIVE: "That conversation is the active one already.",
}


@transaction
def resume(request: CommandRequest, db: Connection, now: Millis) -> str:
    if not request.argument:
        raise CommandError("Write `/resume <id>` with an id that /sessions shows.")
    try:
        tip = sessions.resume(db, request.chat.id, request.argument, now)
    except LookupRejected as error:
        raise CommandError(_RESUME_REFUSALS[error.reason].format(name=error.name)) from error
    name = sessions.load_title(db, tip.lineage_id)
    called = f" “{name}”" if name else ""
    messages = counted(sessions.count_messages(db, tip.lineage_id), "message")
    return f"Back in conversation{called} `{tip.short_key}`, {messages}."


async def history(request: CommandRequest) -> CommandResult:
    count = request.number(DEFAULT_HISTORY)
    if count is None:
        raise CommandError("Write `/history`, or `/history 30` for the last 30 messages.")
    count = min(MAX_HISTORY, count)
    rows, hidden = await request.context.store.read(_load_history, request.chat.id, count)
    if not rows:
        return say("Nothing has been said in this conversation yet.")
    return say("\n\n".join(_history_line(row, row.id in hidden, request.zone) for row in rows))


def _load_history(db: Connection, chat_id: ChatId, count: int) -> tuple[Transcript, set[MessageId]]:
    session = sessions.load_active(db, chat_id)
    if session is None:
        return (), set()
    # Tool rows stand between what people read: look further back than the number asked for.
    rows = load_messages(db, session.lineage_id, count * 8)
    shown = [row for row in rows if row.origin in (Origin.HUMAN, Origin.ASSISTANT) and row.text]
    return tuple(shown[-count:]), load_hidden(db, session.lineage_id)


def _history_line(row: Message, is_hidden: bool, zone: tzinfo | None) -> str:
    who = row.sender_name or "You" if row.origin is Origin.HUMAN else "Answer"
    mark = " (taken back)" if is_hidden else ""
    return f"**{who}**, {format_time(row.created_at, zone)}{mark}\n{shortened(row.text or '', MAX_HISTORY_CHARS)}"


async def rules(request: CommandRequest) -> CommandResult:
    """List the rules in force, or `drop` those of a message."""
    session = await request.load_open_session()
    if session is None:
        return say("This chat has no conversation yet.")
    view = await request.context.store.read(load_view, session.lineage_id)
    redact = Redactor(secrets_of(request.context.runtime.config))
    is_shared = request.chat.kind.is_shared
    found = await asyncio.to_thread(rules_in_view, view.transcript, redact=redact, is_shared=is_shared)
    word, _, name = request.argument.partition(" ")
    if word.lower() == "drop":
        return _drop_rule(session.lineage_id, found, parse_recall_id(name))
    if request.argument.lower() not in ("", "list"):
        raise CommandError(RULES_HINT)
    if not found:
        return say("No standing rules: nobody has asked for anything from now on.")
    return say("\n".join(("Standing rules, kept word for word past every compression:", *(one.line for one in found))))


def _drop_rule(lineage_id: LineageId, found: Sequence[Rule], rule_id: MessageId | None) -> CommandResult:
    texts = [rule.text for rule in found if rule.id == rule_id]
    if rule_id is None or not texts:
        raise CommandError(f"No rule in force has that id. {RULES_HINT}")
    return CommandResult(apply=partial(_store_drop, lineage_id, rule_id, texts))


def _store_drop(lineage_id: LineageId, rule_id: MessageId, texts: Sequence[str], db: Connection, now: Millis) -> str:
    text = drop_notice(rule_id, texts)
    append_to_tip(db, lineage_id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=text), now)
    return f"{recall_id(rule_id)} holds no longer: {' / '.join(texts)}"
