"""The state directory: where it is, and whether what lies in it is ours.

Other programs use `HERMES_HOME` and the same file names. Their files are named in the error and never
touched.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_state.connections import check_ours
from hermes_state.errors import ConfigError, ForeignFile, SchemaTooNew, StoreUnavailable

DEFAULT_HOME = ".hermes-gateway"

_FOREIGN_ALONE = frozenset({"_config_version", "toolsets", "platform_toolsets"})
_FOREIGN_TOGETHER = frozenset(
    {"browser", "checkpoints", "custom_providers", "delegation", "display"}
    | {"fallback_providers", "personalities", "terminal", "tts"}
)
"""Top-level keys of hermes-agent's configuration. One of the first, or two of the second, are no slip of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirectory:
    """Where everything lies. Asking a running daemon takes no more than this, whatever the configuration says."""

    home: Path
    """Absolute; it may not exist yet."""

    @property
    def config_file(self) -> Path:
        return self.home / "config.yaml"

    @property
    def env_file(self) -> Path:
        return self.home / ".env"

    @property
    def database(self) -> Path:
        return self.home / "state.db"

    @property
    def attachments(self) -> Path:
        return self.home / "attachments"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def control_socket(self) -> Path:
        return self.home / "control.sock"

    @property
    def lock_file(self) -> Path:
        """Held by whoever has the database open for writing."""
        return self.home / "state.db.lock"


def find_state(environ: Mapping[str, str]) -> StateDirectory:
    """The state directory. Raises `ConfigError` when what lies there is not ours."""
    home = locate_home(environ)
    check_home(home)
    return StateDirectory(home=home)


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


def check_home(home: Path) -> None:
    """Raises `ConfigError` naming what is in the way if `home` cannot be our state directory."""
    database = home / "state.db"
    try:
        if home.exists() and not home.is_dir():
            raise ConfigError(f"{home}: is not a directory; HERMES_HOME must name the state directory")
        check_ours(database)
    except (ForeignFile, SchemaTooNew) as error:
        raise ConfigError(f"{error}; nothing was changed") from error
    except StoreUnavailable as error:
        raise ConfigError(f"{home}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{home}: cannot be looked at: {error.strerror or error}") from error


def check_config_is_ours(file: Path, values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if the file is plainly hermes-agent's configuration."""
    keys = {str(key) for key in values}
    telling = sorted(keys & _FOREIGN_ALONE) or sorted(keys & _FOREIGN_TOGETHER)
    if keys & _FOREIGN_ALONE or len(telling) >= 2:
        raise ConfigError(
            f"{file}: is hermes-agent's configuration (it has {', '.join(telling)}). "
            "Set HERMES_HOME to a directory of its own; nothing was changed"
        )
