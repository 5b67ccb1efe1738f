"""Telegram over the Bot API. python-telegram-bot provides the types, requests and errors."""

from hermes_state.imports import without

with without("click"):  # otherwise httpx imports its command line with rich and pygments: 5 MB, a tenth of a second
    from platforms.settings import TelegramSettings, WebhookSettings
    from platforms.telegram.adapter import TelegramAdapter

__all__ = ["TelegramAdapter", "TelegramSettings", "WebhookSettings"]
