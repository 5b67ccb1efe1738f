"""Telegram over the Bot API, with python-telegram-bot for its types, its requests and its errors."""

from hermes_state.imports import without

with without("click"):  # httpx would import its command line, and with it rich and pygments: 5 MB, a tenth of a second
    from platforms.settings import TelegramSettings, WebhookSettings
    from platforms.telegram.adapter import TelegramAdapter

__all__ = ["TelegramAdapter", "TelegramSettings", "WebhookSettings"]
