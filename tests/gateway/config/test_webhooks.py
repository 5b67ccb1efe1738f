"""Blocks of webhooks: errors name the key and show no secret."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigRejected, load_config, reload_differences

SECRET = "pier-seven-pier-seven"


def environ(folder: Path, hooks: Any, **more: str) -> dict[str, str]:
    return {"HOME": str(folder), "HERMES_HOME": str(folder), "HERMES_WEBHOOKS": json.dumps(hooks), **more}


def test_a_block_becomes_a_webhook_whose_secret_is_redacted(tmp_path: Path) -> None:
    hooks = {
        "in": {"secret": SECRET, "chat": "telegram:42"},
        "out": {"secret": SECRET, "url": "https://example.org/x/"},
    }
    loaded = load_config(environ(tmp_path, hooks))
    assert loaded.config.webhooks["in"].chat == "telegram:42"
    assert "turn.finished" in loaded.config.webhooks["out"].events
    assert loaded.secrets() == (SECRET,)
    assert SECRET not in repr(loaded.config)
    plan = reload_differences(loaded, load_config(environ(tmp_path, {})))
    assert list(plan.applied) == ["webhooks"], "a reload is enough"


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"a b": {"secret": SECRET, "chat": "x"}}, "'a b' cannot be the name of a webhook"),
        ({"a": {"chat": "telegram:42"}}, "a must be a block with secret, and with chat or url"),
        ({"a": "https://example.org"}, "a must be a block with secret, and with chat or url"),
        ({"a": {"secret": SECRET}}, "a: set either chat"),
        ({"a": {"secret": SECRET, "chat": "x", "url": "https://example.org"}}, "a: set either chat"),
        ({"a": {"secret": "pier-seven", "chat": "x"}}, "a.secret: must have at least 16 characters"),
        ({"a": {"secret": SECRET, "url": "example.org"}}, "a.url: must be an address"),
        ({"a": {"secret": SECRET, "url": "https://example.org", "events": ["turn"]}}, "a.events: must be one of"),
        ({"a": {"secret": SECRET, "chat": "x", "templat": ""}}, "a: unknown key templat; did you mean template?"),
    ],
)
def test_a_wrong_block_gets_one_sentence(tmp_path: Path, hooks: Any, words: str) -> None:
    with pytest.raises(ConfigRejected) as raised:
        load_config(environ(tmp_path, hooks))
    assert words in str(raised.value)
    assert "pier-seven" not in str(raised.value)


def test_webhooks_need_the_server_of_the_web_chat(tmp_path: Path) -> None:
    hooks = {"a": {"secret": SECRET, "chat": "telegram:42"}}
    with pytest.raises(ConfigRejected, match="set local"):
        load_config(environ(tmp_path, hooks, HERMES_LOCAL__ENABLED="false"))
