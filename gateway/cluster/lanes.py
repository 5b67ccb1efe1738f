"""Ownership of chats in a cluster: a node works in a chat only while it holds the chat's lock."""

import asyncio
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice

from gateway.turns.lanes import LaneRegistry
from gateway.turns.ownership import Work
from hermes_state import inbox
from hermes_state.chats import load_chat
from hermes_state.errors import StateError
from hermes_state.store.seats import Seat, chat_lock
from hermes_state.turns import RunningTurn, find_unended
from hermes_state.values import ChatId

MIN_TURN_SECONDS = 0.1
"""Minimum time, in seconds, that another node needs to take over and finish a turn that this node stored."""


def load_of(lanes: LaneRegistry) -> float:
    """Return the number of running turns as a fraction of `sessions.max_turns`."""
    return len(lanes.active) / lanes.runtime.config.sessions.max_turns


class ChatQueue:
    """Queue of chats that have work but whose locks this node does not hold, in order of discovery.

    A chat that another node serves keeps its place in the queue. Its lock is requested again after the next sweep (a
    search of the database for chats with work).

    >>> queue = ChatQueue()
    >>> for number in (7, 3, 5): queue.put(ChatId(number))
    >>> queue.leave([ChatId(7)])
    >>> queue.first(2)
    [3, 5]
    >>> queue.begin_look(), queue.end_look([ChatId(2), ChatId(5), ChatId(7)], served=())
    (None, None)
    >>> queue.first(9)
    [7, 5, 2]
    """

    def __init__(self) -> None:
        self._chats: dict[ChatId, bool] = {}
        """Waiting chats in the order of the queue. The value is True if the chat's lock must be requested."""
        self._put: set[ChatId] = set()
        """Chats that were added after the last sweep began. The sweep may have missed them."""

    def __bool__(self) -> bool:
        """True if the lock of any queued chat must be requested."""
        return any(self._chats.values())

    def put(self, chat_id: ChatId) -> None:
        """Queue a chat with work. A chat that is already queued keeps its place."""
        self._chats[chat_id] = True
        self._put.add(chat_id)

    def first(self, most: int) -> list[ChatId]:
        """Return up to `most` chats whose locks must be requested."""
        return list(islice((chat_id for chat_id, is_asked_for in self._chats.items() if is_asked_for), most))

    def remove(self, chat_id: ChatId) -> None:
        """Remove a chat that this node now serves."""
        self._chats.pop(chat_id, None)

    def leave(self, chat_ids: Iterable[ChatId]) -> None:
        """Do not request the locks of these chats until the next sweep, because other nodes hold them."""
        self._chats |= dict.fromkeys(chat_ids, False)

    def begin_look(self) -> None:
        """Begin a sweep of the database."""
        self._put.clear()

    def end_look(self, found: Collection[ChatId], served: Collection[ChatId]) -> None:
        """End a sweep. `found` contains the chats with work, oldest first; `served` contains the chats of this node."""
        waiting = {*found, *self._put}
        kept = [chat_id for chat_id in self._chats if chat_id in waiting]
        self._chats = {chat_id: True for chat_id in (*kept, *found) if chat_id not in served}


class LockedChats:
    """Ownership of chats for a node that shares its database with other nodes."""

    def __init__(self, lanes: LaneRegistry, seat: Seat) -> None:
        self._lanes = lanes
        self._seat = seat
        self._queue = ChatQueue()
        """Chats with work that this node does not serve yet."""
        self._stored_at: dict[ChatId, float] = {}
        """Monotonic time just before this node stored a chat's turn, for each waiting chat with such a turn."""
        self._taking: asyncio.Task[None] | None = None

    @property
    def leaves_new(self) -> bool:
        return bool(self._queue) or self._is_busy

    @property
    def has_queue(self) -> bool:
        return self._lanes.room <= 0 and bool(self._queue)

    @property
    def _is_busy(self) -> bool:
        """True if this node leaves new messages to other nodes."""
        return load_of(self._lanes) >= 0.1

    async def sweep(self) -> None:
        """Queue the chats that have work but no lane on this node, longest wait first."""
        self._queue.begin_look()
        found = await self._lanes.store.read(inbox.load_chats_with_waiting)
        self._queue.end_look(found, served=self._lanes.served)
        self._take_soon()

    def want(self, chat_id: ChatId, started: RunningTurn | None, asked_at: float, *, is_new: bool) -> None:
        """Queue a chat. If its message is new and this node is busy but not full, let idle nodes take it first."""
        if started is not None:
            self._stored_at[chat_id] = asked_at
        elif is_new and self._is_busy and self._lanes.room > 0:
            return
        self._queue.put(chat_id)
        self._take_soon()

    async def serve(self, chat_id: ChatId, work: Work, started: RunningTurn | None) -> None:
        """Run the work of a chat whose lock this node holds, then release the lock."""
        with suppress(StateError):  # a sweep finds the remaining work
            try:
                await work(await self._still_open(chat_id))
            finally:
                await self._seat.let_go(chat_lock(chat_id))

    def note_end(self, chat_id: ChatId, is_woken: bool) -> None:
        if is_woken:
            self._queue.put(chat_id)
        self._take_soon()

    async def can_fetch(self, chat_id: ChatId) -> bool:
        """Return True if this node serves the chat's account."""
        chat = await self._lanes.store.read_short(load_chat, chat_id)
        return self._lanes.turns.previews.adapters.ownership_of(chat.key) is not None

    async def _still_open(self, chat_id: ChatId) -> RunningTurn | None:
        """Return the open turn that this node stored, unless another node took it while this process was frozen."""
        own, stored_at = self._lanes.own.get(chat_id), self._stored_at.pop(chat_id, 0.0)
        if own is None or time.monotonic() < stored_at + MIN_TURN_SECONDS:
            return own
        return await self._lanes.store.read_short(find_unended, own)

    def _take_soon(self) -> None:
        """Start a task that takes the locks of queued chats, if this node can open another lane."""
        is_taking = self._taking is not None and not self._taking.done()
        if self._queue and self._lanes.room > 0 and self._lanes.works_by(self) and not is_taking:
            self._taking = self._lanes.begin(self._take_chats(), "lanes")

    async def _take_chats(self) -> None:
        """Take the locks of waiting chats in order and open their lanes, until this node has enough lanes."""
        lanes, queue, seat = self._lanes, self._queue, self._seat
        with suppress(StateError):  # a sweep finds the remaining work
            while queue and (room := lanes.room) > 0 and lanes.works_by(self):
                asked = queue.first(500)
                taken = await seat.take([chat_lock(chat_id) for chat_id in asked], room)
                if not lanes.works_by(self):
                    for lock in taken:
                        await seat.let_go(lock)
                    return
                for chat_id in asked:
                    if chat_lock(chat_id) in taken:
                        queue.remove(chat_id)
                        lanes.open(chat_id)
                if len(taken) == room:
                    return
                others = [chat_id for chat_id in asked if chat_lock(chat_id) not in taken]
                queue.leave(others)
                # Other nodes hold these locks and continue the turns that this node stored for the chats.
                await lanes.let_go(*(lanes.own[chat_id] for chat_id in others if chat_id in lanes.own))
