"""The state directory: where it is, and whether what lies in it is ours.

Other programs use `HERMES_HOME` and the same file names. Their files are named in the error and never
touched: no lock, no temporary file, no SQLite connection, only the first bytes read.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_state.errors import ConfigError
from hermes_state.migrate import APPLICATION_ID

DEFAULT_HOME = ".hermes-gateway"

_SQLITE_MAGIC = b"SQLite format 3\x00"
_APPLICATION_ID_OFFSET = 68
_WAL_HEADER_BYTES = 32
_WAL_FRAME_BYTES = 24

_FOREIGN_ALONE = frozenset({"_config_version", "toolsets", "platform_toolsets"})
_FOREIGN_TOGETHER = frozenset(
    {"agent", "browser", "checkpoints", "custom_providers", "delegation", "display"}
    | {"fallback_providers", "personalities", "terminal", "tts"}
)
"""Top-level keys of hermes-agent's configuration. One of the first, or two of the second, are no slip of ours."""


def locate_home(environ: Mapping[str, str]) -> Path:
    """The absolute state directory: `HERMES_HOME`, or `~/.hermes-gateway`."""
    user_home = Path(environ.get("HOME") or Path.home())
    named = environ.get("HERMES_HOME", "").strip()
    if not named:
        return user_home / DEFAULT_HOME
    if named == "~" or named.startswith("~/"):
        return user_home / named[2:]
    return Path(os.path.abspath(named))


def prepare_home(home: Path) -> None:
    """Make the state directory and what is in it, closed to others. For the daemon and `init`, after `check_home`.

    Raises `ConfigError` when it cannot be made or written.
    """
    try:
        for directory in (home, home / "logs", home / "attachments"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{home}: the state directory cannot be made: {error.strerror or error}") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"{home}: the state directory cannot be written by this user")


def check_home(home: Path, *, look_at_database: bool) -> None:
    """Raises `ConfigError` naming what is in the way if `home` cannot be our state directory."""
    if home.exists() and not home.is_dir():
        raise ConfigError(f"{home}: is not a directory; HERMES_HOME must name the state directory")
    database = home / "state.db"
    if look_at_database and _exists(database) and not is_our_database(database):
        raise ConfigError(
            f"{database}: was not made by hermes-gateway (hermes-agent uses the same name). "
            "Set HERMES_HOME to a directory of its own; nothing was changed"
        )


def check_config_is_ours(file: Path, values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the file is plainly hermes-agent's configuration."""
    keys = {str(key) for key in values}
    telling = sorted(keys & _FOREIGN_ALONE) or sorted(keys & _FOREIGN_TOGETHER)
    if keys & _FOREIGN_ALONE or len(telling) >= 2:
        raise ConfigError(
            f"{file}: is hermes-agent's configuration (it has {', '.join(telling)}). "
            "Set HERMES_HOME to a directory of its own; nothing was changed"
        )


def is_our_database(path: Path) -> bool:
    """Whether an existing file is empty or carries our application id. Reads a few bytes, opens no database."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
        if not header:
            return True
        if not header.startswith(_SQLITE_MAGIC):
            return False
        found = _application_id(header)
        if found == 0:
            found = _application_id_in_wal(path.with_name(path.name + "-wal"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    return found == APPLICATION_ID


def _application_id(page: bytes) -> int:
    return int.from_bytes(page[_APPLICATION_ID_OFFSET : _APPLICATION_ID_OFFSET + 4], "big")


def _application_id_in_wal(path: Path) -> int:
    """The id in the newest page 1 of the write-ahead log: a crash may have left a new database's id only there."""
    found = 0
    try:
        with path.open("rb") as file:
            header = file.read(_WAL_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            if len(header) < _WAL_HEADER_BYTES or page_bytes < 512:
                return 0
            while len(frame := file.read(_WAL_FRAME_BYTES + page_bytes)) == _WAL_FRAME_BYTES + page_bytes:
                if int.from_bytes(frame[:4], "big") == 1:
                    found = _application_id(frame[_WAL_FRAME_BYTES:])
    except FileNotFoundError:
        return 0
    return found


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be looked at: {error.strerror or error}") from error
