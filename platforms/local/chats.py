"""In-memory state of the web page's chats: unfinished answers, recent entries outside the transcript, and streams of
changes.

Commands, replies to commands, and errors are not part of a transcript, but a reload must show them again. They are
saved only when the adapter stops, so entries since then are lost if the daemon is killed.
"""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.values import Millis
from platforms.local.entries import Entry, EntryKind, taken_up
from platforms.local.history import chat_key, load_known_refs
from platforms.local.pages import PageWriter
from platforms.text import with_newlines

MAX_EVENTS = 200
"""Number of events kept per chat. A page that missed more events loads the whole chat again."""


class LiveChat:
    """State of one chat. Every change is published to the chat's open pages."""

    def __init__(self, name: str, pages: PageWriter) -> None:
        self.name = name
        self.stream = ChatStream()
        self._pages = pages
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._preview: Entry | None = None
        self._tools: dict[str, Entry] = {}

    @property
    def recent(self) -> list[Entry]:
        """Recent entries, without the unfinished answer."""
        return [*self._recent.values()]

    @property
    def shown(self) -> list[Entry]:
        """Recent entries and the unfinished answer."""
        return [*self._recent.values(), *([self._preview] if self._preview else [])]

    @property
    def has_waiting(self) -> bool:
        """True while a message is waiting for the running answer to end."""
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
        """Show the unfinished answer. A chat runs one turn at a time, so a new preview replaces the last preview."""
        self._preview = entry
        self._recent.pop(entry.ref, None)
        self._publish([entry], is_writing=True, slot="preview")

    def show_typing(self) -> None:
        """Show for a few seconds that an answer is being written."""
        self._publish([], is_writing=True, slot="writing")

    def changed_tools(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the latest tool calls that are new or now have a result."""
        return [entry for entry in entries if self._tools.get(entry.ref) != entry]

    def show_tools(self, entries: Sequence[Entry]) -> None:
        changed = self.changed_tools(entries)
        self._tools = {entry.ref: entry for entry in entries}
        if changed:
            preview = self._preview
            if preview and any(entry.text and entry.text.strip() == preview.text.strip() for entry in changed):
                # The preview showed the text before a tool call. This text now has its own entry.
                self._preview = None
                self.stream.forget("preview")
                self.stream.publish(lambda: self._pages.fragment("removal", preview.ref))
            self._publish(changed)

    def show_waiting(self, waiting: frozenset[str], now: Millis) -> None:
        """Show that only messages in `waiting` are still queued. Messages that left the queue move to time `now`."""
        for entry in self.recent:
            if entry.is_waiting and entry.ref not in waiting:
                self.add(replace(entry, is_waiting=False, not_before=taken_up(now)))

    def _publish(self, entries: Sequence[Entry], *, is_writing: bool | None = None, slot: str | None = None) -> None:
        self.stream.publish(lambda: self._pages.fragment("upsert", self.name, entries, is_writing), slot)


class ChatRegistry(dict[str, LiveChat]):
    """Chats by name. A chat is created when it is first used."""

    def __init__(self, pages: PageWriter) -> None:
        super().__init__()
        self._pages = pages

    def __missing__(self, name: str) -> LiveChat:
        chat = self[name] = LiveChat(name, self._pages)
        return chat

    def open(self, recent: Mapping[str, Sequence[Entry]]) -> None:
        """Let pages connect, and make them reload. `recent` holds entries that an earlier process saved."""
        for name, entries in recent.items():
            self[name].restore(entries)
        for chat in self.values():
            chat.stream = ChatStream()

    def close(self) -> None:
        """End every page's stream. Recent entries are kept for the next run."""
        for chat in self.values():
            chat.stream.close()


@locks("notes")
def save_recent(db: Connection, entries: Mapping[str, Sequence[Entry]]) -> None:
    """Replace the stored recent entries with the current entries that are not in a transcript."""
    kept: dict[str, list[Entry]] = {}
    for name, recent in entries.items():
        known = load_known_refs(db, chat_key(name), [entry.ref for entry in recent])
        if fresh := [entry for entry in recent if entry.ref not in known]:
            kept[name] = fresh
    save_note(db, "local.remembered", msgspec.json.encode(kept).decode())


def load_recent(db: Connection) -> Mapping[str, Sequence[Entry]]:
    """Load recent entries by chat. Returns no entries if another version saved them in an unknown format."""
    note = load_note(db, "local.remembered")
    try:
        return msgspec.json.decode(note, type=dict[str, list[Entry]]) if note is not None else {}
    except msgspec.MsgspecError:
        return {}


class ChatStream:
    """Numbered events of a chat. Use it only in the event loop. Only `changed` waits.

    A page that reconnects sends the id of its last event and gets the later events. A page that was away too long, or
    was connected to an earlier process, loads the whole chat again. Pages have no queues, so a slow page gets only the
    newest event of each slot.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._position = 0  # id of the newest event
        self._floor = 0  # all events after this id are still kept
        self._events: deque[tuple[int, str]] = deque()
        self._latest: dict[str, tuple[int, str]] = {}
        self.watchers = 0  # number of open pages
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def newest_id(self) -> str:
        """Id of the newest event, in the form that pages send back."""
        return f"{self._epoch}-{self._position}"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count one more open page of the chat while the block runs."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    def publish(self, render: Callable[[], str], slot: str | None = None) -> None:
        """Publish an event. `render` runs only if a page is open. Only the newest event of each `slot` is kept."""
        self._position += 1
        if not self.watchers:
            self._events.clear()
            self._latest.clear()
            self._floor = self._position
        elif slot is not None:
            self._latest[slot] = (self._position, render())
        else:
            self._events.append((self._position, render()))
            if len(self._events) > MAX_EVENTS:
                self._floor = self._events.popleft()[0]
        self._wake()

    def forget(self, slot: str) -> None:
        self._latest.pop(slot, None)

    def after(self, event_id: str) -> list[str] | None:
        """Return the fragments after `event_id`, or None if some were dropped or the id is from another process."""
        epoch, _, number = event_id.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 19
        if epoch != self._epoch or not is_number or not self._floor <= int(number) <= self._position:
            return None
        found = [event for event in (*self._events, *self._latest.values()) if event[0] > int(number)]
        return [fragment for _, fragment in sorted(found)]

    async def changed(self, event_id: str) -> None:
        """Wait until an event after `event_id` is published, or the stream ends."""
        while event_id == self.newest_id and not self.is_closed:
            await self._changed.wait()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def encode(fragment: str, event_id: str) -> bytes:
    """Encode a server-sent event, in a thread if it is long, because 50,000 lines take some milliseconds."""
    if len(fragment) > 50_000:
        return await asyncio.to_thread(_encode, fragment, event_id)
    return _encode(fragment, event_id)


def _encode(fragment: str, event_id: str) -> bytes:
    lines = with_newlines(fragment).replace("\n", "\ndata: ")
    return f"id: {event_id}\ndata: {lines}\n\n".encode()
