"""Changes of `config.yaml` and `.env` by the program."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from gateway.config import load_config
from gateway.config.fields import variable_name
from gateway.config.writing import (
    ADMINS,
    MODEL_BASE_URL,
    MODEL_KEY,
    MODEL_NAME,
    MODEL_PROTOCOL,
    TELEGRAM_TOKEN,
    files_before_migration,
    locked,
    lost_comments,
    migrated_files,
    new_files,
    write_files,
)
from gateway.operator.effective import effective_settings
from hermes_state.errors import ConfigError


def save(home: Path, **answers: str) -> None:
    write_files(home, new_files(home, answers, keeps=True))


def test_later_answers_keep_all_other_values(tmp_path: Path) -> None:
    home = tmp_path / "home"
    save(home, **{MODEL_NAME: "qwen3:8b", MODEL_BASE_URL: "http://127.0.0.1:11434/v1", ADMINS: "telegram:42"})
    save(home, **{TELEGRAM_TOKEN: "123:TOKEN"})
    save(home, **{MODEL_NAME: "claude-lab", MODEL_PROTOCOL: "anthropic", MODEL_BASE_URL: "", MODEL_KEY: "it's\\key"})
    config = load_config({"HERMES_HOME": str(home)}).config
    assert (config.model.name, config.model.protocol, config.model.base_url) == ("claude-lab", "anthropic", None)
    assert config.model.plain_key == "it's\\key"
    assert config.access.admins == ("telegram:42",)
    assert config.telegram.token is not None
    assert config.telegram.token.get_secret_value() == "123:TOKEN"
    assert {stat.S_IMODE((home / name).stat().st_mode) for name in ("config.yaml", ".env")} == {0o600}


def test_comments_and_other_variables_of_env_stay(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"# mine\nOTHER=1\n{TELEGRAM_TOKEN}=old\n\n# more\nexport LAST=2")
    save(tmp_path, **{TELEGRAM_TOKEN: "123:NEW"})
    assert (tmp_path / ".env").read_text() == f"# mine\nOTHER=1\n\n# more\nexport LAST=2\n{TELEGRAM_TOKEN}='123:NEW'\n"
    (tmp_path / ".env").write_text(f"# mine\n{MODEL_NAME}=old\n")
    save(tmp_path, **{MODEL_NAME: "new"})  # a variable in .env would hide the value in config.yaml
    assert (tmp_path / ".env").read_text() == "# mine\n"


HAND_WRITTEN = """\
# My gateway
model:
    # the main model
    name: "qwen3:8b"   # local

# who may talk
access:
  admins:
    - telegram:42   # me

    # nobody else
compression: {threshold: 0.4}   # early
"""
"""A file with comments and indentations that a program would write differently."""


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("model.name", "on", '"qwen3:8b"', "'on'"),
        ("model.base_url", "http://x/v1", "    # the main", "    base_url: http://x/v1\n    # the main"),
        ("model.name", "", 'model:\n    # the main model\n    name: "qwen3:8b"   # local\n', ""),
        ("access.admins", ["discord:7"], "\n    - telegram:42 ", " ['discord:7'] "),
        ("access.admins", "", "access:\n  admins:\n    - telegram:42   # me\n", ""),
        ("compression.threshold", 0.3, "0.4", "0.3"),
        ("compression.mode", "blocking", "0.4", "0.4, mode: blocking"),
        ("compression.threshold", "", "compression: {threshold: 0.4}   # early\n", ""),
        ("telegram.webhook.port", 8443, "   # early\n", "   # early\ntelegram:\n  webhook:\n    port: 8443\n"),
    ],
)
def test_only_the_lines_of_a_changed_key_change(
    key: str, value: object, before: str, after: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(HAND_WRITTEN)
    assert HAND_WRITTEN.count(before) == 1
    files = new_files(tmp_path, {variable_name(tuple(key.split("."))): value}, keeps=True)
    assert files["config.yaml"] == HAND_WRITTEN.replace(before, after)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "# Written by hermes-gateway. All settings: `hermes-gateway config keys`.\nlocal:\n  port: 9\n"),
        ("# mine", "# mine\nlocal:\n  port: 9\n"),
        ("local:\nmodel: {name: m}", "local:\n  port: 9\nmodel: {name: m}"),
        ("local: {}\n", "local: {port: 9}\n"),
        ("local: {port: 9}", "local: {port: 9}"),
        ("{local: {port: 1}}", "{local: {port: 9}}"),
        ("a: &a {port: 1}\nlocal: *a\n", "edit it by hand"),
        ("local: [port]\n", "edit it by hand"),
    ],
)
def test_forms_of_a_file(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    try:
        found = new_files(tmp_path, {"HERMES_LOCAL__PORT": 9}, keeps=True)["config.yaml"]
    except ConfigError as error:
        found = str(error)
        assert f"{tmp_path / 'config.yaml'}: local.port" in found
    assert found.endswith(expected)
    assert (tmp_path / "config.yaml").read_text() == text


def test_keys_of_earlier_versions_are_replaced(tmp_path: Path) -> None:
    old = """\
compression:
  summary_model: small   # cheap
  prune_style: stub
  models:
    "gpt*": {prune_style: stub, threshold: 0.4}
"""
    (tmp_path / "config.yaml").write_text(old)
    (tmp_path / ".env").write_text("HERMES_AUXILIARY__TITLE__MODE=off\nOTHER=1\n")
    environ = {"HERMES_HOME": str(tmp_path)}
    before = load_config(environ)
    write_files(tmp_path, migrated_files(environ, before))
    after = load_config(environ)
    assert (after.config, after.warnings) == (before.config, ())
    assert (tmp_path / ".env").read_text() == "OTHER=1\n"
    assert migrated_files(environ, after) == {}
    save(tmp_path, HERMES_MODEL__NAME="later")
    write_files(tmp_path, files_before_migration(tmp_path))
    assert (tmp_path / "config.yaml").read_text() == old


ALIASES = 'HERMES_MODEL__ALIASES={"fast": "gpt-5-nano"}\n'


@pytest.mark.parametrize(
    ("text", "env", "key", "value"),
    [
        ('auxiliary: {title: {mode: "off"}, flush: {mode: same-as-main}}\n', "", "auxiliary.title", "off"),
        ("auxiliary:\n  mode: 'off'\n  title:\n    mode: ''\n", "", "auxiliary.title", "off"),
        ("auxiliary:\n  mode: 'off'\n  title:\n", "HERMES_AUXILIARY__MODE=\n", "auxiliary.title", "off"),
        (
            "compression: {summary_model: small}\nauxiliary:\n  compression:\n    model: ''\n",
            "",
            "auxiliary.compression.model",
            "small",
        ),
        ("auxiliary:\n  # fast\n  title: {model: fast}\n", ALIASES, "auxiliary.title", "fast"),
    ],
)
def test_a_migration_keeps_every_effective_value(text: str, env: str, key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / ".env").write_text(env)
    environ = {"HERMES_HOME": str(tmp_path)}
    before = load_config(environ)
    write_files(tmp_path, migrated_files(environ, before))
    after = load_config(environ)
    assert (after.config, after.warnings) == (before.config, ())
    assert effective_settings(after)[key] == (value, str(tmp_path / "config.yaml"))


def test_a_migration_that_would_change_a_setting_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {aliases: {fast: m}}\nauxiliary: {title: {api_key: sk-1}}\n")
    environ = {"HERMES_HOME": str(tmp_path), "HERMES_AUXILIARY__TITLE__MODEL": "fast"}
    with pytest.raises(ConfigError, match=r"would change auxiliary\.title"):  # the key makes the variable ineffective
        migrated_files(environ, load_config(environ))


def test_a_broken_line_of_env_never_costs_another_secret(tmp_path: Path) -> None:
    text = f"OTHER='oops\n{TELEGRAM_TOKEN}=123:TOKEN\n{MODEL_KEY}=sk-old\n"
    (tmp_path / ".env").write_text(text)
    with pytest.raises(ConfigError, match=r"\.env: cannot be changed automatically.*\n.*\.env line 1: this line"):
        save(tmp_path, **{MODEL_KEY: "sk-new"})
    assert (tmp_path / ".env").read_text() == text


def test_a_write_keeps_the_link_the_owner_the_line_ends_and_a_private_copy(tmp_path: Path) -> None:
    home, real = tmp_path / "home", tmp_path / "real.yaml"
    home.mkdir()
    old = b"# mine\r\nmodel:\r\n  name: a\r\n"
    real.write_bytes(old)
    real.chmod(0o644)
    (home / "config.yaml").symlink_to(real)
    owner = 1234 if os.geteuid() == 0 else os.geteuid()  # only root can give a file away
    os.chown(real, owner, -1)
    save(home, **{MODEL_NAME: "b"})
    save(home, **{MODEL_NAME: "b"})  # without a change, the copy stays
    assert (home / "config.yaml").is_symlink()
    assert real.read_bytes() == old.replace(b"a\r\n", b"b\r\n")
    copy = home / "config.yaml.bak"
    assert copy.read_bytes() == old
    assert {(stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) for path in (real, copy)} == {(0o600, owner)}
    assert {path.name for path in home.iterdir() if path.is_file()} == {"config.yaml", "config.yaml.bak"}


def test_one_process_at_a_time_changes_the_files(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    with locked(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_lost_comments_are_counted() -> None:
    before = "# one\nmodel: {  # two\n  name: 'a # no'}\nadmins:\n  - x  # three\n# four\n"
    assert lost_comments(before, "# four\n# one\nmodel: {name: '# two'}\n") == 2
