"""Supervised adapters: each is run again with a backoff whenever it ends, by the node that serves its account."""

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

HEALTHY_SECONDS = 60.0
"""Seconds after which an attempt counts as a good one: the next pause starts small again."""

RETRY_BACKOFF = Backoff(max_seconds=60.0)

COMMON_FILE_BYTES = 10 << 20
"""Largest file that every platform takes, in bytes: for chats of a platform that only other nodes know."""


class SupervisedAdapter:
    """One adapter with its supervisor: a new attempt after every end, except where only a new token helps."""

    def __init__(self, adapter: PlatformAdapter) -> None:
        self.adapter = adapter
        self.name = adapter.name
        self.claim: AccountClaim | None = None
        """The account, while it is this node's to serve."""
        self._pause_ends: float | None = None
        self._error = ""
        self._is_rejected = False

    def health(self) -> AdapterHealth:
        """Health as the adapter says while it runs, as we say while it waits or has failed."""
        health = self.adapter.health()
        if self.claim is None:
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
            except Exception as error:  # an SDK's bug must not end the daemon: it counts as a failed attempt
                is_cut_off = isinstance(error, CancelledElsewhereError)
                self._error = "the connection was cut off" if is_cut_off else type(error).__name__
                log.exception("adapter.crashed", adapter=self.name)
            if time.monotonic() - began >= HEALTHY_SECONDS:
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
        has_other_nodes: bool = False,
    ) -> None:
        """`is_certain` returns True while no other node can have taken the accounts of this one.

        `has_other_nodes`: other nodes may serve accounts, configured here or not.
        """
        self.supervised = {name: SupervisedAdapter(adapter) for name, adapter in adapters.items()}
        self.is_certain = is_certain
        self.has_other_nodes = has_other_nodes

    def of(self, chat: ChatKey) -> PlatformAdapter | None:
        """Adapter that reaches a chat; None when its platform is not configured any more."""
        found = self.supervised.get(chat.account)
        return found.adapter if found is not None else None

    def claim_of(self, chat: ChatKey) -> AccountClaim | None:
        """The claim to a chat's account; None where another node serves it."""
        found = self.supervised.get(chat.account)
        return found.claim if found is not None else None

    @property
    def serves_any(self) -> bool:
        """This node serves an account."""
        return any(one.claim is not None for one in self.supervised.values())

    def max_file_bytes(self, chat: ChatKey) -> int:
        """Largest file that a chat takes from us, in bytes; 0: none."""
        if (adapter := self.of(chat)) is not None:
            return adapter.capabilities.max_file_bytes
        return COMMON_FILE_BYTES if self.has_other_nodes else 0

    def health(self) -> Mapping[str, AdapterHealth]:
        """Health of each account, by its name."""
        return {name: one.health() for name, one in self.supervised.items()}

    async def listening(self, within: float) -> None:
        """Wait until every adapter has begun to listen, or failed to; at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(one.state is AdapterState.STARTING for one in self.health().values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # adapters tell nobody
