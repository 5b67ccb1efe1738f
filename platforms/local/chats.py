"""Chats of the page in memory: answers being written, and recent entries that no transcript has.

Commands, the replies to them and errors are no rows of a transcript. A reload shows them again, as a chat service
would. They are stored when the adapter stops, so a daemon that was killed has those of its last orderly stop.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.meta import load_note, save_note
from hermes_state.store.sql import Connection
from hermes_state.values import Millis
from platforms.local.entries import Entry, EntryKind, taken_up
from platforms.local.history import chat_key, load_known_refs
from platforms.local.pages import PageWriter
from platforms.local.stream import ChatStream


class LiveChat:
    """One chat as its open pages show it: each change is published to them."""

    def __init__(self, name: str, pages: PageWriter) -> None:
        self.name = name
        self.stream = ChatStream()
        self._pages = pages
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._preview: Entry | None = None
        self._tools: dict[str, Entry] = {}

    @property
    def recent(self) -> list[Entry]:
        """The newest entries, without the answer being written."""
        return [*self._recent.values()]

    @property
    def shown(self) -> list[Entry]:
        """The newest entries and the answer being written."""
        return [*self._recent.values(), *([self._preview] if self._preview else [])]

    @property
    def has_waiting(self) -> bool:
        """True while something was sent that waits for an answer to end."""
        return any(entry.is_waiting for entry in self._recent.values())

    def restore(self, entries: Sequence[Entry]) -> None:
        self._recent.update((entry.ref, entry) for entry in entries if entry.ref not in self._recent)

    def find(self, ref: str) -> Entry | None:
        if self._preview is not None and self._preview.ref == ref:
            return self._preview
        return self._recent.get(ref)

    def add(self, entry: Entry) -> None:
        """Show a new entry, or new content of the entry with this `ref`."""
        is_over = entry.kind is not EntryKind.PERSON
        if self._preview is not None and self._preview.ref == entry.ref:
            self._preview = None
            self.stream.forget("preview")
        self._recent[entry.ref] = entry
        if len(self._recent) > 50:
            self._recent.popitem(last=False)
        if is_over:
            self.stream.forget("writing")
        self._publish([entry], is_writing=False if is_over else None)

    def show_preview(self, entry: Entry) -> None:
        """Show the unfinished answer. One turn runs in a chat, so a new preview replaces any other."""
        self._preview = entry
        self._recent.pop(entry.ref, None)
        self._publish([entry], is_writing=True, slot="preview")

    def show_typing(self) -> None:
        """Show for a few seconds that an answer is being written."""
        self._publish([], is_writing=True, slot="writing")

    def changed_tools(self, entries: Sequence[Entry]) -> list[Entry]:
        """Latest tool calls that are new or have a result now."""
        return [entry for entry in entries if self._tools.get(entry.ref) != entry]

    def show_tools(self, entries: Sequence[Entry]) -> None:
        changed = self.changed_tools(entries)
        self._tools = {entry.ref: entry for entry in entries}
        if changed:
            preview = self._preview
            if preview and any(entry.text and entry.text.strip() == preview.text.strip() for entry in changed):
                # It was the text before a tool call, which is an entry of its own now.
                self._preview = None
                self.stream.forget("preview")
                self.stream.publish(lambda: self._pages.fragment("removal", preview.ref))
            self._publish(changed)

    def show_waiting(self, waiting: frozenset[str], now: Millis) -> None:
        """Show that only the messages `waiting` still wait; the others have their place from `now` on."""
        for entry in self.recent:
            if entry.is_waiting and entry.ref not in waiting:
                self.add(replace(entry, is_waiting=False, not_before=taken_up(now)))

    def _publish(self, entries: Sequence[Entry], *, is_writing: bool | None = None, slot: str | None = None) -> None:
        self.stream.publish(lambda: self._pages.fragment("upsert", self.name, entries, is_writing), slot)


class ChatRegistry(dict[str, LiveChat]):
    """Chats by name, each made at its first use."""

    def __init__(self, pages: PageWriter) -> None:
        super().__init__()
        self._pages = pages

    def __missing__(self, name: str) -> LiveChat:
        chat = self[name] = LiveChat(name, self._pages)
        return chat

    def open(self, recent: Mapping[str, Sequence[Entry]]) -> None:
        """Let pages connect, which load everything again; `recent` are the entries of an earlier process."""
        for name, entries in recent.items():
            self[name].restore(entries)
        for chat in self.values():
            chat.stream = ChatStream()

    def close(self) -> None:
        """End every page's stream; recent entries stay for the next run."""
        for chat in self.values():
            chat.stream.close()


@locks("notes")
def save_recent(db: Connection, entries: Mapping[str, Sequence[Entry]]) -> None:
    """Store the recent entries of each chat that no transcript has, in place of the stored ones."""
    kept: dict[str, list[Entry]] = {}
    for name, recent in entries.items():
        known = load_known_refs(db, chat_key(name), [entry.ref for entry in recent])
        if fresh := [entry for entry in recent if entry.ref not in known]:
            kept[name] = fresh
    save_note(db, "local.remembered", msgspec.json.encode(kept).decode())


def load_recent(db: Connection) -> Mapping[str, Sequence[Entry]]:
    """Load recent entries by chat; none if another version wrote them in a form that this one cannot read."""
    note = load_note(db, "local.remembered")
    try:
        return msgspec.json.decode(note, type=dict[str, list[Entry]]) if note is not None else {}
    except msgspec.MsgspecError:
        return {}
