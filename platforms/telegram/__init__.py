"""Telegram over the Bot API. python-telegram-bot provides the types, requests and errors."""

from hermes_state.imports import without

with without("click"):  # keeps httpx from importing its command line: 5 MB, 0.1 s
    from platforms.settings import TelegramSettings, WebhookSettings
    from platforms.telegram.adapter import TelegramAdapter

__all__ = ["TelegramAdapter", "TelegramSettings", "WebhookSettings"]
