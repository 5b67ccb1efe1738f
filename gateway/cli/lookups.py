"""`hermes-gateway lineage | search | history | sessions`: look-ups in everything that was said."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from gateway.cli.answers import ask_or_read, configured_redactor
from gateway.cli.output import Json, echo, show, table
from gateway.operator.lookups import MAX_HITS, MAX_PAGE_ROWS, MAX_SESSIONS, Row, look_up_at_rest
from gateway.times import format_time, parse_time
from hermes_state.admin.lineage_queries import short_key
from hermes_state.store.sql import Connection
from hermes_state.text import shortened
from hermes_state.values import MessageRole, Millis, parse_recall_id

MAX_TOOL_CHARS = 300


def lineage(
    place: Annotated[
        str | None, typer.Argument(metavar="CHAT|SESSION", help="A chat such as telegram:42, or a session's id.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_SESSIONS, help="The newest so many sessions.")] = MAX_SESSIONS,
    as_json: Json = False,
) -> None:
    """Show how sessions continue one another, oldest first: those of SESSION's conversation, of a chat, or of all."""
    rows = _look_up("lineage", {"place": place, "limit": limit})
    head = ("SESSION", "PARENT", "DEPTH", "CHAT", "STARTED", "ENDED", "END", "MESSAGES", "MADE BY")
    lines = table(head, map(_link_cells, rows)) if rows else ["There is no session yet."]
    show(rows, lines, as_json=as_json)


def _link_cells(row: Row) -> tuple[str, ...]:
    return (
        short_key(row["session"]),
        short_key(row["parent"]) if row["parent"] else "-",
        str(row["depth"]),
        row["chat"],
        format_time(Millis(row["started_at"])),
        format_time(Millis(row["ended_at"])) if row["ended_at"] is not None else "-",
        row["end_reason"] or "-",
        str(row["messages"]),
        _made_by(row),
    )


def _made_by(row: Row) -> str:
    if row["kind"] == "subagent":
        return "delegate"
    if row["layer"] is None:
        return "undo" if row["depth"] else "-"
    before, after = (
        f"{number:,}" if number is not None else "?" for number in (row["tokens_before"], row["tokens_after"])
    )
    written = {"model": f"summary by {row['model']}", "deterministic": "handoff without a model"}
    focus = f"focus “{row['focus']}”" if row["focus"] else ""
    return ", ".join(
        filter(None, (row["layer"], f"{before} → {after} tokens", written.get(row["summary_kind"] or ""), focus))
    )


def search(
    words: Annotated[list[str], typer.Argument(help='What to look for; "quoted words" stay together.')],
    chat: Annotated[str | None, typer.Option(metavar="CHAT", help="Only in this chat, such as telegram:42.")] = None,
    role: Annotated[MessageRole | None, typer.Option(help="Only what this role said.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only from then on: 2026-03-31 or 2026-03-31T14:00, UTC.")
    ] = None,
    is_newest: Annotated[bool, typer.Option("--newest", help="Newest first instead of best first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_HITS, help="At most so many.")] = 20,
    as_json: Json = False,
) -> None:
    """Find what was said, in whichever session and chat that was. Secrets are taken out of what is shown."""
    rows = _look_up(
        "search",
        {
            "words": " ".join(words),
            "chat": chat,
            "role": role,
            "since": parse_time(since) if since is not None else None,
            "order": "newest" if is_newest else "best",
            "limit": limit,
        },
    )
    for row in _look_up("search_index", {}):
        echo(row["note"], err=True)
    show(rows, _hit_lines(rows) if rows else ["Nothing matches."], as_json=as_json)


def _hit_lines(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        place = f"{row['chat']}, session {short_key(row['session'])}"
        yield f"{row['message']}  {format_time(Millis(row['at']))}  {row['role']}  {place}\n    {row['snippet']}"
    yield f"\n`hermes-gateway history {rows[0]['message']}` shows what was said around the first one."


def history(
    place: Annotated[
        str, typer.Argument(metavar="CHAT|SESSION|MESSAGE", help="Such as telegram:42, a session's id, or m123.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 50,
    is_session_only: Annotated[bool, typer.Option("--session", help="Only what was said in that one session.")] = False,
    as_json: Json = False,
) -> None:
    """Show what was said, as it was said, however often it was compressed since; the newest LIMIT, oldest first.

    CHAT is its conversation, SESSION the whole conversation that it belongs to, MESSAGE what was said around it.
    """
    rows = _load_history(place, limit, is_session_only)
    text = "\n\n".join(map(_message_text, rows)) or "Nothing was said there."
    show(rows, [text], as_json=as_json)


def _load_history(place: str, limit: int, is_session_only: bool) -> list[Row]:
    """All rows, asked for in pages, newest first: an answer of the daemon holds only so much."""
    rows: list[Row] = []
    args = {"place": place, "is_session_only": is_session_only}
    before: int | None = None
    while len(rows) < limit:
        page = _look_up("history", {**args, "limit": min(limit - len(rows), MAX_PAGE_ROWS), "before": before})
        rows = page + rows
        first = parse_recall_id(page[0]["message"]) if page else None
        if first is None or first == before or parse_recall_id(place) is not None:
            break
        before = first
    return rows


def _message_text(row: Row) -> str:
    who = shortened(row["sender"] or row["role"] if row["role"] != "tool" else f"tool {row['tool']}")
    mark = ", taken back" if row["taken_back"] else ""
    text = row["text"]
    if row["role"] == "tool" and len(text) > MAX_TOOL_CHARS:
        text = f"{text[:MAX_TOOL_CHARS]}… ({len(row['text']):,} characters; --json prints them)"
    if row["calls"]:
        text = f"{text}\n(called {', '.join(row['calls'])})".strip()
    return f"{row['message']}  {format_time(Millis(row['at']))}  {who}{mark}\n{text}"


def sessions(
    chat: Annotated[str | None, typer.Argument(metavar="CHAT", help="Such as telegram:42; without it all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_SESSIONS, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """List conversations, the most recently used first; each by the id of its newest session."""
    rows = _look_up("sessions", {"chat": chat, "limit": limit})
    head = ("SESSION", "CHAT", "USED", "SESSIONS", "MESSAGES", "STATE", "NAME")
    lines = table(head, map(_conversation_cells, rows)) if rows else ["There is no conversation yet."]
    show(rows, lines, as_json=as_json)


def _conversation_cells(row: Row) -> tuple[str, ...]:
    used = row["last_human_at"] or row["started_at"]
    state = "active" if row["is_active"] and row["ended_at"] is None else row["end_reason"] or "open"
    return (
        short_key(row["session"]),
        row["chat"],
        format_time(Millis(used)),
        str(row["sessions"]),
        str(row["messages"]),
        state,
        shortened(row["title"] or row["first_words"]),
    )


def _look_up(name: str, args: Mapping[str, Any]) -> list[Row]:
    # A shell may hand over bytes that are no text; JSON and SQLite take none.
    args = {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in args.items()
    }
    return ask_or_read(name, args, list[Row], _read, empty=[])


def _read(db: Connection, name: str, args: Mapping[str, Any]) -> list[Row]:
    return look_up_at_rest(db, name, args, configured_redactor())
