"""The web tools in the daemon: their settings, as the configuration in force has them."""

from collections.abc import Callable
from dataclasses import replace

from agent.settings import WebSettings
from agent.tools.registry import Tool
from agent.tools.web.fetch_tool import fetch_tool
from agent.tools.web.fetching import FetchSettings
from agent.tools.web.search_clients import BraveClient, SearchClient, SearxngClient, TavilyClient
from agent.tools.web.search_tool import SearchSettings, search_tool
from gateway.config import LoadedConfig
from hermes_state.redaction import Redactor

_OFF = "web.enabled is false"


def web_tools(loaded: Callable[[], LoadedConfig]) -> tuple[Tool, ...]:
    """The web tools; `loaded` is the configuration in force."""

    def config() -> WebSettings:
        return loaded().config.web

    def holds_secret(text: str) -> bool:
        return Redactor(loaded().secrets()).would_leak(text)

    return (
        fetch_tool(
            lambda: FetchSettings(hosts=config()), holds_secret, fault=lambda: None if config().enabled else _OFF
        ),
        search_tool(lambda: search_settings(config()), holds_secret),
    )


def search_settings(config: WebSettings) -> SearchSettings:
    """The configured search service, or the reason why there is none."""
    fault = _search_fault(config)
    return SearchSettings(service=None if fault else _service(config), fault=fault)


def _search_fault(config: WebSettings) -> str | None:
    if not config.enabled:
        return _OFF
    if config.search is None:
        return "no search is configured: web.search names a service"
    if config.search == "searxng":
        return None if config.search_url else "web.search is searxng, and web.search_url does not say where it is"
    return None if config.search_key else f"web.search is {config.search}, and web.search_key is not set"


def _service(config: WebSettings) -> SearchClient:
    key = config.search_key.get_secret_value() if config.search_key is not None else ""
    if config.search == "searxng":
        return SearxngClient(url=config.search_url or "", key=key)
    service = BraveClient(key=key) if config.search == "brave" else TavilyClient(key=key)
    return replace(service, url=config.search_url) if config.search_url else service
