"""Discord: gateway events in, messages out, and what was missed in between."""

from platforms.discord.adapter import DiscordAdapter, DiscordSettings

__all__ = ["DiscordAdapter", "DiscordSettings"]
