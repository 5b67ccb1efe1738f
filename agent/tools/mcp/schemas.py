"""Conversion of MCP tool names and argument schemas into a form that every model provider accepts.

Only keywords that help models are kept. References are replaced by their targets, up to a limit, and long texts are
cut.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from hermes_state.text import shortened, well_formed

MAX_NAME: Final = 64
MAX_DEPTH: Final = 8
"""Maximum depth of a schema. Below this depth, any value is allowed."""
MAX_NODES: Final = 400
"""Maximum number of nodes in a schema, because references can expand to billions of nodes."""
MAX_SCHEMA_BYTES: Final = 20_000
"""Maximum size of a schema's JSON in bytes. A larger schema loses its descriptions, then everything but the argument
names.
"""
MAX_TOOL_TEXT: Final = 1_500
"""Maximum length of a tool's description, in characters."""
MAX_PLACE_TEXT: Final = 400
"""Maximum length of a description inside a schema, in characters."""
MAX_ENUM: Final = 100
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]+"
)


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Map the server's tool names to the agent's names for them.

    A name ends with a digest of the original if it had to be cut, or if replacing characters made it ambiguous.

    >>> tool_names("files", ["read", "read.all", "read_all"])
    {'read': 'files__read', 'read_all': 'files__read_all', 'read.all': 'files__read_all-8fb73b'}
    """
    names: dict[str, str] = {}
    for tool in sorted(set(tools), key=lambda tool: (_plain(server, tool) != f"{server}__{tool}", tool)):
        name = _plain(server, tool)
        if len(name) > MAX_NAME or name in names.values():
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:6]
            name = f"{name[: MAX_NAME - 7]}-{mark}"
        names[tool] = name
    return names


def _plain(server: str, tool: str) -> str:
    return f"{server}__{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"


def clean_text(text: object, limit: int) -> str:
    """Return a description of at most `limit` characters, without invisible or direction-changing characters."""
    if not isinstance(text, str):
        return ""
    return shortened(_INVISIBLE.sub(" ", well_formed(text[: 8 * limit])).strip(), limit)  # a text can have megabytes


def clean_schema(schema: object) -> Mapping[str, Any]:
    """Return a valid schema of type object for a tool's arguments, even if the server's schema is invalid.

    >>> clean_schema({"properties": {"day": {"$ref": "#/$defs/Day"}}, "$defs": {"Day": {"const": "today"}}})
    {'type': 'object', 'properties': {'day': {'enum': ['today'], 'type': 'string'}}}
    """
    root = schema if isinstance(schema, Mapping) else {}
    for max_text in (MAX_PLACE_TEXT, 0):
        cleaned = _SchemaBuilder(root, max_text).object_at(root)
        if len(orjson.dumps(cleaned)) <= MAX_SCHEMA_BYTES:
            return cleaned
    names = list(cleaned["properties"])[:MAX_ENUM]
    required = [name for name in cleaned.get("required", []) if name in names]
    return {"type": "object", "properties": {name: {} for name in names}} | ({"required": required} if required else {})


class _SchemaBuilder:
    def __init__(self, root: Mapping[str, Any], max_text: int) -> None:
        self._root, self._max_text, self._nodes, self._merges = root, max_text, 0, 0

    def object_at(self, root: Mapping[str, Any]) -> dict[str, Any]:
        """Return a schema whose top level is an object without `anyOf` and `oneOf`, which providers refuse there."""
        merged = self._merged(root, 0)
        for choice in (*_listed(root.get("anyOf")), *_listed(root.get("oneOf")))[:20]:
            found = self._merged(choice, 1).get("properties")
            merged["properties"] = _mapping(found) | _mapping(merged.get("properties"))
        return {"type": "object", **self._object(merged, 0)}

    def _merged(self, place: object, depth: int) -> dict[str, Any]:
        """Return a node merged with the target of its reference and with the schemas in its `allOf`."""
        own = _mapping(place)
        parts = [self._target(own.pop("$ref", None)), *_listed(own.pop("allOf", None))]
        self._merges += 1
        if depth > MAX_DEPTH or self._merges > 2_000:  # a few nodes that refer to each other could expand to millions
            return own
        for part in parts:
            other = self._merged(part, depth + 1)
            properties = {**_mapping(other.get("properties")), **_mapping(own.get("properties"))}
            required = list(dict.fromkeys(map(str, (*_listed(other.get("required")), *_listed(own.get("required"))))))
            own = other | own
            if properties:
                own["properties"], own["required"] = properties, required
        return own

    def _target(self, reference: object) -> object:
        """Return the target of a reference inside the schema; None for any other reference."""
        if not isinstance(reference, str) or not reference.startswith("#") or len(reference) > 1_000:
            return None
        place: object = self._root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping):
                place = place.get(key)
            else:
                place = (
                    place[int(key)] if isinstance(place, list) and key.isdecimal() and int(key) < len(place) else None
                )
        return place

    def _place(self, place: object, depth: int) -> dict[str, Any]:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            return {}
        rule = self._merged(place, depth)
        choices = [*_listed(rule.get("anyOf")), *_listed(rule.get("oneOf"))]
        cleaned: dict[str, Any] = {}
        if kind := _kind(rule):
            cleaned["type"] = kind
        if choices and not kind:
            found = [self._place(choice, depth + 1) for choice in choices[:20]]
            cleaned = found[0] if len(found) == 1 else {"anyOf": found}
        kinds = [kind] if isinstance(kind, str) else kind
        if "object" in kinds:
            cleaned |= self._object(rule, depth)
        if "array" in kinds:
            items = rule.get("items", rule.get("prefixItems"))
            cleaned["items"] = self._place(items if isinstance(items, Mapping) else {}, depth + 1)
        if values := _values(rule):
            cleaned = {"enum": values, **cleaned}
        numbers = {key: rule[key] for key in ("minimum", "maximum") if _is_number(rule.get(key))}
        text = self._text(rule)
        return cleaned | numbers | ({"description": text} if text else {})

    def _object(self, rule: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = {
            name: self._place(inner, depth + 1)
            for name, inner in _mapping(rule.get("properties")).items()
            if isinstance(name, str) and re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)  # all providers accept such names
        }
        required = [name for name in dict.fromkeys(map(str, _listed(rule.get("required")))) if name in properties]
        cleaned: dict[str, Any] = {"properties": properties}
        if required:
            cleaned["required"] = required
        if rule.get("additionalProperties") is False:
            cleaned["additionalProperties"] = False
        return cleaned

    def _text(self, rule: Mapping[str, Any]) -> str:
        """Return the description, followed by keywords that providers do not accept: format, pattern and default."""
        if not self._max_text:
            return ""
        notes = [f"{key}: {rule[key]}" for key in ("format", "pattern") if isinstance(rule.get(key), str)]
        if isinstance(default := rule.get("default"), bool) or _is_text(default) or _is_number(default):
            notes.append(f"default: {json.dumps(default, ensure_ascii=False)}")
        words = clean_text(rule.get("description") or rule.get("title"), self._max_text)
        return f"{words}{' ' if words else ''}({clean_text(', '.join(notes), 200)})" if notes else words


def _kind(rule: Mapping[str, Any]) -> str | list[str]:
    """Return the type of a node, or the type that its other keywords imply. Empty: any type."""
    kind = rule.get("type")
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if one in _TYPES]
    if not kinds and "properties" in rule:
        kinds = ["object"]
    if not kinds and "items" in rule:
        kinds = ["array"]
    if not kinds and (values := _values(rule)) and all(isinstance(value, str) for value in values):
        kinds = ["string"]
    return kinds[0] if len(kinds) == 1 else list(dict.fromkeys(kinds))


def _values(rule: Mapping[str, Any]) -> list[Any]:
    values = [rule["const"]] if "const" in rule else _listed(rule.get("enum"))
    fit = (
        value for value in values if value is None or isinstance(value, bool) or _is_text(value) or _is_number(value)
    )
    return [well_formed(value) if isinstance(value, str) else value for value in fit][:MAX_ENUM]


def _mapping(value: object) -> dict[str, Any]:
    """Return a copy of the first `MAX_NODES` items of an object."""
    return dict(islice(value.items(), MAX_NODES)) if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Any]:
    return list(value[:MAX_NODES]) if isinstance(value, list | tuple) else []


def _is_number(value: object) -> bool:
    """Return True for a number that can be encoded as JSON. Received JSON can contain larger numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _is_text(value: object) -> bool:
    """Return True for a short string. Long strings are left out, because references can repeat a string many times."""
    return isinstance(value, str) and len(value) <= MAX_PLACE_TEXT
