"""What is wrong with a configuration, in words: where the value stands, which key, what would be right."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from gateway.config.fields import DEFAULT_SOURCE, FIELDS, SECTIONS, dotted, field_choices, field_range, is_secret
from gateway.config.files import KeyPath, YamlFile
from hermes_state.redaction import redact

_ALIKE = 0.65
"""From this likeness on (1 is equal) another key is offered as what was meant."""


def unknown_keys(file: Path, parsed: YamlFile, values: Mapping[str, Any], above: KeyPath = ()) -> Iterator[str]:
    """A line for every key in the file that is no setting, with the nearest one that is."""
    for name, value in values.items():
        key = (*above, str(name))
        line = f" line {parsed.lines[key]}" if key in parsed.lines else ""
        if key in SECTIONS:
            if isinstance(value, Mapping):
                yield from unknown_keys(file, parsed, value, key)
            elif value is not None:
                inner = ", ".join(dotted(known) for known in FIELDS if known[: len(key)] == key)
                yield f"{file}{line}: {dotted(key)} is a block of keys ({inner}), not a value"
        elif key not in FIELDS:
            yield f"{file}{line}: unknown key {dotted(key)}{_suggestion(key)}"


def explain(detail: ErrorDetails, chosen: Mapping[KeyPath, tuple[Any, str]], parsed: YamlFile, file: Path) -> str:
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
    return f"{where}: {dotted(key)}: {text}{redact(shown)}"  # an address may carry a password


def _known_part(location: Iterable[int | str]) -> KeyPath | None:
    """The key that a location of pydantic's begins with; what follows is an index or a member of a union."""
    names = tuple(str(part) for part in location)
    return next((names[:end] for end in range(len(names), 0, -1) if names[:end] in FIELDS), None)


def _suggestion(key: KeyPath) -> str:
    """The most similar key, with a preference for the same block; failing that, what the block may hold."""
    known = (*FIELDS, *sorted(SECTIONS))

    def likeness(other: KeyPath) -> float:
        same_name = other[-1] == key[-1]
        same_block = 0.1 if other[:-1] == key[:-1] else 0.0
        return same_name + same_block + difflib.SequenceMatcher(a=dotted(other), b=dotted(key)).ratio()

    nearest = max(known, key=likeness)
    if likeness(nearest) >= _ALIKE:
        return f"; did you mean {dotted(nearest)}?"
    siblings = ", ".join(dotted(other) for other in known if other[:-1] == key[:-1])
    return f"; known here: {siblings}" if siblings else ""
