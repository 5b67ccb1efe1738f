"""Updates: long polling, and the storage of updates before they are acknowledged to Telegram.

There is one getUpdates request at a time. The offset advances after updates are stored.

The SDK's own poller is not used. It ignores a stop while it waits after an error, ends silently when the token is
revoked, keeps a dead connection, and never gets past an unreadable update.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgspec
import orjson
import structlog
import telegram
from msgspec.structs import replace
from telegram import CallbackQuery, Update
from telegram.constants import PollingLimit
from telegram.error import Conflict, InvalidToken, NetworkError, TelegramError

from hermes_state.aio import cancel_all
from hermes_state.errors import StoreUnavailable, TokenRejected
from hermes_state.values import Clock, EditEvent, InboundMessage, InputKind, Millis, ReactionEvent
from platforms.base import AdapterHealth, AdapterState, Intake, ReceivedEvent
from platforms.buttons import ButtonCommandStore
from platforms.settings import TelegramSettings
from platforms.telegram import inbound
from platforms.telegram.inbound import PLATFORM, ReachChange, UpdateReader, read_migration, read_reach
from platforms.telegram.transport import AmbiguousRequestError, BotApiRequest, FloodControl
from platforms.text import UNREADABLE, known_parts

log = structlog.get_logger(__name__)

Event: TypeAlias = InboundMessage | EditEvent | ReactionEvent
Content: TypeAlias = Event | CallbackQuery | tuple[str, str] | ReachChange | Exception | None
"""Content of an update.

This is an event, a pressed button, the old and new id of a migrated group, a change in the bot's ability to write to a
chat, or the error from parsing the update.
"""


class UpdateEvent(msgspec.Struct, frozen=True):
    """Update with its `update_id`, which is needed to acknowledge it."""

    number: int | None
    content: Content

    @property
    def event(self) -> Event | None:
        return self.content if isinstance(self.content, Event) else None


class NotStoredError(NetworkError):
    """The database could not store an update. The message gives the reason."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class UpdateHandler:
    """Passes one bot's updates to the intake, one by one and in Telegram's order."""

    intake: Intake
    reader: UpdateReader
    sdk: telegram.Bot
    buttons: ButtonCommandStore
    clock: Clock
    answer_press: Callable[[CallbackQuery, str | None], None]
    """Stops the button's spinner, and can show the person a message. Must not block."""
    _albums: deque[str] = field(default_factory=partial(deque, maxlen=64), init=False)
    """Ids of recent albums that are addressed to the bot. The messages of an album arrive within a second or two."""
    _ignored: set[str] = field(default_factory=set, init=False)
    """Kinds of received updates that we do not handle."""

    def read(self, raw: dict[str, Any]) -> UpdateEvent:  # Any: JSON as the Bot API sent it
        """Read an update. If it is unreadable, its content is the error, so that later updates are still handled."""
        content: Content
        try:
            content = self.reader.plain_text(raw)
            if content is None:
                update = self._parsed(raw)
                content = (
                    update.callback_query or read_migration(update) or read_reach(update) or self.reader.read(update)
                )
                written = raw.get("message") or raw.get("edited_message") or {}
                # Check the raw fields, because the SDK ignores new fields that mark forwarded text.
                if isinstance(content, InboundMessage | EditEvent) and any(map(inbound.PASSED_ON.match, written)):
                    content = replace(content, words_by=content.words_by or "")
                if isinstance(content, InboundMessage):
                    content = self._with_its_album(update, content)
        except UNREADABLE as error:
            content = error
        return UpdateEvent(raw.get("update_id"), content)

    async def store(self, updates: Sequence[UpdateEvent]) -> int:
        """Store one or more updates from the start of the list, in one commit. Return the number of stored updates.

        Raises `NotStoredError` if nothing could be stored; the updates must then be fetched again.
        """
        try:
            count = await self._store(updates)
        except UNREADABLE as error:
            _log_skipped(updates[0], error)
            return 1
        except StoreUnavailable as error:
            raise NotStoredError(f"An update could not be stored and will be requested again: {error}") from error
        for update in updates[:count]:
            if isinstance(update.content, Exception):
                _log_skipped(update, update.content)
        return count

    async def overhear(self, update: UpdateEvent) -> None:
        """Inspect an update that must wait for earlier updates. See `Intake.overhear`."""
        if isinstance(update.content, InboundMessage):
            await self.intake.overhear(update.content)

    def _parsed(self, raw: dict[str, Any]) -> Update:
        """Parse an update without the parts that the SDK cannot read. Raises one of `UNREADABLE` if nothing is left."""
        for kind in raw.keys() - {"update_id", *inbound.ALLOWED_UPDATES, *self._ignored}:
            self._ignored.add(kind)
            log.info("update.ignored", kind=kind)
        kinds, name, fields = raw.keys() & {"message", "edited_message"}, f"@{self.reader.username}", list[str]()
        raw = {**raw, **{kind: inbound.with_words(raw[kind], name) for kind in kinds}}
        try:
            update = Update.de_json(raw, self.sdk)
        except UNREADABLE:
            known = known_parts(raw, partial(Update.de_json, bot=self.sdk), fields)
            if known.keys() != raw.keys():
                raise
            update = Update.de_json(known | {kind: _marked(known[kind], raw[kind], name) for kind in kinds}, self.sdk)
        fields += [name for kind in kinds for name in inbound.unknown_content(raw[kind])]
        if fields:
            log.warning("update.partially_parsed", update_id=update.update_id, fields=fields)
        return update

    def _with_its_album(self, update: Update, received: InboundMessage) -> InboundMessage:
        """Treat all messages of an album as addressed to the bot if the first message, which has the caption, is."""
        message = update.message
        if message is None or message.media_group_id is None:
            return received
        album = f"{message.chat.id}:{message.media_group_id}"
        if received.is_addressed and album not in self._albums:
            self._albums.append(album)
        return replace(received, is_addressed=album in self._albums)

    async def _store(self, updates: Sequence[UpdateEvent]) -> int:
        first = updates[0].content
        if isinstance(first, CallbackQuery):
            await self._store_press(first)
        elif isinstance(first, tuple):
            await self.intake.move_chat(PLATFORM, self.reader.account, *first)
        elif isinstance(first, ReachChange):
            await self.intake.note_reach(PLATFORM, self.reader.account, first.chat_ref, first.is_reachable)
        else:
            together = takewhile(lambda one: not isinstance(one.content, CallbackQuery | tuple | ReachChange), updates)
            return await self.intake.accept_batch([ReceivedEvent(one.event) for one in together])
        return 1

    async def _store_press(self, query: CallbackQuery) -> None:
        command = await self.buttons.command_of(query.data) if query.data else None
        written_by = getattr(query.message, "from_user", None)
        if command is None or query.message is None or (written_by and written_by.id != self.reader.bot_id):
            self.answer_press(query, "This button no longer works.")
            return
        kind = self.buttons.kind_of(query.data or "") if _shows_list(query) else InputKind.BUTTON
        event = self.reader.press(query, query.message, command, kind, self.clock.now())
        refusal = self.intake.refusal(event)
        if refusal is None:
            await self.intake.accept(event)
        self.answer_press(query, refusal)  # only the person who pressed the button sees a refusal


def _shows_list(query: CallbackQuery) -> bool:
    """Return True if the message shows the list whose page is requested.

    A modified app can send any data with the id of any message. The list may meanwhile show another page.
    """
    markup = query.message.reply_markup if isinstance(query.message, telegram.Message) else None
    shown = [str(button.callback_data) for row in (markup.inline_keyboard if markup else ()) for button in row]
    return (query.data or "").partition(" ")[0] in {data.partition(" ")[0] for data in shown}


def _marked(known: dict[str, Any], raw: dict[str, Any], bot: str) -> Any:
    """Turn a message's unreadable parts into text. If one of them marks a forward, mark the message as forwarded."""
    if isinstance(answered := known.get("reply_to_message"), dict):
        known = {**known, "reply_to_message": _marked(answered, raw["reply_to_message"], bot)}
    lost = {f"{name}_": part for name, part in raw.items() if name not in known}
    origin = {"type": "hidden_user", "date": 0, "sender_user_name": "unknown"}
    instead: dict[str, Any] = {"forward_origin": origin} if any(map(inbound.PASSED_ON.match, lost)) else {}
    if "from_" in lost:  # the id still identifies the author
        instead["from"] = {"is_bot": False, **raw["from"], "first_name": "unknown"}
    return inbound.with_words({**known, **lost, **instead}, bot)


def _log_skipped(update: UpdateEvent, error: Exception) -> None:
    log.warning("update.skipped", update_id=update.number, error=type(error).__name__)


# ---- health


class HealthState:
    """Health of one run of the adapter. Its tasks update the state, and the gateway reads it.

    Without a response for `stall_seconds`, the adapter counts as stalled.
    """

    def __init__(self, clock: Clock, stall_seconds: float) -> None:
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._state = AdapterState.STARTING
        self._detail = "not running"
        self._progress_at: Millis | None = None
        self._progressed_monotonic = time.monotonic()
        self.hears_groups = True  # False in Telegram's privacy mode

    def progressed(self, detail: str = "") -> None:
        """Record that the platform responded. `detail` is a warning for the operator."""
        self.change(AdapterState.RUNNING, detail)
        self._progress_at = self._clock.now()
        self._progressed_monotonic = time.monotonic()

    def change(self, state: AdapterState, detail: str = "") -> None:
        self._state = state
        self._detail = detail

    def stopped(self) -> None:
        """Record that the run ended. Keep the message of an earlier failure."""
        if self._state in (AdapterState.RUNNING, AdapterState.STARTING, AdapterState.STALLED):
            self.change(AdapterState.STARTING, "not running")

    def current(self) -> AdapterHealth:
        silence = time.monotonic() - self._progressed_monotonic
        if self._state is AdapterState.RUNNING and silence > self._stall_seconds:
            detail = f"no progress for {silence:.0f} s"
            return AdapterHealth(state=AdapterState.STALLED, last_progress_at=self._progress_at, detail=detail)
        health = AdapterHealth(state=self._state, last_progress_at=self._progress_at, detail=self._detail)
        return replace(health, hears_groups=self.hears_groups)


# ---- long polling

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
        """Poll until cancelled. Raises `TokenRejected` if Telegram no longer accepts the token."""
        while True:
            try:
                await self._poll()
            except InvalidToken:
                said = f"Telegram no longer accepts the bot token; check {self.settings.token_key}"
                raise TokenRejected(said) from None
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
                        for waiting in () if putting.done() else heard:  # after the write, they may be stored already
                            await self.updates.overhear(waiting)
        finally:
            await cancel_all([putting])
        return putting.result()

    async def _fetch(self, wait: float) -> Sequence[UpdateEvent]:
        kinds = orjson.dumps(inbound.ALLOWED_UPDATES).decode()
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
