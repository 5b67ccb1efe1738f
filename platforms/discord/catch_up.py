"""Catching up: messages that were written while nobody listened, within bounds; what lies beyond is announced."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import discord
import structlog

from hermes_state.errors import MessageRejected, PlatformError
from hermes_state.values import Clock, Millis
from platforms.discord.client import GatewayClient
from platforms.discord.errors import rest_errors
from platforms.discord.event_queue import MessageEvent
from platforms.discord.inbound import snowflake_at
from platforms.discord.settings import DiscordSettings

MILLIS_PER_HOUR = 3_600_000
OVERLAP = 2_000 << 22
"""Overlap of two seconds, in message ids: messages of one moment may arrive in the other order."""

LOOK_BACK = 100
"""Most skipped messages that are looked at, to know whether anybody waits for an answer to one of them."""

log = structlog.get_logger(__name__)

Announce = Callable[[str, str, str], Awaitable[object]]
"""Sends a sentence to a channel: channel, sentence, key."""


@dataclass(frozen=True, repr=False, slots=True)
class HistoryReader:
    """Reader of channel histories for one client; `EventQueue` tells how it is used."""

    client: GatewayClient
    announce: Announce
    settings: DiscordSettings
    clock: Clock

    async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
        """Fetch what was written after `seen` (and before `until`), oldest first; skipped messages count as seen.

        Nothing at all when a bound is 0: whoever set it wants no answers to what is past. Raises `ChatUnreachable`
        when the channel is gone, `MessageRejected` when it cannot be read, another `PlatformError` when a retry may
        help.
        """
        hours, messages = self.settings.catch_up_hours, self.settings.catch_up_messages
        if hours <= 0 or messages <= 0:
            return ()
        with rest_errors(is_read=True):
            channel = await self._channel(int(channel_ref))
            if channel is None:
                return ()
            newest = getattr(channel, "last_message_id", None) if channel.guild is not None else None
            if newest is not None and newest <= seen:
                return ()
            oldest = snowflake_at(Millis(self.clock.now() - round(hours * MILLIS_PER_HOUR)))
            floor = max(seen - OVERLAP, oldest)
            found = await self._read(channel, floor, until, messages + 1)
            kept = found[:messages]
            bound = kept[-1].id if len(found) > len(kept) else floor + 1
            skipped = await self._read(channel, seen, bound, LOOK_BACK) if bound > seen + 1 else []
        arrived = [MessageEvent(channel_ref, message.id, self.client.read(message)) for message in reversed(kept)]
        if skipped:
            await self._report(channel_ref, skipped)
            arrived.insert(0, MessageEvent(channel_ref, skipped[0].id, None))
        return arrived

    async def _channel(self, channel_id: int) -> "discord.abc.MessageableChannel | None":
        try:
            channel = self.client.get_channel(channel_id) or await self.client.fetch_channel(channel_id)
        except discord.InvalidData as error:
            raise MessageRejected("the SDK does not know this kind of channel") from error
        return channel if isinstance(channel, discord.abc.Messageable) else None

    async def _read(
        self, channel: "discord.abc.MessageableChannel", after: int, before: int | None, limit: int
    ) -> list[discord.Message]:
        """Read messages newest first, because the newest are the ones to keep."""
        end = discord.Object(before) if before is not None else None
        history = channel.history(limit=limit, after=discord.Object(after), before=end, oldest_first=False)
        return [message async for message in history]

    async def _report(self, channel_ref: str, skipped: Sequence[discord.Message]) -> None:
        events = [event for message in skipped if (event := self.client.read(message)) is not None]
        waiting = sum(event.is_addressed and not event.sender.is_bot for event in events)
        log.warning("discord.messages_skipped", channel_ref=channel_ref, at_least=len(skipped), addressed=waiting)
        if not waiting:
            return  # other people's talk: nobody there waits for us
        sentence = (
            f"I was away for a while and have read only the last {self.settings.catch_up_messages} messages "
            f"of the last {self.settings.catch_up_hours:g} hours; please send again what is still unanswered."
        )
        try:
            await self.announce(channel_ref, sentence, f"skipped:{skipped[0].id}")
        except PlatformError as error:
            log.warning("discord.skip_unannounced", channel_ref=channel_ref, error=type(error).__name__)
