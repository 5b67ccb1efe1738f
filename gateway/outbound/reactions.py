"""Reactions: signs that the bot sets on people's messages, and people's ratings of its answers.

Signs are optional. They are not set during a chat's penalty, but their own penalties and delays never affect other
messages to the chat. This module handles all their errors.
"""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from gateway.outbound.adapters import AdapterRegistry, GateRegistry
from gateway.switches import REACTIONS
from hermes_state import inbox, outbox, ratings
from hermes_state.aio import own_cancellation, track
from hermes_state.chats import load_groups
from hermes_state.errors import ChatUnreachable, HermesError, MessageRejected, RateLimited, StateError
from hermes_state.outbox import OutboxRow, WrittenReply
from hermes_state.ratings import SignedMessage
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, ChatKey, Clock, Cursor, InboxId, OutboxId, ReactionEvent, UserRef

log = structlog.get_logger()

REQUEST_SECONDS = 3.0
REFUSED_SECONDS, FAILED_SECONDS = 600.0, 30.0
"""Pauses in seconds, during which a chat gets no signs: after the platform refused one, and after other failures."""
MAX_UNDER_WAY = 20
"""Maximum number of signs that are set at the same time. Any further signs are dropped."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class ReactionHandler:
    store: Store
    adapters: AdapterRegistry
    gates: GateRegistry
    group: asyncio.TaskGroup
    is_on: Callable[[], bool]
    """Returns the setting, which applies to chats without a choice of their own."""
    has_access: Callable[[UserRef], bool]
    clock: Clock
    under_way: set[OutboxId] = field(default_factory=set, init=False)
    """Replies whose sign is being set. No other reply waits for them."""
    _failed: set[OutboxId] = field(default_factory=set, init=False)
    """Replies whose sign could not be set, so their text is sent."""
    _tasks: set[asyncio.Task[bool]] = field(default_factory=set, init=False)
    _pauses: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict, init=False)
    """Pauses by chat: the monotonic time at which each ends, and the reason if the platform refused a sign."""

    def show_soon(self, chat_id: ChatId, chat: ChatKey, signed: SignedMessage) -> None:
        """Set a sign without waiting for it."""
        if len(self._tasks) < MAX_UNDER_WAY:
            work = self.show(chat_id, chat, signed)
            try:
                track(self._tasks, self.group.create_task(work, name=f"sign-{chat_id}"))
            except RuntimeError:  # the daemon is stopping
                work.close()

    async def show(self, chat_id: ChatId, chat: ChatKey, signed: SignedMessage) -> bool:
        """Set a sign. Return False if it is switched off, the platform refuses it or the request fails."""
        adapter, place = self.adapters.of(chat), (chat.account, chat.chat_ref)
        is_paused = time.monotonic() < self._pauses.get(place, (0.0, ""))[0]
        is_paused = is_paused or self.gates.flood_of(chat).penalty_seconds > 0
        if adapter is None or self.adapters.ownership_of(chat) is None or is_paused:
            return False
        try:
            if not await self._is_on(chat_id):
                return False
            with own_cancellation():
                async with asyncio.timeout(REQUEST_SECONDS):
                    return await adapter.react(chat, signed)
        except Exception as error:  # includes bugs in an SDK, which must not end the daemon
            is_refused = isinstance(error, MessageRejected | ChatUnreachable)
            seconds, reason = (REFUSED_SECONDS, str(error)) if is_refused else (FAILED_SECONDS, "")
            if isinstance(error, RateLimited):
                seconds = error.retry_after
            self._pauses[place] = time.monotonic() + seconds, reason
            if len(self._pauses) > 1_000:
                del self._pauses[next(iter(self._pauses))]
            is_expected = isinstance(error, HermesError | TimeoutError)
            log.info("reaction.failed", chat=chat.name, error=type(error).__name__, exc_info=not is_expected)
        return False

    def replaces(self, chat: ChatKey, row: OutboxRow, wake: Callable[[ChatId], None]) -> bool:
        """Begin to set the sign of a reply and call `wake` later. Return False if the text must be sent.

        The reply is settled if the sign could be set or if the reply has no text.
        """
        if row.written is None or row.written.signed is None or row.id in self._failed:
            self._failed.discard(row.id)
            return False
        self.under_way.add(row.id)
        work = self._replace(chat, row, row.written, row.written.signed, wake)
        track(self._tasks, self.group.create_task(work, name=f"sign-{row.id}"))
        return True

    async def _replace(
        self,
        chat: ChatKey,
        row: OutboxRow,
        written: WrittenReply,
        signed: SignedMessage,
        wake: Callable[[ChatId], None],
    ) -> bool:
        try:
            is_set = await self.show(row.chat_id, chat, signed)
            if is_set or not written.markdown or await self._is_late(row):
                await self.store.write_with_retry(outbox.mark_sent, row.id, "", self.clock.now())
            else:
                self._failed.add(row.id)
            return is_set
        except StateError as error:  # the row stays, so the next sender tries again
            log.warning("delivery.delayed", error=str(error))
            return False
        finally:
            self.under_way.discard(row.id)
            wake(row.chat_id)

    async def _is_late(self, row: OutboxRow) -> bool:
        """Return True if the message that a notice is about no longer waits."""
        cause = re.fullmatch(r"inbox:(\d+):ack", row.dedupe_key)
        return cause is not None and await self.store.read(inbox.load, InboxId(int(cause[1]))) is None

    async def accept(self, reaction: ReactionEvent, cursor: Cursor | None) -> None:
        """Store a person's rating of an answer, and move the cursor in the same commit."""
        found = None
        if self.has_access(reaction.sender.ref) and not reaction.sender.is_bot:
            found = await self.store.read_short(ratings.find_answer, reaction)
        if found is not None and await self._is_on(found[0]):
            if await self.store.write(ratings.rate, *found, reaction, cursor):
                log.info("answer.rated", chat=reaction.chat.name, value=0 if reaction.is_removed else reaction.value)
        elif cursor is not None:
            await self.store.write(inbox.advance_cursor, cursor)

    async def _is_on(self, chat_id: ChatId) -> bool:
        return await REACTIONS.load(self.store, chat_id, "on" if self.is_on() else "off") == "on"

    async def faults(self) -> list[str]:
        """Return sentences about the chats in which reactions do not work, and why."""
        advice = "Allow reactions in that chat, or give the bot permission to add them."
        refused = [(*at, why) for at, (ends, why) in self._pauses.items() if why and ends > time.monotonic()]
        found = [f"The bot's reactions were refused in {name}:{ref} ({why}). {advice}" for name, ref, why in refused]
        with suppress(TimeoutError, HermesError):
            async with asyncio.timeout(10.0):
                for group in await self.store.read(load_groups) if self.is_on() else ():
                    if (adapter := self.adapters.of(group)) is not None and not await adapter.sees_reactions(group):
                        found.append(f"The bot does not receive people's reactions in {group.name}. Make it an admin.")
        return found
