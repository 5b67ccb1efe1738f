"""Local web chat: a page on this machine, which works without any configuration."""

from platforms.local.adapter import LocalAdapter
from platforms.settings import LocalSettings

__all__ = ["LocalAdapter", "LocalSettings"]
