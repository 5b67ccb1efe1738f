"""`hermes-gateway lineage | search | history | sessions | why | usage | insights`: show stored messages and costs."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer

from agent.model.caps import SpendingCapSettings
from gateway.cli.answers import ask_or_read, configured_redactor
from gateway.cli.output import Json, echo, show, table
from gateway.config import load_config, process_environment
from gateway.models.pricing import limits_in
from gateway.operator import spending
from gateway.operator.lookups import (
    MAX_HITS,
    MAX_PAGE_ROWS,
    MAX_SESSIONS,
    HistoryMessage,
    compression_details,
    json_row,
    look_up_at_rest,
    speaker,
)
from gateway.operator.search_advice import search_advice
from gateway.operator.spending import DEFAULT_DAYS, MAX_DAYS, InsightsReport, UsageReport
from gateway.operator.why import why_lines
from gateway.times import format_time, parse_time
from hermes_state.admin.lineage_queries import LineageSession, short_key
from hermes_state.admin.why import WhyReport
from hermes_state.agents import shown_name
from hermes_state.errors import ConfigError
from hermes_state.search.full_text import FoundMessage
from hermes_state.sessions import Conversation, SessionKind
from hermes_state.store.sql import Connection
from hermes_state.text import shortened
from hermes_state.values import MessageRole, SystemClock, parse_recall_id, recall_id

T = TypeVar("T")

Place: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="CHAT|SESSION", help="A chat such as telegram:42, or a session id.")
]

AgentName: TypeAlias = Annotated[str | None, typer.Option(metavar="AGENT", help="Only this agent, such as ops.")]


def lineage(
    place: Place = None,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_SESSIONS, help="Maximum number of sessions; the oldest are left out.")
    ] = MAX_SESSIONS,
    agent: AgentName = None,
    as_json: Json = False,
) -> None:
    """Show the chain of sessions in SESSION's conversation, in a chat or in all chats, oldest session first."""
    found = look_up("lineage", {"place": place, "limit": limit, "agent": agent}, LineageSession)
    head = ("SESSION", "PARENT", "DEPTH", "CHAT", "STARTED", "ENDED", "END", "MESSAGES", "MADE BY")
    lines = _table(head, _link_cells, found) if found else ["There are no sessions yet."]
    show(list(map(json_row, found)), lines, as_json=as_json)


def _link_cells(one: LineageSession) -> tuple[str, ...]:
    return (
        short_key(one.key),
        short_key(one.parent_key) if one.parent_key else "-",
        str(one.depth),
        _chat_cell(one),
        format_time(one.started_at),
        format_time(one.ended_at) if one.ended_at is not None else "-",
        one.end_reason or "-",
        str(one.message_count),
        _made_by(one),
    )


def _table(head: tuple[str, ...], cells: Callable[[Any], tuple[str, ...]], rows: list[Any]) -> Iterator[str]:
    """Return the lines of a table, with a column for the agent if there are several."""
    if any(one.agent for one in rows):
        return table((*head, "AGENT"), ((*cells(one), shown_name(one.agent)) for one in rows))
    return table(head, map(cells, rows))


def _chat_cell(one: LineageSession | Conversation) -> str:
    return f"{one.chat.name} ({shortened(one.label, 30)})" if one.label else one.chat.name


def _made_by(one: LineageSession) -> str:
    if one.kind is SessionKind.SUBAGENT:
        return "delegate"
    if one.layer is None:
        return "undo" if one.depth else "-"
    return ", ".join([one.layer, *compression_details(one)])


def search(
    words: Annotated[list[str], typer.Argument(help='Words to find; "quoted words" must be next to each other.')],
    chat: Annotated[str | None, typer.Option(metavar="CHAT", help="Only in this chat, such as telegram:42.")] = None,
    agent: AgentName = None,
    role: Annotated[MessageRole | None, typer.Option(help="Only messages with this role.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Only messages since this time (UTC): 2026-03-31 or 2026-03-31T14:00."),
    ] = None,
    is_newest: Annotated[bool, typer.Option("--newest", help="Sort newest first instead of best match first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_HITS, help="Maximum number of results.")] = 20,
    as_json: Json = False,
) -> None:
    """Search all conversations. Secrets are hidden in the output."""
    asked_words = " ".join(words)
    asked = {
        "words": asked_words,
        "chat": chat,
        "agent": agent,
        "role": role,
        "since": parse_time(since) if since is not None else None,
        "order": "newest" if is_newest else "best",
        "limit": limit,
    }
    found = look_up("search", asked, FoundMessage)
    for note in look_up("search_index", {}, str):
        echo(note, err=True)
    lines = _hit_lines(found) if found else [" ".join(search_advice(asked_words, "newest" if is_newest else "best"))]
    show(list(map(json_row, found)), lines, as_json=as_json)


def _hit_lines(found: list[FoundMessage]) -> Iterator[str]:
    for one in found:
        place = f"{one.chat.name}, session {short_key(one.session_key)}"
        head = f"{recall_id(one.message_id)}  {format_time(one.created_at)}  {one.role}  {place}"
        yield f"{head}\n    {one.snippet}"
    yield f"\n`hermes-gateway history {recall_id(found[0].message_id)}` shows the messages around the first match."


def history(
    place: Annotated[
        str, typer.Argument(metavar="CHAT|SESSION|MESSAGE", help="Such as telegram:42, a session id, or m123.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
    is_session_only: Annotated[bool, typer.Option("--session", help="Only the messages of this session.")] = False,
    as_json: Json = False,
) -> None:
    """Show the newest LIMIT messages in their original form, oldest first, even if they have been compressed.

    For a CHAT, show its current conversation; for a SESSION, its whole conversation; for a MESSAGE, the messages
    around it.
    """
    found = _load_history(place, limit, is_session_only)
    text = "\n\n".join(map(_message_text, found)) or "There are no messages here."
    show(list(map(json_row, found)), [text], as_json=as_json)


def _load_history(place: str, limit: int, is_session_only: bool) -> list[HistoryMessage]:
    """Load messages in pages, newest first, because the size of each response from the daemon is limited."""
    found: list[HistoryMessage] = []
    args = {"place": place, "is_session_only": is_session_only}
    before: int | None = None
    while len(found) < limit:
        asked = {**args, "limit": min(limit - len(found), MAX_PAGE_ROWS), "before": before}
        page = look_up("history", asked, HistoryMessage)
        found = page + found
        first = parse_recall_id(page[0].message) if page else None
        if first is None or first == before or parse_recall_id(place) is not None:
            break
        before = first
    return found


def _message_text(one: HistoryMessage) -> str:
    mark, text = ", undone" if one.taken_back else "", one.text
    if one.role is MessageRole.TOOL and len(text) > 300:
        text = f"{text[:300]}… ({len(text):,} characters; use --json to see them all)"
    if one.calls:
        text = f"{text}\n(called {', '.join(one.calls)})".strip()
    who = shortened(speaker(one.role, one.sender, one.tool))
    return f"{one.message}  {format_time(one.at)}  {who}{mark}\n{text}"


def sessions(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="Such as telegram:42; all chats if omitted.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_SESSIONS, help="Maximum number of conversations.")] = 100,
    agent: AgentName = None,
    as_json: Json = False,
) -> None:
    """List conversations, most recently used first, each with the id of its newest session."""
    found = look_up("sessions", {"chat": chat, "limit": limit, "agent": agent}, Conversation)
    head = ("SESSION", "CHAT", "USED", "SESSIONS", "MESSAGES", "STATE", "NAME")
    lines = _table(head, _conversation_cells, found) if found else ["There are no conversations yet."]
    show(list(map(json_row, found)), lines, as_json=as_json)


def _conversation_cells(one: Conversation) -> tuple[str, ...]:
    state = "active" if one.is_active and one.tip.ended_at is None else one.tip.end_reason or "open"
    return (
        short_key(one.tip.key),
        _chat_cell(one),
        format_time(one.last_human_at or one.started_at),
        str(one.session_count),
        str(one.message_count),
        state,
        shortened(one.title or one.first_words),
    )


def why(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Id of a message, such as m123.")],
    as_json: Json = False,
) -> None:
    """Explain one message: when it arrived, which model calls and tools ran, and how its answer was delivered."""
    [found] = look_up("why", {"message": message}, WhyReport)
    show(msgspec.to_builtins(found), why_lines(found), as_json=as_json)


def usage(place: Place = None, agent: AgentName = None, as_json: Json = False) -> None:
    """Show token usage, cost and spending caps for SESSION's conversation, for a chat, or for all chats."""
    used = ask_or_read("usage", {"place": place, "agent": agent}, UsageReport, _read_spending)
    heading = "All chats" if used.chat is None else f"Chat {used.chat}"
    if used.session is not None:
        heading = f"Conversation {short_key(used.session)} of {used.chat}"
    heading += "" if agent is None else f", agent {agent}"
    lines = [f"{heading}:", *spending.usage_lines(used), "", "Today:", *spending.today_lines(used, tells_all=True)]
    show(spending.usage_row(used), lines, as_json=as_json)


def insights(
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="Number of days, including today.")] = DEFAULT_DAYS,
    agent: AgentName = None,
    as_json: Json = False,
) -> None:
    """Show recent spending by day, chat, model and purpose."""
    found = ask_or_read("insights", {"days": days, "agent": agent}, InsightsReport, _read_spending)
    text = "\n".join([spending.insights_block(found), "", *spending.insights_notes(found.total)]).rstrip()
    show(spending.insights_row(found), [text], as_json=as_json)


def _read_spending(db: Connection, name: str, args: Mapping[str, Any]) -> object:
    try:
        limits_of: Callable[[str | None], SpendingCapSettings] = partial(limits_in, load_config(process_environment()))
    except ConfigError:
        limits_of = lambda _: SpendingCapSettings(zone=None)  # noqa: E731  # still show the usage, but without caps
    return spending.report(db, name, limits_of, SystemClock().now(), args)


def look_up(name: str, args: Mapping[str, Any], kind: type[T]) -> list[T]:
    """Return the result of a look-up from the daemon, or from the database if no daemon runs."""
    # A shell can pass bytes that are not UTF-8. JSON and SQLite would reject them.
    args = {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in args.items()
    }
    return ask_or_read(name, args, list[kind], _read, empty=[])  # type: ignore[valid-type]  # known only at run time


def _read(db: Connection, name: str, args: Mapping[str, Any]) -> list[Any]:
    return look_up_at_rest(db, name, args, configured_redactor())


def look_up_all(name: str, args: Mapping[str, Any], kind: type[T], key: str) -> Iterator[T]:
    """Yield all rows of a look-up, read page by page. The next page starts after the `key` of the last row."""
    after = 0
    while page := look_up(name, {**args, "after": after}, kind):
        yield from page
        after = getattr(page[-1], key)
