"""Files of the state directory: their paths, the program that owns them, and the contents of `config.yaml` and `.env`.

The functions return plain nested values with line numbers; `loader.py` interprets them. Other programs also use
`HERMES_HOME` and these file names. A file that belongs to another program is never changed: an error names it instead.
"""

import io
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import yaml
from dotenv.parser import parse_stream

from hermes_state.engines.sqlite.connections import check_ours
from hermes_state.errors import ConfigError, DatabaseRejected, StoreUnavailable
from hermes_state.store.lock import holder

KeyPath: TypeAlias = tuple[str, ...]

MAX_FILE_BYTES = 65_536
"""Maximum size of a configuration file, in bytes. Parsing a file of this size takes half a second."""

MAX_VALUES = 50_000
"""Maximum number of keys and values in a configuration, because a few nested YAML aliases could expand to billions."""


class YamlFile(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed YAML file. `lines` contains the line number of every key and list item, counted from 1."""

    path: Path
    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    lines: Mapping[KeyPath, int] = msgspec.field(default_factory=dict)

    def position(self, key: KeyPath) -> str:
        """Return a key's position, such as `/home/…/config.yaml line 7`; for YAML aliases and merges, only the path.

        An item of a list that is written as one text has the position of its key.
        """
        if key not in self.lines and key[-1].startswith("["):
            key = key[:-1]
        return f"{self.path} line {self.lines[key]}" if key in self.lines else str(self.path)


def read_yaml(path: Path, draft: str | None = None) -> YamlFile:
    """Return the mapping in `path`, or in the text that will be written there, or an empty mapping without a text.

    Raises `ConfigError` for bad YAML, a duplicate key, or a file that is not a mapping.
    """
    text = read_text(path, draft)
    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # the text has a character that YAML does not allow
        raise ConfigError(f"{path}: not valid YAML: {_problem(error)}") from error
    try:
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return YamlFile(path=path)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}: must contain keys and values, such as `local: {{port: 8765}}`")
        node.value = [_with_accounts(*pair) for pair in node.value]
        if _count(node, {}) > MAX_VALUES:
            raise ConfigError(f"{path}: more than {MAX_VALUES:,} keys and values: use fewer YAML aliases (*name)")
        lines = dict(_key_lines(node, (), path))
        values = loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_position(error)}: not valid YAML: {_problem(error)}") from error
    except (ValueError, RecursionError) as error:  # a date such as 2026-13-45, or an alias inside itself
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    return YamlFile(path=path, values=values, lines=lines)


def read_env_file(path: Path, draft: str | None = None) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the variables in `path`, or in the text that will be written there, and a warning for each ignored line.

    A file that does not exist has no variables.
    """
    content = read_text(path, draft)
    values: dict[str, str] = {}
    warnings: list[str] = []
    for binding in parse_stream(io.StringIO(content)):
        if binding.error:
            text = binding.original.string  # includes the blank lines above the binding
            line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            warnings.append(f"{path} line {line}: this line is ignored; write NAME=value")
        elif binding.key is not None and binding.value is None:
            warnings.append(f"{path}: {binding.key} has no value and is ignored; write {binding.key}=value")
        elif binding.key is not None and binding.value is not None:
            values[binding.key] = binding.value
    return values, tuple(warnings)


def read_text(path: Path, draft: str | None = None) -> str:
    """Return the text of a file, or its draft. The text of a file that does not exist is empty."""
    try:
        if (path.stat().st_size if draft is None else len(draft.encode())) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES:,} bytes: keep only the configuration in it")
        return path.read_text(encoding="utf-8-sig") if draft is None else draft
    except FileNotFoundError:
        return ""
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}): save the file as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; check its permissions") from error


def _with_accounts(key: yaml.Node, value: yaml.Node) -> tuple[yaml.Node, yaml.Node]:
    """Read a list of accounts directly under a platform as the platform's key `accounts`."""
    if key.value not in ("telegram", "discord") or not isinstance(value, yaml.SequenceNode):
        return key, value
    name = yaml.ScalarNode("tag:yaml.org,2002:str", "accounts", key.start_mark, key.end_mark)
    return key, yaml.MappingNode("tag:yaml.org,2002:map", [(name, value)], value.start_mark, value.end_mark)


def _count(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Count a node and everything below it, with aliases expanded, up to `MAX_VALUES`. `known` caches counts."""
    if node not in known:
        known[node] = MAX_VALUES + 1  # used if the node contains an alias of itself
        held = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        below = () if isinstance(node, yaml.ScalarNode) else held
        known[node] = min(1 + sum(_count(child, known) for child in below), MAX_VALUES + 1)
    return known[node]


def _key_lines(node: yaml.MappingNode, above: KeyPath, path: Path) -> Iterator[tuple[KeyPath, int]]:
    """Yield every key with its line. Raises `ConfigError` for a duplicate key, which YAML would silently accept."""
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = (*above, str(key_node.value))
        if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
            first, name = seen[key_node.value], ".".join(key)
            raise ConfigError(f"{path} line {line}: {name} occurs twice (first in line {first}): remove one of them")
        if isinstance(key_node, yaml.ScalarNode):
            seen[key_node.value] = line
        yield key, line
        if isinstance(value_node, yaml.MappingNode):
            yield from _key_lines(value_node, key, path)
        elif isinstance(value_node, yaml.SequenceNode):
            for number, item in enumerate(value_node.value, start=1):
                yield (*key, f"[{number}]"), item.start_mark.line + 1


def _position(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f" line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _problem(error: yaml.YAMLError) -> str:
    """Return the parser's message, without the excerpt of the file, which might contain a secret."""
    parts = (getattr(error, "context", None), getattr(error, "problem", None) or getattr(error, "reason", None))
    return ", ".join(part for part in parts if part) or type(error).__name__


class _Entry:
    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, state: "StateDirectory", _: type["StateDirectory"]) -> Path:
        return state.home.joinpath(*self._names)


class StateDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """Paths in the state directory. Commands that only send requests to the daemon need no other configuration."""

    home: Path
    """Absolute path, which might not exist yet."""

    config_file = _Entry("config.yaml")
    env_file = _Entry(".env")
    database = _Entry("state.db")
    lock_file = _Entry("state.db.lock")
    """Lock file. The process that has the database open for writing holds the lock."""
    attachments = _Entry("attachments")
    attachments_cache = _Entry("cache", "attachments")
    """Local copies of attachments that are stored in an object store."""
    workspaces = _Entry("workspaces")
    logs = _Entry("logs")
    control_socket = _Entry("control.sock")

    def home_of(self, agent: str) -> Path:
        """Return the directory with the memory and workspaces of an agent."""
        return self.home / "agents" / agent if agent else self.home


def find_state(environ: Mapping[str, str]) -> StateDirectory:
    """Return the state directory. Raises `ConfigError` if the directory belongs to another program."""
    home = locate_home(environ)
    check_home(home)
    return StateDirectory(home=home)


def locate_home(environ: Mapping[str, str]) -> Path:
    """Return the absolute path of `HERMES_HOME` (default: `~/.hermes-gateway`).

    Raises `ConfigError` if the path depends on the user's home directory, and the user has none.
    """
    named = environ.get("HERMES_HOME", "").strip()
    if named and named != "~" and not named.startswith("~/"):
        return Path(os.path.abspath(named))
    if (user_home := find_user_home(environ)) is None:
        raise ConfigError("this user has no home directory: set HERMES_HOME to the path of the state directory")
    return user_home / (named[2:] if named else ".hermes-gateway")


def find_user_home(environ: Mapping[str, str]) -> Path | None:
    """Return the user's home directory, or None if neither HOME nor a passwd entry exists, as in some containers."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return None


def prepare_home(home: Path) -> None:
    """Create the state directory with mode 0700. Call `check_home` first. Raises `ConfigError` if it is not usable."""
    try:
        for directory in (home, home / "logs", home / "attachments"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{home}: cannot be created: {reason}; set HERMES_HOME to a different directory") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"{home}: this user cannot write to the state directory: change its owner or permissions")


def check_home(home: Path) -> None:
    """Check that `home` can be the state directory. Raises `ConfigError` with the reason."""
    database = home / "state.db"
    try:
        if home.exists() and not home.is_dir():
            raise ConfigError(f"{home}: is not a directory: set HERMES_HOME to the path of the state directory")
        if holder(home / "state.db.lock") is None:  # if a daemon holds the lock, it has checked the database itself
            check_ours(database)
    except DatabaseRejected as error:
        raise ConfigError(f"{error}; nothing was changed") from error
    except StoreUnavailable as error:
        raise ConfigError(f"{home}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{home}: cannot be read: {error.strerror or error}; check its permissions") from error


def check_config_is_ours(file: YamlFile) -> None:
    """Raise `ConfigError` if the file is hermes-agent's configuration."""
    keys = {str(key) for key in file.values}
    alone = keys & {"_config_version", "toolsets", "platform_toolsets"}
    together = keys & {"browser", "checkpoints", "custom_providers", "delegation", "display", "fallback_providers"}
    together |= keys & {"personalities", "terminal", "tts"}
    if alone or len(together) >= 2:  # a typing error can explain one of these keys, but not two
        raise ConfigError(
            f"{file.path}: belongs to hermes-agent (it has {', '.join(sorted(alone or together))}). "
            "Nothing was changed; set HERMES_HOME to a different directory for the gateway"
        )
