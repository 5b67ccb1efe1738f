"""Problems of settings, in words: what is wrong with a value, what would be right, which key was meant."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config.types import field_choices, field_range, fields_of
from hermes_state.errors import ConfigError
from hermes_state.text import closest

Block = TypeVar("Block")


class ConfigRejected(ConfigError):
    """Settings that cannot be used: one line for each problem, and beside them what would only have been warned of."""

    def __init__(self, problems: Iterable[str], warnings: Sequence[str]) -> None:
        super().__init__("\n".join(dict.fromkeys(problems)))
        self.warnings = tuple(warnings)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that was probably meant, as `; did you mean port?`; empty when none is alike."""
    meant = closest(name, known, cutoff)
    return f"; did you mean {meant}?" if meant is not None else ""


def unknown_key(key: object, known: Iterable[str]) -> str:
    """The sentence about a key that a block does not have, with the one that was meant or all that there are."""
    names = list(known)
    return f"there is no key {key}{did_you_mean(str(key), names) or '; known here: ' + ', '.join(names)}"


def details_of(error: ValidationError) -> list[ErrorDetails]:
    """Every problem that pydantic found, less those that only follow from another one."""
    details = error.errors(include_url=False, include_context=False)
    return [detail for detail in details if detail["type"] != "default_factory_not_called"]


def problem(detail: ErrorDetails, field: FieldInfo) -> str:
    """Sentence about a value that `field` cannot have; without the value, which may be a secret."""
    kind = detail["type"]
    low, high = field_range(field)
    is_outside = kind in ("greater_than_equal", "less_than_equal", "finite_number") and low is not None
    if is_outside or kind in ("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type"):
        is_whole = "int" in str(field.annotation)
        words = ["a whole number"] if is_whole else [] if is_outside else ["a number"]
        if low is not None and high is not None:
            words.append(f"between {low:,} and {high:,}")
        return f"must be {' '.join(words)}"
    if kind in ("bool_parsing", "bool_type"):
        return "must be true or false"
    if kind == "literal_error":
        return f"must be one of {', '.join(field_choices(field))}"
    return detail["msg"].removeprefix("Value error, ")


def checked_block(block: type[Block], values: Mapping[Any, Any], name: str, known: Iterable[str]) -> Block:
    """The block that people wrote behind `name`, in which they may use the keys `known`. Raises `ValueError`."""
    for key in values:
        if key not in known:
            raise ValueError(f"{name}: {unknown_key(key, known)}")
    try:
        return TypeAdapter(block).validate_python(values)
    except ValidationError as error:
        raise ValueError(f"{name}.{first_problem(error, block)}") from None


def first_problem(error: ValidationError, block: type[Any]) -> str:
    """First problem of a block that stands in a list or behind a name, as `key: what is wrong with it`."""
    detail = details_of(error)[0]
    key = str(detail["loc"][0])
    return f"{key}: {problem(detail, fields_of(block)[key])}"
