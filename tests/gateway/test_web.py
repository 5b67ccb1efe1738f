"""Settings of the web tools: which service is asked, what is said where there is none, which hosts are named."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agent.settings import WebSettings
from agent.tools.web.search_tool import SearchService
from gateway.config import LiveConfig, load_config
from gateway.config.fields import secrets_of
from gateway.daemon.tools import search_service, web_tools

checked = TypeAdapter(WebSettings).validate_python


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"enabled": False, "search": "brave", "search_key": "k" * 20}, "web.enabled"),
        ({}, "set web.search"),
        ({"search": "off"}, "set web.search"),
        ({"search": False}, "set web.search"),
        ({"search": "searxng"}, "web.search_url"),
        ({"search": "brave"}, "web.search_key"),
        ({"search": "Tavily", "search_url": "https://example.org"}, "web.search_key"),
    ],
)
def test_a_search_that_lacks_something_names_the_key(given: dict[str, Any], fault: str) -> None:
    assert fault in str(search_service(checked(given)))


def test_each_service_is_made_with_its_key_and_address() -> None:
    def service(**given: str) -> tuple[str, str, dict[str, str]]:
        made = search_service(checked(given))
        assert isinstance(made, SearchService)
        return made.name, made.url, dict(made.headers)

    searxng = service(search="searxng", search_url="http://10.0.0.2:8080/")
    assert searxng == ("SearXNG", "http://10.0.0.2:8080/search", {})
    brave = service(search="brave", search_key="key")
    assert brave == ("Brave", "https://api.search.brave.com/res/v1/web/search", {"X-Subscription-Token": "key"})
    tavily = service(search="tavily", search_key="key", search_url="https://proxy.example.org")
    assert tavily == ("Tavily", "https://proxy.example.org/search", {"Authorization": "Bearer key"})


def test_the_key_is_a_secret() -> None:
    config = checked({"search": "brave", "search_key": "the-key-of-brave"})
    assert secrets_of(config) == ("the-key-of-brave",)
    assert "the-key" not in repr(config)
    assert "the-key" not in repr(search_service(config))


@pytest.mark.parametrize(
    ("written", "name"),
    [("Example.ORG.", "example.org"), ("*.a.org", "a.org"), ("[fd00::1]", "fd00::1"), ("10.0.0.5", "10.0.0.5")],
)
def test_hosts_are_written_as_they_stand_in_addresses(written: str, name: str) -> None:
    assert checked({"private_hosts": [written]}).private_hosts == (name,)


@pytest.mark.parametrize(
    "written", ["https://example.org", "example.org/docs", "localhost:8080", "a b", "*", "", "10.0.0.0/8"]
)
def test_what_is_no_host_is_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="is not a host"):
        checked({"allow_hosts": [written]})


def test_the_tools_follow_the_configuration_in_force() -> None:
    live = LiveConfig(load_config({"HERMES_HOME": "/nonexistent", "HERMES_WEB__ENABLED": "false"}))
    fetch, search = web_tools(live)
    assert fetch.why_unavailable() == search.why_unavailable() == "web.enabled is false"
    live.loaded = load_config({"HERMES_HOME": "/nonexistent"})
    assert fetch.why_unavailable() is None
