"""Telegram over the Bot API. python-telegram-bot provides the types, requests and errors.

The SDK gets httpx2, which the models' SDKs need as well, for httpx: it only defines a class with it that the gateway
does not use. Without cryptography (8 MB, 20 ms), the SDK cannot decrypt passports, which the gateway never requests.
Other code can import both afterwards. See docs/decisions/0032-what-a-start-does-not-load.md.
"""

from hermes_state.imports import defer, without

defer("telegramify_markdown")  # 2 MB of parser; only the class of entities and the formulas are used
with without("cryptography", httpx="httpx2"):
    from platforms.settings import TelegramSettings, WebhookSettings
    from platforms.telegram.adapter import TelegramAdapter

__all__ = ["TelegramAdapter", "TelegramSettings", "WebhookSettings"]
