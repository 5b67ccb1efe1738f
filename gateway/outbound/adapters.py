"""Supervised adapters: each runs again with a backoff whenever it ends, while this process serves its account."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import structlog

from hermes_state.aio import Backoff, CancelledElsewhereError, own_cancellation
from hermes_state.errors import PlatformError, TokenRejected
from hermes_state.outbox import AccountClaim
from hermes_state.values import ChatKey
from platforms.base import AdapterHealth, AdapterState, Intake, PlatformAdapter

log = structlog.get_logger()

RETRY_BACKOFF = Backoff(max_seconds=60.0)


class SupervisedAdapter:
    """One adapter with its supervisor, which runs it again after every end unless only a new token helps."""

    def __init__(self, adapter: PlatformAdapter) -> None:
        self.adapter = adapter
        self.name = adapter.name
        self.ownership: AccountClaim | None = None
        self._pause_ends: float | None = None
        self._error = ""
        self._is_rejected = False

    def health(self) -> AdapterHealth:
        """Return the adapter's own health while it runs, the supervisor's view while it waits or has failed."""
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
        """Keep the adapter running until cancelled or its token is rejected."""
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
            except Exception as error:  # an SDK's bug must not end the daemon: it is a failed attempt
                is_cut_off = isinstance(error, CancelledElsewhereError)
                self._error = "the connection was cut off" if is_cut_off else type(error).__name__
                log.exception("adapter.crashed", adapter=self.name)
            if time.monotonic() - began >= 60.0:  # it was healthy: the next pause starts small again
                delays = iter(RETRY_BACKOFF)
            pause = next(delays) * random.uniform(0.8, 1.2)
            self._pause_ends = time.monotonic() + pause
            await asyncio.sleep(pause)  # nothing tells when the service is back


class AdapterRegistry:
    """Configured adapters by the account that a chat belongs to."""

    def __init__(
        self,
        adapters: Mapping[str, PlatformAdapter],
        *,
        is_certain: Callable[[], bool] = lambda: True,
        is_shared: bool = False,
    ) -> None:
        """`is_certain` returns True while no other process can have taken the accounts of this one.

        `is_shared`: other processes may serve accounts, configured here or not.
        """
        self.supervised = {name: SupervisedAdapter(adapter) for name, adapter in adapters.items()}
        self.is_certain = is_certain
        self.is_shared = is_shared

    def of(self, chat: ChatKey) -> PlatformAdapter | None:
        """Return the adapter that reaches a chat; None if its platform is not configured any more."""
        return found.adapter if (found := self.supervised.get(chat.account)) is not None else None

    def ownership_of(self, chat: ChatKey) -> AccountClaim | None:
        """Return the ownership of a chat's account; None where another process serves it."""
        return found.ownership if (found := self.supervised.get(chat.account)) is not None else None

    @property
    def serves_any(self) -> bool:
        """True if this process serves an account."""
        return any(one.ownership is not None for one in self.supervised.values())

    def max_file_bytes(self, chat: ChatKey) -> int:
        """Return the size of the largest file that a chat accepts from us, in bytes; 0: none."""
        if (adapter := self.of(chat)) is not None:
            return adapter.capabilities.max_file_bytes
        return 10 << 20 if self.is_shared else 0  # every platform accepts that much

    def health(self) -> Mapping[str, AdapterHealth]:
        """Return the health of each account, by its name."""
        return {name: one.health() for name, one in self.supervised.items()}

    async def listening(self, within: float) -> None:
        """Wait until every adapter has begun to listen, or failed to; at most `within` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(one.state is AdapterState.STARTING for one in self.health().values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # adapters tell nobody
