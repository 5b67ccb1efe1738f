"""Loading of the configuration: sources, priorities, errors, warnings and reload."""

import contextlib
import sqlite3
import time
from operator import attrgetter
from pathlib import Path

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from agent.model.catalog import SizeSource
from gateway.config import (
    CUSTOMARY,
    ConfigRejected,
    load_config,
    merge_for_reload,
    reload_differences,
)
from gateway.config.blocks import field_range
from gateway.config.fields import FIELDS, variable_name
from gateway.config.routes import DEFAULT_MODEL
from gateway.config.settings import Config
from gateway.daemon.agent import settings_mark
from gateway.models.routes import capacity_in
from hermes_state.errors import ConfigError
from tests.gateway.helpers import Load
from tests.sampling import examples

TOKEN = "1234567:AAE-notARealToken_notARealToken_123"


def refusal(load: Load, yaml: str | None = None, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(yaml, **variables)
    return str(caught.value)


# -- defaults ------------------------------------------------------------------------------------------------------


def test_the_default_is_the_web_chat_on_loopback_with_the_offline_model(load: Load) -> None:
    config = load().config
    assert (config.local.enabled, config.local.host, config.local.port) == (True, "127.0.0.1", 8765)
    assert config.model.protocol == "offline"
    assert config.telegram.token is None
    assert config.discord.token is None


def test_without_hermes_home_the_state_directory_is_in_the_users_home(tmp_path: Path) -> None:
    assert load_config({"HOME": str(tmp_path)}).home == tmp_path / ".hermes-gateway"
    assert load_config({"HOME": str(tmp_path), "HERMES_HOME": "~/elsewhere"}).home == tmp_path / "elsewhere"


def test_loading_creates_no_file(tmp_path: Path) -> None:
    load_config({"HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_loading_ignores_the_process_environment(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_LOCAL__PORT", "1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-shell")
    config = load().config
    assert config.local.port == 8765
    assert config.model.api_key is None


# -- precedence ----------------------------------------------------------------------------------------------------


def test_each_source_overrides_the_lower_ones(load: Load, home: Path, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()

    def name(**variables: str) -> tuple[str | None, str]:
        loaded = load(None, **variables)
        key = loaded.config.telegram.token
        return key.get_secret_value() if key else None, loaded.sources["telegram.token"]

    assert name() == (None, "default")
    assert name(TELEGRAM_BOT_TOKEN="customary") == ("customary", "TELEGRAM_BOT_TOKEN")
    (home / "config.yaml").write_text("telegram: {token: from-yaml}")
    assert name(TELEGRAM_BOT_TOKEN="customary") == ("from-yaml", str(home / "config.yaml"))
    (home / ".env").write_text("HERMES_TELEGRAM__TOKEN=from-env-file\n")
    assert name(TELEGRAM_BOT_TOKEN="customary") == ("from-env-file", f"{home / '.env'}: HERMES_TELEGRAM__TOKEN")
    in_file = name()
    assert name(CREDENTIALS_DIRECTORY=str(credentials / "missing")) == in_file, "as in a container without secrets"
    (credentials / "telegram.token").write_text("from-credential\n")
    with_credentials = {"CREDENTIALS_DIRECTORY": str(credentials)}
    assert name(**with_credentials) == ("from-credential", "credential HERMES_TELEGRAM__TOKEN")
    assert name(**with_credentials, HERMES_TELEGRAM__TOKEN="from-env") == ("from-env", "HERMES_TELEGRAM__TOKEN")


@pytest.mark.parametrize(("variable", "key"), CUSTOMARY.items())
def test_customary_variables_work_in_every_source(
    load: Load, home: Path, tmp_path: Path, variable: str, key: tuple[str, ...]
) -> None:
    value = "https://model.example.org/v1" if variable.endswith("URL") else "customary-value"
    name = {"HERMES_MODEL__NAME": "some-model"}
    if variable.startswith("ANTHROPIC"):
        name["HERMES_MODEL__PROTOCOL"] = "anthropic"
    assert load(None, **name, **{variable: value}).sources[".".join(key)] == variable
    (home / ".env").write_text(f"{variable}={value}\n")
    assert load(None, **name).sources[".".join(key)] == f"{home / '.env'}: {variable}"
    (home / ".env").unlink()
    (tmp_path / variable).write_text(value)
    assert load(None, **name, CREDENTIALS_DIRECTORY=str(tmp_path)).sources[".".join(key)] == f"credential {variable}"


@pytest.mark.parametrize("yaml", ["model: {name: m, protocol: %s}", ""])
@pytest.mark.parametrize(("protocol", "key"), [("anthropic", "for-claude"), ("responses", "for-gpt")])
def test_a_customary_key_is_used_only_for_its_provider(load: Load, yaml: str, protocol: str, key: str) -> None:
    keys = {"OPENAI_API_KEY": "for-gpt", "ANTHROPIC_API_KEY": "for-claude"}
    named = {} if yaml else {"HERMES_MODEL__NAME": "m", "HERMES_MODEL__PROTOCOL": f" {protocol.upper()}"}
    model = load(yaml.replace("%s", protocol) or None, **keys, **named).config.model
    assert model.api_key is not None
    assert model.api_key.get_secret_value() == key


@pytest.mark.parametrize("name", ["telegram.token", "telegram__token", "HERMES_TELEGRAM__TOKEN", "TELEGRAM_BOT_TOKEN"])
def test_a_credential_may_be_named_like_the_key_or_like_the_variable(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TOKEN + "\n")
    token = load(CREDENTIALS_DIRECTORY=str(tmp_path)).config.telegram.token
    assert token is not None
    assert token.get_secret_value() == TOKEN


def test_an_empty_value_counts_as_not_set(load: Load) -> None:
    loaded = load("telegram: {token: }\ndiscord: {token: ''}\nlocal:\n", HERMES_LOCAL__PORT="", TELEGRAM_BOT_TOKEN=" ")
    assert loaded.config.telegram.token is None
    assert loaded.config.discord.token is None
    assert loaded.config.local.port == 8765


def test_lists_may_be_written_with_commas_or_as_json(load: Load) -> None:
    expected = ("telegram:42", "discord:123456789012345678")
    assert load(HERMES_ACCESS__ALLOW="telegram:42, discord:123456789012345678").config.access.allow == expected
    assert load(HERMES_ACCESS__ALLOW='["telegram:42","discord:123456789012345678"]').config.access.allow == expected
    assert load("access: {allow: [telegram:42, 'discord:123456789012345678']}").config.access.allow == expected
    assert load("access: {allow: telegram:42}").config.access.allow == ("telegram:42",)


# -- errors --------------------------------------------------------------------------------------------------------


def test_bad_yaml_names_the_line_and_shows_nothing_of_the_file(load: Load) -> None:
    text = refusal(load, "local:\n  port: 1\ntelegram: {token: very-secret-value\nmodel:\n")
    assert "config.yaml line 4" in text
    assert "very-secret-value" not in text


def bomb(shape: str) -> str:
    """Return thirty YAML aliases, each of which repeats the previous alias nine times."""
    lines = ["a0: &a0 {k: x}"]
    for level in range(1, 30):
        lines.append(f"a{level}: &a{level} " + shape.format(", ".join([f"*a{level - 1}"] * 9)))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb("[{}]"),
        bomb("{{<<: [{}]}}"),
        f"a: &a [{'x, ' * 100}x]\nb: [{'*a, ' * 600}*a]",
        "access: {allow: &a [*a, *a]}",
    ],
    ids=["lists", "merges", "wide", "in itself"],
)
def test_exponential_yaml_aliases_are_refused_within_a_second(load: Load, text: str) -> None:
    began = time.process_time()
    assert "use fewer YAML aliases (*name)" in refusal(load, text)
    assert time.process_time() - began < 1


def test_a_file_in_another_encoding_is_refused(load: Load, home: Path) -> None:
    (home / "config.yaml").write_bytes("model: {name: gr\xfc\xdfe}".encode("latin-1"))
    assert "not UTF-8" in refusal(load)


@pytest.mark.parametrize("empty", ["", "\n", "# only a comment\n", "---\n", "telegram:\n"])
def test_an_empty_file_is_fine(load: Load, empty: str) -> None:
    assert load(empty).config == Config()


def test_all_problems_are_reported_together(load: Load) -> None:
    yaml = "local: {port: 70000}\nsessions: {busy_mod: steer}"
    text = refusal(load, yaml, HERMES_SESSIONS__GROUPS="both", HERMES_SESSIONS__MAX_TURNS="many")
    assert len(text.splitlines()) == 4


def test_an_error_does_not_hide_warnings(load: Load, home: Path) -> None:
    (home / ".env").write_text("HERMES_MODLE__NAME=gpt-5\n")
    with pytest.raises(ConfigRejected) as caught:
        load("local: {port: 70000}")
    (warning,) = caught.value.warnings
    assert "HERMES_MODLE__NAME is not a setting" in warning


NUMBERS = {key: field_range(field) for key, field in FIELDS.items() if field_range(field)[0] is not None}


@pytest.mark.parametrize("key", NUMBERS, ids=".".join)
def test_a_number_out_of_range_names_its_source_its_key_and_its_range(load: Load, key: tuple[str, ...]) -> None:
    low, high = NUMBERS[key]
    assert low is not None
    assert high is not None
    for value in (low - 1, high + 1):
        if key[-1] in ("idle_reset_hours", "days") and value == 0:  # off
            continue
        text = refusal(load, None, **{variable_name(key): str(value)})
        assert text.startswith(variable_name(key))
        assert ".".join(key) in text
        assert f"between {low:,} and {high:,}" in text


def test_an_error_about_several_keys_names_the_source_of_one_of_them(load: Load, home: Path) -> None:
    assert refusal(load, HERMES_LOCAL__HOST="0.0.0.0").startswith("HERMES_LOCAL__HOST: local.host 0.0.0.0 is reachable")
    text = refusal(load, "model:\n  name: m\n  aliases: {tiny: {name: t, context_length: 2048}}")
    assert text.startswith(f"{home / 'config.yaml'} line 3: model.aliases.tiny.context_length (2048)")


def test_errors_that_follow_from_another_one_are_not_reported(load: Load) -> None:
    text = refusal(load, HERMES_MODEL__BASE_URL="localhost:1234")
    assert text.startswith("HERMES_MODEL__BASE_URL: model.base_url: must be an address")
    assert "\n" not in text


@pytest.mark.parametrize("key", ["…", "sk-abc def", "sk-äbc", "sk-abc\ndef"])
def test_a_key_that_is_invalid_in_a_header_is_refused_and_not_shown(load: Load, key: str) -> None:
    text = refusal(load, OPENAI_API_KEY=key)
    assert text.startswith("OPENAI_API_KEY: model.api_key: contains characters that are not allowed in a key")
    assert "abc" not in text


def test_an_error_never_shows_a_secret(load: Load) -> None:
    text = refusal(load, "telegram:\n  token: [very-secret-value]\n  webhook: {secret: secret!!}")
    assert "telegram.token" in text
    assert "very-secret-value" not in text
    assert "secret!!" not in text


# -- rules between settings ----------------------------------------------------------------------------------------

CHAT = "chat_completions"
KEYS = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "HERMES_MODEL__API_KEY": "sk-1"}
LOCAL = "model: {name: qwen3, base_url: 'http://127.0.0.1:11434/v1/'}"
PEOPLE = "access:\n  allow: &people [telegram:1, telegram:2]\n  admins: *people\n"
OFF = ("off", "null", "false", "0", "'off'")
LOOPBACK = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "[::1]")
PORT = {"HERMES_LOCAL__PORT": "2000"}
KNOWN = [
    ("telegram:\n  tokn: x", "telegram.token"),
    ("sesions:\n  groups: shared", "sessions"),
    ("telegram_token: x", "telegram.token"),
    ("local:\n  max_turns: 3", "sessions.max_turns"),
    ("telegram:\n  webhook:\n    adress: x", "telegram.webhook"),
]
OTHER_FILES = ("- a\n- b\n", "just words", "42", "a: 1\n---\nb: 2\n", "a: &x [*x]", "d: 2026-13-45", "? [a]\n: b")
NO_NUMBERS = ("nan", "inf", "-inf", "1e999", "0x10", "one", "1_0 0")
NO_HOSTS = ("[bad", "host:abc", "host:99999", ":80", "host:0", "user@")
TELEGRAM_NAMES = ("telegram:@alice", "telegram:alice", "@alice", "42", "telegram:", "telegram:042")
NO_ZONES = ("Europe/Bremen-Nord", "../etc/passwd", "/etc/localtime", "CEST+x")
COMPRESSION = [
    ("compression: {threshold: 1.5}", "compression.threshold: must be between 0.0 and 1.0 (is 1.5)"),
    ("compression: {target_ratio: 0.9}", "compression.target_ratio: must be between 0.1 and 0.8"),
    ("hygiene: {threshold: 0.5}", "hygiene.threshold: must be between 0.85 and 0.95 (is 0.5)"),
    ("compression: {mode: eager}", "compression.mode: must be one of background, blocking"),
    ("compression: {models: {'g*': {threshold: 2}}}", "compression.models: g*.threshold: must be between 0.0 and"),
    ("compression: {models: {'g*': {treshold: 1}}}", "compression.models: g*: unknown key treshold; did you"),
    ("compression: {models: {'g*': {enabled: no}}}", "compression.models: g*.enabled applies to all models"),
    (
        "compression: {models: {'g*': {protect_last_n: few}}}",
        "compression.models: g*.protect_last_n: must be a whole number between 1 and 1,000",
    ),
    ("compression: {models: {'g*': {quite_else: 1}}}", "compression.models: g*: unknown key quite_else; valid"),
    ("compression: {models: {'g*': 3}}", "compression.models: must be a block of model patterns"),
    ("metrics: {listen: '127.0.0.1:65536'}", "metrics.listen: must be off, or a host and a port"),
    ("metrics: {listen: 9464}", "metrics.listen: must be off, or a host and a port such as 127.0.0.1:9464"),
    ("notices: {pressure: maybe}", "notices.pressure: must be true or false"),
]
SEEING = ("gpt-4o-mini", "gpt-5", "claude-sonnet-4-5", "qwen2.5-vl-7b", "openai/o3")


@pytest.mark.parametrize(
    ("yaml", "variables", "values"),
    [
        (None, {"HERMES_MODEL__NAME": "gpt-5"}, {"model.protocol": CHAT}),
        *((None, {name: value}, {"model.protocol": CHAT, "model.name": DEFAULT_MODEL}) for name, value in KEYS.items()),
        (LOCAL, {}, {"model.protocol": CHAT, "model.base_url": "http://127.0.0.1:11434/v1", "model.api_key": None}),
        (None, {"OPENAI_API_KEY": "sk-1", "HERMES_MODEL__PROTOCOL": "offline"}, {"model.protocol": "offline"}),
        (
            "model: {name: m, protocol: anthropic}",
            {"OPENAI_BASE_URL": "https://gpt.example/v1"},
            {"model.base_url": None},
        ),
        (None, {"HERMES_COMPRESSION__MODE": "BLOCKING"}, {"compression.mode": "blocking"}),
        *((None, {"HERMES_MODEL__NAME": name}, {"model.sees_images": True}) for name in SEEING),
        ("model: {name: llama-3.1-8b}", {}, {"model.sees_images": False}),
        ("model: {name: llama-3.1-8b}", {"HERMES_MODEL__IMAGES": "true"}, {"model.sees_images": True}),
        (None, {"HERMES_AGENT__TIME_ZONE": "Europe/Berlin"}, {"agent.time_zone": "Europe/Berlin"}),
        (PEOPLE, {}, {"access.admins": ("telegram:1", "telegram:2")}),
        ("local: {host: 127.0.0.2, port: 1000}", PORT, {"local.host": "127.0.0.2", "local.port": 2000}),
        *((f"sessions: {{idle_reset_hours: {off}}}", {}, {"sessions.idle_reset_hours": None}) for off in OFF),
        *((None, {"HERMES_LOCAL__HOST": host}, {"local.is_loopback": True}) for host in LOOPBACK),
        *(
            (None, {"HERMES_MODEL__BASE_URL": f"http://{host}/v1/"}, {"model.base_url": f"http://{host}/v1"})
            for host in ("localhost", "[::1]:8080", "user:pass@10.0.0.1:1", "exämple.org")
        ),
    ],
    ids=str,
)
def test_settings_give_these_values(
    load: Load, yaml: str | None, variables: dict[str, str], values: dict[str, object]
) -> None:
    config = load(yaml, **variables).config
    assert {key: attrgetter(key)(config) for key in values} == values


@pytest.mark.parametrize(
    ("yaml", "variables", "words"),
    [
        (None, {"HERMES_MODEL__PROTOCOL": CHAT}, ["model.name"]),
        ("model: {context_length: 10000, max_output_tokens: 8000}", {}, ["2000 tokens", "2048"]),
        (None, {"HERMES_ACCESS__ADMINS": "telegram:-1001234"}, ["is a group"]),
        ("access: {allow: [telegram: 42]}", {}, ["no space after the colon"]),
        ("telegram: 1234", {}, ["telegram is a block, not a value: set one of its keys (telegram.token"]),
        ("local:\n  port: 1\nlocal:\n  port: 2\n", {}, ["line 3: local occurs twice (first in line 1)"]),
        (
            "compression:\n  blocking: {}",
            {},
            ["line 2: unknown key compression.blocking; blocking is a value: did you"],
        ),
        ("\ntelegram:\n  tokn: x", {}, ["line 3: unknown key telegram.tokn; did you mean telegram.token?"]),
        *((yaml, {}, ["config.yaml", nearest]) for yaml, nearest in KNOWN),
        *((yaml, {}, ["config.yaml"]) for yaml in OTHER_FILES),
        *((None, {"HERMES_SESSIONS__MERGE_SECONDS": no}, ["sessions.merge_seconds"]) for no in NO_NUMBERS),
        ("sessions: {busy_mode: drop}", {}, ["must be one of queue, steer, interrupt (is 'drop')"]),
        *((None, {"HERMES_MODEL__BASE_URL": f"http://{host}/v1"}, ["must be an address"]) for host in NO_HOSTS),
        *((None, {"HERMES_DISCORD__GATEWAY_URL": f"wss://{host}"}, ["must be an address"]) for host in NO_HOSTS),
        *((f"access: {{allow: ['{name}']}}", {}, ["access.allow", "such as telegram:42"]) for name in TELEGRAM_NAMES),
        ("access: {allow: ['discord:alice#1']}", {}, ["access.allow", "such as discord:"]),
        ("access: {allow: ['slack:U1']}", {}, ["access.allow", "such as telegram:42"]),
        *((None, {"HERMES_AGENT__TIME_ZONE": zone}, ["agent.time_zone"]) for zone in NO_ZONES),
        *((yaml, {}, [f"config.yaml line 1: {words}"]) for yaml, words in COMPRESSION),
    ],
    ids=str,
)
def test_these_settings_are_refused_with_the_reason(
    load: Load, yaml: str | None, variables: dict[str, str], words: list[str]
) -> None:
    said = refusal(load, yaml, **variables)
    assert [word for word in words if word not in said] == []


@given(context=st.integers(1_024, 20_000_000))
def test_reserved_output_is_a_quarter_of_a_small_context_and_an_eighth_of_a_larger_one(context: int) -> None:
    values = {"HERMES_HOME": "/nonexistent-home", "HERMES_MODEL__CONTEXT_LENGTH": str(context)}
    expected = min(8_192, max(min(context // 4, 4_096), context // 8))
    if context - expected < 2_048:
        with pytest.raises(ConfigError, match=r"model\.context_length"):
            load_config(values)
    else:
        capacity = capacity_in(load_config(values).config.model)
        assert (capacity.context_length, capacity.reserved_output) == (context, expected)


def test_sizes_need_not_be_configured(load: Load) -> None:
    for yaml in ("model: {name: gpt-4.1-mini}", "model: {name: gpt-4.1-mini, max_output_tokens: 4000000}"):
        model = load(yaml).config.model
        assert model.context_length is None
        capacity = capacity_in(model)
        assert (capacity.context_length, capacity.context_from) == (1_047_576, SizeSource.CATALOGUE)
        assert capacity.reserved_output == min(model.max_output_tokens or 8_192, 1_047_576 // 2)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example.org"])
def test_the_web_chat_leaves_loopback_only_when_access_names_somebody(load: Load, host: str) -> None:
    assert "local.host" in refusal(load, HERMES_LOCAL__HOST=host)
    assert load(HERMES_LOCAL__HOST=host, HERMES_ACCESS__ADMINS="telegram:42").config.local.host == host
    assert load(HERMES_LOCAL__HOST=host, HERMES_LOCAL__ENABLED="false").config.local.enabled is False


# -- other programs ------------------------------------------------------------------------------------------------


def test_a_foreign_variable_warns_with_the_nearest_setting_and_is_not_fatal(load: Load) -> None:
    loaded = load(HERMES_TELEGRAM_TOKEN="x", HERMES_YOLO_MODE="1", HERMES_MODEL="gpt")
    assert any("HERMES_TELEGRAM_TOKEN" in text and "HERMES_TELEGRAM__TOKEN" in text for text in loaded.warnings)
    assert any(text.startswith("HERMES_YOLO_MODE is not a setting") for text in loaded.warnings)
    assert loaded.config == Config()


def test_the_variables_of_settings_cause_no_warning(load: Load) -> None:
    assert load(**{variable_name(key): "" for key in FIELDS}).warnings == ()


def test_a_foreign_variable_in_the_env_file_warns_too(load: Load, home: Path) -> None:
    (home / ".env").write_text("HERMES_NONSENSE=1\nHERMES_HOME=/elsewhere\nUNRELATED=1\n")
    warnings = load().warnings
    assert len(warnings) == 2
    assert all(str(home / ".env") in text for text in warnings)


def test_an_unknown_credential_warns(load: Load, tmp_path: Path) -> None:
    (tmp_path / "telegram_token").write_text(TOKEN)
    loaded = load(CREDENTIALS_DIRECTORY=str(tmp_path))
    assert loaded.config.telegram.token is None
    warning = next(text for text in loaded.warnings if "telegram_token" in text)
    assert warning.startswith("credential telegram_token is not a setting")
    assert "HERMES_TELEGRAM__TOKEN" in warning


def test_an_invalid_line_of_the_env_file_warns_and_the_others_count(load: Load, home: Path) -> None:
    (home / ".env").write_text(
        "OPENAI_API_KEY=one\n\nthis is no setting\nHERMES_MODEL__NAME\nHERMES_LOCAL__PORT=9000\n"
    )
    loaded = load()
    assert loaded.config.local.port == 9000
    assert loaded.warnings == (
        f"{home / '.env'} line 3: this line is ignored; write NAME=value",
        f"{home / '.env'}: HERMES_MODEL__NAME has no value and is ignored; write HERMES_MODEL__NAME=value",
    )


def test_a_gateway_without_any_chat_warns(load: Load) -> None:
    (warning,) = load(HERMES_LOCAL__ENABLED="false").warnings
    assert "telegram.token" in warning
    assert load(HERMES_LOCAL__ENABLED="false", HERMES_DISCORD__TOKEN="x").warnings == ()


def test_another_programs_configuration_is_named_and_left_alone(load: Load, home: Path) -> None:
    text = "_config_version: 12\nmodel:\n  default: anthropic/claude\ntoolsets: [hermes-cli]\n"
    said = refusal(load, text)
    assert str(home / "config.yaml") in said
    assert "hermes-agent" in said
    assert ((home / "config.yaml").read_text(), [path.name for path in home.iterdir()]) == (text, ["config.yaml"])


def test_another_programs_database_is_named_and_left_alone(load: Load, home: Path) -> None:
    with sqlite3.connect(home / "state.db") as db:
        db.execute("CREATE TABLE sessions (id TEXT)")
    db.close()
    before = (home / "state.db").read_bytes()
    assert str(home / "state.db") in refusal(load)
    assert ((home / "state.db").read_bytes(), [path.name for path in home.iterdir()]) == (before, ["state.db"])


@pytest.mark.parametrize("content", [b"just some bytes, not a database", b"SQLite format 3\x00 and then nothing"])
def test_a_state_db_that_is_not_a_database_is_refused(load: Load, home: Path, content: bytes) -> None:
    (home / "state.db").write_bytes(content)
    assert "state.db" in refusal(load)


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        load_config({"HERMES_HOME": str(tmp_path / "home")})


# -- reload --------------------------------------------------------------------------------------------------------


def test_a_reload_lists_applied_keys_and_keys_that_need_a_restart(load: Load) -> None:
    old = load("sessions: {merge_seconds: 1}\nlocal: {port: 1000}", HERMES_TELEGRAM__TOKEN="old-token")
    new = load(
        "sessions: {merge_seconds: 3}\nlocal: {port: 2000}\nlogging: {level: debug}", HERMES_TELEGRAM__TOKEN="new-token"
    )
    plan = reload_differences(old, new)
    assert set(plan.applied) == {"sessions.merge_seconds", "logging.level"}
    assert set(plan.needs_restart) == {"telegram.token", "local.port"}


def test_after_a_reload_the_running_values_are_the_effective_ones(load: Load) -> None:
    old = load("local: {port: 1000}\nsessions: {merge_seconds: 1}")
    merged = merge_for_reload(old, load("local: {port: 2000}\nsessions: {merge_seconds: 3}"))
    assert (merged.config.local.port, merged.config.sessions.merge_seconds) == (1000, 3)
    assert reload_differences(old, merged).needs_restart == ()


def test_tokens_hosts_ports_and_addresses_of_platforms_need_a_restart(load: Load) -> None:
    changed = {
        "HERMES_TELEGRAM__TOKEN": "t",
        "HERMES_TELEGRAM__BASE_URL": "http://127.0.0.1:1",
        "HERMES_DISCORD__TOKEN": "d",
        "HERMES_DISCORD__API_URL": "http://127.0.0.1:1",
        "HERMES_LOCAL__HOST": "::1",
        "HERMES_LOCAL__PORT": "1",
    }
    plan = reload_differences(load(), load(None, **changed))
    assert plan.applied == ()
    assert len(plan.needs_restart) == len(changed)


def test_a_reload_applies_access_thresholds_log_level_and_routes(load: Load) -> None:
    changed = {
        "HERMES_ACCESS__ADMINS": "telegram:42",
        "HERMES_MODEL__NAME": "m",
        "HERMES_MODEL__BASE_URL": "http://127.0.0.1:1",
        "HERMES_MODEL__API_KEY": "k",
        "HERMES_MODEL__CONTEXT_LENGTH": "100000",
        "HERMES_LOGGING__LEVEL": "debug",
        "HERMES_SESSIONS__IDLE_RESET_HOURS": "5",
        "HERMES_COMPRESSION__THRESHOLD": "0.3",
        "HERMES_HYGIENE__THRESHOLD": "0.9",
        "HERMES_AUXILIARY__COMPRESSION__MODEL": "small",
        "HERMES_NOTICES__PRESSURE": "false",
    }
    plan = reload_differences(load(), load(None, **changed))
    assert plan.needs_restart == ()
    assert {variable_name(tuple(key.split("."))) for key in plan.applied} >= set(changed)


def test_a_model_gets_the_values_of_every_matching_pattern(load: Load) -> None:
    compression = load(
        "compression:\n  threshold: 0.4\n  models:\n"
        "    'gpt-*': {threshold: 0.3, protect_last_n: 5}\n    'GPT-5*': {threshold: 0.2}\n"
    ).config.compression
    chosen = [(one.threshold, one.protect_last_n) for one in map(compression.for_model, ("gpt-5", "gpt-4", "other"))]
    assert chosen == [(0.2, 5), (0.3, 5), (0.4, 20)]


def test_only_settings_of_the_agent_clear_cooldowns(load: Load) -> None:
    marks = {
        settings_mark(load(f"model: {{name: m}}\n{yaml}", **variables).config)
        for yaml, variables in (
            ("", {}),
            ("compression: {threshold: 0.4}", {}),
            ("hygiene: {threshold: 0.9}", {}),
            ("auxiliary: {compression: {model: small}}", {}),
            ("", {"HERMES_MODEL__API_KEY": "one-key-of-many"}),
            ("", {"HERMES_MODEL__API_KEY": "another-key"}),
        )
    }
    assert len(marks) == 6
    assert settings_mark(load("model: {name: m}\nlogging: {level: debug}").config) in marks


def test_secrets_are_listed_for_redaction_and_masked_in_repr(load: Load) -> None:
    loaded = load(HERMES_TELEGRAM__TOKEN=TOKEN, HERMES_MODEL__NAME="m", OPENAI_API_KEY="sk-secret-key")
    assert set(loaded.secrets()) == {TOKEN, "sk-secret-key"}
    assert TOKEN not in repr(loaded)
    assert "sk-secret-key" not in repr(loaded)


@examples(40)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=10),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=5,
        ),
        max_size=3,
    )
    | st.fixed_dictionaries({"access": st.fixed_dictionaries({"allow": st.lists(st.text(max_size=12), max_size=3)})})
)
def test_any_file_gives_a_configuration_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, values: object
) -> None:
    home = tmp_path_factory.mktemp("any")
    (home / "config.yaml").write_text(pyyaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    with contextlib.suppress(ConfigError):
        assert load_config({"HERMES_HOME": str(home)}).home == home
