"""Write `config.yaml` and `.env`, for `hermes-gateway init` and for the set-up page of the web chat."""

import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from dotenv.parser import parse_stream

from gateway.config.files import prepare_home, read_yaml
from hermes_state.errors import ConfigError

TELEGRAM_TOKEN = "HERMES_TELEGRAM__TOKEN"
DISCORD_TOKEN = "HERMES_DISCORD__TOKEN"
MODEL_KEY = "HERMES_MODEL__API_KEY"
MODEL_NAME = "HERMES_MODEL__NAME"
MODEL_PROTOCOL = "HERMES_MODEL__PROTOCOL"
MODEL_BASE_URL = "HERMES_MODEL__BASE_URL"
ADMINS = "HERMES_ACCESS__ADMINS"

SECRETS = (TELEGRAM_TOKEN, DISCORD_TOKEN, MODEL_KEY)
"""Variables that are written to `.env`. All others are written to `config.yaml`."""

_KEYS = {
    MODEL_NAME: ("model", "name"),
    MODEL_PROTOCOL: ("model", "protocol"),
    MODEL_BASE_URL: ("model", "base_url"),
    ADMINS: ("access", "admins"),
}
_MARK = "# Written by "
_HEADER = f"{_MARK}hermes-gateway. All settings: `hermes-gateway config keys`.\n"


def new_files(home: Path, answers: Mapping[str, str], *, keeps: bool = False) -> Mapping[str, str]:
    """Return new contents of `config.yaml` and `.env`.

    `answers` maps variables to values, or to an empty string to remove one. If `keeps` is True, all other values in the
    existing files are kept. Raises `ConfigError` if that would change a `config.yaml` that a person wrote, because its
    comments would be lost.
    """
    config = home / "config.yaml"
    written, env = (_text(config), _text(home / ".env")) if keeps else ("", "")
    old = read_yaml(config).values if keeps else {}
    settings = _changed(old, answers)
    text = _HEADER + (yaml.safe_dump(settings, sort_keys=False) if settings else "")
    if written and settings == old:
        text = written
    elif written and not written.startswith(_MARK):
        raise ConfigError(
            f"{config}: this file was written by hand, so it was not changed; set the keys of `model` there"
        )
    # Values are quoted, so that variables in them are not expanded.
    escaped = {name: answers[name].replace("\\", "\\\\").replace("'", "\\'") for name in SECRETS if answers.get(name)}
    lines = "".join(f"{name}='{value}'\n" for name, value in escaped.items())
    return {"config.yaml": text, ".env": _without(env, answers) + lines}


def write_files(home: Path, files: Mapping[str, str]) -> None:
    """Write files to the state directory. Raises `ConfigError` if this is impossible."""
    prepare_home(home)
    for name, text in files.items():
        replace_file(home / name, text)


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner. An existing file is kept as `.bak`."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            old = path.with_name(path.name + ".bak")
            old.unlink(missing_ok=True)
            os.link(path, old)  # a hard link, so that the configuration file exists at all times
        new.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def _changed(settings: Mapping[str, Any], answers: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the settings with the answers added. Blocks that become empty are left out."""
    changed = dict(settings)
    for variable, (block, key) in _KEYS.items():
        if variable in answers:
            text = answers[variable]
            value = [part.strip() for part in text.split(",") if part.strip()] if variable == ADMINS else text
            values = {**(changed.get(block) or {}), key: value}
            if not value:
                del values[key]
            changed[block] = values
    return {name: value for name, value in changed.items() if value or name not in ("model", "access")}


def _without(text: str, answers: Mapping[str, str]) -> str:
    """Return the text of an `.env` file without the variables in `answers`. Comments are kept."""
    bindings = list(parse_stream(StringIO(text)))
    kept = "".join(one.original.string for one in bindings if one.key is None or one.key not in answers)
    return kept if not kept or kept.endswith("\n") else kept + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
