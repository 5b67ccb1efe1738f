"""Commands about conversations: /new /title /sessions /resume /history /rules."""

import asyncio
import re
from collections.abc import Sequence
from functools import partial

from agent.context.carried.rules import drop_notice
from agent.context.carried.sections import rules_in_view
from gateway.commands.registry import CommandRequest, CommandResult, page_buttons, say, set_in_session, transaction
from gateway.times import format_time, spoken_time
from hermes_state import outbox, sessions
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import agent_of, choose, drop_notices, load_agent, shown_name
from hermes_state.chats import load_spoken
from hermes_state.errors import CommandError, LookupReason, LookupRejected
from hermes_state.store.sql import Connection
from hermes_state.text import counted, plain, shortened
from hermes_state.transcripts import NewMessage, append_to_tip, load_view
from hermes_state.values import (
    Button,
    ChatId,
    LineageId,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    parse_recall_id,
    recall_id,
)

RULES_HINT = "Send `/rules` to list the rules, or `/rules drop m12` with the id of a rule."


SESSIONS_PER_PAGE = 6
MAX_PAGES = 100


async def new(request: CommandRequest) -> CommandResult:
    title = _title(request.argument) if request.argument else None
    context = request.context
    before = await request.load_open_session()

    async def after() -> None:
        if before is not None:  # read `runtime.agent` only now, because a reload might have replaced it
            await context.runtime.agent.context.ended(before.id, was_reset=True)

    return CommandResult(apply=partial(_new, request.chat.id, title), after=after)


def _new(chat_id: ChatId, title: str | None, db: Connection, now: Millis) -> str:
    before = sessions.load_active(db, chat_id)
    started = sessions.reset(db, chat_id, now)
    _end_offers(db, chat_id, now)
    if title is not None:
        sessions.set_title(db, started.id, title)
    text = "Started a new conversation." if title is None else f"Started a new conversation, “{title}”."
    if before is not None and sessions.count_messages(db, before.lineage_id):
        text += f" `/resume {before.short_key}` goes back to the previous one."
    return text


def _end_offers(db: Connection, chat_id: ChatId, now: Millis) -> None:
    """Remove the buttons that concern the conversation that the chat leaves."""
    outbox.end_offer(db, chat_id, "retry", now)
    outbox.end_offer(db, chat_id, "undo", now)


async def title(request: CommandRequest) -> CommandResult:
    if request.argument:
        text = _title(request.argument)
        return set_in_session(request, sessions.set_title, text, f"This conversation is now called “{text}”.")
    session = await request.context.store.read(sessions.load_active, request.chat.id)
    current = await request.context.store.read(sessions.load_title, session.lineage_id) if session else None
    return say(
        f"This conversation is called “{current}”."
        if current
        else "This conversation has no title yet. Set one with `/title <words>`."
    )


def _title(argument: str) -> str:
    text = " ".join(argument.split())
    if len(text) > 100:
        raise CommandError(f"A title can have at most 100 characters. Yours has {len(text)}.")
    return text


async def list_sessions(request: CommandRequest) -> CommandResult:
    page = min(request.number(1) or 1, MAX_PAGES)
    limit = page * SESSIONS_PER_PAGE
    chat_id = request.chat.id
    loaded = await request.context.store.read(
        lambda db: sessions.list_conversations(db, chat_id, limit + 1, load_agent(db, chat_id))
    )
    found = loaded[limit - SESSIONS_PER_PAGE : limit]
    if not found:
        return say("This chat has no conversation yet." if page == 1 else "This chat has no more conversations.")
    lines, buttons, now = [], [], request.context.clock.now()
    for one in found:
        begun = shortened(plain(one.first_words), 40)
        name, key = plain(one.title or "") or (f"“{begun}”" if begun else "untitled"), one.tip.short_key
        used = spoken_time(one.last_human_at or one.tip.started_at, now, request.zone)
        mark = " (active)" if one.is_active else ""
        lines.append(f"- {name}{mark}: {counted(one.message_count, 'message')}, {used}, `{key}`")
        if not one.is_active:
            buttons.append(Button(label=shortened(name, 30), command=f"/resume {key}"))
    hint = "\n\nTo go back to one, press its button." if buttons else ""
    listed = "Conversations in this chat:\n" + "\n".join(lines) + hint
    return say(listed, *buttons, *page_buttons("/sessions", page, len(loaded) > limit and page < MAX_PAGES))


_RESUME_REFUSALS = {
    LookupReason.MALFORMED: "Use at least the first four characters of an id from /sessions.",
    LookupReason.NOT_FOUND: "No conversation in this chat has an id that starts with “{name}”. /sessions lists them.",
    LookupReason.AMBIGUOUS_SESSION: "Several conversation ids start with “{name}”. Please send more characters.",
    LookupReason.ALREADY_ACTIVE: "That conversation is already active.",
}


@transaction
def resume(request: CommandRequest, db: Connection, now: Millis) -> str:
    if not request.argument:
        raise CommandError("Send `/resume <id>` with an id from /sessions.")
    try:
        if (other := _other_agent(request, db)) is not None:
            drop_notices(db, request.chat.id, now)
            choose(db, request.chat.id, other)
        tip = sessions.resume(db, request.chat.id, request.argument, now)
    except LookupRejected as error:
        raise CommandError(_RESUME_REFUSALS[error.reason].format(name=error.name)) from error
    _end_offers(db, request.chat.id, now)
    name = sessions.load_title(db, tip.lineage_id)
    called = f" “{name}”" if name else ""
    messages = counted(sessions.count_messages(db, tip.lineage_id), "message")
    agent = (
        "" if other is None else f" The agent {shown_name(other)} answers here; `/agent auto` returns to the routes."
    )
    return f"Back in conversation{called} `{tip.short_key}`, {messages}.{agent}"


def _other_agent(request: CommandRequest, db: Connection) -> str | None:
    """Return the agent of the wanted conversation if it is not the agent of the chat. Only admins can go back to it.

    Raises `CommandError` for other people, and for an agent that is no longer configured.
    """
    found = agent_of(db, sessions.find_conversation(db, request.chat.id, request.argument).lineage_id)
    if found == load_agent(db, request.chat.id):
        return None
    if not request.context.lanes.runtime.has(found):
        raise CommandError(f"The agent {found} of that conversation is no longer configured. Nothing was changed.")
    if request.role is not UserRole.ADMIN:
        raise CommandError(f"That conversation is with the agent {shown_name(found)}. Only admins can go back to it.")
    return found


async def history(request: CommandRequest) -> CommandResult:
    words = re.fullmatch(r"(\d+)?(?:\s+(\d{1,4}))?", request.argument)
    if words is None or words[1] == "0":
        raise CommandError("Send `/history`, or `/history 30` for the last 30 messages.")
    count, skip = min(50, int((words[1] or "10")[:9])), int(words[2] or 0)
    rows = await request.context.store.read(load_spoken, request.chat.id, count + 1, skip)
    lines = []
    for row in rows[-count:]:
        who = row.sender_name or "You" if row.origin is Origin.HUMAN else "Answer"
        mark = " (undone)" if row.is_undone else ""
        lines.append(f"**{who}**, {format_time(row.created_at, request.zone)}{mark}\n{shortened(row.text, 280)}")
    older = (Button(label="Older", command=f"/history {count} {skip + count}"),) if len(rows) > count else ()
    empty = "This conversation has no older messages." if skip else "This conversation has no messages yet."
    return say("\n\n".join(lines) or empty, *older)


async def rules(request: CommandRequest) -> CommandResult:
    """List the standing rules. With `drop`, remove the rules that one message contains."""
    session = await request.load_open_session()
    if session is None:
        return say("This chat has no conversation yet.")
    view = await request.context.store.read(load_view, session.lineage_id)
    redact = request.redactor
    is_shared = request.chat.kind.is_shared
    found = await asyncio.to_thread(rules_in_view, view.transcript, redact=redact, is_shared=is_shared)
    word, _, name = request.argument.partition(" ")
    if word.lower() == "drop":
        rule_id = parse_recall_id(name)
        texts = [rule.text for rule in found if rule.id == rule_id]
        if rule_id is None or not texts:
            raise CommandError(f"No active rule has that id. {RULES_HINT}")
        return CommandResult(apply=partial(_drop_rule, session.lineage_id, rule_id, texts))
    if request.argument.lower() not in ("", "list"):
        raise CommandError(RULES_HINT)
    if not found:
        return say("No standing rules yet. To make one, write something like “From now on, answer in German”.")
    return say("\n".join(("Standing rules, kept word for word in every compression:", *(one.line for one in found))))


def _drop_rule(lineage_id: LineageId, rule_id: MessageId, texts: Sequence[str], db: Connection, now: Millis) -> str:
    text = drop_notice(rule_id, texts)
    append_to_tip(db, lineage_id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=text), now)
    return f"Rule {recall_id(rule_id)} no longer applies: {' / '.join(texts)}"
