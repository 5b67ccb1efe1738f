"""Telegram over the Bot API, with python-telegram-bot for its types, its requests and its errors."""

from platforms.telegram.adapter import TelegramAdapter
from platforms.telegram.settings import TelegramSettings, WebhookSettings

__all__ = ["TelegramAdapter", "TelegramSettings", "WebhookSettings"]
