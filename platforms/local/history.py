"""Chat history of the web page: stored rows as entries, in batches, newest batch first. This module only reads.

The page shows all conversations of a chat, newest last, even the messages that the model no longer sees. Undone
messages stay, marked as undone.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hermes_state import chats
from hermes_state.attachments import load_file, load_sent
from hermes_state.chats import HistoryRow, find_chat
from hermes_state.inbox import InboxKind, load_waiting
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.turns import find_open_turn
from hermes_state.values import ChatId, ChatKey, MessageBody, MessageRole, Millis, Origin, SentFile
from platforms.local.entries import BEGINNING, Entry, EntryKind, merge, ref_of_file, taken_up

TOOL_CHARACTERS = 4_000
"""Maximum number of characters that a page shows of a tool call's arguments, and of its result."""


def chat_key(name: str) -> ChatKey:
    """Return the key of the chat `local:<name>`."""
    return ChatKey(platform="local", account="local", chat_ref=name)


def load_history(
    db: Connection, key: ChatKey, limit: int, before: int | None, recent: Sequence[Entry]
) -> tuple[list[Entry], int | None]:
    """Load the newest `limit` rows of a chat (with `before`, only rows before that id), merged with `recent` entries.

    Returns the entries, oldest first, and the value of `before` for older rows, or None at the start of the chat.
    Leaves out an answer that is not delivered yet, because the page will receive it in a moment.
    """
    chat = find_chat(db, key)
    if chat is None:
        return merge((), frozenset(), recent, BEGINNING), None
    rows = chats.load_history(db, chat.id, limit, before)
    is_all = len(rows) < limit
    if not is_all:  # results at the start belong to the page with their tool calls
        rows = rows[next((at for at, row in enumerate(rows) if row.tool_call_id is None), 0) :]
    remembered = {entry.ref for entry in recent}  # unlike stored files, recent entries have captions
    files = [
        Entry(ref=ref, kind=EntryKind.ANSWER, at=file.created_at, sent=file)
        for file in load_sent(db, [row.id for row in rows if row.role == MessageRole.ASSISTANT])
        if (ref := ref_of_file(file)) not in remembered
    ]
    waiting = [] if before is not None else _waiting(db, chat.id)
    known_refs = chats.known_refs(db, chat.id, [entry.ref for entry in recent]) | {entry.ref for entry in waiting}
    since = BEGINNING if is_all else min(row.created_at for row in rows)
    if before is not None:  # newer entries belong to the next page
        until = scalar_or_none(db, int, "SELECT created_at FROM messages WHERE id = ?", (before,)) or 0
        recent = [entry for entry in recent if entry.at < until]
    entries = merge([*_with_dividers(rows), *files, *waiting], known_refs, recent, since)
    return entries, None if is_all else rows[0].id


def load_known_refs(db: Connection, key: ChatKey, refs: Sequence[str]) -> frozenset[str]:
    """Return those of the given platform ids that are in the chat's transcript."""
    chat = find_chat(db, key)
    return frozenset() if chat is None else chats.known_refs(db, chat.id, refs)


def load_file_of(db: Connection, key: ChatKey, attachment_id: int) -> SentFile | None:
    """Load a file of a chat. Return None if the chat does not have this file."""
    chat = find_chat(db, key)
    return None if chat is None else load_file(db, chat.id, attachment_id)


def load_progress(db: Connection, key: ChatKey) -> tuple[list[Entry], frozenset[str]]:
    """Load the newest tool calls of a chat, oldest first, and the refs of its queued messages."""
    chat = find_chat(db, key)
    if chat is None:
        return [], frozenset()
    rows = chats.load_history(db, chat.id, 60)
    results = _results(rows)
    lines = [entry for row in rows for entry in _entries(row, results)]
    waiting = frozenset(entry.ref for entry in _waiting(db, chat.id) if entry.is_waiting)
    return [entry for entry in lines if entry.kind in (EntryKind.TOOL, EntryKind.ASIDE)], waiting


def _waiting(db: Connection, chat_id: ChatId) -> list[Entry]:
    """Load queued messages: messages that no turn has claimed while another turn is running."""
    has_turn = find_open_turn(db, chat_id) is not None
    return [
        Entry(
            ref=row.message_ref or f"w{row.id}",  # messages of a schedule have no platform id
            kind=EntryKind.PERSON,
            at=row.sent_at,
            text=row.payload.text,
            files=tuple(attachment.name for attachment in row.payload.attachments),
            is_waiting=has_turn and row.kind is InboxKind.MESSAGE,
        )
        for row in load_waiting(db, chat_id)
    ]


def _with_dividers(rows: Sequence[HistoryRow]) -> Iterator[Entry]:
    results = _results(rows)
    seen: set[int] = set()
    latest = BEGINNING
    for row in rows:
        latest = max(latest, row.created_at, BEGINNING if row.taken_up_at is None else taken_up(row.taken_up_at))
        if seen and row.lineage_id not in seen:
            yield Entry(ref=f"d{row.lineage_id}", kind=EntryKind.DIVIDER, at=row.created_at, not_before=latest)
        seen.add(row.lineage_id)
        yield from _entries(row, results, latest)


def _results(rows: Sequence[HistoryRow]) -> Mapping[tuple[int | None, str], HistoryRow]:
    return {(row.turn_id, row.tool_call_id): row for row in rows if row.tool_call_id is not None}


def _entries(
    row: HistoryRow, results: Mapping[tuple[int | None, str], HistoryRow], not_before: Millis = BEGINNING
) -> Iterator[Entry]:
    if row.role == MessageRole.TOOL or (row.is_owed and row.role == MessageRole.ASSISTANT):
        return
    body = row.body or MessageBody()
    kind = EntryKind.PERSON if row.origin == Origin.HUMAN else EntryKind.NOTICE
    if row.origin == Origin.ASSISTANT:
        kind = EntryKind.ASIDE if body.calls else EntryKind.ANSWER
    if row.text or not body.calls:
        yield Entry(
            ref=row.ref or str(row.id),
            kind=kind,
            at=row.created_at,
            text=row.text or "",
            files=row.files,
            is_undone=row.is_undone,
            was_interrupted=body.was_interrupted,
            not_before=not_before,
        )
    for number, call in enumerate(body.calls):
        result = results.get((row.turn_id, call.id))
        yield Entry(
            ref=f"{row.id}.{number}",
            kind=EntryKind.TOOL,
            at=row.created_at,
            call=msgspec.structs.replace(call, arguments=_shortened(call.arguments)),
            not_before=not_before,
            state="running" if result is None else result.tool_state or "done",
            result=None if result is None else _shortened(result.text or ""),
            is_undone=row.is_undone,
        )


def _shortened(text: str) -> str:
    return text if len(text) <= TOOL_CHARACTERS else f"{text[:TOOL_CHARACTERS]}\n… ({len(text):,} characters in total)"
