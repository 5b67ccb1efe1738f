"""Proxies: which addresses are accepted, and which hosts are reached through which proxy."""

import json
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
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize("proxy", ["http://proxy.test:3128", {"model": "http://proxy.test:3128"}], ids=["all", "model"])
def test_exceptions_that_people_write_are_understood(
    row: Mapping[str, Any], variable: str, proxy: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, row["written"])
    network = settings(proxy=proxy)
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
    assert chosen(settings(proxy={"model": "direct"}), "example.org") is None

    assert chosen(settings(proxy={"web": "direct"}), "example.org") == "http://secure.test:1"
    assert chosen(settings(proxy={"default": "direct"}), "example.org") is None


@pytest.mark.parametrize("is_json", [False, True], ids=["YAML", "JSON"])
def test_a_target_can_have_its_own_proxy(is_json: bool) -> None:
    block = {"discord": "socks5://me:x@own.test", "web": "off", "default": "http://all.test:1"}
    network = settings(proxy=f" {json.dumps(block)}" if is_json else block)
    assert str(network.route("discord")("wss", "gateway.discord.gg")) == "socks5://own.test:1080"
    assert network.route("web")("https", "example.org") is None
    assert str(network.route("mcp")("https", "example.org")) == "http://all.test:1"
    assert hash(network) == hash(settings(proxy=block))


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("ftp://me:secret-pass@host", "must be the address of a proxy"),
        (3128, "must be the address of a proxy"),
        (["http://me:secret-pass@host"], "must be the address of a proxy"),
        ({"telegram": "ftp://me:secret-pass@host"}, "telegram must be the address of a proxy"),
        ({"default": {"web": "http://me:secret-pass@host"}}, "default must be the address of a proxy"),
        ({"slack": "http://host"}, "'slack' is not one of telegram, discord, model, web, mcp, webhooks, default"),
        ('{"web": "http://me:secret-pass@host"', "is not a JSON object"),
    ],
)
def test_wrong_settings_get_one_sentence_without_the_password(proxy: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(proxy=proxy)
    [detail] = caught.value.errors()
    assert words in detail["msg"]
    assert "secret-pass" not in detail["msg"]


def test_a_wrong_variable_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://me:secret-pass@host")
    with pytest.raises(ConfigError, match=r"HTTPS_PROXY must be .* set network\.proxy") as caught:
        settings().check()
    assert "secret-pass" not in str(caught.value)
    with pytest.raises(ConfigError):
        settings(proxy={"model": "direct"}).check()
    settings(proxy="direct").check()
    settings(proxy={"default": "direct"}).check()


def test_text_of_a_proxy_has_no_login() -> None:
    proxy = parsed_proxy("http://me:secret-pass@[2001:db8::1]:3128")
    assert (str(proxy), proxy.url) == ("http://[2001:db8::1]:3128", "http://me:secret-pass@[2001:db8::1]:3128")
    assert "secret-pass" not in f"{proxy!r}"
    assert proxy == Proxy(scheme="http", host="2001:db8::1", port=3128, user="me", password="secret-pass")
