"""Arguments of tools: their JSON schemas, and checks of a call's arguments against them.

Models mostly get arguments right; what they get wrong are types, missing keys and made-up keys of the top level. That
much is checked here, with a message that lets the model correct itself. Nested values are the tool's own business.
"""

from collections.abc import Mapping
from typing import Any

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


def checked_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as a dict that fits `schema`; missing ones with a default are filled in.

    Raises `ToolError` whose text tells the model what to change.

    >>> schema = {"properties": {"id": {"type": "string"}, "limit": {"type": "integer", "default": 10}}}
    >>> checked_arguments('{"id": "m12"}', schema)
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
        raise ToolError(f"missing: {', '.join(missing)}")
    unknown = [key for key in arguments if key not in properties]
    if unknown and schema.get("additionalProperties", True) is False:
        raise ToolError(f"unknown: {', '.join(unknown)}; known are {', '.join(properties) or 'none'}")
    for key, rule in properties.items():
        if key in arguments:
            _check(key, arguments[key], rule)
        elif "default" in rule:
            arguments[key] = rule["default"]
    return arguments


def _check(key: str, value: object, rule: Mapping[str, Any]) -> None:
    wanted = rule.get("type")
    if wanted is not None and not any(_is(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted)):
        raise ToolError(f"{key} must be of type {wanted if isinstance(wanted, str) else ' or '.join(wanted)}")
    if "enum" in rule and value not in rule["enum"]:
        raise ToolError(f"{key} must be one of {', '.join(map(str, rule['enum']))}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < rule.get("minimum", value):
            raise ToolError(f"{key} must be at least {rule['minimum']}")
        if value > rule.get("maximum", value):
            raise ToolError(f"{key} must be at most {rule['maximum']}")


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):  # a bool is an int to Python, not to JSON
        return name == "boolean"
    return isinstance(value, _TYPES.get(name, (object,)))


# ---- schemas


def schema(*required: str, **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Schema of a tool whose arguments are these, and of them `required`.

    >>> schema("path", path=text(), depth=whole(3))["properties"]["depth"]
    {'type': 'integer', 'default': 3}
    """
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def text(description: str = "", **rules: Any) -> Mapping[str, Any]:
    """Schema of a text; `enum` lists the only values."""
    return _described("string", description, rules)


def whole(default: int | None = None, description: str = "", **rules: Any) -> Mapping[str, Any]:
    """Schema of a whole number; without a default it may be left out."""
    return _described("integer", description, rules if default is None else {"default": default, **rules})


def switch(description: str = "") -> Mapping[str, Any]:
    """Schema of something that is off unless it is set."""
    return _described("boolean", description, {"default": False})


def many(items: Mapping[str, Any], description: str) -> Mapping[str, Any]:
    """Schema of a list whose items have this schema."""
    return {"type": "array", "items": items, "description": description}


def _described(kind: str, description: str, rules: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": kind, **rules, **({"description": description} if description else {})}
