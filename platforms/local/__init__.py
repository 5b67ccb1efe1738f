"""Local web chat: a page on this machine, so that the gateway is useful with nothing configured."""

from platforms.local.adapter import LocalAdapter
from platforms.settings import LocalSettings

__all__ = ["LocalAdapter", "LocalSettings"]
