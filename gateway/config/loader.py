"""Load and check the settings for start, `config check` and reload.

For each key, the first of these sources with a value wins:

1. the environment: `HERMES_` and the key, with `__` for each dot (`HERMES_LOCAL__PORT`)
2. systemd credentials: a file in `$CREDENTIALS_DIRECTORY` named like the variable or like the key
3. `.env` in the state directory, with the same names as the environment
4. `config.yaml` in the state directory
5. the customary variables (`CUSTOMARY`) in the environment, the credentials or `.env`, in this order
6. the default

An empty value counts as not set.
"""

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import files
from gateway.config.accounts import Bot, has_first_token, idle_accounts
from gateway.config.agents import OWN_KEYS, route_notices, route_problems, unmasked
from gateway.config.blocks import ConfigRejected, details_of, did_you_mean, field_choices, is_secret, problem
from gateway.config.context_settings import SummaryModelConfig
from gateway.config.fields import (
    BLOCKS,
    DEFAULT_SOURCE,
    FIELDS,
    PREFIX,
    VARIABLES,
    dotted,
    needs_restart,
    secrets_of,
    values_of,
    variable_name,
    with_values,
)
from gateway.config.files import KeyPath, StateDirectory, YamlFile
from gateway.config.old_keys import OLD_BLOCKS, OLD_KEYS, WITH_BLOCKS, Chosen, carried, inner_old_keys, notice
from gateway.config.overlay import AgentConfig, completed_agent, is_agent_key, unknown_agent_key
from gateway.config.settings import Config
from gateway.config.tool_settings import unknown_tools
from hermes_state.agents import UNNAMED
from hermes_state.errors import ConfigError
from hermes_state.redaction import Redactor, redact

CUSTOMARY: Mapping[str, KeyPath] = {
    "TELEGRAM_BOT_TOKEN": ("telegram", "token"),
    "DISCORD_BOT_TOKEN": ("discord", "token"),
    "OPENAI_API_KEY": ("model", "api_key"),
    "OPENAI_BASE_URL": ("model", "base_url"),
    "ANTHROPIC_API_KEY": ("model", "api_key"),
}
"""Variables that other programs use too. They are used only if no other source sets the key."""

NO_SETTINGS = frozenset({"HERMES_HOME", "HERMES_EVENT_LOOP"})
"""Variables that are not settings, and that are read only from the environment."""

_READ_VARIABLES = frozenset((*VARIABLES, *CUSTOMARY, *map(variable_name, OLD_KEYS)))

NOTHING_SERVED = "no chat is configured: set telegram.token or discord.token, or set local.enabled to true"

_Sources: TypeAlias = Sequence[tuple[str, Mapping[str, str]]]
"""Sources of variables, highest priority first. Each source is a label for messages and a mapping of values."""


class LoadedConfig(StateDirectory, frozen=True, kw_only=True):
    """Checked configuration, with the source of each value."""

    config: Config
    warnings: tuple[str, ...]
    """Messages for the operator about problems that do not prevent a start."""
    sources: Mapping[str, str]
    """Source of each key's value, by key such as `local.port`: a variable, a credential, a file or `default`."""
    carried: Chosen = msgspec.field(default_factory=dict)
    """Effective values of keys of earlier versions, under the new keys."""
    old_secrets: tuple[str, ...] = ()
    """Secrets that are set under keys of earlier versions. The gateway does not use them, but must redact them."""
    named_agents: Mapping[str, AgentConfig] = msgspec.field(default_factory=dict)

    def secrets(self) -> tuple[str, ...]:
        """Return every secret value, so that it can be redacted exactly."""
        of_agents = (secret for agent in self.named_agents.values() for secret in secrets_of(agent.config))
        return tuple(dict.fromkeys((*secrets_of(self.config), *of_agents, *self.old_secrets)))

    def agent(self, name: str) -> AgentConfig:
        """Return the configuration of an agent. Raises `KeyError` if no agent has this name."""
        if name:
            return self.named_agents[name]
        shares_notes = bool(self.config.agents.get(UNNAMED, {}).get("shared_notes"))
        return AgentConfig(config=self.config, skills=self.home / "skills", shares_notes=shares_notes)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Names of all agents. The unnamed agent comes first."""
        return ("", *self.named_agents)

    @property
    def agents(self) -> list[AgentConfig]:
        """Configuration of every agent. The unnamed agent comes first."""
        return [*map(self.agent, self.agent_names)]


class LiveConfig(msgspec.Struct):
    """Holds the effective configuration. Read it again for every use, because a reload replaces it."""

    loaded: LoadedConfig

    @property
    def config(self) -> Config:
        return self.loaded.config

    def redactor(self) -> Redactor:
        """Return a redactor for the secrets of the effective configuration."""
        return Redactor(self.loaded.secrets())


class ReloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that a reload changes: those that apply now, and those that apply after the next restart."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def load_config(environ: Mapping[str, str], drafts: Mapping[str, str] | None = None) -> LoadedConfig:
    """Read and check the whole configuration. Reads only `environ`, never the process environment.

    `drafts` has new texts for `config.yaml` and `.env`, to check them before they are written.
    Raises `ConfigRejected` with every problem in the settings, each with its source and key, and
    `ConfigError` if a file cannot be read or belongs to another program.
    """
    state = files.find_state(environ)
    sources, file, warnings = _read(environ, state, drafts or {})
    files.check_config_is_ours(file)
    chosen = _choose(sources, file)
    old = {key: chosen.pop(key) for key in OLD_KEYS & chosen.keys()}
    new = carried(old, chosen.get(("model", "aliases"), ({}, ""))[0])
    new = {key: found for key, found in new.items() if key not in chosen}
    chosen |= new
    warnings = (*warnings, *_warn_unknown_variables(sources), *_old_notices(old, chosen, file))
    config, problems = _checked(chosen, file)
    unknown = [line for _, line in _unknown_keys(file)]
    if config is None or unknown:
        raise ConfigRejected([*unknown, *problems], warnings)
    try:
        config.model_dump_json()
    except ValueError as error:  # Python turns bytes that are not UTF-8 into surrogates
        raise ConfigError(f"{_not_text(chosen)}: contains bytes that are not UTF-8 text: save it as UTF-8") from error
    warnings = (*warnings, *idle_accounts(config.telegram, config.discord))
    if not (config.bots or config.local.enabled):
        warnings = (*warnings, NOTHING_SERVED)
    lines = [_position_of(("routes", f"[{number}]"), chosen, file) for number in range(1, len(config.routes) + 1)]
    agents, problems = _checked_agents(config, chosen, file, state.home, lines)
    if problems:
        raise ConfigRejected(problems, warnings)
    where = {name: _position_of(("agents", name), chosen, file) for name in agents}
    is_shared = config.sessions.groups == "shared"
    unknown_switches = unknown_tools([config.tools, *(agent.config.tools for agent in agents.values())])
    warnings = (*warnings, *route_notices(config.routes, where, lines, is_shared=is_shared), *unknown_switches)
    return LoadedConfig(
        config=config,
        home=state.home,
        warnings=warnings,
        sources={dotted(key): chosen[key][1] if key in chosen else DEFAULT_SOURCE for key in FIELDS},
        carried=new,
        old_secrets=tuple(_secrets_of_old(old)),
        named_agents=agents,
    )


def _checked_agents(
    config: Config, chosen: Chosen, file: YamlFile, home: Path, lines: Sequence[str]
) -> tuple[dict[str, AgentConfig], list[str]]:
    """Return the configuration of every named agent, and a message for each problem in `agents` and `routes`.

    `lines` are the positions of the routes.
    """
    bots: list[Bot] = [*config.telegram.all_bots, *config.discord.all_bots]
    accounts = [*(bot.account for bot in bots), "local"]
    found, problems = dict[str, AgentConfig](), list(route_problems(config.routes, config.agents, accounts, lines))
    for name, block in config.agents.items():
        if name == UNNAMED:
            continue
        values, own, keys = dict(chosen), dict[str, Any](), set[KeyPath]()
        for key, value in _leaves({one: None if one in OWN_KEYS else value for one, value in block.items()}):
            where = _position_of(("agents", name, *key), chosen, file)
            if key[0] in OWN_KEYS:
                own[key[0]] = unmasked(block[key[0]])
            elif is_agent_key(key) and key in FIELDS:
                values[key] = unmasked(value), where
                keys.add(key)
            elif value is not None or key not in BLOCKS:
                problems.append(f"{where}: agents.{name}: {unknown_agent_key(key)}")
        laid, found_problems = _checked(values, file)
        problems += [f"{one} (agent {name})" for one in found_problems]
        if laid is not None:
            try:
                found[name] = completed_agent(name, laid, config, own, keys, home)
            except ValueError as error:
                word = str(error).partition(":")[0].partition(".")[0]
                where = _position_of(("agents", name, word), chosen, file)
                problems.append(f"{where}: agents.{name}.{error}")
    return found, problems


def _position_of(key: KeyPath, chosen: Chosen, file: YamlFile) -> str:
    """Return the position of a key inside `agents` or `routes`."""
    _, source = chosen.get(key[:1], (None, DEFAULT_SOURCE))
    known = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in file.lines), key[:1])
    return _position(known, source, file)


def _not_text(chosen: Chosen) -> str:
    """Return the source and key of the first value that UTF-8 cannot encode."""
    for key, (value, source) in chosen.items():
        try:
            json.dumps(value, ensure_ascii=False, skipkeys=True, default=str).encode()
        except UnicodeEncodeError:
            return f"{source}: {dotted(key)}"
    return "the configuration"


def _secrets_of_old(old: Chosen) -> Iterator[str]:
    """Yield secrets from old keys. In earlier versions, each background task had a block with an API key."""
    for key, (value, _) in old.items():
        if len(key) == 3:
            with suppress(ValidationError):
                yield from secrets_of(SummaryModelConfig.model_validate({key[-1]: value}))


def find_store_url(environ: Mapping[str, str]) -> str | None:
    """Return the configured address of the database, or None for the SQLite file. Other settings may be invalid.

    Raises `ConfigError` if the address is invalid or misspelt, or if a file cannot be read. Otherwise, a command could
    use the SQLite file by mistake. Does not open the database.
    """
    sources, file, _ = _read(environ, StateDirectory(home=files.locate_home(environ)), {})
    key: KeyPath = ("store", "url")
    found = _choose(sources, file).get(key)
    config, problems = _checked({key: found} if found is not None else {}, file)
    if found is None:
        problems += [line for key, line in _unknown_keys(file) if key[0] == "store" or "did you mean store" in line]
    if config is None or problems:
        raise ConfigRejected(problems, ())
    return config.store.url


def process_environment() -> Mapping[str, str]:
    """Return the environment of this process. Only this function reads it."""
    return dict(os.environ)


def reload_differences(old: LoadedConfig, new: LoadedConfig) -> ReloadPlan:
    """Return the keys that differ between `old` and `new`. To apply them, the daemon uses `merge_for_reload`."""
    before, after = dict(values_of(old.config)), dict(values_of(new.config))
    changed = [key for key in FIELDS if before[key] != after[key]]
    return ReloadPlan(
        applied=tuple(dotted(key) for key in changed if not needs_restart(key)),
        needs_restart=tuple(dotted(key) for key in changed if needs_restart(key)),
    )


def merge_for_reload(old: LoadedConfig, new: LoadedConfig) -> LoadedConfig:
    """Return `new`, but with the old values of keys that need a restart."""
    kept = {key: value for key, value in values_of(old.config) if needs_restart(key)}
    sources = {name: old.sources[name] if tuple(name.split(".")) in kept else new.sources[name] for name in new.sources}
    agents = {name: replace(agent, config=with_values(agent.config, kept)) for name, agent in new.named_agents.items()}
    return replace(new, config=with_values(new.config, kept), home=old.home, sources=sources, named_agents=agents)


def _read(
    environ: Mapping[str, str], state: StateDirectory, drafts: Mapping[str, str]
) -> tuple[_Sources, YamlFile, tuple[str, ...]]:
    """Return the sources of variables, the content of `config.yaml`, and warnings about the files."""
    file = files.read_yaml(state.config_file, drafts.get("config.yaml"))
    env_file, warnings = files.read_env_file(state.env_file, drafts.get(".env"))
    credentials, unknown = _read_credentials(environ)
    sources = (("", environ), ("credential ", credentials), (f"{state.env_file}: ", env_file))
    return sources, file, (*warnings, *unknown)


def _read_credentials(environ: Mapping[str, str]) -> tuple[Mapping[str, str], list[str]]:
    """Return the systemd credentials by variable name, and a warning for each unknown credential."""
    if not (directory := environ.get("CREDENTIALS_DIRECTORY")):
        return {}, []
    found, unknown = dict[str, str](), list[str]()
    try:
        folder = Path(directory)  # is missing in a container without secrets
        for path in sorted(folder.iterdir()) if folder.exists() else ():
            name = path.name.upper().replace(".", "__")
            known = name if name in _READ_VARIABLES else PREFIX + name
            if known in _READ_VARIABLES:
                found[known] = path.read_text(encoding="utf-8").strip()
            else:
                unknown.append(f"credential {path.name} {_not_a_setting(known)}")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{directory}: cannot read credentials: {reason}; check LoadCredential= in the unit, or the files' owner"
        ) from error
    return found, unknown


def _choose(sources: _Sources, file: YamlFile) -> dict[KeyPath, tuple[Any, str]]:
    """Return the effective value and the source of each key that is set, including keys of earlier versions."""
    in_file = dict(_leaves(file.values))
    chosen: dict[KeyPath, tuple[Any, str]] = {}
    for key in (*FIELDS, *OLD_KEYS):
        if (found := _first(sources, variable_name(key))) is not None:
            chosen[key] = found
        elif not _is_empty(in_file.get(key)):
            chosen[key] = in_file[key], str(file.path)
    protocol, _ = chosen.get(("model", "protocol"), ("", ""))
    is_anthropic = str(protocol).strip().lower() == "anthropic"
    for name, key in CUSTOMARY.items():  # never send one provider's key to another provider
        is_fitting = key[0] != "model" or name.startswith("ANTHROPIC_") == is_anthropic
        is_set = key in chosen or has_first_token(chosen.get((key[0], "accounts"), ((), ""))[0])
        if is_fitting and not is_set and (found := _first(sources, name)) is not None:
            chosen[key] = found
    return chosen


def _old_notices(old: Chosen, chosen: Chosen, file: YamlFile) -> Iterator[str]:
    for key, (_, source) in sorted(old.items()):
        yield notice(key, _position(key, source, file), chosen)
    for outer in WITH_BLOCKS:
        value, source = chosen.get(outer, ({}, ""))
        where = f"{_position(outer, source, file)}: {dotted(outer)}"
        yield from (notice(key, where, chosen) for key in inner_old_keys(outer, value))


def _first(sources: _Sources, name: str) -> tuple[Any, str] | None:
    found = (variables for variables in sources if not _is_empty(variables[1].get(name)))
    return next(((variables[name], f"{label}{name}") for label, variables in found), None)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _leaves(values: Mapping[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in values.items():
        key = (*above, str(name))
        if (key in BLOCKS or key in OLD_BLOCKS) and isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _checked(chosen: Mapping[KeyPath, tuple[Any, str]], file: YamlFile) -> tuple[Config | None, list[str]]:
    """Return the configuration, or None with the problems. Omits pydantic's messages, which might contain secrets."""
    nested: dict[str, Any] = {}
    for key, (value, _) in chosen.items():
        section = nested
        for name in key[:-1]:
            section = section.setdefault(name, {})
        section[key[-1]] = value
    try:
        return Config(**nested), []
    except ValidationError as error:
        return None, [_explained(detail, chosen, file) for detail in details_of(error)]


def _explained(detail: ErrorDetails, chosen: Mapping[KeyPath, tuple[Any, str]], file: YamlFile) -> str:
    """Return the line that describes a problem: its source, key and message."""
    location = tuple(str(part) for part in detail["loc"])  # the location can end with a list index
    key = next((location[:end] for end in range(len(location), 0, -1) if location[:end] in FIELDS), None)
    if key is None:  # this check covers several keys, and its message names them
        text = detail["msg"].removeprefix("Value error, ")
        named = _first_named(text, chosen)
        return f"{_position(*named, file)}: {text}" if named is not None else text
    field, (value, source) = FIELDS[key], chosen.get(key, (None, DEFAULT_SOURCE))
    place = "".join(f"[{int(part) + 1}]" for part in location[len(key) :][:1] if part.isdecimal())
    where = _position((*key, place) if place else key, source, file)
    is_hidden = is_secret(field) or isinstance(value, (dict, list)) or detail["type"] == "value_error"
    shown = "" if is_hidden else redact(f" (is {value!r})")  # an address may contain a password
    shown_key = f"{dotted(key)}{place if key[-1] in ('accounts', 'routes') else ''}"
    return f"{where}: {shown_key}: {problem(detail, field)}{shown}"


def _position(key: KeyPath, source: str, file: YamlFile) -> str:
    return file.position(key) if source == str(file.path) else source


def _first_named(text: str, chosen: Mapping[KeyPath, tuple[Any, str]]) -> tuple[KeyPath, str] | None:
    """Return the first key, or place in a list, that is named in `text` and set by any source; and this source."""
    for name, place in re.findall(r"([a-z_]+(?:\.[a-z_]+)*)(\[[0-9]+\])?", text):
        key = tuple(name.split("."))
        for end in range(len(key), 0, -1):
            if key[:end] in chosen:
                return (*key[:end], *([place] if place else [])), chosen[key[:end]][1]
    return None


def _unknown_keys(file: YamlFile) -> Iterator[tuple[KeyPath, str]]:
    """Yield every unknown key in the file, with a message that suggests the most similar one."""
    for key, value in _leaves(file.values):
        if key in BLOCKS:
            if value is not None:
                inner = ", ".join(dotted(known) for known in FIELDS if known[: len(key)] == key)
                yield key, f"{file.position(key)}: {dotted(key)} is a block, not a value: set one of its keys ({inner})"
        elif key not in FIELDS and key not in OLD_KEYS and not (key in OLD_BLOCKS and value is None):
            yield key, f"{file.position(key)}: unknown key {dotted(key)}{suggestion(key)}"


def suggestion(key: KeyPath) -> str:
    """Suggest the most similar key, preferably in the same block. If none is similar, list all keys of the block."""
    known = (*FIELDS, *sorted(BLOCKS))
    for other, field in FIELDS.items():
        if other[:-1] == key[:-1] and key[-1] in field_choices(field):
            return f"; {key[-1]} is a value: did you mean {dotted(other)}: {key[-1]}?"

    def likeness(other: KeyPath) -> float:
        same_name = other[-1] == key[-1]
        same_block = 0.1 if other[:-1] == key[:-1] else 0.0
        return same_name + same_block + difflib.SequenceMatcher(a=dotted(other), b=dotted(key)).ratio()

    nearest = max(known, key=likeness)
    if likeness(nearest) >= 0.65:
        return f"; did you mean {dotted(nearest)}?"
    siblings = ", ".join(dotted(other) for other in known if other[:-1] == key[:-1])
    return f"; valid keys: {siblings}" if siblings else ""


def _warn_unknown_variables(sources: _Sources) -> Iterator[str]:
    """Yield warnings about unknown `HERMES_…` variables.

    These are not errors, because other programs use the prefix too.
    """
    for label, variables in sources:
        for name in sorted(variables):
            if name in NO_SETTINGS:
                if label:
                    yield f"{label}{name} is ignored: it works only as an environment variable"
            elif name.startswith(PREFIX) and name not in _READ_VARIABLES:
                yield f"{label}{name} {_not_a_setting(name)}"


def _not_a_setting(variable: str) -> str:
    # A name that is less similar probably belongs to another program.
    return f"is not a setting and is ignored{did_you_mean(variable, VARIABLES, 0.75)}"
