"""Documentation of the settings, generated from the classes and the docstrings below their fields."""

import ast
import inspect
import itertools
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.blocks import field_choices, field_notes, field_range, is_secret
from gateway.config.fields import FIELDS, ROOT_AND_BLOCKS, dotted, needs_restart, variable_name


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one key. `allowed` is a range with a unit or a list of keywords. `default` is in YAML syntax."""

    key: str
    variable: str
    default: str
    allowed: str
    needs_restart: bool
    text: str


def describe_settings() -> tuple[SettingRow, ...]:
    """Return every setting, in the order of the documentation."""
    texts = {key: _field_docstrings(block) for key, block in ROOT_AND_BLOCKS.items()}
    return tuple(
        SettingRow(
            key=dotted(key),
            variable=variable_name(key),
            default=_default(field),
            allowed=_allowed(field),
            needs_restart=needs_restart(key),
            text=texts[key[:-1]][key[-1]],
        )
        for key, field in FIELDS.items()
    )


_ROOT = "Several agents ([how-to](../how-to/agents.md)), and webhooks ([how-to](../how-to/outside-programs.md))."


def settings_markdown() -> str:
    """Return the lists of `docs/reference/configuration.md`, with a heading per block."""
    rows = describe_settings()
    parts: list[str] = []
    for key, block in ROOT_AND_BLOCKS.items():
        about = (block.__doc__ or "").splitlines()[0] if key else _ROOT
        parts.append(f"### {dotted(key) or 'agents, routes and webhooks'}\n\n{about}\n")
        parts += [_entry(row) for row in rows if row.key.rpartition(".")[0] == dotted(key)]
        parts.append("")
    return "\n".join(parts).strip()


def _entry(row: SettingRow) -> str:
    """Return a key as a list item: default and allowed values in brackets, then the meaning."""
    default, allowed = row.default, row.allowed
    if allowed == "`true`, `false`":
        shown = default
    elif default == "none":
        shown = f"one of {allowed}" if allowed.startswith("`") else allowed
    else:
        others = ", ".join(value for value in allowed.split(", ") if value != default)
        shown = f"{default}; {'or ' if others != allowed else ''}{others}" if others else default
    mark = " *Restart.*" if row.needs_restart else ""
    return f"- `{row.key}`{f' ({shown})' if shown else ''}: {row.text}{mark}"


def _field_docstrings(block: type[Any]) -> dict[str, str]:
    """Return the docstring below each field, on one line. pydantic could do this, but would slow down every start."""
    found: dict[str, str] = {}
    for kind in reversed(block.__mro__):
        if kind in (object, BaseModel):
            continue
        [definition] = ast.parse(inspect.getsource(kind)).body
        assert isinstance(definition, ast.ClassDef), "it is the source of a class"
        for statements in itertools.pairwise(definition.body):
            match statements:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def _default(field: FieldInfo) -> str:
    if default_text := field_notes(field).default_text:
        return default_text
    value: Any = field.default
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(field: FieldInfo) -> str:
    low, high = field_range(field)
    unit = field_notes(field).unit
    if low is not None and high is not None:
        return f"{low:,} to {high:,} {unit}".strip()
    if is_secret(field):
        return "secret"
    return ", ".join(f"`{choice}`" for choice in field_choices(field))
