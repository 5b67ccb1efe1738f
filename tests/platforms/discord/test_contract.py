"""Discord keeps the contract of every adapter."""

from tests.platforms.contract import AdapterContract


class TestDiscordContract(AdapterContract):
    pass
