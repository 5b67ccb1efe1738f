"""Which chats this process works in: all of them for one daemon, those whose lock it has in a cluster."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hermes_state import inbox
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId

Work: TypeAlias = Callable[[RunningTurn | None], Awaitable[None]]
"""Works in a chat until nothing waits there; begins with a turn that was stored for it, if there is one."""


class Ownership(Protocol):
    """Says when a lane may open. It lasts until the registry of lanes abandons it."""

    @property
    def leaves_new(self) -> bool:
        """New messages are left to others, or have to wait for their turn here."""

    @property
    def has_queue(self) -> bool:
        """Chats wait for the place of one that is worked in."""

    async def sweep(self) -> None:
        """Look in the database for work that nobody does. Raises `StateError`."""

    def want(self, chat_id: ChatId, started: RunningTurn | None, asked_at: float, *, is_new: bool) -> None:
        """Open a lane for a chat in which work waits, now or later; the values are those of `LaneRegistry.wake`."""

    async def serve(self, chat_id: ChatId, work: Work, started: RunningTurn | None) -> None:
        """Do the work of a lane that was opened."""

    def note_end(self, chat_id: ChatId, is_woken: bool) -> None:
        """A lane has gone; `is_woken`: more work came while it went."""

    async def can_fetch(self, chat_id: ChatId) -> bool:
        """This process can fetch the files of a chat, or nobody can."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AllChats:
    """Ownership of a daemon that has its database to itself."""

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
        """Nothing: nobody else waits for the chat."""

    async def can_fetch(self, chat_id: ChatId) -> bool:
        return True
