"""Discord adapter: receives gateway events, catches up with missed messages, and sends messages."""

from platforms.discord.adapter import DiscordAdapter
from platforms.settings import DiscordSettings

__all__ = ["DiscordAdapter", "DiscordSettings"]
