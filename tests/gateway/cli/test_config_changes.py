"""Commands that change the configuration: `config set`, `config diff` and `config migrate`."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import load_config
from gateway.operator.effective import comparable_settings
from gateway.operator.socket import serve_control
from hermes_state.errors import ConfigError
from hermes_state.redaction import MARK
from tests.gateway.cli.test_cli import threaded
from tests.gateway.command_line import answering
from tests.gateway.helpers import Run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("# mine\nlocal: {port: 9000}\n")
    return home


def test_a_valid_value_is_written_and_a_secret_goes_to_the_other_file(run: Run, home: Path) -> None:
    done = run("config", "set", "local.port", "9001")
    assert done.output == (
        f"Set local.port in {home / 'config.yaml'}. A running gateway uses it after the next start.\n"
    )
    assert "a reload (`/reload` or SIGHUP)" in run("config", "set", "model.name", "on").output
    assert f"in {home / '.env'}" in run("config", "set", "model.api_key", "sk-lab-key-1").output
    config = load_config({"HERMES_HOME": str(home)}).config
    assert (config.local.port, config.model.name, config.model.plain_key) == (9001, "on", "sk-lab-key-1")
    assert (home / "config.yaml").read_text() == "# mine\nlocal: {port: 9001}\nmodel:\n  name: 'on'\n"
    assert run("config", "set", "model.name", "").output.startswith("Removed model.name")


def test_a_removed_secret_is_no_longer_used_and_the_remaining_source_is_named(run: Run, home: Path) -> None:
    (home / "config.yaml").write_text("model:\n  name: m\n  api_key: sk-in-yaml  # mine\n")
    (home / ".env").write_text("OPENAI_API_KEY=sk-customary\nHERMES_MODEL__API_KEY=sk-env\n")
    done = run("config", "set", "model.api_key", "").output
    assert f"model.api_key is still set: its value comes from {home / '.env'}: OPENAI_API_KEY." in done
    assert "Comments dropped from the changed lines: 1." in done
    assert (home / "config.yaml").read_text() == "model:\n  name: m\n"
    assert (home / ".env").read_text() == "OPENAI_API_KEY=sk-customary\n"
    (home / ".env").unlink()
    assert "still set" not in run("config", "set", "model.api_key", "").output


@pytest.mark.parametrize(
    ("key", "value", "variables", "words"),
    [
        ("local.prt", "1", {}, "unknown key local.prt; did you mean local.port?"),
        ("local.port", "many", {}, "{home}/config.yaml line 2: local.port: must be a whole number"),
        ("local.port", "[1", {}, "local.port: the value is not valid YAML"),
        ("local.port", "9001", {"HERMES_LOCAL__PORT": "9002"}, "HERMES_LOCAL__PORT overrides local.port"),
    ],
)
def test_an_invalid_change_is_refused_and_nothing_is_written(
    run: Run, home: Path, key: str, value: str, variables: dict[str, str], words: str
) -> None:
    refused = run("config", "set", key, value, **variables)
    assert isinstance(refused.exception, ConfigError)
    assert words.format(home=home) in str(refused.exception)
    assert {path.name: path.read_text() for path in home.iterdir() if path.is_file()} == {
        "config.yaml": "# mine\nlocal: {port: 9000}\n"
    }


async def test_the_differences_from_a_running_gateway_and_from_the_defaults(run: Run, home: Path) -> None:
    def keys(output: str) -> list[tuple[str, Any, Any]]:
        return [(row["key"], row["before"], row["after"]) for row in json.loads(output)]

    running = comparable_settings(load_config({"HERMES_HOME": str(home)}).config)
    assert keys(run("config", "diff", "--json").output) == [("local.port", 8765, 9000)]

    async with serve_control(home / "control.sock", {}):
        refused = await threaded(run, "config", "diff")
    assert "has a different version" in str(refused.exception)
    async with serve_control(home / "control.sock", {"config.values": answering(running)}):
        assert (await threaded(run, "config", "diff")).output == "There are no differences.\n"
        run("config", "set", "sessions.groups", "per_user")
        run("config", "set", "model.extra_headers", "{x-key: hdr-1}")
        running["model.extra_headers"] = comparable_settings(load_config({"HERMES_HOME": str(home)}).config)[
            "model.extra_headers"
        ]
        run("config", "set", "model.extra_headers", "{x-key: hdr-2}")
        del running["local.port"]  # the gateway has another version
        found = (await threaded(run, "config", "diff", "--json")).output
    assert keys(found) == [
        ("local.port", None, 9000),
        ("model.extra_headers", {"x-key": MARK}, {"x-key": MARK}),
        ("sessions.groups", "shared", "per_user"),
    ]
    assert "hdr-" not in found


def test_a_migration_can_be_shown_and_taken_back(run: Run, home: Path) -> None:
    old = "compression: {summary_model: small, prune_style: stub}\n"
    (home / "config.yaml").write_text(old)
    shown = run("config", "migrate", "--dry-run").output
    assert "-compression: {summary_model: small, prune_style: stub}" in shown
    assert "+    model: small" in shown
    assert (home / "config.yaml").read_text() == old
    run("config", "migrate")
    run("config", "set", "model.name", "later")
    assert run("config", "check").output.count("no longer a setting") == 0
    assert run("config", "migrate").output == "Nothing to change.\n"
    assert "Would put back" in run("config", "migrate", "--rollback", "--dry-run").output
    run("config", "migrate", "--rollback")
    assert (home / "config.yaml").read_text() == old


def test_a_migration_shows_no_secret_and_leaves_an_empty_home_empty(run: Run, home: Path) -> None:
    (home / "config.yaml").unlink()
    for option in ("--dry-run", "--rollback", ""):
        run("config", "migrate", *([option] if option else []))
    assert [path for path in home.iterdir() if path.is_file()] == []
    old = "mcp: {servers: {x: {command: srv, args: [--pass, opensesame9]}}}\nmodel: {api_key: s3cr3t77-1, top_p: 0.9}\n"
    (home / "config.yaml").write_text(old)
    env = 'PGPASS=plainpw55\nHERMES_AUXILIARY__TITLE__EXTRA_HEADERS={"X-Auth": "hdr-s3cr3t-55"}\n'
    (home / ".env").write_text(env)
    shown = run("config", "migrate", "--dry-run").output
    assert "-.env: HERMES_AUXILIARY__TITLE__EXTRA_HEADERS" in shown
    assert "-model: {api_key: " in shown
    assert not [secret for secret in ("s3cr3t77-1", "hdr-s3cr3t-55", "plainpw55", "opensesame9") if secret in shown]


def test_the_schema_knows_every_block(run: Run) -> None:
    schema = json.loads(run("config", "schema").output)
    assert schema["properties"]["local"]["properties"]["port"]["maximum"] == 65_535
    assert schema["properties"]["model"]["additionalProperties"] is False


def test_settings_can_name_files_in_the_home(run: Run, home: Path) -> None:
    agents = "agents:\n  chef: {persona: chef.md, skills: cooking}\n  bob: {}\n"
    (home / "config.yaml").write_text("compression: {summary_model: small}\n" + agents)
    (home / "chef.md").write_text("You are a chef.")
    (home / "cooking").mkdir()
    assert run("config", "set", "model.name", "m").exit_code == 0
    assert run("config", "migrate").exit_code == 0
    (home / "chef.md").unlink()
    refused = str(run("config", "set", "model.name", "n").exception)
    assert refused.endswith(f"agents.chef.persona: there is no file {home / 'chef.md'}")
    assert "name: m\n" in (home / "config.yaml").read_text()
