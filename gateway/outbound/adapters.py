"""Supervised adapters: each is restarted with a backoff while this process serves its account."""

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
    """Adapter with a supervisor, which restarts the adapter unless the platform rejected its token."""

    def __init__(self, adapter: PlatformAdapter) -> None:
        self.adapter = adapter
        self.name = adapter.name
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
    ) -> None:
        """`is_certain` returns True as long as no other process can have taken over the accounts of this process.

        `is_shared` is True if other processes can serve accounts, even accounts that are not configured here.
        """
        self.supervised = {name: SupervisedAdapter(adapter) for name, adapter in adapters.items()}
        self.is_certain = is_certain
        self.is_shared = is_shared

    def of(self, chat: ChatKey) -> PlatformAdapter | None:
        """Return the adapter for a chat, or None if its platform is no longer configured."""
        return found.adapter if (found := self.supervised.get(chat.account)) is not None else None

    def ownership_of(self, chat: ChatKey) -> AccountClaim | None:
        """Return the ownership of a chat's account, or None if another process serves it."""
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

    def health(self) -> Mapping[str, AdapterHealth]:
        return {name: one.health() for name, one in self.supervised.items()}

    async def listening(self, within: float) -> None:
        """Wait until every adapter receives messages or has failed, but at most `within` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(one.state is AdapterState.STARTING for one in self.health().values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # adapters send no event when they start to receive
