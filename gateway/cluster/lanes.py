"""Ownership of chats in a cluster: a node works in a chat while it has the lock of that chat."""

import asyncio
import time
from contextlib import suppress

from gateway.cluster.chat_queue import ChatQueue
from gateway.turns.lanes import LaneRegistry
from gateway.turns.ownership import Work
from hermes_state import inbox
from hermes_state.chats import load_chat
from hermes_state.errors import StateError
from hermes_state.store.seats import Seat, chat_lock
from hermes_state.turns import RunningTurn, find_unended
from hermes_state.values import ChatId, TurnId

STOPPED_ELSEWHERE = "stopped at another node"

MAX_ASKED = 500
"""Largest number of locks in one request."""
BUSY_LOAD = 0.1
"""Load from which on a node leaves new messages to other nodes; see `load_of`."""
MIN_TURN_SECONDS = 0.1
"""Seconds after which another node may have finished a turn that was stored here."""


def load_of(lanes: LaneRegistry) -> float:
    """Running turns as a share of `sessions.max_turns`."""
    return len(lanes.active) / lanes.runtime.config.sessions.max_turns


def end_stopped(lanes: LaneRegistry, turn_id: TurnId) -> None:
    """Stop a running turn after another node has stored its stop."""
    for active in lanes.active.values():
        if active.turn.id == turn_id and active.stop_reason is None:
            active.begin_stop(STOPPED_ELSEWHERE).settle_stop()


class LockedChats:
    """Ownership of a node that shares its database with other nodes."""

    def __init__(self, lanes: LaneRegistry, seat: Seat) -> None:
        self._lanes = lanes
        self._seat = seat
        self._queue = ChatQueue()
        """Chats with work whose locks this node does not have yet."""
        self._stored_at: dict[ChatId, float] = {}
        """Earliest time at which the turn of a waiting chat was stored, by the monotonic clock."""
        self._taking: asyncio.Task[None] | None = None

    @property
    def leaves_new(self) -> bool:
        return bool(self._queue) or self._is_busy

    @property
    def has_queue(self) -> bool:
        return self._lanes.room <= 0 and bool(self._queue)

    @property
    def _is_busy(self) -> bool:
        return load_of(self._lanes) >= BUSY_LOAD

    async def sweep(self) -> None:
        """Queue the chats that have work and no lane here, the one that has waited longest first."""
        self._queue.begin_look()
        found = await self._lanes.store.read(inbox.load_chats_with_waiting)
        self._queue.end_look(found, served=self._lanes.served)
        self._take_soon()

    def want(self, chat_id: ChatId, started: RunningTurn | None, asked_at: float, *, is_new: bool) -> None:
        """Queue for a chat.

        A busy node leaves a new message to its hint, which reaches all nodes and is followed by an idler one sooner.
        One without room has it wait in its place.
        """
        if started is not None:
            self._stored_at[chat_id] = asked_at
        elif is_new and self._is_busy and self._lanes.room > 0:
            return
        self._queue.put(chat_id)
        self._take_soon()

    async def serve(self, chat_id: ChatId, work: Work, started: RunningTurn | None) -> None:
        """Run the work of a chat whose lock this node has, then release the lock."""
        with suppress(StateError):  # a sweep finds what is left
            try:
                await work(await self._still_open(chat_id))
            finally:
                await self._seat.let_go(chat_lock(chat_id))

    def note_end(self, chat_id: ChatId, is_woken: bool) -> None:
        if is_woken:
            self._queue.put(chat_id)
        self._take_soon()

    async def can_fetch(self, chat_id: ChatId) -> bool:
        """Return True if this node serves the account of the chat."""
        chat = await self._lanes.store.read_short(load_chat, chat_id)
        return self._lanes.turns.adapters.ownership_of(chat.key) is not None

    async def _still_open(self, chat_id: ChatId) -> RunningTurn | None:
        """The open turn of a chat that this node has stored or taken up, unless another node has had it meanwhile.

        This process may have stood still since it was stored.
        """
        own, stored_at = self._lanes.own.get(chat_id), self._stored_at.pop(chat_id, 0.0)
        if own is None or time.monotonic() < stored_at + MIN_TURN_SECONDS:
            return own
        return await self._lanes.store.read_short(find_unended, own)

    def _take_soon(self) -> None:
        """Start a task that takes locks for the queue, if it can take any."""
        is_taking = self._taking is not None and not self._taking.done()
        if self._queue and self._lanes.room > 0 and self._lanes.works_by(self) and not is_taking:
            self._taking = self._lanes.begin(self._take_chats(), "lanes")

    async def _take_chats(self) -> None:
        """Take the locks of waiting chats in their order, and open their lanes, while there is room."""
        lanes, queue, seat = self._lanes, self._queue, self._seat
        with suppress(StateError):  # a sweep finds what is left
            while queue and (room := lanes.room) > 0 and lanes.works_by(self):
                asked = queue.first(MAX_ASKED)
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
                # What was stored here is another node's from now on.
                await lanes.let_go(*(lanes.own[chat_id] for chat_id in others if chat_id in lanes.own))
