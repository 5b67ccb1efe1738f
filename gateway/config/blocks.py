"""Blocks of settings, and error messages for invalid values and keys."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hermes_state.errors import ConfigError
from hermes_state.settings import Setting
from hermes_state.text import closest

Block = TypeVar("Block")


class BaseConfig(BaseModel):
    """Base class of the blocks that are defined in this package. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def setting(
    default: Any = ...,
    *,
    ge: float | None = None,
    le: float | None = None,
    unit: str = "",
    default_text: str = "",
    default_factory: Callable[[dict[str, Any]], Any] | None = None,
    restart: bool = False,
) -> Any:
    """Return a pydantic field with the notes of a `Setting`. The docstring below the field describes it to users."""
    notes = Setting(ge=ge, le=le, unit=unit, default_text=default_text, restart=restart)
    given: dict[str, Any] = {"default": default} if default_factory is None else {"default_factory": default_factory}
    return Field(**given, json_schema_extra={"notes": cast(Any, notes)}, ge=ge, le=le)


def is_block(kind: object) -> bool:
    """Return True for a class whose fields are keys: a `BaseConfig` or a dataclass of settings."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


def fields_of(block: type[Any]) -> Mapping[str, FieldInfo]:
    """Return the keys of a block. In a dataclass, only fields that are declared with a `Setting` are keys."""
    return block.model_fields if issubclass(block, BaseModel) else _marked_fields(cast(Hashable, block))


@cache
def _marked_fields(block: Any) -> Mapping[str, FieldInfo]:
    kinds, defaults = get_type_hints(block, include_extras=True), {field.name: field.default for field in fields(block)}
    found = {name: FieldInfo.from_annotated_attribute(kinds[name], default) for name, default in defaults.items()}
    return {name: field for name, field in found.items() if any(isinstance(mark, Setting) for mark in field.metadata)}


def field_notes(field: FieldInfo) -> Setting:
    """Return the `Setting` of a key, with its unit, its default in words and its restart flag."""
    extra = cast(dict[str, Any], field.json_schema_extra or {})
    return next((mark for mark in field.metadata if isinstance(mark, Setting)), extra.get("notes", Setting()))


def field_range(field: FieldInfo) -> tuple[float | None, float | None]:
    """Return the minimum and the maximum of a setting. Each is None if the setting has no such limit."""
    low = next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None)
    high = next((mark.le for mark in field.metadata if hasattr(mark, "le")), None)
    return low, high


def is_secret(field: FieldInfo) -> bool:
    """Return True for a value that is masked in all output."""
    return "SecretStr" in str(field.annotation)


def field_choices(field: FieldInfo) -> list[str]:
    """Return the keywords that a setting accepts, or an empty list if it accepts none."""
    return list(_words_in(field.annotation))


def _words_in(kind: object) -> Iterator[str]:
    if kind is bool:
        yield from ("true", "false")
    for part in get_args(kind):
        yield from (part,) if isinstance(part, str) else _words_in(part)


class ConfigRejected(ConfigError):
    """Error for invalid settings. Contains a line for each problem, and the warnings."""

    def __init__(self, problems: Iterable[str], warnings: Sequence[str]) -> None:
        super().__init__("\n".join(dict.fromkeys(problems)))
        self.warnings = tuple(warnings)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a suggestion such as `; did you mean port?`, or an empty string if no known name is similar."""
    meant = closest(name, known, cutoff)
    return f"; did you mean {meant}?" if meant is not None else ""


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Return the message for an unknown key. It names the most similar key or all valid keys."""
    names = list(known)
    return f"unknown key {key}{did_you_mean(str(key), names) or '; valid keys: ' + ', '.join(names)}"


def details_of(error: ValidationError) -> list[ErrorDetails]:
    """Return the problems that pydantic found, except problems that are only consequences of others."""
    details = error.errors(include_url=False, include_context=False)
    return [detail for detail in details if detail["type"] != "default_factory_not_called"]


def problem(detail: ErrorDetails, field: FieldInfo) -> str:
    """Return the message for an invalid value. It never contains the value, which may be a secret."""
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


def checked_block(
    block: type[Block], values: Mapping[Any, Any], name: str, known: Iterable[str], own: Mapping[str, str] | None = None
) -> Block:
    """Check the keys that the user wrote under `name`, and return them as a block. The values in `own` override them.

    Raises `ValueError` for an invalid value or a key that is not in `known`.
    """
    for key in values:
        if key not in known:
            raise ValueError(f"{name}: {unknown_key(key, known)}")
    try:
        return TypeAdapter(block).validate_python({**values, **(own or {})})
    except ValidationError as error:
        raise ValueError(f"{name}.{first_problem(error, block)}") from None


def first_problem(error: ValidationError, block: type[Any]) -> str:
    """Return the first problem of a block in a list or mapping, in the form `key: message`."""
    detail = details_of(error)[0]
    key = str(detail["loc"][0])
    return f"{key}: {problem(detail, fields_of(block)[key])}"
