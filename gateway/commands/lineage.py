"""Admin commands for stored conversations: /lineage /search /session /why.

In a shared chat, they show only the conversations of that chat.
"""

import asyncio
import re
from collections.abc import Collection
from datetime import tzinfo

import msgspec

from agent.context.excerpt import Redact
from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, page_buttons, say
from gateway.operator.lookups import MAX_HITS, SearchRequest, compression_details, find_place, incompleteness, speaker
from gateway.operator.search_advice import search_advice
from gateway.operator.why import load_explained, why_lines
from gateway.times import format_time, parse_time, spoken_time
from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import LineageSession, LookupResult, short_key
from hermes_state.admin.why import WhyReport
from hermes_state.agents import find_agent
from hermes_state.chats import load_label
from hermes_state.errors import CommandError, StoreUnavailable
from hermes_state.outbox import OfferTopic
from hermes_state.search.full_text import FoundMessage
from hermes_state.sessions import SessionKind
from hermes_state.store.sql import Connection
from hermes_state.text import counted, place_name, plain, shortened
from hermes_state.values import Button, ChatId, MessageId, MessageRole, Transcript, recall_id

MAX_SESSIONS = 6
HITS_PER_PAGE = 5
MAX_ROWS = 8
ROWS_BEFORE = 1


async def lineage(request: CommandRequest) -> CommandResult:
    """List the sessions of a chat or a conversation in at most eight lines. `/session` shows the details."""
    argument, page = _paged(request.argument)
    words, options = _split(argument, ("agent",))
    name = " ".join(words)

    def load(db: Connection) -> list[LineageSession]:
        place, agent = LookupResult(chat_id=request.chat.id), find_agent(db, options.get("agent"))
        place = find_place(db, name, request.reachable_chat) if name else place
        return lineage_queries.load_lineage_sessions(db, place, page * MAX_SESSIONS + 1, agent)

    sessions = await request.context.store.read(load)
    end = len(sessions) - (page - 1) * MAX_SESSIONS
    if end <= 0:
        return say("There are no earlier sessions." if sessions else "This chat has no conversation yet.")
    shown, now = sessions[max(0, end - MAX_SESSIONS) : end], request.context.clock.now()
    newest = shown[-1]
    lines = [f"Sessions of {place_name(newest.label, newest.chat.name)}, oldest first:"]
    for one in shown:
        messages, begun = counted(one.message_count, "message"), spoken_time(one.started_at, now, request.zone)
        place = f"{_place(one)}, " if one.kind is SessionKind.SUBAGENT else ""
        title = f"“{shortened(plain(one.title), 40)}”, " if one.title else ""
        lines.append(f"- `{short_key(one.key)}` {title}{begun}, {messages}, {place}{_state(one)}")
    buttons = [Button(label="Open the newest", command=f"/session {short_key(newest.key)}")]
    can_undo = page == 1 and newest.chat == request.chat.key and newest.layer is not None and newest.ended_at is None
    if can_undo:
        buttons.append(Button(label="Undo compression", command=f"/compress undo #{short_key(newest.key)}"))
    turns = page_buttons(f"/lineage {argument} --page".replace("  ", " "), page, len(sessions) > page * MAX_SESSIONS)
    # Discord does not let the bot edit an old private message. A button in it then says that it no longer applies.
    is_private = request.row.payload.ticket is not None and request.chat.kind.is_shared
    offer: OfferTopic | None = "undo" if can_undo and not is_private else None
    reply = CommandReply(markdown="\n".join(lines), buttons=(*buttons, *turns), offer=offer)
    return CommandResult(apply=lambda _db, _now: reply)


_ENDS = {"compression": "compressed", "undo": "compression undone", "reset": "ended with /new", "switched": "left"}


def _state(one: LineageSession) -> str:
    ended = "open" if one.end_reason is None else _ENDS.get(one.end_reason, one.end_reason)
    return f"{ended}, agent {one.agent}" if one.agent else ended


def _paged(argument: str) -> tuple[str, int]:
    """Split an argument into its words and a page number, which only page buttons add."""
    found = re.fullmatch(r"(.*?)\s*--page ([1-9]\d{0,2})", argument, re.DOTALL)
    return (found[1], int(found[2])) if found is not None else (argument, 1)


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
    return f"ended {format_time(one.ended_at, zone)} ({_state(one)}){follower}"


async def search(request: CommandRequest) -> CommandResult:
    words, page = _paged(request.argument)
    page = min(page, MAX_HITS // HITS_PER_PAGE)
    lookup, store = _parse_search(words, request.zone, page * HITS_PER_PAGE + 1), request.context.store

    def load(db: Connection) -> tuple[list[FoundMessage], dict[ChatId, str]]:
        found = lookup.read(db, request.reachable_chat)
        shown = found[(page - 1) * HITS_PER_PAGE :]
        return shown, {one.chat_id: load_label(db, one.chat_id) for one in shown}

    try:
        found, labels = await store.read_within(2.0, load)
        notes = list(filter(None, [await store.read(incompleteness)]))
    except StoreUnavailable as error:
        raise CommandError("The search took too long or could not read the data. Try less common words.") from error
    if not found:
        advice = search_advice(lookup.words, lookup.order) if page == 1 else ["There are no more results."]
        return say(" ".join([*advice, *notes]))
    redact, lines, buttons, shown = request.redactor, notes, [], found[:HITS_PER_PAGE]
    for one in await asyncio.to_thread(lambda: [lookup.redacted(hit, redact) for hit in shown]):
        name, who = recall_id(one.message_id), plain(one.sender_name or one.role)
        label = labels[one.chat_id]
        where = "" if who == plain(label) else f" in {place_name(label, one.chat.name)}"
        head = f"`{name}` {format_time(one.created_at, request.zone)}, {who}{where}"
        lines.append(f"{head}, session `{short_key(one.session_key)}`\n{one.snippet}")
        buttons.append(Button(label=f"Open {name}", command=f"/session {name}"))
    return say("\n\n".join(lines), *buttons, *page_buttons(f"/search {words} --page", page, len(found) > HITS_PER_PAGE))


_OPTIONS = {"chat": "such as `telegram:42`", "agent": "such as `ops`", "role": "such as `user`", "since": "a date"}


def _split(argument: str, known: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Split words and options in any order. A dash counts as `--`, because some phones turn two hyphens into a dash."""
    words: list[str] = []
    options: dict[str, str] = {}
    pieces = iter(argument.split())
    for piece in pieces:
        name = piece.removeprefix("--") if piece.startswith("--") else piece.lstrip("\u2013\u2014")
        if name == piece or name not in known:
            words.append(piece)
        elif name == "newest":
            options[name] = ""
        elif (value := next(pieces, None)) is not None:
            options[name] = value
        else:
            raise CommandError(f"`--{name}` needs a value, {_OPTIONS[name]}.")
    return words, options


def _parse_search(argument: str, zone: tzinfo | None, limit: int) -> SearchRequest:
    words, options = _split(argument, ("newest", *_OPTIONS))
    if not words:
        raise CommandError("Send `/search <words>`, also with `--chat`, `--agent`, `--role`, `--since` or `--newest`.")
    role = options["role"].lower() if "role" in options else None
    if role is not None and role not in tuple(MessageRole):
        raise CommandError("`--role` must be user, assistant or tool.")
    return SearchRequest(
        words=" ".join(words),
        chat=options.get("chat"),
        agent=options.get("agent"),
        role=MessageRole(role) if role is not None else None,
        since=parse_time(options["since"], zone) if "since" in options else None,
        order="newest" if "newest" in options else "best",
        limit=limit,
    )


class OpenedSession(msgspec.Struct, frozen=True, kw_only=True):
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
    place = _place(one) if one.kind is SessionKind.SUBAGENT else f"number {one.depth + 1} of its conversation"
    parent = f"\nParent `{short_key(one.parent_key)}`." if one.parent_key is not None else ""
    head = (
        f"Session `{short_key(one.key)}` of {place_name(one.label, one.chat.name)}, {place}.\n"
        f"Started {_begun(one, zone)}; {_ended(one, zone)}; {counted(one.message_count, 'message')}.{parent}"
    )
    lines = await asyncio.to_thread(_row_lines, opened, request.redactor, zone)
    return say("\n\n".join([head, *lines]), *opened.buttons)


async def why(request: CommandRequest) -> CommandResult:
    """Explain one message. In a shared chat, only messages of that chat can be explained."""

    def load(db: Connection) -> WhyReport:
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
