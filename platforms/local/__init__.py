"""Local web chat: a page on this machine, so that the gateway is useful with nothing configured."""

from platforms.local.adapter import LocalAdapter, LocalSettings

__all__ = ["LocalAdapter", "LocalSettings"]
