"""Conversations of other gateways, and the transaction that stores one of them as a lineage.

The rows of a conversation are given in the order in which the other gateway wrote them. A compression there begins a
new view: copies of the first rows, a summary, and copies of the last rows. Copies are stored once. The rows before the
newest view become a session of their own, so that the model sees the newest view, and search finds everything.
"""

import hashlib
import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from agent.handoff import Handoff, unframed
from agent.memory.notes import FILE_NAMES, Target, read_text
from agent.memory.skills import SKILL_FILE
from hermes_state import sessions
from hermes_state.chats import ensure_chat, find_chat
from hermes_state.compressions import CompressionRow, ContextItem, SplitPlan, split
from hermes_state.errors import ToolError
from hermes_state.sessions import end_session, free_session_key, load_active, load_session, set_title, start_session
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, save_note, scalar, scalars
from hermes_state.text import counted, well_formed
from hermes_state.transcripts import EMPTY_BODY, NewMessage, append
from hermes_state.values import (
    LOCAL_OWNER,
    ChatId,
    ChatKey,
    ChatKind,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
    UserRef,
)

T = TypeVar("T")
Fields: TypeAlias = Mapping[str, Any]
"""Row or JSON object of another program."""
Row: TypeAlias = tuple[NewMessage, Millis]
Person: TypeAlias = tuple[str | None, str | None]
"""Id on the platform, and name. None: unknown."""
UNREADABLE = (OSError, sqlite3.Error, AttributeError, LookupError, TypeError, ValueError, OverflowError, RecursionError)
"""Errors that one item of another program can cause."""
_LAST = 253_402_300_799_000
"""End of the year 9999, in milliseconds."""
_TARGET = re.compile(r"(?:(dm|direct|group|channel|thread|user):)?(-?\d+)(?::(?:topic:|thread:)?(\d+))?(?::.*)?")
KINDS = {"dm": ChatKind.DIRECT, **{kind.value: kind for kind in ChatKind if kind is not ChatKind.LOCAL}}


class ImportedChat(NamedTuple):
    key: ChatKey
    kind: ChatKind
    title: str | None = None
    sender: UserRef | None = LOCAL_OWNER
    """Person who wrote all messages. None: unknown."""
    sender_name: str | None = "Owner"


class ImportedConversation(NamedTuple):
    source_id: str
    """Id that no other conversation of the other program has."""
    chat: ImportedChat
    title: str | None
    is_open: bool
    rows: Sequence[Row]
    """Messages and summaries, in the order in which the other program wrote them."""

    @property
    def mark(self) -> str:
        """End of the key of its first session, by which a second import recognises the conversation."""
        return mark_of(self.source_id)


class ImportedSchedule(NamedTuple):
    name: str
    chat: ImportedChat | None
    spec: str
    zone: str
    """Time zone, or an empty string for the gateway's zone."""
    text: str
    is_active: bool

    @property
    def is_from_a_stranger(self) -> bool:
        """True if it names a chat, but nobody who could have made it. It must not run with the owner's rights."""
        return self.chat is not None and (self.chat.sender is None or self.chat.kind is ChatKind.LOCAL)

    @property
    def creator(self) -> tuple[UserRef, str]:
        if self.chat is None or self.chat.sender is None:
            return LOCAL_OWNER, "Owner"
        return self.chat.sender, self.chat.sender_name or self.chat.sender

    @property
    def mark(self) -> str:
        return mark_of(*map(str, self[:3]), self.text)


def mark_of(*parts: str) -> str:
    """Return a short digest by which a second import recognises a thing."""
    digest = hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).digest()
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[byte & 31] for byte in digest[:9])


class Source(ABC):
    """State directory of another program. `faults` lists what could not be read; it grows during the reading."""

    total = 0
    """Number of conversations, known once `conversations` has yielded the first."""
    notes_folder: str
    skill_folders: Sequence[str]
    persona = ""
    """Text of `SOUL.md`, or an empty string if there is none or it comes with the program."""

    def __init__(self, home: Path) -> None:
        self.home, self.faults = home, list[str]()

    @abstractmethod
    def conversations(self) -> Iterator[ImportedConversation]:
        """Yield the conversations that have messages."""

    @abstractmethod
    def schedules(self) -> Iterator[ImportedSchedule]: ...
    def notes(self) -> Mapping[Target, str]:
        return {target: self.text(self.notes_folder, name) for target, name in FILE_NAMES.items()}

    def skills(self) -> Iterator[Path]:
        """Yield folders with a `SKILL.md`, and links to such folders."""
        for folder in filter(self.holds, map(self.home.joinpath, self.skill_folders)):
            for path in sorted(folder.glob("**/*")):
                if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                    if path.name == SKILL_FILE:
                        yield path.parent
                    elif path.is_symlink() and (path / SKILL_FILE).exists():
                        yield path

    def skip(self, runs: int, kinds: str) -> None:
        if runs:
            self.faults.append(f"{counted(runs, 'run')} of {kinds}: not a conversation")

    def text(self, *names: str) -> str:
        """Return the text of a file of the state directory, or an empty string if it is missing or unreadable."""
        path = self.home.joinpath(*names)
        try:
            return (read_text(path) or "") if self.holds(path) else ""
        except ToolError as error:
            self.faults.append(str(error))
            return ""

    def holds(self, path: Path) -> bool:
        """Return True if `path` is in the state directory. A link to other places is added to `faults`."""
        if not (is_inside := path.resolve().is_relative_to(self.home.resolve())):
            self.faults.append(f"{path}: a link out of {self.home}")
        return is_inside

    def each(
        self, kind: str, items: Iterable[Fields], convert: Callable[[Fields], T | None], of: str = ""
    ) -> Iterator[T]:
        """Yield converted items, without None. An item that cannot be converted is added to `faults`."""
        for item in items:
            try:
                if (found := convert(item)) is not None:
                    yield found
            except UNREADABLE as error:
                is_told = isinstance(error, OSError | ValueError | sqlite3.Error)
                name = (item.get("name") or item.get("id")) if isinstance(item, Mapping) else item
                self.faults.append(f"{kind} {name}{of}: {error if is_told else f'unknown form ({error!r})'}")


def chat_of(
    platform: str,
    chat_ref: str,
    kind: ChatKind | None = None,
    *,
    thread: str = "",
    title: str | None = None,
    person: Person = (None, None),
    other: str = "",
) -> ImportedChat:
    """Return the chat on a platform that the gateway has too, otherwise a web chat of the owner.

    Without a `kind`, the id decides. `other` tells web chats apart if `chat_ref` is empty.
    """
    if platform not in ("telegram", "discord") or not chat_ref.removeprefix("-").isdecimal():
        name = hashlib.sha256("\n".join((platform, chat_ref or other, thread)).encode()).hexdigest()[:8]
        return ImportedChat(ChatKey(platform="local", account="local", chat_ref=f"chat-{name}"), ChatKind.LOCAL)
    unknown = ChatKind.CHANNEL if platform == "discord" else ChatKind.DIRECT
    kind = kind or (ChatKind.GROUP if chat_ref.startswith("-") else unknown)
    # A thread on Discord has an id of its own. Telegram sends messages to the General topic (1) without its number.
    thread = thread if platform == "telegram" and thread != "1" else ""
    key = ChatKey(platform=platform, account=platform, chat_ref=chat_ref, thread_ref=thread)
    known = person[0] or (chat_ref if platform == "telegram" and kind is ChatKind.DIRECT else None)
    sender = UserRef(f"{platform}:{known}") if known else None
    return ImportedChat(key, kind, _name(title) if kind.is_shared else None, sender, _name(person[1]))


def chat_at(platform: str, target: str, **given: Any) -> ImportedChat:
    """Return the chat at an address. `given` are arguments of `chat_of`.

    >>> [chat_at("telegram", target).key.name for target in ("telegram:42", "-100:topic:7", "-100:7", "group:-100:1")]
    ['telegram:42', 'telegram:-100/7', 'telegram:-100/7', 'telegram:-100']
    """
    found = _TARGET.fullmatch(target.removeprefix(f"{platform}:"))
    kind, place, thread = found.groups(default="") if found else ("", target, "")
    if platform == "discord" and kind in ("dm", "direct", "user"):
        place = target  # the id of the person, not of the channel
    return chat_of(platform, place, KINDS.get(kind), thread=thread, **given)


def _name(text: object) -> str | None:
    return well_formed(text) if isinstance(text, str) else None


def message(
    role: str, content: Any, at: float, chat: ImportedChat, calls: Iterable[Any] = (), **given: Any
) -> Row | None:
    """Return a row, or None if it is empty. `calls` are the id, name and arguments of tool calls."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = well_formed("\n\n".join(part["text"] for part in parts if part["type"] == "text")).strip()
    images = sum("image" in part["type"] for part in parts)
    body = MessageBody(other_files=("image",) * images, calls=tuple([_call(*one) for one in calls]))
    if not 0 <= at <= _LAST:
        raise ValueError(f"{at} is not a time in milliseconds")
    if not all(isinstance(given.get(name), str | None) for name in ("tool_call_id", "tool_name")):
        raise ValueError("an id or name is not text")
    kind, moment = MessageRole(role), Millis(round(at))
    values: dict[str, Any] = {"origin": Origin.HUMAN, "sender_ref": chat.sender, "sender_name": chat.sender_name}
    if kind is MessageRole.TOOL and not given.get("tool_call_id"):
        raise ValueError("a tool's result does not name its call")
    if kind is not MessageRole.TOOL and (summary := unframed(text)) is not None:
        kind, text, values = MessageRole.USER, summary, {"origin": Origin.SUMMARY}
    elif kind is not MessageRole.USER:
        values = {"origin": Origin(role)}
    if not text and body == EMPTY_BODY and kind is not MessageRole.TOOL:
        return None  # an answer that contained only reasoning
    values |= {name: well_formed(value) if isinstance(value, str) else value for name, value in given.items()}
    return NewMessage(role=kind, text=text, body=body, **values), moment


def _call(call_id: str, name: str, arguments: object) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=well_formed(call_id), name=well_formed(name), arguments=well_formed(text))


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
            sizes = range(min(index - start, index // 2), 1, -1)  # one equal row can be a coincidence
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
    """Load the marks of everything that was imported, even if it was removed later."""
    return set(scalars(db, str, "SELECT substr(key, 10) FROM meta WHERE substr(key, 1, 9) = 'imported:'"))


@locks("notes")
def save_mark(db: Connection, mark: str) -> None:
    save_note(db, f"imported:{mark}", "")


def ensure_imported(db: Connection, chat: ImportedChat, now: Millis) -> ChatId:
    """Return the chat's id. Create the chat if needed, but do not change one that exists."""
    known = find_chat(db, chat.key)
    return known.id if known is not None else ensure_chat(db, chat.key, chat.kind, chat.title, now)


@locks(EVERYTHING)
def store_conversation(db: Connection, found: ImportedConversation, imported: Collection[str]) -> None:
    """Store a conversation. It becomes active unless its chat has a newer one, or one of our own.

    `imported` are the marks of the conversations that come from the same program.
    """
    started_at = found.rows[0][1]
    chat_id = ensure_imported(db, found.chat, started_at)
    active = load_active(db, chat_id)
    last = max((at for new, at in found.rows if new.origin is Origin.HUMAN), default=started_at)
    is_newest = active is None
    if active is not None and load_session(db, SessionId(active.lineage_id)).key[9:] in imported:
        query = "SELECT coalesce(last_human_at, started_at) <= ? FROM sessions WHERE id = ?"
        is_newest = scalar(db, bool, query, (last, active.id))
    session = start_session(db, chat_id, started_at)
    key = free_session_key(db, chat_id, started_at)[:9] + found.mark
    db.execute("UPDATE sessions SET key = ? WHERE id = ?", (key, session.id))
    save_mark(db, found.mark)
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
    if title := _name(found.title):
        set_title(db, tip, title)
    db.execute("UPDATE sessions SET last_human_at = ? WHERE lineage_id = ?", (last, session.lineage_id))
    # The web chat marks chats with later answers as unread.
    newest = "(SELECT max(id) FROM messages WHERE lineage_id = ?)"
    db.execute(f"UPDATE chats SET read_id = {newest} WHERE id = ?", (session.lineage_id, chat_id))
    if not is_newest or not found.is_open:
        end_session(db, tip, sessions.EndReason.FINISHED, last)
    if active is not None and not is_newest:
        db.execute("UPDATE chats SET active_session_id = ? WHERE id = ?", (active.id, chat_id))
    elif active is not None and active.ended_at is None:
        end_session(db, active.id, sessions.EndReason.SWITCHED, last)


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
