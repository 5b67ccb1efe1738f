"""Chat history of the web page: stored rows as entries, in batches, newest batch first. This module only reads.

A page that opens and a page that is already open show the same entries in the same order, because `load_history` loads
the entries for both.

The page shows all conversations of a chat, newest last, even the messages that the model no longer sees. Undone
messages stay, marked as undone.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes_state import chats
from hermes_state.attachments import load_file, load_files
from hermes_state.chats import HistoryRow, find_chat
from hermes_state.compressions import load_points
from hermes_state.inbox import InboxKind, load_waiting
from hermes_state.ratings import load_values
from hermes_state.sessions import load_active
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.text import thoughts
from hermes_state.transcripts import load_view, undoable_exchanges
from hermes_state.turns import find_open_turn
from hermes_state.values import ChatId, ChatKey, MessageBody, MessageId, MessageRole, Millis, Origin, SentFile, TurnId
from platforms.local.entries import BEGINNING, Entry, EntryKind, merge, ref_of_file, taken_up

PAGE_ROWS = 120
"""Number of transcript rows that a page shows at first, and loads with each “Show earlier messages”."""
TOOL_CHARACTERS = 4_000
"""Maximum number of characters that a page shows of a tool call's arguments, and of its result."""

_Uploads: TypeAlias = Mapping[MessageId, Sequence[SentFile]]


_IS_NEWS = (EntryKind.ANSWER, EntryKind.ASIDE, EntryKind.TOOL, EntryKind.NOTICE)


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
        for file in load_files(db, [row.id for row in rows if row.role == MessageRole.ASSISTANT])
        if (ref := ref_of_file(file)) not in remembered
    ]
    waiting = [] if before is not None else _waiting(db, chat.id)
    queued = {entry.ref for entry in waiting if entry.is_waiting}
    recent = [replace(entry, is_waiting=entry.is_waiting and entry.ref in queued) for entry in recent]
    texts = [entry.ref for entry in recent if entry.sent is None]  # files are not rows of the transcript
    known_refs = chats.known_refs(db, chat.id, texts) | {entry.ref for entry in waiting}
    since = BEGINNING if is_all else min(row.created_at for row in rows)
    until = 2**62
    if before is not None:  # newer entries belong to the next page
        until = scalar_or_none(db, int, "SELECT created_at FROM messages WHERE id = ?", (before,)) or 0
        recent = [entry for entry in recent if entry.at < until]
    condensed = [
        Entry(ref=f"k-{one.session}", kind=EntryKind.CONDENSED, at=one.at, compression=one, is_undone=one.is_undone)
        for one in load_points(db, chat.id, BEGINNING if is_all else rows[0].created_at, until)
    ]
    entries = merge(
        [*_with_dividers(rows, _uploads(db, rows)), *files, *waiting, *condensed], known_refs, recent, since
    )
    rated = load_values(db, [row.id for row in rows if row.origin == Origin.ASSISTANT])
    thumbs = {row.ref: rated[row.id][-1] for row in rows if row.id in rated}
    entries = [replace(one, rating=thumbs[one.ref]) if one.ref in thumbs else one for one in entries]
    return entries, None if is_all else rows[0].id


def first_unread(entries: Sequence[Entry], until: Millis | None) -> str | None:
    """Return the `ref` of the first entry after `until` that the person did not write, or None."""
    fresh = (entry.ref for entry in entries if until is not None and entry.at > until and entry.kind in _IS_NEWS)
    return next(fresh, None)


def load_known_refs(db: Connection, key: ChatKey, refs: Sequence[str]) -> frozenset[str]:
    """Return the platform ids in `refs` that occur in the chat's transcript."""
    chat = find_chat(db, key)
    return frozenset() if chat is None else chats.known_refs(db, chat.id, refs)


def load_file_of(db: Connection, key: ChatKey, attachment_id: int) -> SentFile | None:
    """Load a file of a chat. Return None if the chat does not have this file."""
    chat = find_chat(db, key)
    return None if chat is None else load_file(db, chat.id, attachment_id)


def load_editable(db: Connection, key: ChatKey) -> Entry | None:
    """Load the newest message that the person sent, which `/undo` would remove.

    Messages that were sent in quick succession and answered together count as one. Returns None if there is no message,
    or if its answer is not finished.
    """
    chat = find_chat(db, key)
    session = None if chat is None else load_active(db, chat.id)
    if chat is None or session is None or session.ended_at is not None:
        return None
    exchanges = undoable_exchanges(load_view(db, session.lineage_id))
    is_waiting = any(row.kind is not InboxKind.NOTICE for row in load_waiting(db, chat.id))  # a notice starts no turn
    if not exchanges or is_waiting or find_open_turn(db, chat.id) is not None:
        return None
    asked = [message for message in exchanges[-1] if message.origin is Origin.HUMAN]
    text, files = "\n\n".join(filter(None, (one.text for one in asked))), load_files(db, [one.id for one in asked])
    return Entry(ref=str(asked[-1].id), kind=EntryKind.PERSON, at=asked[-1].created_at, text=text, stored=tuple(files))


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


def _with_dividers(rows: Sequence[HistoryRow], uploads: _Uploads) -> Iterator[Entry]:
    results = {(row.turn_id, row.tool_call_id): row for row in rows if row.tool_call_id is not None}
    seen: set[int] = set()
    latest = BEGINNING
    for row in rows:
        previous = latest
        latest = max(latest, row.created_at, BEGINNING if row.taken_up_at is None else taken_up(row.taken_up_at))
        if seen and row.lineage_id not in seen:
            yield Entry(ref=f"d{row.lineage_id}", kind=EntryKind.DIVIDER, at=row.created_at, not_before=latest)
        seen.add(row.lineage_id)
        if previous and row.body is not None and row.body.was_interrupted:
            # The page showed a stopped answer before `/stop`, and its row was stored afterwards.
            yield from _entries(msgspec.structs.replace(row, created_at=previous), results, uploads, previous)
        else:
            yield from _entries(row, results, uploads, latest)


def _uploads(db: Connection, rows: Sequence[HistoryRow]) -> _Uploads:
    """Load the files that people sent with these messages."""
    found = defaultdict[MessageId, list[SentFile]](list)
    for file in load_files(db, [row.id for row in rows if row.files and row.origin == Origin.HUMAN]):
        found[file.message_id].append(file)
    return found


def _entries(
    row: HistoryRow, results: Mapping[tuple[TurnId | None, str], HistoryRow], uploads: _Uploads, not_before: Millis
) -> Iterator[Entry]:
    if row.role == MessageRole.TOOL or (row.is_owed and row.role == MessageRole.ASSISTANT):
        return
    body, kind = row.body or MessageBody(), EntryKind.PERSON if row.origin == Origin.HUMAN else EntryKind.NOTICE
    if row.origin == Origin.ASSISTANT:
        kind = EntryKind.ASIDE if body.calls else EntryKind.ANSWER
    shown = Entry(
        ref=row.ref or str(row.id), kind=kind, at=row.created_at, not_before=not_before, is_undone=row.is_undone
    )
    if body.reasoning is not None and (thought := "\n\n".join(map(str.strip, thoughts(body.reasoning.blocks)))):
        yield replace(shown, ref=f"{row.id}.r", kind=EntryKind.REASONING, text=_shortened(thought))
    if row.text or not body.calls:
        files, stored = body.other_files, tuple(uploads.get(row.id, ()))
        yield replace(shown, text=row.text or "", files=files, stored=stored, was_interrupted=body.was_interrupted)
    for number, call in enumerate(body.calls):
        result = results.get((row.turn_id, call.id))
        yield replace(
            shown,
            ref=f"{row.id}.{number}",
            kind=EntryKind.TOOL,
            call=msgspec.structs.replace(call, arguments=_shortened(call.arguments)),
            state="running" if result is None else result.tool_state or "done",
            result=None if result is None else _shortened(result.text or ""),
        )


def _shortened(text: str) -> str:
    return text if len(text) <= TOOL_CHARACTERS else f"{text[:TOOL_CHARACTERS]}\n… ({len(text):,} characters in total)"
