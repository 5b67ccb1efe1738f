"""The web tools in the daemon: their settings, as the configuration in force has them."""

from collections.abc import Callable

from agent.tools.registry import Tool
from agent.tools.web.addresses import HostSettings
from agent.tools.web.fetching import FetchSettings, fetch_tool
from agent.tools.web.search_tool import SearchService, brave, search_tool, searxng, tavily
from gateway.config import LoadedConfig
from gateway.config.tool_settings import WebConfig
from hermes_state.redaction import Redactor

_OFF = "web.enabled is false"


def web_tools(loaded: Callable[[], LoadedConfig]) -> tuple[Tool, ...]:
    """The web tools; `loaded` is the configuration in force."""

    def config() -> WebConfig:
        return loaded().config.web

    def holds_secret(text: str) -> bool:
        return Redactor(loaded().secrets()).would_leak(text)

    return (
        fetch_tool(lambda: fetch_settings(config()), holds_secret, fault=lambda: None if config().enabled else _OFF),
        search_tool(lambda: search_service(config()), holds_secret),
    )


def fetch_settings(config: WebConfig) -> FetchSettings:
    """Bounds of the pages that are read."""
    hosts = HostSettings(allow=config.allow_hosts, deny=config.deny_hosts, private=config.private_hosts)
    return FetchSettings(hosts=hosts)


def search_service(config: WebConfig) -> SearchService | str:
    """Return the configured search service, or the reason why there is none."""
    key, url = config.search_key.get_secret_value() if config.search_key is not None else "", config.search_url
    if not config.enabled:
        return _OFF
    if config.search is None:
        return "no search is configured: web.search names a service"
    if config.search == "searxng":
        return searxng(url, key) if url else "web.search is searxng, and web.search_url does not say where it is"
    if not key:
        return f"web.search is {config.search}, and web.search_key is not set"
    service = brave if config.search == "brave" else tavily
    return service(key, url) if url else service(key)
