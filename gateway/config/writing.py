"""Change `config.yaml` and `.env`: for `init`, `config set`, `config migrate` and the pages of the web chat.

In an existing file, only the lines of changed keys change. `lost_comments` counts the comments in them.
"""

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import yaml
from dotenv.parser import parse_stream

from gateway.config.blocks import is_secret
from gateway.config.fields import FIELDS, VARIABLES, dotted, variable_name
from gateway.config.files import KeyPath, YamlFile, prepare_home, read_env_file, read_text, read_yaml
from gateway.config.loader import LoadedConfig, load_config, reload_differences
from gateway.config.old_keys import OLD_KEYS, WITH_BLOCKS
from hermes_state.errors import ConfigError

TELEGRAM_TOKEN = "HERMES_TELEGRAM__TOKEN"
DISCORD_TOKEN = "HERMES_DISCORD__TOKEN"
MODEL_KEY = "HERMES_MODEL__API_KEY"
MODEL_NAME = "HERMES_MODEL__NAME"
MODEL_PROTOCOL = "HERMES_MODEL__PROTOCOL"
MODEL_BASE_URL = "HERMES_MODEL__BASE_URL"
ADMINS = "HERMES_ACCESS__ADMINS"

SECRETS = tuple(name for name, key in VARIABLES.items() if is_secret(FIELDS[key]))
"""Variables that are written to `.env`. All others are written to `config.yaml`."""

NAMES = ("config.yaml", ".env")
_BEFORE = ".before-migrate"
_HEADER = "# Written by hermes-gateway. All settings: `hermes-gateway config keys`.\n"


def new_files(home: Path, answers: Mapping[str, Any], *, keeps: bool = False) -> Mapping[str, str]:
    """Return new contents of `config.yaml` and `.env`.

    `answers` maps variables to values, or to an empty string to remove one. If `keeps` is True, all other values in the
    existing files are kept. Raises `ConfigError` if a file cannot be read, or has no place for a value.
    """
    config, env = home / "config.yaml", home / ".env"
    text, env_text = (read_text(config), read_text(env)) if keeps else ("", "")
    plain = {VARIABLES[name]: value for name, value in answers.items() if name not in SECRETS}
    if admins := plain.get(VARIABLES[ADMINS]):
        plain[VARIABLES[ADMINS]] = [part.strip() for part in admins.split(",")] if isinstance(admins, str) else admins
    secrets = {name: value for name, value in answers.items() if name in SECRETS}
    in_yaml = read_yaml(config, text).lines
    plain |= {VARIABLES[name]: "" for name, value in secrets.items() if not value and VARIABLES[name] in in_yaml}
    variables = {name: one if isinstance(one, str) else json.dumps(one) for name, one in secrets.items()}
    variables = dict.fromkeys(answers, "") | variables
    return {"config.yaml": _edited(config, text, plain), ".env": _with_variables(env, env_text, variables)}


def migrated_files(environ: Mapping[str, str], loaded: LoadedConfig) -> Mapping[str, str]:
    """Return new texts of the files with keys of earlier versions, or nothing if they have none.

    The effective values stay under the new keys. The texts include copies of the files for `files_before_migration`.
    Raises `ConfigError` if a file cannot be changed, or if the new files would change a setting.
    """
    config, env, file = loaded.config_file, loaded.env_file, read_yaml(loaded.config_file)
    old = {name: read_text(loaded.home / name) for name in NAMES}
    new = {key: value for key, (value, source) in loaded.carried.items() if source.startswith((str(config), str(env)))}
    changed = dict.fromkeys([*sorted(OLD_KEYS & file.lines.keys()), *_old_inner_keys(file)], "") | new
    files = {
        "config.yaml": _edited(config, old["config.yaml"], changed) if changed else old["config.yaml"],
        ".env": _with_variables(env, old[".env"], {variable_name(key): "" for key in OLD_KEYS}),
    }
    plan = reload_differences(loaded, load_config(environ, files))
    if keys := (*plan.applied, *plan.needs_restart):
        raise ConfigError(f"the migration would change {', '.join(keys)}: replace the old keys by hand")
    return {f"{name}{_BEFORE}": text for name, text in old.items()} | files if files != old else {}


def files_before_migration(home: Path) -> Mapping[str, str]:
    """Return the texts of the files before the last migration. Raises `ConfigError` if there was none."""
    # In this order, no value is missing after a kill between the two files.
    files = {name: read_text(home / f"{name}{_BEFORE}") for name in (".env", "config.yaml")}
    if not any(files.values()):
        raise ConfigError(f"{home}: there is no config.yaml{_BEFORE} or .env{_BEFORE} to put back")
    return files


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Create the state directory and lock it, so that no other command changes its files at the same time."""
    prepare_home(home)
    descriptor = os.open(home, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock a directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_files(home: Path, files: Mapping[str, str]) -> None:
    """Write files to the state directory atomically, readable only by their owner. A changed file is kept as `.bak`.

    Links, owners and line ends (LF or CRLF) of existing files stay. Raises `ConfigError` if a file cannot be written.
    """
    prepare_home(home)
    for path, text in ((home / name, text) for name, text in files.items()):
        try:
            target = path.resolve()
            old = target.read_bytes() if target.exists() else b""
            data = (text.replace("\n", "\r\n") if b"\r\n" in old else text).encode()
            owner = (target if target.exists() else target.parent).stat()
            if old and old != data:
                _write(path.with_name(f"{path.name}.bak"), old, owner)
            if old != data:
                _write(target, data, owner)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def lost_comments(before: str, after: str) -> int:
    """Return the number of comments of a YAML text that are missing in its new version."""
    return (Counter(_comments(before)) - Counter(_comments(after))).total()


def _comments(text: str) -> Iterator[str]:
    end = 0
    for token in yaml.scan(text):
        yield from re.findall("#.*", text[end : token.start_mark.index])
        end = token.end_mark.index


def _write(path: Path, data: bytes, owner: os.stat_result) -> None:
    descriptor, name = mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            if os.geteuid() == 0:  # otherwise, the gateway's own user could not read the file any more
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _edited(path: Path, text: str, values: Mapping[KeyPath, Any]) -> str:
    """Return YAML text with some values set, or removed if they are empty. Blocks that become empty are removed.

    Only the lines of these keys change. Raises `ConfigError` for a file whose form makes this impossible.
    """
    text = text or _HEADER
    for key, value in values.items():
        try:
            expected = _with_value(yaml.safe_load(text) or {}, key, value)
            text = _with_lines(text, key, value)
            is_right = (yaml.safe_load(text) or {}) == expected
        except (yaml.YAMLError, TypeError, ValueError):
            is_right = False
        if not is_right:
            raise ConfigError(f"{path}: {dotted(key)} cannot be changed automatically in this file: edit it by hand")
    return text


def _with_value(block: Any, key: KeyPath, value: Any) -> Any:
    """Return nested values with one value set or removed."""
    name, *below = key
    if isinstance(block, list):
        at = int(name)
        return [*block[:at], _with_value(block[at], tuple(below), value), *block[at + 1 :]]
    block = dict(block or {})
    new = _with_value(block.get(name), tuple(below), value) if below else value
    return {**block, name: new} if new not in ("", {}) else {one: held for one, held in block.items() if one != name}


def _with_lines(text: str, key: KeyPath, value: Any) -> str:
    """Return YAML text with one value set or removed. Raises `TypeError` if something on the way is not a block."""
    names, blocks = list[yaml.Node](), [yaml.compose(text, yaml.SafeLoader) or yaml.MappingNode("", [])]
    for name in key:
        pairs = blocks[-1].value if isinstance(blocks[-1], yaml.MappingNode) else []
        if isinstance(blocks[-1], yaml.SequenceNode):
            pairs = [(yaml.ScalarNode("", str(at), one.start_mark), one) for at, one in enumerate(blocks[-1].value)]
        if (pair := next((pair for pair in pairs if pair[0].value == name), None)) is None:
            break
        names.append(pair[0])
        blocks.append(pair[1])
        is_flow = isinstance(pair[1], yaml.CollectionNode) and pair[1].flow_style
        if is_flow and (below := key[len(names) :]):  # such as {name: x}: write the whole block again
            held = yaml.safe_load(text[pair[1].start_mark.index : pair[1].end_mark.index])
            return _with_lines(text, key[: len(names)], _with_value(held, below, value))
    if len(names) < len(key):
        return _with_new_lines(text, key, value, names, blocks[-1]) if value != "" else text
    if value not in ("", {}):
        start, end = blocks[-1].start_mark.index, _end(blocks[-1], text)
        colon = text.index(":", names[-1].end_mark.index) if start >= names[-1].end_mark.index else 0
        is_inline = "\n" not in text[colon:start] and start > colon + 1
        return text[: start if is_inline else colon + 1] + " " * (not is_inline) + _flow(value) + text[end:]
    while len(names) > 1 and len(blocks[-2].value) == 1:
        names.pop()
        blocks.pop()
    first = text.rfind("\n", 0, names[-1].start_mark.index) + 1
    after = text.find("\n", _end(blocks[-1], text))
    return text[:first] + (text[after + 1 :] if after >= 0 else "")


def _with_new_lines(text: str, key: KeyPath, value: Any, names: Sequence[yaml.Node], block: yaml.Node) -> str:
    """Return YAML text with a new key, whose blocks `names` exist already: first in its block, or last in the file."""
    column, at = 0, len(text)
    if names:
        is_filled = isinstance(block, yaml.MappingNode)
        if not is_filled and block.tag != "tag:yaml.org,2002:null":
            raise TypeError
        column = block.value[0][0].start_mark.column if is_filled else names[-1].start_mark.column + 2
        at = text.find("\n", names[-1].end_mark.index) + 1 or len(text)
    *outer, last = key[len(names) :]
    lines = [*(f"{name}:" for name in outer), f"{last}: {_flow(value)}"]
    new = "".join(f"{' ' * (column + 2 * depth)}{line}\n" for depth, line in enumerate(lines))
    return text[:at] + "\n" * (at > 0 and text[at - 1] != "\n") + new + text[at:]


def _end(node: yaml.Node, text: str) -> int:
    """Return the index of the end of a value, without the comments and empty lines below it."""
    if node.value and isinstance(node, yaml.CollectionNode) and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last, text)
    return len(text[: node.end_mark.index].rstrip()) if node.value else node.end_mark.index


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _old_inner_keys(file: YamlFile) -> Iterator[KeyPath]:
    """Yield the paths of old keys in the blocks that are items of a block or of a list."""
    for outer, name in WITH_BLOCKS:
        found = (file.values.get(outer) or {}).get(name) or {}
        for item, block in found.items() if isinstance(found, Mapping) else enumerate(found):
            if isinstance(block, Mapping):
                yield from ((outer, name, str(item), key) for key in block if (outer, key) in OLD_KEYS)


def _with_variables(path: Path, text: str, values: Mapping[str, str]) -> str:
    """Return the text of an `.env` file with some variables set, or removed if they are empty. Comments are kept.

    Raises `ConfigError` if other variables would change, for example because of a missing quote in an earlier line.
    """
    before, warnings = read_env_file(path, text)
    expected = {name: value for name, value in {**before, **values}.items() if value or name not in values}
    if expected == before:
        return text
    bindings = parse_stream(StringIO(text))
    kept = "".join(one.original.string for one in bindings if one.key is None or one.key not in values)
    # Values are quoted, so that variables in them are not expanded.
    escaped = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in values.items() if value}
    lines = "".join(f"{name}='{value}'\n" for name, value in escaped.items())
    new = kept + "\n" * (kept != "" and not kept.endswith("\n")) + lines
    if read_env_file(path, new)[0] != expected:
        problem = f"{path}: cannot be changed automatically: edit it by hand, or correct these lines first"
        raise ConfigError("\n".join((problem, *warnings)))
    return new
