"""Blocks of MCP servers: errors name the key and show no secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigRejected, load_config, merge_for_reload, reload_differences
from hermes_state.redaction import Redactor
from hermes_state.setting_types import plain_texts
from hermes_state.values import ToolEffect


def environ(folder: Path, servers: Any) -> dict[str, str]:
    return {"HOME": str(folder), "HERMES_HOME": str(folder), "HERMES_MCP__SERVERS": json.dumps(servers)}


def test_a_server_block_becomes_server_settings(tmp_path: Path) -> None:
    block = {
        "command": "npx",
        "args": ["-y", "server"],
        "env": {"TOKEN": "sec-ret-1", "PORT": 7, "ON": True, "ROOT": "/srv/shared/files", "A_KEY": "harmless"},
        "allow": "read_*, look",
        "effects": {"read_*": "reads", "run": "executes"},
        "trust_hints": True,
    }
    servers = {"files": block, "off": {"url": "https://example.org/mcp", "enabled": False}}
    loaded = load_config(environ(tmp_path, servers))
    [settings] = loaded.config.mcp.enabled_servers
    assert (settings.name, settings.command, settings.args) == ("files", "npx", ("-y", "server"))
    words = {"TOKEN": "sec-ret-1", "PORT": "7", "ON": "true", "ROOT": "/srv/shared/files", "A_KEY": "harmless"}
    assert plain_texts(settings.env) == words
    assert settings.allow == ("read_*", "look")
    assert settings.effect_of("run", claims_to_read=True) is ToolEffect.EXECUTES
    assert set(loaded.secrets()) == {"sec-ret-1", "harmless"}
    assert "sec-ret-1" not in repr(loaded.config)


def test_secrets_in_arguments_addresses_and_routes_are_redacted(tmp_path: Path) -> None:
    servers = {
        "a": {"command": "npx", "args": ["mcp-remote", "--header", "Authorization: Bearer pier-seven-1"]},
        "b": {"command": "npx", "args": ["-y", "server", "--api-key", "pier-seven-2", "--port", "12345678"]},
        "c": {"command": "docker", "args": ["run", "-e", "BOATS_TOKEN=pier-seven-3", "--name=harbour-master", "boats"]},
        "d": {"url": "https://ann:pier-seven-4@mcp.example.org/s/hbr7Qm2xLd9vTz4K/mcp"},
        "e": {"command": "npx", "env": {"ENDPOINT": "https://mcp.example.org/s/Kbr7Qm2xLd9vTz4K/mcp", "TOOL": "boats"}},
        "f": {"command": "npx", "args": ["postgresql://ann:pier-seven-5@db.example.org/boats"]},
        "g": {"command": "npx", "effects": {"rotate_token": "executes"}},
    }
    variables = {
        "HERMES_MODEL__EXTRA_HEADERS": '{"X-Harbour": "Bearer pier-seven-6"}',
        "HERMES_MODEL__EXTRA_BODY": '{"provider": {"api_key": "pier-seven-7"}}',
    }
    secrets = load_config(environ(tmp_path, servers) | variables).secrets()
    tokens = {f"pier-seven-{number}" for number in range(1, 8)} | {"hbr7Qm2xLd9vTz4K", "Kbr7Qm2xLd9vTz4K"}
    assert tokens <= set(secrets)
    shown = " ".join(("npx", "mcp-remote", "12345678", "harbour-master", "executes", "mcp.example.org", "boats"))
    assert Redactor(secrets)(shown) == shown


def test_a_reload_applies_a_changed_secret(tmp_path: Path) -> None:
    old, new = (
        load_config(environ(tmp_path, {"a": {"url": "https://example.org", "headers": {"X-Key": key}}}))
        for key in ("one", "two")
    )
    assert reload_differences(old, new).applied == ("mcp.servers",)
    assert plain_texts(merge_for_reload(old, new).config.mcp.servers["a"].headers) == {"X-Key": "two"}


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ({"a": {}}, "a.command: set either"),
        ({"a": {"command": "x", "url": "https://example.org"}}, "a.command: set either"),
        ({"a": {"command": "x", "headers": {"A": "b"}}}, "a.headers: works only with url"),
        ({"a": {"url": "https://example.org", "env": {"A": "b"}}}, "a.env: works only with command"),
        ({"a": {"url": "https://example.org/?key=sec-ret-1"}}, "a.url: must be an address"),
        ({"a": {"comand": "x"}}, "did you mean command?"),
        ({"A b": {"command": "x"}}, "cannot be the name of a server"),
        ({"a__b": {"command": "x"}}, "cannot be the name of a server"),
        ({"a": {"command": "x", "name": "b"}}, "a: unknown key name"),
        ({"a": "npx"}, "a must be a block"),
        ({"a": {"command": "x", "env": {"A B": "sec-ret-1"}}}, "a.env: 'A B' is not a valid variable name"),
        ({"a": {"command": "x", "env": {"A": ["sec-ret-1"]}}}, "a.env: 'A' must have text as its value"),
        ({"a": {"command": "x", "effects": {"t": "sec-ret-1"}}}, "a.effects: must be one of reads, writes, executes"),
        ({"a": {"command": "x", "seconds": 0}}, "a.seconds: must be"),
        ({"a": {"url": "https://example.org", "headers": {"A b": "sec-ret-1"}}}, "a.headers:"),
    ],
)
def test_an_error_names_the_key_of_the_server(servers: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigRejected) as caught:
        load_config(environ(tmp_path, servers))
    assert "mcp.servers" in str(caught.value)
    assert words in str(caught.value)
    assert "sec-ret-1" not in str(caught.value)


def test_a_number_is_refused_as_the_name_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mcp: {servers: {1: {command: a}}}")
    with pytest.raises(ConfigRejected, match="1 cannot be the name of a server"):
        load_config({"HOME": str(tmp_path), "HERMES_HOME": str(tmp_path)})
