"""The seat of a gateway at its database: the locks of its chats, accounts and housekeeping.

Where several gateways (nodes) share a database, each lock has one node, for as long as its seat lasts. The seat of a
gateway with a database of its own has everything and never ends.
"""

import asyncio
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from hermes_state.errors import StoreUnavailable
from hermes_state.values import ChatId


class SeatLost(StoreUnavailable):
    """The seat has ended: another node may have its locks by now."""


class LockKind(IntEnum):
    """Kinds of locks, with numbers after those of migrations."""

    CHAT = 1212634970
    ACCOUNT = 1212634971
    KEEPER = 1212634972


class SeatLock(NamedTuple):
    """A lock of a seat."""

    kind: LockKind
    key: int  # 31 bits


KEEPER = SeatLock(LockKind.KEEPER, 0)
"""Lock of the node that does schedules, expiry and housekeeping."""


def chat_lock(chat_id: ChatId) -> SeatLock:
    """Return the lock of a chat."""
    return SeatLock(LockKind.CHAT, chat_id & 0x7FFFFFFF)


def account_lock(account: str) -> SeatLock:
    """Return the lock of an account, whose node listens and sends."""
    return SeatLock(LockKind.ACCOUNT, zlib.crc32(account.encode()) & 0x7FFFFFFF)


class HintKind(IntEnum):
    WORK = 1  # something waits in a chat
    OWED = 2  # something is owed to a chat
    STOPPED = 3  # a turn was stopped
    PREVIEW = 4  # the answer of a turn has grown
    ACCESS = 5  # access was given or taken
    ASKED = 6  # a turn waits for a person's yes
    SCHEDULED = 7  # a schedule has changed
    DROPPED = 8  # a command was stopped
    LEARNED = 9  # a property of a model was learned


class Hint(NamedTuple):
    """Notice of a change that a node has just stored. A lost one only costs time."""

    kind: HintKind
    id: int  # id of its chat or turn; 0 where it is about neither


OnHint: TypeAlias = Callable[[Hint], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node for the others."""

    id: str  # id of this process
    name: str
    version: str
    role: str  # `node`, or `worker`: one that never serves an account
    settings: str = "{}"  # settings that must be the same on all nodes, as JSON


class Seat(ABC):
    """The seat of one gateway. `close` it in any case."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """True if other nodes may have a seat, too."""

    @property
    @abstractmethod
    def is_certain(self) -> bool:
        """True while no other node can have these locks; False some time before one can."""

    @abstractmethod
    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        """Take the first `most` free locks of these and return them. Raises `SeatLost`."""

    @abstractmethod
    async def let_go(self, lock: SeatLock) -> None:
        """Release a lock, which another node can take when this returns. Raises `SeatLost`."""

    @abstractmethod
    async def close(self) -> None:
        """Release all locks. The node must have ended all work of a lost seat before."""


class OnlySeat(Seat):
    """The seat of a gateway with a database of its own."""

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def is_certain(self) -> bool:
        return True

    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        return set(locks[:most])

    async def let_go(self, lock: SeatLock) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
