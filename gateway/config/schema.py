"""JSON Schema of `config.yaml`, with which editors complete and check keys."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import SecretStr, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import CoreSchema

from gateway.config.blocks import field_range
from gateway.config.docs import SettingRow, describe_settings
from gateway.config.fields import BLOCKS, FIELDS, dotted
from gateway.config.files import KeyPath

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Lenient(GenerateJsonSchema):
    """Accepts anything where a validator of ours accepts more than the type says."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> dict[str, Any]:
        return {}

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        inner = self.generate_inner(schema["schema"])
        is_strict = inner.get("type") == "string"  # a validator of text also wants text
        return inner if is_strict else {"anyOf": [inner, {"type": ["string", "array", "object", "boolean"]}]}


def json_schema() -> Mapping[str, Any]:
    """Return the schema as JSON values, in JSON Schema draft 2020-12."""
    shared: dict[str, Any] = {}
    root = _block((), {row.key: row for row in describe_settings()}, shared)
    for name in ("telegram", "discord"):  # one account, or a list of accounts
        account = root["properties"][name]
        del account["properties"]["accounts"]
        named = {"properties": account["properties"] | {"name": {"type": "string"}}}
        root["properties"][name] = {"anyOf": [account, {"type": "array", "items": account | named}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hermes-gateway",
        "$defs": shared,
    } | root


def _block(above: KeyPath, rows: Mapping[str, SettingRow], shared: dict[str, Any]) -> dict[str, Any]:
    own = {key[-1]: _field(key, rows[dotted(key)]) for key in FIELDS if key[:-1] == above}
    for found in own.values():
        shared |= found.pop("$defs", {})
    blocks = {key[-1]: _block(key, rows, shared) for key in BLOCKS if key[:-1] == above}
    about = (BLOCKS[above].__doc__ or "").splitlines()[:1] if above else []
    return {
        "type": ["object", "null"],
        **({"description": about[0]} if about else {}),
        "properties": own | blocks,
        "additionalProperties": False,
    }


def _field(key: KeyPath, row: SettingRow) -> dict[str, Any]:
    field = FIELDS[key]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    if field.annotation in (SecretStr, SecretStr | None):
        kind = str
    found = TypeAdapter(kind).json_schema(schema_generator=_Lenient)
    low, high = field_range(field)
    limits = {"minimum": low, "maximum": high} if found.get("type") in ("integer", "number") else {}
    return {**found, **limits, "title": row.key, "description": f"{row.text} Default: {row.default}."}
