"""Ownership of chats: a single daemon owns every chat, and a cluster node owns the chats whose locks it holds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hermes_state import inbox
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId

Work: TypeAlias = Callable[[RunningTurn | None], Awaitable[None]]
"""Does the work of a chat until none is left. If a turn is given, starts with that turn."""


class Ownership(Protocol):
    """Decides when lanes open. An ownership is valid until `LaneRegistry.abandon` is called."""

    @property
    def leaves_new(self) -> bool:
        """True if new messages must not start a turn immediately in this process."""

    @property
    def has_queue(self) -> bool:
        """True if a lane should end after its turn, because other chats are waiting for its slot."""

    async def sweep(self) -> None:
        """Find chats in the database that have work but no lane. Raises `StateError` if the database cannot be read."""

    def want(self, chat_id: ChatId, started: RunningTurn | None, asked_at: float, *, is_new: bool) -> None:
        """Open a lane for a chat with work, now or later. `LaneRegistry.wake` describes the arguments."""

    async def serve(self, chat_id: ChatId, work: Work, started: RunningTurn | None) -> None:
        """Run the work of a chat's open lane."""

    def note_end(self, chat_id: ChatId, is_woken: bool) -> None:
        """Note that a lane has ended. `is_woken` is True if more work arrived before the lane ended."""

    async def can_fetch(self, chat_id: ChatId) -> bool:
        """Return False if another process must fetch the files of a chat."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AllChats:
    """Ownership of a single daemon, which does not share its database."""

    store: Store
    open: Callable[[ChatId, RunningTurn | None], None]
    """Opens a lane, unless the chat has one."""
    leaves_new: bool = False
    has_queue: bool = False

    async def sweep(self) -> None:
        for chat_id in await self.store.read(inbox.load_chats_with_waiting):
            self.open(chat_id, None)

    def want(self, chat_id: ChatId, started: RunningTurn | None, asked_at: float, *, is_new: bool) -> None:
        self.open(chat_id, started)

    async def serve(self, chat_id: ChatId, work: Work, started: RunningTurn | None) -> None:
        await work(started)

    def note_end(self, chat_id: ChatId, is_woken: bool) -> None:
        """Do nothing, because no other process can serve the chat."""

    async def can_fetch(self, chat_id: ChatId) -> bool:
        return True
