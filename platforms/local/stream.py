"""Server-sent events: the stream by which open pages learn what happens in a chat.

Every event has a number. A page that comes back names the last one it saw and gets what followed; one that was away
for too long, or saw another process, is given the whole chat anew. Nothing is queued per page: a slow one
finds only the newest state of what changes often.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MAX_EVENTS = 200
"""Events kept per chat: a page that missed more is given everything anew."""

MAX_INLINE_CHARACTERS = 50_000
"""Longest event that is made on the event loop, in characters: one of line ends alone takes some milliseconds."""


class ChatStream:
    """Events of one chat. Belongs to the event loop; nothing here waits except `changed`."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._position = 0  # number of the newest event
        self._floor = 0  # everything after this number is still here
        self._events: deque[tuple[int, str]] = deque()
        self._latest: dict[str, tuple[int, str]] = {}
        self._watchers = 0  # pages that are open on the chat
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def is_watched(self) -> bool:
        return self._watchers > 0

    @property
    def newest_id(self) -> str:
        """Id of the newest event, as pages know it."""
        return f"{self._epoch}-{self._position}"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count one more page that is open on the chat within this block."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def publish(self, render: Callable[[], str], slot: str | None = None) -> None:
        """Publish an event to every open page. `render` makes the fragment and is called only if somebody looks.

        Of events with the same `slot` only the newest matters.
        """
        self._position += 1
        if not self._watchers:
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
        """Drop what this slot showed; a later event says what became of it."""
        self._latest.pop(slot, None)

    def after(self, event_id: str) -> list[str] | None:
        """The fragments after an event; None when those are not known any more, or the event is another process's."""
        epoch, _, number = event_id.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 19
        if epoch != self._epoch or not is_number or not self._floor <= int(number) <= self._position:
            return None
        found = [event for event in (*self._events, *self._latest.values()) if event[0] > int(number)]
        return [fragment for _, fragment in sorted(found)]

    async def changed(self, event_id: str) -> None:
        """Wait until this is not the newest event any more, or for the end."""
        while event_id == self.newest_id and not self.is_closed:
            await self._changed.wait()

    def close(self) -> None:
        """End the stream for everybody who watches."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def encode(fragment: str, event_id: str) -> bytes:
    """One server-sent event; a long one is made beside the event loop."""
    if len(fragment) > MAX_INLINE_CHARACTERS:
        return await asyncio.to_thread(_encode, fragment, event_id)
    return _encode(fragment, event_id)


def _encode(fragment: str, event_id: str) -> bytes:
    lines = fragment.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\ndata: ")
    return f"id: {event_id}\ndata: {lines}\n\n".encode()
