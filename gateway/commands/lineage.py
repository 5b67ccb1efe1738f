"""Admin commands for stored conversations: /lineage /search /session /why.

In a shared chat, they show only the conversations of that chat.
"""

import asyncio
from dataclasses import dataclass
from datetime import tzinfo

from agent.context.excerpt import Redact
from gateway.commands.registry import CommandRequest, CommandResult, say
from gateway.operator.lookups import SearchRequest, compression_details, find_place, incompleteness, speaker
from gateway.operator.why import load_explained, why_lines
from gateway.times import format_time, parse_time
from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import LineageSession, LookupResult, short_key
from hermes_state.admin.why import Why
from hermes_state.errors import CommandError, StoreUnavailable
from hermes_state.store.sql import Connection
from hermes_state.text import counted, shortened
from hermes_state.values import Button, ChatId, MessageId, MessageRole, SessionKind, Transcript, recall_id

MAX_SESSIONS = 12
MAX_ROWS = 8
ROWS_BEFORE = 1


async def lineage(request: CommandRequest) -> CommandResult:
    def load(db: Connection) -> list[LineageSession]:
        chat_id, name = request.chat.id, request.argument
        place = find_place(db, name, request.reachable_chat) if name else LookupResult(chat_id=chat_id)
        return lineage_queries.load_lineage_sessions(db, place, MAX_SESSIONS + 1)

    sessions = await request.context.store.read(load)
    if not sessions:
        return say("This chat has no conversation yet.")
    head = f"Sessions of `{sessions[-1].chat.name}`, oldest first"
    head += f" (the newest {MAX_SESSIONS}; the command line shows all):" if len(sessions) > MAX_SESSIONS else ":"
    lines = "\n".join(
        f"- `{short_key(one.key)}`, {_place(one)}, {_begun(one, request.zone)}, "
        f"{counted(one.message_count, 'message')}, {_ended(one, request.zone)}"
        for one in sessions[-MAX_SESSIONS:]
    )
    return say(f"{head}\n{lines}\n\nTo open one, send `/session <id>`.")


def _place(one: LineageSession) -> str:
    if one.kind is not SessionKind.SUBAGENT:
        return f"depth {one.depth}"
    return "sub-agent" + (f" of `{short_key(one.parent_key)}`" if one.parent_key is not None else "")


def _begun(one: LineageSession, zone: tzinfo | None) -> str:
    at = format_time(one.started_at, zone)
    if one.layer is not None:
        details = f" ({', '.join(found)})" if (found := compression_details(one)) else ""
        return f"{at} by {one.layer.replace('_', '-')} compression{details}"
    if one.undone_key is not None:
        return f"{at} by undoing the compression that created `{short_key(one.undone_key)}`"
    return at


def _ended(one: LineageSession, zone: tzinfo | None) -> str:
    if one.ended_at is None:
        return "open"
    follower = f" → `{short_key(one.child_key)}`" if one.child_key is not None else ""
    return f"ended {format_time(one.ended_at, zone)} ({one.end_reason}){follower}"


async def search(request: CommandRequest) -> CommandResult:
    lookup, store = _parse_search(request.argument, request.zone), request.context.store
    try:
        found = await store.read_within(2.0, lookup.read, request.reachable_chat)
        advice = [] if found else await store.read_within(2.0, lookup.advise, request.reachable_chat)
        notes = list(filter(None, [await store.read(incompleteness)]))
    except StoreUnavailable as error:
        raise CommandError("The search took too long or could not read the data. Try less common words.") from error
    if not found:
        return say(" ".join([*advice, *notes]))
    redact, lines, buttons = request.redactor, notes, []
    for one in await asyncio.to_thread(lambda: [lookup.redacted(hit, redact) for hit in found]):
        name, who = recall_id(one.message_id), one.sender_name or one.role
        head = f"`{name}` {format_time(one.created_at, request.zone)}, {who} in `{one.chat.name}`"
        lines.append(f"{head}, session `{short_key(one.session_key)}`\n{one.snippet}")
        buttons.append(Button(label=f"Open {name}", command=f"/session {name}"))
    return say("\n\n".join(lines), *buttons)


_OPTIONS = {"chat": "a chat such as `telegram:42`", "role": "user, assistant or tool", "since": "a date"}


def _parse_search(argument: str, zone: tzinfo | None) -> SearchRequest:
    """Parse words and options in any order. A dash counts as `--`, because some phones turn two hyphens into a dash."""
    words: list[str] = []
    options: dict[str, str] = {}
    pieces = iter(argument.split())
    for piece in pieces:
        name = piece.removeprefix("--") if piece.startswith("--") else piece.lstrip("\u2013\u2014")
        if name == piece or name not in ("newest", *_OPTIONS):
            words.append(piece)
        elif name == "newest":
            options[name] = ""
        elif (value := next(pieces, None)) is not None:
            options[name] = value
        else:
            raise CommandError(f"`--{name}` needs a value: {_OPTIONS[name]}.")
    if not words:
        raise CommandError("Send `/search <words>`, optionally with `--chat`, `--role`, `--since` or `--newest`.")
    role = options["role"].lower() if "role" in options else None
    if role is not None and role not in tuple(MessageRole):
        raise CommandError("`--role` must be user, assistant or tool.")
    return SearchRequest(
        words=" ".join(words),
        chat=options.get("chat"),
        role=MessageRole(role) if role is not None else None,
        since=parse_time(options["since"], zone) if "since" in options else None,
        order="newest" if "newest" in options else "best",
        limit=5,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    session: LineageSession
    rows: Transcript
    message_id: MessageId | None
    buttons: list[Button]


async def session(request: CommandRequest) -> CommandResult:
    """Show a session from its beginning, or around a given message."""
    if not request.argument:
        raise CommandError("Send `/session <id>` with a session's id, or a message's id such as `m123`.")
    opened = await request.context.store.read(_open, request.argument, request.reachable_chat)
    one, zone = opened.session, request.zone
    place = _place(one) if one.kind is SessionKind.SUBAGENT else f"depth {one.depth} of its conversation"
    parent = f"\nParent `{short_key(one.parent_key)}`." if one.parent_key is not None else ""
    head = (
        f"Session `{short_key(one.key)}` of `{one.chat.name}`, {place}.\n"
        f"Started {_begun(one, zone)}; {_ended(one, zone)}; {counted(one.message_count, 'message')}.{parent}"
    )
    lines = await asyncio.to_thread(_row_lines, opened, request.redactor, zone)
    return say("\n\n".join([head, *lines]), *opened.buttons)


async def why(request: CommandRequest) -> CommandResult:
    """Explain one message. In a shared chat, only messages of that chat can be explained."""

    def load(db: Connection) -> Why:
        find_place(db, request.argument, request.reachable_chat)
        return load_explained(db, request.argument)

    if not request.argument:
        raise CommandError("Send `/why` with the id of a message, such as `/why m123`.")
    found = await request.context.store.read(load)
    return say(request.redactor("\n".join(why_lines(found, request.zone))))


def _open(db: Connection, name: str, within: ChatId | None) -> OpenedSession:
    place = find_place(db, name, within)
    if place.session is None:
        raise CommandError(f"“{name}” is a chat, not a session. `/lineage {name}` lists its sessions.")
    start = max(1, (place.message_seq or 1) - ROWS_BEFORE)
    rows = lineage_queries.load_around(db, place.session.id, start, MAX_ROWS - ROWS_BEFORE, 2 * MAX_ROWS)
    first = next((number for number, row in enumerate(rows) if row.seq >= start), 0)
    following = rows[first + MAX_ROWS : first + MAX_ROWS + 1]
    made = lineage_queries.load_lineage_session(db, place.session.id)
    neighbours = {
        "Earlier": recall_id(rows[0].id) if first else None,
        "Later": recall_id(following[0].id) if following else None,
        "Parent": made.parent_key,
        "Child": made.child_key,
    }
    return OpenedSession(
        session=made,
        rows=rows[first : first + MAX_ROWS],
        message_id=place.message_id,
        buttons=[Button(label=label, command=f"/session {name}") for label, name in neighbours.items() if name],
    )


def _row_lines(opened: OpenedSession, redact: Redact, zone: tzinfo | None) -> list[str]:
    lines = []
    for row in opened.rows:
        text = redact((row.text or "")[:20_000])  # the reply shows only a small part of a long message
        if row.body.calls:
            text += f" (called {', '.join(call.name for call in row.body.calls)})"
        mark, size = (" ←", 1_000) if row.id == opened.message_id else ("", 280)
        who = speaker(row.role, row.sender_name, row.tool_name)
        head = f"**{who}**, {format_time(row.created_at, zone)}, `{recall_id(row.id)}`{mark}"
        lines.append(f"{head}\n{shortened(text, size)}")
    return lines
