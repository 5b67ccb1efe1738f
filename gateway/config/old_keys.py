"""Keys of earlier versions: what replaces each of them, or the value that it is fixed at now.

An old key is no mistake: `config check` and the start name it and go on. Where the new key takes the same words, the
old value is read as its value.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from gateway.config.files import KeyPath
from hermes_state.kinds import keyed

Chosen: TypeAlias = Mapping[KeyPath, tuple[Any, str]]
"""Values by key, each with its source in words."""

FIXED: Final[Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Keys that became constants, and their values in words."""

_TASKS: Final = ("flush", "title", "delegate", "trajectories")
_TASK_KEYS: Final = (
    *("mode", "model", "protocol", "base_url", "api_key", "context_length", "max_output_tokens"),
    *("temperature", "top_p", "reasoning_effort", "extra_headers", "extra_body"),
)
_MODE: Final = ("auxiliary", "mode")

REPLACED: Final[Mapping[str, str]] = {
    "auxiliary.mode": "auxiliary.compression.mode",
    "compression.summary_model": "auxiliary.compression.model",
} | {f"auxiliary.{task}.{key}": f"auxiliary.{task}" for task in _TASKS for key in _TASK_KEYS}
"""Keys that other keys replace."""

OLD_KEYS: Final = frozenset(tuple(key.split(".")) for key in (*FIXED, *REPLACED))
OLD_BLOCKS: Final = frozenset(key[:end] for key in OLD_KEYS for end in range(1, len(key)))


def carried(old: Chosen, aliases: object) -> dict[KeyPath, tuple[Any, str]]:
    """Values of new keys that old ones stand for. Only a model that is one of the `aliases` can be read as a route."""
    found: dict[KeyPath, tuple[Any, str]] = {}
    if (summary_model := ("compression", "summary_model")) in old:
        found["auxiliary", "compression", "model"] = old[summary_model]
    if _word(old, _MODE) == "same-as-main":
        found["auxiliary", "compression", "mode"] = old[_MODE]
    try:
        names = {str(name).strip().lower() for name in keyed(aliases)}
    except ValueError:
        names = set()
    for task in _TASKS:
        mode, model = ("auxiliary", task, "mode"), ("auxiliary", task, "model")
        chooser = mode if mode in old else _MODE
        if _word(old, chooser) in ("off", "false"):
            found["auxiliary", task] = "off", old[chooser][1]
        elif model in old:  # which was asked whatever the mode
            is_elsewhere = any(("auxiliary", task, key) in old for key in ("protocol", "base_url", "api_key"))
            if _word(old, model) in names - {"auto", "main", "off"} and not is_elsewhere:
                found["auxiliary", task] = old[model]
        elif _word(old, chooser) == "same-as-main":
            found["auxiliary", task] = "main", old[chooser][1]
    return found


def _word(old: Chosen, key: KeyPath) -> str:
    return str(old[key][0]).strip().lower() if key in old else ""


def notice(key: KeyPath, where: str, chosen: Chosen) -> str:
    """Sentence about an old key that is set at `where`. `chosen`: what is in force now."""
    name = ".".join(key)
    if name in FIXED:
        return f"{where}: {name} is an old key and is ignored: its value is fixed at {FIXED[name]}"
    new = REPLACED[name]
    words = " (auto, main, off, or an alias from model.aliases)" if len(key) == 3 else ""
    if key == _MODE:
        words = " and, for each other task, by a word such as auxiliary.title: main"
    value, _ = chosen.get(tuple(new.split(".")), ("auto" if words else "not set", ""))
    state = "cannot be used" if isinstance(value, Mapping | list) else f"is now {value}"
    return f"{where}: {name} is an old key, replaced by {new}{words}; {new} {state}"


def old_overrides(models: object) -> Iterator[KeyPath]:
    """Old keys in the blocks of `compression.models`."""
    blocks = models.values() if isinstance(models, Mapping) else ()
    keys = (("compression", str(name)) for block in blocks if isinstance(block, Mapping) for name in block)
    yield from (key for key in keys if key in OLD_KEYS)
