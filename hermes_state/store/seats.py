"""The seat of a gateway at its database: locks that say what of the work is its own.

Where several gateways (nodes) share a database, a chat has one node at work, an account one owner, and housekeeping one
keeper. A node has the locks of these for as long as its seat lasts. Where a gateway has its database alone, its seat
has everything and never ends.
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
    """The seat has ended: what was this node's may be another's by now."""


class LockKind(IntEnum):
    """Kinds of locks, numbered behind those of migrations."""

    CHAT = 1212634970
    ACCOUNT = 1212634971
    KEEPER = 1212634972


class SeatLock(NamedTuple):
    """A lock of a seat."""

    kind: LockKind
    key: int  # 31 bits


KEEPER = SeatLock(LockKind.KEEPER, 0)
"""Lock of the node that does what is to be done once: schedules, expiry, housekeeping."""


def chat_lock(chat_id: ChatId) -> SeatLock:
    """Lock of the node that works in a chat."""
    return SeatLock(LockKind.CHAT, chat_id & 0x7FFFFFFF)


def account_lock(account: str) -> SeatLock:
    """Lock of the node that serves an account: whose adapter listens and sends."""
    return SeatLock(LockKind.ACCOUNT, zlib.crc32(account.encode()) & 0x7FFFFFFF)


class HintKind(IntEnum):
    """Kinds of hints that nodes give each other."""

    WORK = 1  # something waits in a chat
    OWED = 2  # something is owed to a chat
    STOPPED = 3  # a turn was stopped
    PREVIEW = 4  # the answer of a turn has grown
    ACCESS = 5  # somebody was let in or turned away
    ASKED = 6  # a turn waits for a person's yes
    SCHEDULED = 7  # a schedule has changed
    DROPPED = 8  # a command was stopped
    LEARNED = 9  # something was learned of a model


class Hint(NamedTuple):
    """Something that a node has just stored. It may get lost: nothing depends on it but the time."""

    kind: HintKind
    id: int  # id of its chat or turn; 0 where it is about neither


OnHint: TypeAlias = Callable[[Hint], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as the others see it."""

    id: str  # id of this process
    name: str
    version: str
    role: str  # `node`, or `worker`: one that never serves an account
    settings: str = "{}"  # settings that must be the same on all nodes, as JSON


class Seat(ABC):
    """The seat of one gateway. `close` it whatever happens."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        """Set when it has ended."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """Other nodes may have a seat, too."""

    @property
    @abstractmethod
    def is_certain(self) -> bool:
        """True while nobody else can have what this node has; false some time before others do."""

    @abstractmethod
    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        """Take those of the locks that nobody has, the first `most` of them; returns them. Raises `SeatLost`."""

    @abstractmethod
    async def let_go(self, lock: SeatLock) -> None:
        """Give a lock back; it is another's to take when this returns. Raises `SeatLost`."""

    @abstractmethod
    async def close(self) -> None:
        """Give everything back. Of a seat that has ended, what its node had begun must have ended, too."""


class OnlySeat(Seat):
    """The seat of a gateway that has its database alone."""

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def is_certain(self) -> bool:
        return True

    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        return set(locks[:most])

    async def let_go(self, lock: SeatLock) -> None:
        """Nothing: nobody else can take it."""

    async def close(self) -> None:
        """Nothing."""
