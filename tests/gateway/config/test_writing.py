"""Changes of `config.yaml` and `.env` by the program."""

import stat
from pathlib import Path

import pytest

from gateway.config import load_config
from gateway.config.writing import (
    ADMINS,
    MODEL_BASE_URL,
    MODEL_KEY,
    MODEL_NAME,
    MODEL_PROTOCOL,
    TELEGRAM_TOKEN,
    new_files,
    write_files,
)
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


def test_a_file_that_a_person_wrote_is_not_rewritten(tmp_path: Path) -> None:
    text = "# my notes\nmodel:\n  context_length: 9000\n"
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="this file was written by hand"):
        save(tmp_path, **{MODEL_NAME: "m"})
    save(tmp_path, **{TELEGRAM_TOKEN: "123:TOKEN"})
    assert (tmp_path / "config.yaml").read_text() == text
    assert "123:TOKEN" in (tmp_path / ".env").read_text()
