"""Providers that are recognised by their keys and addresses, and model servers on this machine."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec

from gateway.config.routes import DEFAULT_MODEL, OWN_ADDRESSES
from gateway.operator.probes import served_models


class Provider(msgspec.Struct, frozen=True):
    name: str
    key_shape: str
    """Pattern that matches the beginning of the provider's keys."""
    model: str
    """Model to use if the person does not name one."""
    base_url: str = ""
    """Address of the API. Empty for the default address of the protocol."""
    protocol: str = ""

    @property
    def host(self) -> str | None:
        return urlsplit(self.base_url or OWN_ADDRESSES[self.protocol or "chat_completions"]).hostname


PROVIDERS = (
    Provider("Anthropic", "sk-ant-", "claude-sonnet-5-5", protocol="anthropic"),
    Provider("OpenRouter", "sk-or-", "anthropic/claude-sonnet-5.5", "https://openrouter.ai/api/v1"),
    Provider("Gemini", "AIza", "gemini-flash-latest", "https://generativelanguage.googleapis.com/v1beta/openai"),
    Provider("Groq", "gsk_", "openai/gpt-oss-120b", "https://api.groq.com/openai/v1"),
    Provider("xAI", "xai-", "grok-4", "https://api.x.ai/v1"),
    Provider("DeepSeek", "sk-[0-9a-f]{32}$", "deepseek-chat", "https://api.deepseek.com/v1"),
    Provider("OpenAI", "sk-", DEFAULT_MODEL),
)
"""Known providers. A key belongs to the first provider whose pattern matches it."""


def recognise(key: str, address: str) -> Provider | None:
    """Return the provider with this address, or the provider whose keys look like `key` if there is no address.

    >>> recognise("sk-or-v1-0", "").name, recognise("sk-0", "https://api.deepseek.com").name
    ('OpenRouter', 'DeepSeek')
    """
    if address:
        try:
            host = urlsplit(address).hostname
        except ValueError:  # the check of the settings explains what is wrong
            return None
        return next((one for one in PROVIDERS if one.host == host), None)
    return next((one for one in PROVIDERS if re.match(one.key_shape, key)), None)


LOCAL_PORTS: Mapping[str, int] = {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080}
"""Usual ports of model servers."""


class LocalServer(msgspec.Struct, frozen=True):
    """Model server that responds to requests on this machine."""

    name: str
    base_url: str
    models: tuple[str, ...]


def find_local_servers(ports: Mapping[str, int] = LOCAL_PORTS) -> list[LocalServer]:
    """Request a list of models from the usual ports on the loopback interface. Takes at most a few seconds."""

    def find(name: str) -> LocalServer | None:
        base_url = f"http://127.0.0.1:{ports[name]}/v1"
        models = served_models(base_url, timeout_seconds=1.0)
        return None if models is None else LocalServer(name, base_url, models)

    with ThreadPoolExecutor(len(ports)) as pool:
        return [server for server in pool.map(find, ports) if server is not None]
