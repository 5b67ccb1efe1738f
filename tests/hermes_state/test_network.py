"""Proxies: which addresses are accepted, and which hosts are reached through which proxy."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from hermes_state.errors import ConfigError
from hermes_state.network import NetworkSettings, Proxy, parsed_proxy

WRITTEN = tomllib.loads((Path(__file__).parents[1] / "fixtures/proxies/written.toml").read_text())
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def settings(**values: object) -> NetworkSettings:
    return TypeAdapter(NetworkSettings).validate_python(values)


def chosen(network: NetworkSettings, host: str, scheme: str = "https") -> str | None:
    proxy = network.route("model")(scheme, host)
    return None if proxy is None else str(proxy)


@pytest.mark.parametrize("row", WRITTEN["address"], ids=lambda row: row["written"])
def test_addresses_that_people_write_are_understood_or_refused(row: Mapping[str, str]) -> None:
    if "meant" in row:
        assert parsed_proxy(row["written"]).url == row["meant"]
        assert settings(proxy=row["written"]).proxy == row["meant"]
    else:
        with pytest.raises(ValueError, match="must be the address of a proxy"):
            parsed_proxy(row["written"])


@pytest.mark.parametrize("row", WRITTEN["exception"], ids=lambda row: row["source"])
@pytest.mark.parametrize("is_setting", [True, False], ids=["network.no_proxy", "NO_PROXY"])
def test_exceptions_that_people_write_are_understood(
    row: Mapping[str, Any], is_setting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_setting:
        monkeypatch.setenv("NO_PROXY", row["written"])
    network = settings(proxy="http://proxy.test:3128", **({"no_proxy": row["written"]} if is_setting else {}))
    assert [host for host in row["direct"] if chosen(network, host) is not None] == []
    assert [host for host in row["proxied"] if chosen(network, host) is None] == []


def test_the_environment_counts_by_the_scheme_of_the_address_if_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://secure.test:1")
    monkeypatch.setenv("ALL_PROXY", "socks5h://other.test:2")
    network = settings()
    assert chosen(network, "example.org") == chosen(network, "example.org", "wss") == "http://secure.test:1"
    assert chosen(network, "example.org", "http") == "socks5://other.test:2"
    assert chosen(settings(proxy="http://set.test:3"), "example.org") == "http://set.test:3"
    assert chosen(settings(proxy="direct"), "example.org") is None
    assert chosen(settings(proxies={"model": "direct"}), "example.org") is None


def test_a_target_can_have_its_own_proxy() -> None:
    network = settings(proxy="http://all.test:1", proxies='{"discord": "socks5://me:x@own.test", "web": "off"}')
    assert str(network.route("discord")("wss", "gateway.discord.gg")) == "socks5://own.test:1080"
    assert network.route("web")("https", "example.org") is None
    assert str(network.route("mcp")("https", "example.org")) == "http://all.test:1"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"proxy": "ftp://me:secret-pass@host"}, "must be the address of a proxy"),
        ({"proxy": 3128}, "must be the address of a proxy"),
        ({"proxies": {"telegram": "ftp://me:secret-pass@host"}}, "telegram must be the address of a proxy"),
        ({"proxies": {"slack": "http://host"}}, "'slack' is not one of telegram, discord, model, web, mcp"),
    ],
)
def test_wrong_settings_get_one_sentence_without_the_password(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**values)
    [detail] = caught.value.errors()
    assert words in detail["msg"]
    assert "secret-pass" not in detail["msg"]


def test_a_wrong_variable_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://me:secret-pass@host")
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY must be .* set network\.proxy") as caught:
        settings().check()
    assert "secret-pass" not in str(caught.value)
    settings(proxy="direct").check()


def test_text_of_a_proxy_has_no_login() -> None:
    proxy = parsed_proxy("http://me:secret-pass@[2001:db8::1]:3128")
    assert (str(proxy), proxy.url) == ("http://[2001:db8::1]:3128", "http://me:secret-pass@[2001:db8::1]:3128")
    assert "secret-pass" not in f"{proxy!r}"
    assert proxy == Proxy(scheme="http", host="2001:db8::1", port=3128, user="me", password="secret-pass")
