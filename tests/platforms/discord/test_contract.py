"""Discord keeps the contract of platform adapters."""

from tests.platforms.contract import AdapterContract


class TestDiscordContract(AdapterContract):
    pass
