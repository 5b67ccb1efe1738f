"""Keys of earlier versions: each was replaced by a new key, or its value is now fixed.

An old key is not an error: `config check` and `run` print a warning and continue. If the new key accepts the old value,
it gets this value.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from gateway.config.files import KeyPath
from hermes_state.setting_types import keyed, listed

Chosen: TypeAlias = Mapping[KeyPath, tuple[Any, str]]
"""Value of each key that is set, with a phrase that names the source of the value."""

_TASKS: Final = ("flush", "title", "delegate")
_TASK_KEYS: Final = (
    *("mode", "model", "protocol", "base_url", "api_key", "context_length", "max_output_tokens"),
    *("temperature", "top_p", "reasoning_effort", "extra_headers", "extra_body"),
)
_MODE: Final = ("auxiliary", "mode")
_CONSTANTS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

FIXED: Final[Mapping[str, str]] = _CONSTANTS | {
    f"auxiliary.trajectories.{key}": _CONSTANTS["auxiliary.trajectories"] for key in _TASK_KEYS
}
"""Keys that are no longer settings, each with a sentence that describes the value that is now fixed."""

REPLACED: Final[Mapping[str, str]] = {
    "auxiliary.mode": "auxiliary.compression.mode",
    "compression.summary_model": "auxiliary.compression.model",
    "notices.accuracy": "notices.pressure",
    "notices.waiting": "notices.pressure",
} | {f"auxiliary.{task}.{key}": f"auxiliary.{task}" for task in _TASKS for key in _TASK_KEYS}
"""Old keys and the keys that replace them."""

OLD_KEYS: Final = frozenset(tuple(key.split(".")) for key in (*FIXED, *REPLACED))
OLD_BLOCKS: Final = frozenset(key[:end] for key in OLD_KEYS for end in range(1, len(key)))
WITH_BLOCKS: Final[Sequence[KeyPath]] = (("compression", "models"), ("model", "aliases"), ("model", "fallbacks"))
"""Settings whose values are blocks with keys of the setting's own block."""


def carried(old: Chosen, aliases: object) -> dict[KeyPath, tuple[Any, str]]:
    """Return the values of old keys under the new keys. Skips a background task's model if it is not in `aliases`."""
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
        elif model in old:  # earlier versions used `model` in every mode
            is_elsewhere = any(("auxiliary", task, key) in old for key in ("protocol", "base_url", "api_key"))
            if _word(old, model) in names - {"auto", "main", "off"} and not is_elsewhere:
                found["auxiliary", task] = old[model]
        elif _word(old, chooser) == "same-as-main":
            found["auxiliary", task] = "main", old[chooser][1]
    return found


def _word(old: Chosen, key: KeyPath) -> str:
    return str(old[key][0]).strip().lower() if key in old else ""


def notice(key: KeyPath, where: str, chosen: Chosen) -> str:
    """Return the warning about an old key. `where` names the file or variable with the key; `chosen` lists all keys."""
    name = ".".join(key)
    if name in FIXED:
        return f"{where}: {name} is no longer a setting and is ignored: remove it; the value is now {FIXED[name]}"
    new = REPLACED[name]
    words = " (auto, main, off, or an alias from model.aliases)" if len(key) == 3 else ""
    if key == _MODE:
        words = " and, for every other task, a key such as auxiliary.title: main"
    value, _ = chosen.get(tuple(new.split(".")), ("auto" if words else "not set", ""))
    state = "has an invalid value" if isinstance(value, Mapping | list) else f"is now {value}"
    return f"{where}: {name} is no longer a setting: use {new}{words}; {new} {state}"


def inner_old_keys(key: KeyPath, value: object) -> Iterator[KeyPath]:
    """Yield the keys of earlier versions in the blocks of `value`, which is set under one of `WITH_BLOCKS`."""
    try:
        rows = listed(value) if key[-1] == "fallbacks" else [*keyed(value).values()]
    except ValueError:
        return  # the check of the setting itself reports the error
    blocks = rows if isinstance(rows, list) else [rows]
    names = dict.fromkeys(str(name) for block in blocks if isinstance(block, Mapping) for name in block)
    yield from (old for name in names if (old := (key[0], name)) in OLD_KEYS)
