"""Discord: gateway events in, messages out, and what was missed in between."""

from platforms.discord.adapter import DiscordAdapter
from platforms.discord.settings import DiscordSettings

__all__ = ["DiscordAdapter", "DiscordSettings"]
