"""Conversations of other gateways, and the transaction that stores one of them as a lineage.

The rows of a conversation are given in the order in which the other gateway wrote them. A compression there begins a
new view: copies of the first rows, a summary, and copies of the last rows. Copies are stored once. The rows before the
newest view become a session of their own, so that the model sees the newest view, and search finds everything.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from agent.handoff import Handoff, unframed
from agent.memory.notes import Target
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, ContextItem, SplitPlan, split
from hermes_state.sessions import end_session, free_session_key, load_active, load_session, set_title, start_session
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar, scalars
from hermes_state.text import well_formed
from hermes_state.transcripts import EMPTY_BODY, NewMessage, append
from hermes_state.values import (
    LOCAL_OWNER,
    ChatKey,
    ChatKind,
    EndReason,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
    UserRef,
)

Fields: TypeAlias = Mapping[str, Any]
"""Row or JSON object of another program."""
Row: TypeAlias = tuple[NewMessage, Millis]
KINDS = {"dm": ChatKind.DIRECT, "direct": ChatKind.DIRECT, "group": ChatKind.GROUP, "thread": ChatKind.THREAD}
Person: TypeAlias = tuple[str | None, str | None]
OWNER = (LOCAL_OWNER, "Owner")


class Unreadable(ValueError):
    """A message, conversation or schedule that cannot be imported. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedChat:
    key: ChatKey
    kind: ChatKind
    title: str | None = None
    person: tuple[UserRef | None, str | None] = OWNER
    """Person who wrote all messages, with their name. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedConversation:
    source_id: str
    """Id that no other conversation of the other program has."""
    chat: ImportedChat
    title: str | None
    is_open: bool
    rows: Sequence[Row]
    """Messages and summaries, in the order in which the other program wrote them."""

    @property
    def started_at(self) -> Millis:
        return self.rows[0][1]

    @property
    def mark(self) -> str:
        """End of the key of its first session, by which a second import recognises the conversation."""
        digest = hashlib.sha256(self.source_id.encode("utf-8", "replace")).digest()
        return "".join("0123456789abcdefghjkmnpqrstvwxyz"[byte & 31] for byte in digest[:9])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSchedule:
    name: str
    chat: ImportedChat | None
    spec: str
    zone: str
    """Time zone, or an empty string for the gateway's zone."""
    text: str
    is_active: bool

    @property
    def creator(self) -> tuple[UserRef, str]:
        who = OWNER if self.chat is None else self.chat.person
        return OWNER if who[0] is None else (who[0], who[1] or who[0])


class Source(Protocol):
    """State directory of another program."""

    faults: list[str]
    """Sentences about what could not be read. The list grows while the conversations are read."""

    def conversations(self) -> Iterator[ImportedConversation]:
        """Yield the conversations that have messages. Those of one chat come oldest first."""

    def schedules(self) -> Iterator[ImportedSchedule]: ...
    def notes(self) -> Mapping[Target, str]: ...
    def skills(self) -> Iterator[Path]:
        """Yield folders with a `SKILL.md`."""

    @property
    def persona(self) -> str:
        """Text of `SOUL.md`, or an empty string if there is none or it comes with the program."""


def chat_of(
    platform: str, chat_ref: str, kind: ChatKind, *, thread: str, title: str | None, person: Person, other: str
) -> ImportedChat:
    """Return the chat on a platform that the gateway has too, otherwise a web chat of the owner.

    `person` is the person's id on the platform, and their name. `other` tells web chats apart if `chat_ref` is empty.
    """
    if platform not in ("telegram", "discord") or not chat_ref:
        name = hashlib.sha256("\n".join((platform, chat_ref or other, thread)).encode()).hexdigest()[:8]
        return ImportedChat(
            key=ChatKey(platform="local", account="local", chat_ref=f"chat-{name}"), kind=ChatKind.LOCAL
        )
    thread = thread if platform == "telegram" else ""  # a thread on Discord has an id of its own
    key = ChatKey(platform=platform, account=platform, chat_ref=chat_ref, thread_ref=thread)
    if not person[0] and platform == "telegram" and kind is ChatKind.DIRECT:
        person = chat_ref, person[1]
    sender = UserRef(f"{platform}:{person[0]}") if person[0] else None
    return ImportedChat(key=key, kind=kind, title=title if kind.is_shared else None, person=(sender, person[1]))


def message(role: str, content: Any, at: Any, chat: ImportedChat, **given: Any) -> Row:
    """Return a row. `content` is a text or a list of parts. Raises `Unreadable` if a value has an unexpected form."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    try:
        texts = [part["text"] for part in parts if part["type"] == "text"]
        text = well_formed("\n\n".join(texts)).strip()
        images = sum("image" in part["type"] for part in parts)
        moment = Millis(round(at))
    except (KeyError, TypeError, OverflowError) as error:
        raise Unreadable(f"its content or time has an unknown form ({type(error).__name__})") from error
    body = MessageBody(other_files=("image",) * images, calls=tuple(given.pop("calls", ())))
    kind = MessageRole(role)
    origin = Origin.HUMAN if kind is MessageRole.USER else Origin(role)
    if kind is not MessageRole.TOOL and (summary := unframed(text)) is not None:
        return NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=summary), moment
    if kind is MessageRole.USER:
        given = {"sender_ref": chat.person[0], "sender_name": chat.person[1], "origin": origin} | given
    return NewMessage(**{"role": kind, "origin": origin, "text": text, "body": body, **given}), moment


def call(call_id: object, name: object, arguments: object) -> ToolCall:
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    if not (isinstance(call_id, str) and isinstance(name, str) and call_id and name):
        raise Unreadable("a tool call has no id or no name")
    return ToolCall(id=call_id, name=name, arguments=well_formed(text))


# ---- views


def _mark(row: Row) -> tuple[object, ...]:
    """Return what a copy of the row has in common with it. Copies of tool results can be shorter."""
    new = row[0]
    return (new.role, new.tool_call_id or new.text, tuple(one.id for one in new.body.calls))


def views(rows: Sequence[Row]) -> list[Sequence[Row]]:
    """Split rows into views: each later view begins with copies of the first rows, followed by a summary."""
    found, start, marks = list[Sequence[Row]](), 0, [_mark(row) for row in rows]
    for index, (new, _) in enumerate(rows):
        if new.origin is Origin.SUMMARY:
            sizes = range(min(index - start, index // 2), 0, -1)
            end = index - next((size for size in sizes if marks[index - size : index] == marks[:size]), 0)
            found.append(rows[start:end])
            start = end
    return [*found, rows[start:]]


def _ends(view: Sequence[Row], before: Sequence[Row]) -> tuple[int, int]:
    """Return the indexes after the summary of `view`, and after the copies of the last rows of `before` behind it."""
    after = max((index for index, row in enumerate(view, 1) if row[0].origin is Origin.SUMMARY), default=0)
    marks, known = [_mark(row) for row in view[after:]], [_mark(row) for row in before]
    sizes = range(min(len(marks), len(known)), 0, -1)
    return after, after + next((size for size in sizes if marks[:size] == known[-size:]), 0)


# ---- transactions


def load_marks(db: Connection) -> set[str]:
    return set(scalars(db, str, "SELECT substr(key, 10) FROM sessions"))


@locks(EVERYTHING)
def store_conversation(db: Connection, found: ImportedConversation, imported: Collection[str]) -> None:
    """Store a conversation. It becomes active unless its chat has a newer one, or one of our own.

    `imported` are the marks of the conversations that come from the same program.
    """
    chat_id = ensure_chat(db, found.chat.key, found.chat.kind, found.chat.title, found.started_at)
    active = load_active(db, chat_id)
    last = max((at for new, at in found.rows if new.origin is Origin.HUMAN), default=found.started_at)
    is_newest = active is None
    if active is not None and load_session(db, SessionId(active.lineage_id)).key[9:] in imported:
        query = "SELECT coalesce(last_human_at, started_at) <= ? FROM sessions WHERE id = ?"
        is_newest = scalar(db, bool, query, (last, active.id))
    session = start_session(db, chat_id, found.started_at)
    key = free_session_key(db, chat_id, found.started_at)[:9] + found.mark
    db.execute("UPDATE sessions SET key = ? WHERE id = ?", (key, session.id))
    # Answers without text and calls contained only reasoning.
    first, *later = views(
        [row for row in found.rows if row[0].text or row[0].body != EMPTY_BODY or row[0].tool_call_id]
    )
    *earlier, view = later or [first]
    before = [*first] if later else []
    for one in earlier:
        before += one[_ends(one, before)[1] :]
    ids, tip, own = [append(db, session.id, *row) for row in before], session.id, 0
    if later:
        tip, own = _compressed(db, tip, view, before, ids)
    for row in view[own:]:
        append(db, tip, *row)
    if found.title:
        set_title(db, tip, found.title)
    db.execute("UPDATE sessions SET last_human_at = ? WHERE lineage_id = ?", (last, session.lineage_id))
    if not is_newest or not found.is_open:
        end_session(db, tip, EndReason.FINISHED, last)
    if active is not None and not is_newest:
        db.execute("UPDATE chats SET active_session_id = ? WHERE id = ?", (active.id, chat_id))
    elif active is not None and active.ended_at is None:
        end_session(db, active.id, EndReason.SWITCHED, last)


def _compressed(
    db: Connection, session_id: SessionId, view: Sequence[Row], before: Sequence[Row], ids: Sequence[MessageId]
) -> tuple[SessionId, int]:
    """Continue a session in one that begins like `view`. Return its id, and the index of its own first row."""
    after, own = _ends(view, before)
    is_head = [_mark(row) == _mark(old) for row, old in zip(view[: after - 1], before, strict=False)]
    head = [ids[index] if is_copy else view[index][0] for index, is_copy in enumerate(is_head)]
    tail = ids[len(ids) - (own - after) :]
    gone = [one for one in ids if one not in {*head, *tail}]
    text = view[after - 1][0].text or ""
    if gone:
        text = Handoff(text=text, messages=len(gone), first_id=gone[0], last_id=gone[-1]).stored()
    items: list[ContextItem] = [*head, replace(view[after - 1][0], text=text), *tail]
    plan = SplitPlan(parent=load_session(db, session_id), context=items, row=CompressionRow(layer="manual"))
    return split(db, plan, view[after - 1][1]), own
