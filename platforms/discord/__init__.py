"""Discord: events of its gateway, missed messages, and outgoing messages."""

from platforms.discord.adapter import DiscordAdapter
from platforms.settings import DiscordSettings

__all__ = ["DiscordAdapter", "DiscordSettings"]
