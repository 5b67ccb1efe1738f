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

log = structlog.get_logger(__name__)


@dataclass(frozen=True, repr=False, slots=True)
class HistoryReader:
    """Reader of channel histories for one client; `EventQueue` tells how it is used."""

    client: GatewayClient
    announce: Callable[[str, str, str], Awaitable[object]]
    """Sends a sentence to a channel: channel, sentence, key."""
    settings: DiscordSettings
    clock: Clock

    async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
        """Fetch what was written after `seen` (and before `until`), oldest first; skipped messages count as seen.

        Fetches nothing when a bound is 0. Raises `ChatUnreachable` when the channel is gone, `MessageRejected` when it
        cannot be read, another `PlatformError` when a retry may help.
        """
        hours, messages = self.settings.catch_up_hours, self.settings.catch_up_messages
        if hours <= 0 or messages <= 0:
            return ()
        with rest_errors(is_read=True):
            try:
                channel = self.client.get_channel(int(channel_ref)) or await self.client.fetch_channel(int(channel_ref))
            except discord.InvalidData as error:
                raise MessageRejected("the SDK does not know this kind of channel") from error
            if not isinstance(channel, discord.abc.Messageable):
                return ()
            newest = getattr(channel, "last_message_id", None) if channel.guild is not None else None
            if newest is not None and newest <= seen:
                return ()
            oldest = snowflake_at(Millis(self.clock.now() - round(hours * 3_600_000)))
            floor = max(seen - (2_000 << 22), oldest)  # two seconds: messages of one moment may arrive in another order
            found = await self._read(channel, floor, until, messages + 1)
            kept = found[:messages]
            bound = kept[-1].id if len(found) > len(kept) else floor + 1
            skipped = await self._read(channel, seen, bound, 100) if bound > seen + 1 else []
        arrived = [MessageEvent(channel_ref, message.id, self.client.read(message)) for message in reversed(kept)]
        if skipped:
            await self._report(channel_ref, skipped)
            arrived.insert(0, MessageEvent(channel_ref, skipped[0].id, None))
        return arrived

    async def _read(
        self, channel: "discord.abc.MessageableChannel", after: int, before: int | None, limit: int
    ) -> list[discord.Message]:
        """Read messages newest first: the newest are kept."""
        end = discord.Object(before) if before is not None else None
        history = channel.history(limit=limit, after=discord.Object(after), before=end, oldest_first=False)
        return [message async for message in history]

    async def _report(self, channel_ref: str, skipped: Sequence[discord.Message]) -> None:
        events = [event for message in skipped if (event := self.client.read(message)) is not None]
        waiting = sum(event.is_addressed and not event.sender.is_bot for event in events)
        log.warning("discord.messages_skipped", channel_ref=channel_ref, at_least=len(skipped), addressed=waiting)
        if not waiting:
            return  # nobody in the channel waits for an answer
        sentence = (
            f"I was away for a while and have read only the last {self.settings.catch_up_messages} messages "
            f"of the last {self.settings.catch_up_hours:g} hours; please send again what is still unanswered."
        )
        try:
            await self.announce(channel_ref, sentence, f"skipped:{skipped[0].id}")
        except PlatformError as error:
            log.warning("discord.skip_unannounced", channel_ref=channel_ref, error=type(error).__name__)
