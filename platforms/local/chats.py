"""What this process knows of each chat beside the store: answers being written, and the newest replies to commands.

Replies to commands are no transcript rows; the newest of them are kept here so that a reload shows them
again, and `remembered` keeps them over a restart.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from sqlite3 import Connection

import msgspec

from hermes_state.store.meta import load_note, save_note
from platforms.local.entries import Entry, EntryKind
from platforms.local.history import chat_key, load_known_refs
from platforms.local.pages import PageRenderer
from platforms.local.stream import ChatStream

MAX_RECENT_ENTRIES = 50
"""Per chat; what matters longer is in the transcript."""

_WRITING = "writing"
_PREVIEW = "preview"


class LiveChat:
    """One chat. Every change is told to its open pages."""

    def __init__(self, name: str, pages: PageRenderer) -> None:
        self.name = name
        self.stream = ChatStream()
        self._pages = pages
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._preview: Entry | None = None
        self._tools: dict[str, Entry] = {}

    @property
    def recent(self) -> list[Entry]:
        """What was said lately, and the answer being written."""
        return [*self._recent.values(), *([self._preview] if self._preview else [])]

    @property
    def said(self) -> list[Entry]:
        """What was said lately."""
        return [*self._recent.values()]

    def recall(self, entries: Sequence[Entry]) -> None:
        """What an earlier process remembered."""
        self._recent.update((entry.ref, entry) for entry in entries if entry.ref not in self._recent)

    @property
    def is_watched(self) -> bool:
        """Whether a page is open on this chat."""
        return self.stream.is_watched

    def find(self, ref: str) -> Entry | None:
        """What was said under this `ref`, as far as it is remembered."""
        if self._preview is not None and self._preview.ref == ref:
            return self._preview
        return self._recent.get(ref)

    def add(self, entry: Entry) -> None:
        """Something was said. The same `ref` again changes nothing but the content."""
        is_over = entry.kind is not EntryKind.PERSON
        if self._preview is not None and self._preview.ref == entry.ref:
            self._preview = None
            self.stream.forget(_PREVIEW)
        self._recent[entry.ref] = entry
        if len(self._recent) > MAX_RECENT_ENTRIES:
            self._recent.popitem(last=False)
        if is_over:
            self.stream.forget(_WRITING)
        self.stream.publish(lambda: self._pages.upsert(self.name, [entry], is_writing=False if is_over else None))

    def preview(self, entry: Entry) -> None:
        """The answer being written, as far as it is. One turn runs in a chat: a new preview replaces any other."""
        self._preview = entry
        self._recent.pop(entry.ref, None)
        self.stream.publish(lambda: self._pages.upsert(self.name, [entry], is_writing=True), slot=_PREVIEW)

    def writing(self) -> None:
        """Somebody is at work on an answer; shown for a few seconds."""
        self.stream.publish(lambda: self._pages.upsert(self.name, [], is_writing=True), slot=_WRITING)

    def steps(self, lines: Sequence[Entry]) -> None:
        """The tool calls of late; those that are new or have a result now are told."""
        changed = [line for line in lines if self._tools.get(line.ref) != line]
        self._tools = {line.ref: line for line in lines}
        if changed:
            self._end_preview_of(changed)
            self.stream.publish(lambda: self._pages.upsert(self.name, changed, is_writing=None))

    def _end_preview_of(self, lines: Sequence[Entry]) -> None:
        """What streamed turned out to be said beside a tool call: it is a line of its own now."""
        preview = self._preview
        if preview is not None and any(line.text and line.text.strip() == preview.text.strip() for line in lines):
            self._preview = None
            self.stream.forget(_PREVIEW)
            self.stream.publish(lambda: self._pages.removal(preview.ref))


class ChatRegistry:
    """All chats that were looked at or written to since the start."""

    def __init__(self, pages: PageRenderer) -> None:
        self._pages = pages
        self._chats: dict[str, LiveChat] = {}

    def of(self, name: str) -> LiveChat:
        if name not in self._chats:
            self._chats[name] = LiveChat(name, self._pages)
        return self._chats[name]

    @property
    def said(self) -> Mapping[str, Sequence[Entry]]:
        """What was said lately, by the name of the chat."""
        return {name: chat.said for name, chat in self._chats.items()}

    def recall(self, entries: Mapping[str, Sequence[Entry]]) -> None:
        """What an earlier process remembered, by the name of the chat."""
        for name, said in entries.items():
            self.of(name).recall(said)

    def close(self) -> None:
        """End every page's stream; what is remembered stays for the next run."""
        for chat in self._chats.values():
            chat.stream.close()

    def reopen(self) -> None:
        """Pages may connect again. They are given everything anew."""
        for chat in self._chats.values():
            chat.stream = ChatStream()


_NOTE = "local.remembered"

_Noted = dict[str, list[Entry]]
"""By the chat's name."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Noted).decode


def note_entries(db: Connection, entries: Mapping[str, Sequence[Entry]]) -> None:
    """Keep what the store does not have anyway of each chat's `entries`, instead of what was kept before."""
    kept: _Noted = {}
    for name, said in entries.items():
        known = load_known_refs(db, chat_key(name), [entry.ref for entry in said])
        if fresh := [entry for entry in said if entry.ref not in known]:
            kept[name] = fresh
    save_note(db, _NOTE, _encode(kept).decode())


def load_entries(db: Connection) -> Mapping[str, Sequence[Entry]]:
    """What was kept, by the name of the chat; nothing where another version wrote what this one cannot read."""
    note = load_note(db, _NOTE)
    try:
        return _decode(note) if note is not None else {}
    except msgspec.MsgspecError:
        return {}
