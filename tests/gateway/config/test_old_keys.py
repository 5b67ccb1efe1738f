"""Keys of earlier versions cause a warning with their replacement and no error."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli import app
from gateway.config.blocks import ConfigRejected
from gateway.config.fields import FIELDS, dotted, variable_name
from gateway.config.old_keys import FIXED, OLD_KEYS, REPLACED
from gateway.config.settings import Config
from tests.gateway.config.test_config import Load, refusal

DOCUMENTS = (Path(__file__).parents[2] / "fixtures" / "old_keys.yaml").read_text().split("---\n")
MODEL = "model: {name: main, aliases: {small: little}}\n"


def test_every_old_key_warns_with_its_replacement(load: Load) -> None:
    keys = [_keys(yaml.safe_load(document)) for document in DOCUMENTS]
    assert set(chain(*keys)) == OLD_KEYS
    assert not OLD_KEYS & set(FIELDS)
    for document, its_keys in zip(DOCUMENTS, keys, strict=True):
        warnings = load(document).warnings
        for key in map(dotted, its_keys):
            [line] = [text for text in warnings if f": {key} is no longer a setting" in text]
            assert "config.yaml line " in line
            assert (f"now {FIXED[key]}" if key in FIXED else f"use {REPLACED[key]}") in line
        assert "key-of-an-earlier-version" not in str(warnings)


def _keys(block: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in block.items():
        is_block = isinstance(value, dict) and not name.startswith("extra_")
        found += _keys(value, (*above, name)) if is_block else [(*above, name)]
    return found


def test_config_check_warns_about_old_keys_and_succeeds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text("store: {readers: 4}\nauxiliary: {title: {mode: off}}\n")
    done = CliRunner().invoke(app, ["config", "check"], env={"HERMES_HOME": str(home)})
    assert done.exit_code == 0, done.output
    assert "store.readers is no longer a setting and is ignored: remove it; the value is now 2" in done.output
    assert "auxiliary.title.mode is no longer a setting: use auxiliary.title" in done.output


def test_warnings_about_old_keys_in_variables_name_the_variable(load: Load) -> None:
    for key in OLD_KEYS:
        loaded = load("", **{variable_name(key): "off"})
        assert any(
            text.startswith(f"{variable_name(key)}: {dotted(key)} is no longer a setting") for text in loaded.warnings
        )


def test_a_secret_of_an_old_key_is_still_redacted(load: Load) -> None:
    assert "sk-of-old" in load("", HERMES_AUXILIARY__TITLE__API_KEY="sk-of-old").secrets()
    file = "auxiliary: {flush: {api_key: sk-in-a-file}}"
    assert "sk-in-a-file" in load(file).secrets()
    file = """auxiliary: {title: {base_url: "https://u:hunter2pw@h.example/v1", extra_body: {api_key: abcdef123456},
      extra_headers: {Authorization: "Bearer 9f8e7d6c5b4a"}}}"""
    assert {"hunter2pw", "abcdef123456", "Bearer 9f8e7d6c5b4a"} <= set(load(file).secrets())
    assert load("", HERMES_AUXILIARY__TITLE__API_KEY=b"ab\xffcdef".decode(errors="surrogateescape")).secrets() == ()


def test_an_unknown_key_next_to_an_old_one_is_reported_without_its_value(load: Load) -> None:
    with pytest.raises(ConfigRejected) as refused:
        load("auxiliary: {title: {mode: custom, model: x, apikey: abcdef-live-1234}}")
    assert "unknown key auxiliary.title.apikey" in str(refused.value)
    assert "abcdef-live-1234" not in f"{refused.value} {refused.value.warnings}"


def test_an_old_key_for_one_model_warns_and_other_keys_apply(load: Load) -> None:
    loaded = load("compression: {models: {'g*': {tail_mode: lean, threshold: 0.3}}}")
    assert any("compression.models: compression.tail_mode is no longer a setting" in text for text in loaded.warnings)
    assert loaded.config.compression.for_model("gpt").threshold == 0.3


@pytest.mark.parametrize("key", ["model.top_p", "auxiliary.compression.top_p"])
def test_the_warning_about_top_p_says_what_to_write_instead(load: Load, key: str) -> None:
    loaded = load("", **{variable_name(tuple(key.split("."))): "0.7"})
    [line] = [text for text in loaded.warnings if f": {key} is no longer a setting and is ignored" in text]
    assert "write extra_body: {top_p: 0.9} in this block" in line


@pytest.mark.parametrize(
    ("file", "variables", "key"),
    [
        ("model: {name: m, aliases: {a: {name: b, top_p: 0.9, temperature: 0}}}", {}, "aliases"),
        ("model: {name: m, fallbacks: [c, {name: b, top_p: 0.9, temperature: 0}]}", {}, "fallbacks"),
        ("model: {name: m, fallbacks: {name: b, top_p: 0.9, temperature: 0}}", {}, "fallbacks"),
        ("model: {name: m}", {"ALIASES": '{"a": {"name": "b", "top_p": 0.9, "temperature": 0}}'}, "aliases"),
        ("model: {name: m}", {"FALLBACKS": '[{"name": "b", "top_p": 0.9, "temperature": 0}]'}, "fallbacks"),
    ],
)
def test_an_old_key_of_another_route_warns_and_its_other_keys_apply(
    load: Load, file: str, variables: dict[str, str], key: str
) -> None:
    loaded = load(file, **{f"HERMES_MODEL__{name}": value for name, value in variables.items()})
    [line] = [text for text in loaded.warnings if "no longer a setting" in text]
    where = f"HERMES_MODEL__{key.upper()}" if variables else "config.yaml line 1"
    assert f"{where}: model.{key}: model.top_p is no longer a setting and is ignored" in line
    assert loaded.config.model.routes[-1].temperature == 0


@pytest.mark.parametrize("value", ["aliases: 3", "aliases: [a]", "fallbacks: 3", "fallbacks: '[a'"])
def test_old_keys_are_not_looked_for_in_an_invalid_value(load: Load, value: str) -> None:
    assert f"model.{value.partition(':')[0]}: " in refusal(load, f"model: {{name: m, {value}}}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("auxiliary: {title: {mode: off}}", {"title": "off"}),
        ("auxiliary: {title: {mode: 'OFF', model: small}}", {"title": "off"}),
        ("auxiliary: {mode: same-as-main}", dict.fromkeys(("flush", "title", "delegate"), "main")),
        ("auxiliary: {flush: {mode: same-as-main}}", {"flush": "main"}),
        ("auxiliary: {mode: same-as-main, flush: {mode: auto}}", dict.fromkeys(("title", "delegate"), "main")),
        ("auxiliary: {delegate: {model: Small}}", {"delegate": "small"}),
        ("auxiliary: {delegate: {model: gpt-4.1-nano}}", {"delegate": "auto"}),
        ("auxiliary: {delegate: {model: small, base_url: 'http://127.0.0.1:1/v1'}}", {"delegate": "auto"}),
    ],
)
def test_an_old_task_block_becomes_an_equivalent_route(load: Load, old: str, new: dict[str, str]) -> None:
    routes = load(MODEL + old).config.auxiliary.routes
    assert {task: routes[task] for task in new} == new  # type: ignore[index]


def test_a_new_key_wins_over_the_old_one(load: Load) -> None:
    loaded = load("auxiliary: {title: {mode: off}}", HERMES_AUXILIARY__TITLE="main")
    assert loaded.config.auxiliary.title == "main"
    loaded = load("compression: {summary_model: old}\nauxiliary: {compression: {model: new}}")
    assert loaded.config.auxiliary.compression.model == "new"
    assert load("compression: {summary_model: old}").config.auxiliary.compression.model == "old"


def test_keys_that_never_existed_are_refused(load: Load) -> None:
    assert "unknown key web.minutes" in refusal(load, "web: {minutes: 3, seconds: 4}")
    assert "unknown key delivery" in refusal(load, "delivery: {parts: 3}")
    assert load("delivery:\nweb: {}").config == Config()
