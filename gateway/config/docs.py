"""Documentation of the settings: one row per key, made from the classes so that it cannot drift from them."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.fields import FIELDS, dotted, needs_restart, variable_name
from gateway.config.settings import Config
from gateway.config.types import field_choices, field_notes, field_range, is_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One key. `allowed` is a range with its unit or a list of words; `default` is how YAML would write it."""

    key: str
    variable: str
    default: str
    allowed: str
    needs_restart: bool
    text: str


def describe_settings() -> tuple[SettingRow, ...]:
    """Every setting, in the order of the file."""
    return tuple(
        SettingRow(
            key=dotted(key),
            variable=variable_name(key),
            default=_default(field),
            allowed=_allowed(field),
            needs_restart=needs_restart(key),
            text=field.description or "",
        )
        for key, field in FIELDS.items()
    )


def settings_markdown() -> str:
    """The tables of `docs/configuration.md`, a heading and a table for each block."""
    rows = describe_settings()
    parts: list[str] = []
    for block, text in _blocks(Config).items():
        parts.append(f"### {block}\n\n{text}\n")
        parts.append("| key | default | allowed | reload | meaning |\n|---|---|---|---|---|")
        for row in rows:
            if row.key.rpartition(".")[0] == block:
                reload = "restart" if row.needs_restart else "yes"
                parts.append(f"| `{row.key}` | {row.default} | {row.allowed} | {reload} | {row.text} |")
        parts.append("")
    return "\n".join(parts).strip()


def _blocks(model: type[BaseModel], above: str = "") -> dict[str, str]:
    """Every block with the first line of its class's docstring."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found[above + name] = (kind.__doc__ or "").strip().splitlines()[0]
            found.update(_blocks(kind, f"{above}{name}."))
    return found


def _default(field: FieldInfo) -> str:
    if default_text := field_notes(field)["default_text"]:
        return str(default_text)
    value: Any = field.default
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(field: FieldInfo) -> str:
    low, high = field_range(field)
    unit = field_notes(field)["unit"]
    if low is not None and high is not None:
        return f"{low:,} to {high:,} {unit}".strip()
    if is_secret(field):
        return "secret"
    return ", ".join(f"`{choice}`" for choice in field_choices(field))
