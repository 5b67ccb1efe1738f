"""Long polling with one getUpdates request at a time. The offset advances after updates are stored.

The SDK's own poller is not used. It ignores a stop while it waits after an error, ends silently when the token is
revoked, keeps a dead connection, and never gets past an unreadable update.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

import orjson
import structlog
from telegram.constants import PollingLimit
from telegram.error import Conflict, InvalidToken, NetworkError, TelegramError

from hermes_state.aio import cancel_all
from hermes_state.errors import TokenRejected
from platforms.base import AdapterState
from platforms.settings import TelegramSettings
from platforms.telegram.health import HealthState
from platforms.telegram.inbound import ALLOWED_UPDATES
from platforms.telegram.transport import AmbiguousRequestError, BotApiRequest, FloodControl
from platforms.telegram.updates import NotStoredError, UpdateEvent, UpdateHandler

log = structlog.get_logger(__name__)

LISTEN_SECONDS = 0.5
"""Seconds to wait for an update to be stored before the poller looks for a `/stop` among later updates."""
_CONFLICT = "Another process uses the same bot token (409); stop it, or use a different token for one of them"


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Poller:
    """Fetches updates. After a handler has stored them, the `offset` of the next request acknowledges them."""

    base_url: str
    request: BotApiRequest
    updates: UpdateHandler
    health: HealthState
    settings: TelegramSettings
    _offset: int | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _is_probe: bool = field(default=True, init=False)
    _conflict_until: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Poll until cancelled. Raises `TokenRejected`."""
        while True:
            try:
                await self._poll()
            except InvalidToken:
                raise TokenRejected("Telegram no longer accepts the bot token; check telegram.token") from None
            except (TelegramError, TimeoutError) as error:
                await self._recover(error)

    async def _poll(self) -> None:
        # At the start and after an error, poll without waiting, so that progress shows immediately.
        was_probe = self._is_probe
        wait = 0 if was_probe else self.settings.poll_seconds
        async with asyncio.timeout(wait + self.settings.poll_grace_seconds):
            updates = await self._fetch(wait)
        self.health.progressed(_CONFLICT if time.monotonic() < self._conflict_until else "")
        done = 0
        while done < len(updates):
            try:
                done += await self._put(updates[done:])
            except NotStoredError:
                for later in updates[done + 1 :]:
                    await self.updates.overhear(later)
                raise
            self._offset = (updates[done - 1].number or 0) + 1
        self._is_probe = False
        if updates or not was_probe:
            self._failures = 0

    async def _put(self, updates: Sequence[UpdateEvent]) -> int:
        """Store one or more updates, and return how many. While the database is slow, look for a later `/stop`."""
        putting = asyncio.create_task(self.updates.store(updates), name="telegram-put")
        try:
            while not (await asyncio.wait({putting}, timeout=LISTEN_SECONDS))[0]:
                with suppress(TelegramError, TimeoutError):  # the next poll reports the error
                    async with asyncio.timeout(self.settings.poll_grace_seconds):
                        heard = await self._fetch(0)
                        for waiting in () if putting.done() else heard:  # after that, they might be stored already
                            await self.updates.overhear(waiting)
        finally:
            await cancel_all([putting])
        return putting.result()

    async def _fetch(self, wait: float) -> Sequence[UpdateEvent]:
        kinds = orjson.dumps(ALLOWED_UPDATES).decode()
        query = {"timeout": f"{wait:g}", "limit": int(PollingLimit.MAX_LIMIT), "allowed_updates": kinds}
        if self._offset is not None:
            query["offset"] = self._offset
        updates = await self.request.post(
            # Longer than the timeout around this call, so that only the outer timeout takes effect.
            f"{self.base_url}/getUpdates?{urlencode(query)}",
            read_timeout=wait + 2 * self.settings.poll_grace_seconds,
        )
        if not isinstance(updates, list):
            raise NetworkError("getUpdates did not return a list")
        known = [one for one in updates if isinstance(one, dict) and isinstance(one.get("update_id"), int)]
        return [self.updates.read(one) for one in known]

    async def _recover(self, error: TelegramError | TimeoutError) -> None:
        """Report an error, renew the connection if that helps, and back off."""
        self._failures += 1
        self._is_probe = True
        delay = self.settings.backoff.after(self._failures)
        if isinstance(error, TimeoutError):
            log.warning("telegram.poll_stalled", failures=self._failures)
            self.health.change(AdapterState.STALLED, "getUpdates got no response, so the connection was replaced")
        else:
            detail = _explained(error)
            log.warning("telegram.poll_failed", error=type(error).__name__, detail=detail, failures=self._failures)
            self.health.change(AdapterState.BACKING_OFF, detail)
        if isinstance(error, Conflict):
            # Two pollers interrupt each other, and each succeeds at times, so show the conflict for two minutes.
            self._conflict_until = time.monotonic() + 120
            delay = max(delay, self.settings.conflict_seconds)
        elif isinstance(error, FloodControl):
            delay = error.retry_after
        elif isinstance(error, NotStoredError):
            delay = min(delay, 3.0)  # retry soon, so that people are told that their messages must wait
        elif isinstance(error, TimeoutError | AmbiguousRequestError):
            await self.request.renew()  # the connection is closed already; this also clears the DNS cache
            if self._failures == 1:
                return  # no backoff: the poll has waited long enough, and idle connections are often cut
        await asyncio.sleep(delay)


def _explained(error: TelegramError) -> str:
    """Explain the error to the operator. Telegram's text is quoted only if it cannot contain a secret."""
    if isinstance(error, Conflict) and "webhook" in error.message.lower():
        return "A webhook is set for this bot (409), which blocks polling; stop the program that set it"
    if isinstance(error, Conflict):
        return _CONFLICT
    if isinstance(error, FloodControl):
        return f"Telegram asks the gateway to wait {error.retry_after:g} s (429)"
    return error.message if isinstance(error, NotStoredError) else f"getUpdates failed: {error.message}"
