"""The seat of a gateway at its database: its locks on chats, accounts and housekeeping.

If several gateways (nodes) share a database, each lock belongs to one node until its seat ends. A gateway with its own
database has every lock, and its seat never ends.
"""

import asyncio
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

from hermes_state.errors import StoreUnavailable
from hermes_state.values import ChatId


class SeatLost(StoreUnavailable):
    """The seat has ended, so other nodes may have its locks."""


class LockKind(IntEnum):
    """Kinds of locks, as numbers for PostgreSQL. They must differ from the number of the migration lock."""

    CHAT = 1212634970
    ACCOUNT = 1212634971
    KEEPER = 1212634972


class SeatLock(NamedTuple):
    kind: LockKind
    key: int  # 31 bits


KEEPER = SeatLock(LockKind.KEEPER, 0)
"""Lock held by the node that runs schedules, expiry and housekeeping."""


def chat_lock(chat_id: ChatId) -> SeatLock:
    return SeatLock(LockKind.CHAT, chat_id & 0x7FFFFFFF)


def account_lock(account: str) -> SeatLock:
    """Return the lock of an account. The node with the lock receives and sends the account's messages."""
    return SeatLock(LockKind.ACCOUNT, zlib.crc32(account.encode()) & 0x7FFFFFFF)


class HintKind(IntEnum):
    WORK = 1  # a message waits in a chat
    OWED = 2  # a reply to a chat waits to be sent
    STOPPED = 3  # a turn was stopped
    PREVIEW = 4  # a turn's answer has grown
    ACCESS = 5  # access was granted or revoked
    ASKED = 6  # a turn waits for an approval
    SCHEDULED = 7  # a schedule has changed
    DROPPED = 8  # a command was stopped
    LEARNED = 9  # a property of a model was learned


class Hint(NamedTuple):
    """Hint to other nodes about a change that a node has just stored. Without it, nodes notice the change later."""

    kind: HintKind
    id: int  # id of the chat or turn, else 0


OnHint: TypeAlias = Callable[[Hint], None]


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a node that the other nodes can read."""

    id: str  # id of this process
    name: str
    version: str
    role: str  # `node`, or `worker`, which never serves an account
    settings: str = "{}"  # JSON of the settings that must be equal on all nodes


class Seat(ABC):
    """The seat of one gateway. Always `close` it."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """True if other nodes may share the database."""

    @property
    @abstractmethod
    def is_certain(self) -> bool:
        """True while no other node can have this seat's locks. It turns False before another node can take them."""

    @abstractmethod
    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        """Take up to `most` of the given locks that are free, in order. Return the taken locks.

        Raises `SeatLost` if the seat has ended.
        """

    @abstractmethod
    async def let_go(self, lock: SeatLock) -> None:
        """Release a lock. Afterwards another node can take it. Raises `SeatLost` if the seat has ended."""

    @abstractmethod
    async def close(self) -> None:
        """Release all locks. If the seat is lost, end all work that needs its locks before you call this."""


class OnlySeat(Seat):
    """The seat of a gateway with its own database."""

    is_shared = False
    is_certain = True

    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        return set(locks[:most])

    async def let_go(self, lock: SeatLock) -> None:
        """Do nothing, because no other node could take the lock."""

    async def close(self) -> None:
        """Do nothing, because there is nothing to release."""
