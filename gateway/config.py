"""Where settings come from: one loader for start, `config check` and reload.

For each key the first of these that has a value wins:

1. the environment, `HERMES_` and the key with `__` for each dot: `HERMES_LOCAL__PORT`
2. systemd credentials: a file in `$CREDENTIALS_DIRECTORY` named like the variable or like the key
3. `.env` in the state directory, with the same names as the environment
4. `config.yaml` in the state directory
5. the customary variables (`CUSTOMARY`), looked for in the environment, the credentials and `.env`, in this order
6. the default

An empty value counts as not set.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config_file import KeyPath, YamlFile, read_env_file, read_yaml
from gateway.home import check_config_is_ours, check_home, locate_home
from gateway.settings import Config
from hermes_state.errors import ConfigError
from hermes_state.redaction import redact

CUSTOMARY: Mapping[str, KeyPath] = {
    "TELEGRAM_BOT_TOKEN": ("telegram", "token"),
    "DISCORD_BOT_TOKEN": ("discord", "token"),
    "OPENAI_API_KEY": ("model", "api_key"),
    "OPENAI_BASE_URL": ("model", "base_url"),
}
"""Variables that other programs use too; they count least, so that ours can overrule them."""

Model = TypeVar("Model", bound=BaseModel)

PREFIX = "HERMES_"
HOME_VARIABLE = "HERMES_HOME"
DEFAULT_SOURCE = "default"

_ALIKE = 0.65
"""From this likeness on (1 is equal) another key is offered as what was meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration that passed every check, and where it came from."""

    config: Config
    home: Path
    """The state directory, absolute; it may not exist yet."""
    warnings: tuple[str, ...]
    """Sentences for the operator about things that are not fatal."""
    sources: Mapping[str, str]
    """For every key (`local.port`) what gave its value: a variable, a credential, a file or `default`."""

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

    def secrets(self) -> tuple[str, ...]:
        """Every secret value in use, for exact redaction."""
        values = (value.get_secret_value() for _, value in _values(self.config) if isinstance(value, SecretStr))
        return tuple(value for value in values if value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadPlan:
    """What a reload changes, as key names: taken over now, or waiting for a restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """One place with variables: their values, and the words that tell people where a value came from."""

    variables: Mapping[str, str]
    label: str


def load_config(environ: Mapping[str, str]) -> LoadedConfig:
    """Read and check everything. Reads only `environ`, never the process environment.

    Raises `ConfigError` with one line per problem, each naming the file or variable and the key.
    """
    home = locate_home(environ)
    check_home(home)
    file = home / "config.yaml"
    parsed = read_yaml(file)
    check_config_is_ours(file, parsed.values)
    unknown = list(_unknown_keys(file, parsed, parsed.values))
    if unknown:
        raise ConfigError("\n".join(unknown))
    env_file, warnings = read_env_file(home / ".env")
    places = (
        _Source(environ, ""),
        _Source(_read_credentials(environ), "credential "),
        _Source(env_file, f"{home / '.env'}: "),
    )
    chosen = _choose(places, parsed, file)
    config = _checked(chosen, parsed, file)
    return LoadedConfig(
        config=config,
        home=home,
        warnings=(*warnings, *_foreign_names(places)),
        sources={".".join(key): chosen[key][1] if key in chosen else DEFAULT_SOURCE for key in FIELDS},
    )


def reload_differences(old: LoadedConfig, new: LoadedConfig) -> ReloadPlan:
    """Which keys a reload from `old` to `new` changes. The daemon goes on with `merge_for_reload`."""
    before, after = dict(_values(old.config)), dict(_values(new.config))
    changed = [key for key in FIELDS if before[key] != after[key]]
    return ReloadPlan(
        applied=tuple(".".join(key) for key in changed if not needs_restart(key)),
        needs_restart=tuple(".".join(key) for key in changed if needs_restart(key)),
    )


def merge_for_reload(old: LoadedConfig, new: LoadedConfig) -> LoadedConfig:
    """`new` with the running values of every key that needs a restart, so that nobody acts on half a change."""
    kept = {key: value for key, value in _values(old.config) if needs_restart(key)}
    sources = {name: old.sources[name] if tuple(name.split(".")) in kept else new.sources[name] for name in new.sources}
    return replace(new, config=_with_values(new.config, kept), home=old.home, sources=sources)


def setting_values(config: Config) -> Iterator[tuple[str, Any]]:
    """Every key with its effective value; secrets stay wrapped."""
    for key, value in _values(config):
        yield ".".join(key), value


def needs_restart(key: KeyPath) -> bool:
    """Whether a running daemon keeps the old value of `key`."""
    return bool(field_notes(FIELDS[key])["restart"])


def field_notes(field: FieldInfo) -> Mapping[str, Any]:
    """What `setting()` noted about a field: `unit`, `restart`, `default_text`."""
    return cast(Mapping[str, Any], field.json_schema_extra or {"unit": "", "restart": False, "default_text": ""})


def variable_name(key: KeyPath) -> str:
    """`HERMES_LOCAL__PORT` for `local.port`."""
    return PREFIX + "__".join(key).upper()


def field_range(field: FieldInfo) -> tuple[float | None, float | None]:
    """Least and greatest value allowed, None where there is no bound."""
    low = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
    high = next((mark.le for mark in field.metadata if hasattr(mark, "le")), None)
    return low, high


def _fields(model: type[BaseModel], above: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, (*above, name))
        else:
            yield (*above, name), field


FIELDS: Mapping[KeyPath, FieldInfo] = dict(_fields(Config))
"""Every key that can be set, in the order of the documentation."""

_SECTIONS = {key[:depth] for key in FIELDS for depth in range(1, len(key))}
_NAMES = {variable_name(key): key for key in FIELDS}


def _values(config: BaseModel, above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from _values(value, (*above, name))
        else:
            yield (*above, name), value


def _with_values(model: Model, kept: Mapping[KeyPath, Any], above: KeyPath = ()) -> Model:
    """A copy with some values put in as they are: they were checked when they were loaded."""
    changed: dict[str, Any] = {}
    for name in type(model).model_fields:
        value, key = getattr(model, name), (*above, name)
        if isinstance(value, BaseModel):
            changed[name] = _with_values(value, kept, key)
        elif key in kept:
            changed[name] = kept[key]
    return model.model_copy(update=changed)


def _read_credentials(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Files that systemd hands over, by the variable each one stands for."""
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        return {}
    found: dict[str, str] = {}
    try:
        for path in sorted(Path(directory).iterdir()):
            name = path.name.upper().replace(".", "__")
            known = name if name in _NAMES or name in CUSTOMARY else PREFIX + name
            if known in _NAMES or known in CUSTOMARY:
                found[known] = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{directory}: credentials cannot be read: {error}") from error
    return found


def _choose(places: Iterable[_Source], parsed: YamlFile, file: Path) -> dict[KeyPath, tuple[Any, str]]:
    """The winning value of each key that somebody set, with its source in words."""
    places = tuple(places)
    in_file = dict(_leaves(parsed.values))
    customary: dict[KeyPath, list[str]] = {}
    for name, key in CUSTOMARY.items():
        customary.setdefault(key, []).append(name)
    chosen: dict[KeyPath, tuple[Any, str]] = {}
    for key in FIELDS:
        found = _first(places, [variable_name(key)])
        if found is None and in_file.get(key) is not None:
            found = in_file[key], str(file)
        if found is None:
            found = _first(places, customary.get(key, []))
        if found is not None:
            chosen[key] = found
    return chosen


def _first(places: Iterable[_Source], names: Iterable[str]) -> tuple[Any, str] | None:
    for place in places:
        for name in names:
            if place.variables.get(name, "").strip():
                return place.variables[name], f"{place.label}{name}"
    return None


def _leaves(values: Mapping[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in values.items():
        key = (*above, str(name))
        if key in _SECTIONS and isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _checked(chosen: Mapping[KeyPath, tuple[Any, str]], parsed: YamlFile, file: Path) -> Config:
    nested: dict[str, Any] = {}
    for key, (value, _) in chosen.items():
        section = nested
        for name in key[:-1]:
            section = section.setdefault(name, {})
        section[key[-1]] = value
    try:
        return Config(**nested)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        problems = [_explain(detail, chosen, parsed, file) for detail in details]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None  # pydantic's own text may repeat a secret


def _explain(detail: ErrorDetails, chosen: Mapping[KeyPath, tuple[Any, str]], parsed: YamlFile, file: Path) -> str:
    """One line for one problem: where the value came from, the key, what is wrong with it."""
    key = _known_part(detail["loc"])
    text = detail["msg"].removeprefix("Value error, ")
    if key is None:  # a check over several keys; its sentence names them
        return text
    field, (value, source) = FIELDS[key], chosen.get(key, (None, DEFAULT_SOURCE))
    where = f"{file} line {parsed.lines[key]}" if source == str(file) and key in parsed.lines else source
    shown = "" if is_secret(field) or isinstance(value, (dict, list)) else f" (is {value!r})"
    low, high = field_range(field)
    if detail["type"] in ("greater_than_equal", "less_than_equal", "finite_number"):
        text = f"must be between {low:,} and {high:,}" if low is not None else text
    elif detail["type"] in ("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type"):
        number = "a whole number" if detail["type"].startswith("int") else "a number"
        text = f"must be {number}" + (f" between {low:,} and {high:,}" if low is not None else "")
    elif detail["type"] == "literal_error":
        text = f"must be one of {', '.join(field_choices(field))}"
    elif detail["type"] in ("bool_parsing", "bool_type"):
        text = "must be true or false"
    elif detail["type"] == "value_error":
        shown = ""
    return f"{where}: {'.'.join(key)}: {text}{redact(shown)}"  # an address may carry a password


def _known_part(location: Iterable[int | str]) -> KeyPath | None:
    """The key that a location of pydantic's begins with; what follows is an index or a member of a union."""
    names = tuple(str(part) for part in location)
    return next((names[:end] for end in range(len(names), 0, -1) if names[:end] in FIELDS), None)


def is_secret(field: FieldInfo) -> bool:
    """Whether the value is masked wherever it is shown."""
    return "SecretStr" in str(field.annotation)


def field_choices(field: FieldInfo) -> list[str]:
    """The words that a setting may have; empty when it takes more than words."""
    found: list[str] = []
    pending = [field.annotation]
    while pending:
        kind = pending.pop()
        for part in getattr(kind, "__args__", ()):
            if isinstance(part, str):
                found.append(part)
            else:
                pending.append(part)
        if kind is bool:
            found += ["true", "false"]
    return found


def _unknown_keys(file: Path, parsed: YamlFile, values: Mapping[str, Any], above: KeyPath = ()) -> Iterator[str]:
    """A line for every key in the file that is no setting, with the nearest one that is."""
    for name, value in values.items():
        key = (*above, str(name))
        line = f" line {parsed.lines[key]}" if key in parsed.lines else ""
        if key in _SECTIONS:
            if isinstance(value, Mapping):
                yield from _unknown_keys(file, parsed, value, key)
            elif value is not None:
                inner = ", ".join(_dotted(known) for known in FIELDS if known[: len(key)] == key)
                yield f"{file}{line}: {_dotted(key)} is a block of keys ({inner}), not a value"
        elif key not in FIELDS:
            yield f"{file}{line}: unknown key {_dotted(key)}{_suggestion(key)}"


def _suggestion(key: KeyPath) -> str:
    """The most similar key, with a preference for the same block; failing that, what the block may hold."""
    known = (*FIELDS, *sorted(_SECTIONS))

    def likeness(other: KeyPath) -> float:
        same_name = other[-1] == key[-1]
        same_block = 0.1 if other[:-1] == key[:-1] else 0.0
        return same_name + same_block + difflib.SequenceMatcher(a=_dotted(other), b=_dotted(key)).ratio()

    nearest = max(known, key=likeness)
    if likeness(nearest) >= _ALIKE:
        return f"; did you mean {_dotted(nearest)}?"
    siblings = ", ".join(_dotted(other) for other in known if other[:-1] == key[:-1])
    return f"; known here: {siblings}" if siblings else ""


def _dotted(key: KeyPath) -> str:
    return ".".join(key)


def _foreign_names(places: Iterable[_Source]) -> Iterator[str]:
    """`HERMES_…` variables that are no setting: other programs use the prefix too, so they only warn."""
    for place in places:
        for name in sorted(place.variables):
            if name.startswith(PREFIX) and name not in _NAMES and not (name == HOME_VARIABLE and place.label == ""):
                nearest = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.75)
                hint = f"; did you mean {nearest[0]}?" if nearest else ""
                reason = "works only in the environment" if name == HOME_VARIABLE else "is not a setting and is ignored"
                yield f"{place.label}{name} {reason}{hint if name != HOME_VARIABLE else ''}"


def process_environment() -> Mapping[str, str]:
    """The environment of this process; the only place that reads it."""
    return dict(os.environ)
