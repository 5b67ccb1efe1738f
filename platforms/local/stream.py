"""Server-sent events: the stream of a chat's changes to its open pages.

Every event has a number. A page that comes back names its last event and gets the later ones. A page that was away for
too long, or saw another process, loads the whole chat again. Nothing is queued per page: a slow page gets only the
newest state of a slot.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from platforms.text import with_newlines

MAX_EVENTS = 200
"""Events kept per chat: a page that missed more loads everything again."""


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
        """Drop the event of this slot."""
        self._latest.pop(slot, None)

    def after(self, event_id: str) -> list[str] | None:
        """Return the fragments after an event; None if they are gone, or another process made the event."""
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
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def encode(fragment: str, event_id: str) -> bytes:
    """Encode a server-sent event, a long one in a thread: 50,000 line ends take some milliseconds."""
    if len(fragment) > 50_000:
        return await asyncio.to_thread(_encode, fragment, event_id)
    return _encode(fragment, event_id)


def _encode(fragment: str, event_id: str) -> bytes:
    lines = with_newlines(fragment).replace("\n", "\ndata: ")
    return f"id: {event_id}\ndata: {lines}\n\n".encode()
