"""Supervised adapters, and the gates and flood control that throttle the messages to their chats.

Each adapter is restarted with a backoff while this process serves its account.

A gate allows one request at a time. The outbox waits for the gate and for the end of penalties. Previews and typing
signals are sent only if the gate is free and no penalty is active. Otherwise, they are dropped.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace
from structlog.contextvars import bind_contextvars

from hermes_state.aio import Backoff, CancelledElsewhereError, own_cancellation
from hermes_state.errors import (
    ChatUnreachable,
    MessageRejected,
    PlatformError,
    RateLimited,
    SendAmbiguous,
    TokenRejected,
)
from hermes_state.outbox import AccountClaim
from hermes_state.values import ChatId, ChatKey
from platforms.base import AdapterHealth, AdapterState, Intake, PlatformAdapter, SendRequest

log = structlog.get_logger()

RETRY_BACKOFF = Backoff(max_seconds=60.0)


class SupervisedAdapter:
    """Adapter with a supervisor, which restarts the adapter unless the platform rejected its token."""

    def __init__(self, adapter: PlatformAdapter, label: str = "") -> None:
        self.adapter = adapter
        self.name = adapter.name
        self.label = label or adapter.name
        """Name of the account for people."""
        self.ownership: AccountClaim | None = None
        self._pause_ends: float | None = None
        self._error = ""
        self._is_rejected = False

    def health(self) -> AdapterHealth:
        """Return the adapter's health, or the supervisor's state while the adapter does not run."""
        health = self.adapter.health()
        if self.ownership is None:
            return replace(health, state=AdapterState.STANDBY, detail="another node serves it")
        if self._is_rejected:
            return replace(health, state=AdapterState.FAILED, detail=self._error)
        if self._pause_ends is not None:
            seconds = max(0.0, self._pause_ends - time.monotonic())
            detail = f"{self._error}; next attempt in {seconds:.0f} s"
            return replace(health, state=AdapterState.BACKING_OFF, detail=detail)
        return health

    async def run(self, intake: Intake) -> None:
        """Keep the adapter running until cancelled or until the platform rejects the token."""
        bind_contextvars(account=self.name)  # for the events that the adapter logs in this task and its children
        delays = iter(RETRY_BACKOFF)
        self._is_rejected = False
        while True:
            began = time.monotonic()
            self._pause_ends = None
            try:
                with own_cancellation():
                    await self.adapter.run(intake)
                self._error = "the connection ended"
            except TokenRejected as error:
                self._is_rejected, self._error = True, str(error)
                log.error("adapter.rejected", adapter=self.name, error=str(error))
                return
            except PlatformError as error:
                self._error = str(error)
                log.warning("adapter.failed", adapter=self.name, error=type(error).__name__, detail=str(error))
            except Exception as error:  # a bug in an SDK counts as a failed attempt and must not end the daemon
                is_cut_off = isinstance(error, CancelledElsewhereError)
                self._error = "the connection was cut off" if is_cut_off else type(error).__name__
                log.exception("adapter.crashed", adapter=self.name)
            if time.monotonic() - began >= 60.0:  # the adapter was healthy, so the backoff starts over
                delays = iter(RETRY_BACKOFF)
            pause = next(delays) * random.uniform(0.8, 1.2)
            self._pause_ends = time.monotonic() + pause
            await asyncio.sleep(pause)  # no event reports that the platform works again


class AdapterRegistry:
    """Configured adapters by account."""

    def __init__(
        self,
        adapters: Mapping[str, PlatformAdapter],
        *,
        is_certain: Callable[[], bool] = lambda: True,
        is_shared: bool = False,
        label_of: Callable[[str], str] = str,
    ) -> None:
        """`is_certain` returns True as long as no other process can have taken over the accounts of this process.

        `is_shared` is True if other processes can serve accounts, even accounts that are not configured here.
        `label_of` returns an account's name for people.
        """
        self.supervised = {name: SupervisedAdapter(adapter, label_of(name)) for name, adapter in adapters.items()}
        self.is_certain = is_certain
        self.is_shared = is_shared

    def of(self, chat: ChatKey) -> PlatformAdapter | None:
        """Return the adapter for a chat, or None if its platform is no longer configured."""
        return found.adapter if (found := self.supervised.get(chat.account)) is not None else None

    def ownership_of(self, chat: ChatKey) -> AccountClaim | None:
        """Return this process's claim to a chat's account, or None if another process serves the account."""
        return found.ownership if (found := self.supervised.get(chat.account)) is not None else None

    @property
    def serves_any(self) -> bool:
        """True if this process serves an account."""
        return any(one.ownership is not None for one in self.supervised.values())

    def max_file_bytes(self, chat: ChatKey) -> int:
        """Return the largest file size in bytes that can be sent to a chat, or 0 if files cannot be sent."""
        if (adapter := self.of(chat)) is not None:
            return adapter.capabilities.max_file_bytes
        return 10 << 20 if self.is_shared else 0  # every platform accepts 10 MiB

    def failed_accounts(self) -> list[str]:
        """Return the accounts of this process that stay disconnected until an operator acts."""
        return [name for name, one in self.supervised.items() if one.health().state is AdapterState.FAILED]

    def health(self) -> Mapping[str, AdapterHealth]:
        """Return the health of every account, by its name for people."""
        return {one.label: one.health() for one in self.supervised.values()}

    async def listening(self, within: float) -> None:
        """Wait until every adapter receives messages or has failed, but at most `within` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(one.state is AdapterState.STARTING for one in self.health().values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # adapters send no event when they start to receive


# ---- gates and flood control


class Gate:
    """Lock for all requests to a chat."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def is_free(self) -> bool:
        """True while no sender holds the gate or waits for it."""
        return not self._lock.locked() and self._waiting == 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class FloodControl:
    """A platform's penalty for a chat. All topics and people of the chat share it."""

    def __init__(self) -> None:
        self._ends = 0.0

    @property
    def penalty_seconds(self) -> float:
        """Seconds until the next request is allowed, or 0 without a penalty."""
        return max(0.0, self._ends - time.monotonic())

    def close_for(self, seconds: float) -> None:
        """Record a penalty imposed by the platform. A shorter penalty never replaces a longer penalty."""
        self._ends = max(self._ends, time.monotonic() + seconds)
        # The timer keeps this object alive, so that the penalty outlives the current senders.
        asyncio.get_running_loop().call_later(seconds, lambda: self)

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Guard a request: raise `RateLimited` during a penalty. Record a penalty that the request causes."""
        if (seconds := self.penalty_seconds) > 0:
            raise RateLimited(seconds)  # a request now would extend the penalty
        try:
            yield
        except RateLimited as error:
            self.close_for(error.retry_after)
            raise


class GateRegistry:
    """Gates and flood control of all chats. Each object is freed when no task uses it any more."""

    def __init__(self) -> None:
        self._gates: WeakValueDictionary[ChatId, Gate] = WeakValueDictionary()
        self._floods: WeakValueDictionary[tuple[str, str, str], FloodControl] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> Gate:
        return self._gates.setdefault(chat_id, Gate())

    def flood_of(self, chat: ChatKey) -> FloodControl:
        """Return the flood control that all topics and people of a chat share."""
        return self._floods.setdefault((chat.platform, chat.account, chat.chat_ref), FloodControl())


async def send_or_plain(adapter: PlatformAdapter, request: SendRequest, flood: FloodControl) -> str:
    """Send a part. If its formatting or file is rejected, send it as plain text. Raises `PlatformError` on failure."""
    try:
        with own_cancellation(), flood.obeyed():
            try:
                return await adapter.send(request)
            except (MessageRejected, ChatUnreachable) as error:
                if isinstance(error, ChatUnreachable) and request.file is None:  # with a file, retry without
                    raise
                log.warning("delivery.sent_plain", detail=str(error))
            return await adapter.send(replace(request, is_plain=True, file=None))
    except PlatformError:
        raise
    except Exception as error:  # a bug in an SDK must not lose the answer, so the outcome counts as unknown
        log.exception("delivery.crashed", chat=request.chat.name)
        raise SendAmbiguous(f"{type(error).__name__}: {error}") from error
