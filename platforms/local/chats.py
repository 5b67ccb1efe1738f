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

import msgspec
import structlog

from hermes_state.errors import StateError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.text import whole_number
from hermes_state.values import ChatKey
from platforms.local.entries import Entry, EntryKind
from platforms.local.history import PAGE_ROWS, load_history, load_known_refs
from platforms.local.markdown import to_html
from platforms.local.pages import PageWriter, chat_key
from platforms.text import with_newlines

log = structlog.get_logger()

MAX_EVENTS = 200
"""Number of events kept per chat. A page that missed more events loads the whole chat again."""


class LiveChat:
    """State of one chat. Every change is published to the chat's open pages."""

    def __init__(self, key: ChatKey, pages: PageWriter) -> None:
        self.key = key
        self.stream = ChatStream()
        self._pages = pages
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._preview: Entry | None = None
        self._shown: dict[str, Entry] = {}  # the newest entries, as open pages show them
        self.version = 0
        """Number that changes with the entries, so that entries which were loaded before a change are not shown."""

    @property
    def name(self) -> str:
        """Name of the chat in URLs. It is unique among the chats of one person."""
        return self.key.chat_ref

    @property
    def recent(self) -> list[Entry]:
        """Recent entries, without the unfinished answer."""
        return [*self._recent.values()]

    @property
    def shown(self) -> list[Entry]:
        """Recent entries and the unfinished answer."""
        return [*self._recent.values(), *([self._preview] if self._preview else [])]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count a page of the chat as open while the block runs."""
        try:
            with self.stream.watched():
                yield
        finally:
            if not self.stream.watchers:
                self._shown = {}  # it can be large

    def restore(self, entries: Sequence[Entry]) -> None:
        self._recent.update((entry.ref, entry) for entry in entries if entry.ref not in self._recent)

    def find(self, ref: str) -> Entry | None:
        if self._preview is not None and self._preview.ref == ref:
            return self._preview
        return self._recent.get(ref)

    def add(self, entry: Entry) -> None:
        """Show an entry. It replaces any entry with the same `ref`."""
        is_over = entry.kind is not EntryKind.PERSON
        if self._preview is not None and self._preview.ref == entry.ref:
            self._preview = None
            self.stream.forget("preview")
        self._recent[entry.ref] = entry
        if self.stream.watchers:
            self._shown[entry.ref] = entry
        self.version += 1
        if len(self._recent) > 50:
            self._recent.popitem(last=False)
        if is_over:
            self.stream.forget("writing")
        self._publish([entry], is_writing=False if is_over else None)

    def show_preview(self, entry: Entry) -> None:
        """Show the unfinished answer. A chat runs one turn at a time, so a new preview replaces the last preview."""
        if self._preview is not None and self._preview.ref != entry.ref:
            self._remove(self._preview.ref)
        self._preview = entry
        self._recent.pop(entry.ref, None)
        self._shown.pop(entry.ref, None)
        self.version += 1
        self._publish([entry], is_writing=True, slot="preview")

    def show_typing(self) -> None:
        """Show for a few seconds that an answer is being written."""
        self._publish([], is_writing=True, slot="writing")

    def changed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the loaded entries that open pages do not show yet, or show in an older version."""
        return [
            entry for entry in entries if entry.kind is not EntryKind.PREVIEW and self._shown.get(entry.ref) != entry
        ]

    def show_loaded(self, entries: Sequence[Entry]) -> list[Entry]:
        """Show the newest loaded entries on all open pages. Return the entries for a page that opens now.

        Open pages keep entries that are older than all of `entries`.
        """
        is_first = not self._shown  # no page is open, except the one for which the entries were loaded
        changed = self.changed(entries)
        stored = {entry.ref: entry for entry in entries if entry.kind is not EntryKind.PREVIEW}
        preview = self._preview
        if preview is not None and (
            preview.ref in stored or any(entry.text and entry.text.strip() == preview.text.strip() for entry in changed)
        ):
            # The preview showed the text before a tool call. This text now has its own entry.
            self._preview = None
            self.stream.forget("preview")
            if preview.ref not in stored:
                self._remove(preview.ref)
        oldest = min((entry.order for entry in stored.values()), default=0)
        for ref, entry in self._shown.items():
            if ref not in stored and entry.order > oldest:
                self._remove(ref)
        self._shown = stored
        self.version += 1
        if changed and not is_first:
            self._publish(changed)
        current = None if self._preview is None else self._preview.ref
        return [entry for entry in entries if entry.kind is not EntryKind.PREVIEW or entry.ref == current]

    def _remove(self, ref: str) -> None:
        self.stream.publish(lambda: self._pages.fragment("removal", ref))

    def _publish(self, entries: Sequence[Entry], *, is_writing: bool | None = None, slot: str | None = None) -> None:
        self.stream.publish(lambda: self._pages.fragment("upsert", self.name, entries, is_writing), slot)


class ChatRegistry(dict[ChatKey, LiveChat]):
    """Chats by key. A chat is created when it is first used."""

    def __init__(self, pages: PageWriter) -> None:
        super().__init__()
        self._pages = pages

    def __missing__(self, key: ChatKey) -> LiveChat:
        chat = self[key] = LiveChat(key, self._pages)
        return chat

    def open(self, recent: Mapping[ChatKey, Sequence[Entry]]) -> None:
        """Let pages connect, and make them reload. `recent` holds entries that an earlier process saved."""
        for key, entries in recent.items():
            self[key].restore(entries)
        for chat in self.values():
            chat.stream = ChatStream()

    def close(self) -> None:
        """End every page's stream. Recent entries are kept for the next run."""
        for chat in self.values():
            chat.stream.close()


async def show_progress(store: Store, chat: LiveChat) -> None:
    """Show new and changed rows of the chat on its open pages. If the database fails, a reload shows them."""
    while chat.stream.watchers:
        version = chat.version
        try:
            entries, _ = await store.read(load_history, chat.key, PAGE_ROWS, None, chat.shown)
        except StateError as error:
            log.debug("local.progress_unreadable", error=type(error).__name__)
            return
        await render_ahead(chat, *chat.changed(entries))
        if version == chat.version:
            chat.show_loaded(entries)
            return


async def render_ahead(chat: LiveChat, *entries: Entry) -> None:
    """Render longer texts to HTML in a thread, because each update of a preview can take a second."""
    texts = [entry.text for entry in entries if not entry.is_plain]
    # Even the slowest text of 500 characters takes only ten milliseconds to render.
    if chat.stream.watchers and sum(map(len, texts)) > 500:
        await asyncio.to_thread(lambda: [to_html(text) for text in texts])


@locks("notes")
def save_recent(db: Connection, entries: Mapping[ChatKey, Sequence[Entry]]) -> None:
    """Replace the stored recent entries with the current entries that are not in a transcript."""
    kept: dict[str, list[Entry]] = {}
    for key, recent in entries.items():
        known = load_known_refs(db, key, [entry.ref for entry in recent])
        if fresh := [entry for entry in recent if entry.ref not in known]:
            kept[key.name.removeprefix("local:")] = fresh
    save_note(db, "local.remembered", msgspec.json.encode(kept).decode())


def load_recent(db: Connection) -> Mapping[ChatKey, Sequence[Entry]]:
    """Load recent entries by chat. Returns no entries if another version saved them in an unknown format."""
    note = load_note(db, "local.remembered")
    try:
        found = msgspec.json.decode(note, type=dict[str, list[Entry]]) if note is not None else {}
    except msgspec.MsgspecError:
        return {}
    return {chat_key(*name.split("#", 1)): entries for name, entries in found.items()}


class ChatStream:
    """Numbered events of a chat. Use a stream only on the event loop.

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
        """Count a page of the chat as open while the block runs."""
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
        seen = whole_number(number)
        if epoch != self._epoch or seen is None or not self._floor <= seen <= self._position:
            return None
        found = [event for event in (*self._events, *self._latest.values()) if event[0] > seen]
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
    """Encode a server-sent event, in a thread if it is long, because 50,000 lines take a few milliseconds."""

    def encoded() -> bytes:
        lines = with_newlines(fragment).replace("\n", "\ndata: ")
        return f"id: {event_id}\ndata: {lines}\n\n".encode()

    return await asyncio.to_thread(encoded) if len(fragment) > 50_000 else encoded()
