"""Arguments of tool calls: how they are declared, described to models, and parsed.

A Python type declares them, provides their JSON schema, and parses a call's arguments. Tools of plugins and MCP servers
can have a JSON schema instead of a type. Error messages tell the model how to correct its call.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import orjson

from hermes_state.errors import ToolError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for the arguments of a tool. A field's `Meta` describes it for models and limits its values."""


def parsed(text: str, declared: type[Arguments] | Mapping[str, Any]) -> Any:  # the declared type, or a dict
    """Return the arguments of a call as the declared type, or as a dict for a JSON schema.

    Raises `ToolError` with a text that tells the model how to correct the call.
    """
    arguments = checked_arguments(text, schema_of(declared))
    try:
        return msgspec.convert(arguments, declared) if isinstance(declared, type) else arguments
    except msgspec.ValidationError as error:
        raise ToolError(f"the arguments are invalid: {error}") from error


def schema_of(declared: type[Arguments] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of an arguments type.

    >>> class Open(Arguments, frozen=True):
    ...     id: str
    ...     role: str | None = None
    >>> schema_of(Open)["required"], schema_of(Open)["properties"]
    (['id'], {'id': {'type': 'string'}, 'role': {'type': 'string'}})
    """
    return _generated(declared) if isinstance(declared, type) else declared


@cache
def _generated(declared: type[Arguments]) -> Mapping[str, Any]:
    (root,), components = msgspec.json.schema_components([declared], ref_template="{name}")
    return _flat(root, components)


def _flat(place: Mapping[str, Any], components: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema without references, titles, null types and empty defaults, to make every request cheaper."""
    flat = dict(place)
    if "anyOf" in flat:  # keep the type, drop null
        flat |= flat.pop("anyOf")[0]
    if "$ref" in flat:
        named = components[flat.pop("$ref")]
        flat |= {key: named[key] for key in named if key not in ("title", "description")}
    if "enum" in flat:
        flat = {"type": "string", **flat}
    if "items" in flat:
        flat["items"] = _flat(flat["items"], components)
    if "properties" in flat:
        flat["properties"] = {name: _flat(inner, components) for name, inner in flat["properties"].items()}
    return {key: value for key, value in flat.items() if value or key not in ("default", "required")}


def checked_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as a dict that matches `schema`, with defaults for missing arguments.

    Only the top level is checked, because plugins and servers check nested values themselves. Raises `ToolError`.

    >>> checked_arguments('{"id": "m12"}', {"properties": {"id": {"type": "string"}, "limit": {"default": 10}}})
    {'id': 'm12', 'limit': 10}
    """
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError("the arguments must be a JSON object")
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if missing := [key for key in schema.get("required", ()) if key not in arguments]:
        raise ToolError(f"missing arguments: {', '.join(missing)}")
    unknown = [key for key in arguments if key not in properties]
    if unknown and schema.get("additionalProperties", True) is False:
        raise ToolError(f"unknown arguments: {', '.join(unknown)}; known: {', '.join(properties) or 'none'}")
    for key, rule in properties.items():
        if key in arguments:
            _check(key, arguments[key], rule)
        elif "default" in rule:
            arguments[key] = rule["default"]
    return arguments


def _check(key: str, value: object, rule: Mapping[str, Any]) -> None:
    wanted = rule.get("type") or []
    kinds = [wanted] if isinstance(wanted, str) else wanted
    is_bool = isinstance(value, bool)  # a bool is an int in Python, but not in JSON
    fits = (kind == "boolean" if is_bool else isinstance(value, _TYPES.get(kind, (object,))) for kind in kinds)
    if kinds and not any(fits):
        raise ToolError(f"{key} must be of type {' or '.join(kinds)}")
    if "enum" in rule and value not in rule["enum"]:
        raise ToolError(f"{key} must be one of {', '.join(map(str, rule['enum']))}")
    if isinstance(value, int | float) and not is_bool:
        if value < rule.get("minimum", value):
            raise ToolError(f"{key} must be at least {rule['minimum']}")
        if value > rule.get("maximum", value):
            raise ToolError(f"{key} must be at most {rule['maximum']}")
