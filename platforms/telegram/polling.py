"""Long polling: one getUpdates at a time; the offset moves over stored updates.

The SDK's own poller ignores a stop while it waits after an error, ends in silence when the token is revoked, keeps a
dead connection, and stops for ever at an update that it cannot read.
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
"""Seconds that storing an update may take before the poller looks for a `/stop` after it."""
_CONFLICT = "another process polls with the same bot token (409); stop it, or give one of them a token of its own"


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Poller:
    """Fetches updates and acknowledges each one after its handler has stored it.

    Telegram forgets what lies before the `offset` of the next request, so the offset is the acknowledgement.
    """

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
                raise TokenRejected("Telegram does not accept the bot token any more: check telegram.token") from None
            except (TelegramError, TimeoutError) as error:
                await self._recover(error)

    async def _poll(self) -> None:
        """Make one request and store everything that it brought."""
        # After trouble, and at the start, ask without waiting: then progress shows at once, not after a quiet poll.
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
        """Store the first updates; while the database keeps them waiting, listen for a `/stop` among later ones."""
        putting = asyncio.create_task(self.updates.store(updates), name="telegram-put")
        try:
            while not (await asyncio.wait({putting}, timeout=LISTEN_SECONDS))[0]:
                with suppress(TelegramError, TimeoutError):  # the next poll meets the same error
                    async with asyncio.timeout(self.settings.poll_grace_seconds):
                        heard = await self._fetch(0)
                        for waiting in () if putting.done() else heard:  # else they may be stored already
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
            # Not the limit, only above it: the step's own timeout also bounds connecting and answers that trickle.
            f"{self.base_url}/getUpdates?{urlencode(query)}",
            read_timeout=wait + 2 * self.settings.poll_grace_seconds,
        )
        if not isinstance(updates, list):
            raise NetworkError("getUpdates did not answer with a list")
        known = [one for one in updates if isinstance(one, dict) and isinstance(one.get("update_id"), int)]
        return [self.updates.read(one) for one in known]

    async def _recover(self, error: TelegramError | TimeoutError) -> None:
        """Recover from an error: report it, renew the connection if that helps, and back off."""
        self._failures += 1
        self._is_probe = True
        delay = self.settings.backoff.after(self._failures)
        if isinstance(error, TimeoutError):
            log.warning("telegram.poll_stalled", failures=self._failures)
            self.health.change(AdapterState.STALLED, "getUpdates got no answer; the connection was replaced")
        else:
            detail = _explained(error)
            log.warning("telegram.poll_failed", error=type(error).__name__, detail=detail, failures=self._failures)
            self.health.change(AdapterState.BACKING_OFF, detail)
        if isinstance(error, Conflict):
            # Two pollers take turns, and each works in between: health speaks of the other one for two minutes.
            self._conflict_until = time.monotonic() + 120
            delay = max(delay, self.settings.conflict_seconds)
        elif isinstance(error, FloodControl):
            delay = error.retry_after
        elif isinstance(error, NotStoredError):
            delay = min(delay, 3.0)  # people who write meanwhile are told soon that their messages wait
        elif isinstance(error, TimeoutError | AmbiguousRequestError):
            await self.request.renew()  # giving up closed the connection; this also forgets the address it led to
            if self._failures == 1:
                return  # silence was waited out already, and a cut connection is the ordinary end of a quiet one
        await asyncio.sleep(delay)


def _explained(error: TelegramError) -> str:
    """Explain an error to the operator. Texts of Telegram are quoted only if they cannot hold a secret."""
    if isinstance(error, Conflict) and "webhook" in error.message.lower():
        return "a webhook was set for this bot (409); only one way of receiving works at a time"
    if isinstance(error, Conflict):
        return _CONFLICT
    if isinstance(error, FloodControl):
        return f"Telegram asks to wait {error.retry_after:g} s (429)"
    return error.message if isinstance(error, NotStoredError) else f"getUpdates failed: {error.message}"
