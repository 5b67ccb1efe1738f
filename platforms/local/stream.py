"""Server-sent events: the stream by which open pages learn what happens in a chat.

Every event has a number. A page that comes back names the last one it saw and gets what followed; one that was away
for too long, or saw another process, is given the whole chat anew. Nothing is queued per page: a slow one
finds only the newest state of what changes often.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable

MAX_EVENTS = 200
"""Events kept per chat: a page that missed more is given everything anew."""

_LINE_END = re.compile(r"\r\n|\r|\n")


class ChatStream:
    """Events of one chat. Belongs to the event loop; nothing here waits except `changed`."""

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self.position = 0
        """Number of the newest event."""
        self._floor = 0  # everything after this number is still here
        self._events: deque[tuple[int, str]] = deque()
        self._latest: dict[str, tuple[int, str]] = {}
        self.watchers = 0
        """Pages that are open on the chat."""
        self._changed = asyncio.Event()
        self.is_closed = False

    def publish(self, render: Callable[[], str], slot: str | None = None) -> None:
        """Publish an event to every open page. `render` makes the fragment and is called only if somebody looks.

        Of events with the same `slot` only the newest matters.
        """
        self.position += 1
        if not self.watchers:
            self._events.clear()
            self._latest.clear()
            self._floor = self.position
        elif slot is not None:
            self._latest[slot] = (self.position, render())
        else:
            self._events.append((self.position, render()))
            if len(self._events) > MAX_EVENTS:
                self._floor = self._events.popleft()[0]
        self._wake()

    def forget(self, slot: str) -> None:
        """Drop what this slot showed; a later event says what became of it."""
        self._latest.pop(slot, None)

    def after(self, position: int) -> tuple[int, list[str]] | None:
        """The newest position and the fragments after `position`; None when those are not known any more."""
        if position < self._floor or position > self.position:
            return None
        found = [event for event in (*self._events, *self._latest.values()) if event[0] > position]
        return self.position, [fragment for _, fragment in sorted(found)]

    async def changed(self, position: int) -> None:
        """Wait for an event after `position`, or for the end."""
        while self.position <= position and not self.is_closed:
            await self._changed.wait()

    def close(self) -> None:
        """End the stream for everybody who watches."""
        self.is_closed = True
        self._wake()

    def name_of(self, position: int) -> str:
        """Event id of a position, as pages know it."""
        return f"{self._epoch}-{position}"

    def position_of(self, name: str) -> int | None:
        """Position of an event id; None for another process's or a made-up one."""
        epoch, _, number = name.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) < 19
        return int(number) if epoch == self._epoch and is_number else None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def encode(fragment: str, name: str) -> bytes:
    """One server-sent event."""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(fragment))
    return f"id: {name}\n{lines}\n".encode()
