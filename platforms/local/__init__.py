"""Local web chat: a page on this machine, so that the gateway is useful without configuration."""

from platforms.local.adapter import LocalAdapter
from platforms.settings import LocalSettings

__all__ = ["LocalAdapter", "LocalSettings"]
