"""Names and schemas of MCP tools, converted to a form that every provider accepts.

The corpus contains schemas of public servers (GitHub's, the reference servers for files, memory, fetching and
browsers, Cloudflare's) without their texts. The shapes are from reports about refusals by model
providers.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.base import ModelRequest, ToolSchema
from agent.model.protocols import anthropic, chat_completions, responses
from agent.tools.mcp.schemas import MAX_DEPTH, MAX_SCHEMA_BYTES, clean_schema, clean_text, tool_names
from agent.tools.registry import checked_arguments

CORPUS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "fixtures" / "mcp_tool_schemas.jsonl").read_text().splitlines()
]
_DAY = {"type": "object", "properties": {"of": {"type": "string"}}}
SHAPES: dict[str, Any] = {
    "no schema": None,
    "no properties": {"type": "object"},
    "no type": {"properties": {"a": {"type": "string"}}},
    "a choice at the top": {
        "type": "object",
        "oneOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["b"]}],
    },
    "all of at the top": {"allOf": [{"$ref": "#/definitions/Day"}], "definitions": {"Day": _DAY}},
    "an array without items": {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "array"}}}},
    "a tuple": {"properties": {"at": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]}}},
    "a property that is no schema": {"type": "object", "properties": {"a": {"type": "string"}, "type": "object"}},
    "a reference to a property": {
        "properties": {"to": {"type": "array", "items": _DAY}, "cc": {"items": {"$ref": "#/properties/to/items"}}}
    },
    "definitions": {"properties": {"day": {"$ref": "#/$defs/Day"}}, "$defs": {"Day": _DAY}, "type": "object"},
    "a reference to itself": {"properties": {"node": {"$ref": "#"}}, "type": "object"},
    "references without end": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a reference elsewhere": {"properties": {"a": {"$ref": "https://example.org/schema.json"}}},
    "a reference to nothing": {"properties": {"a": {"$ref": "#/$defs/gone"}}},
    "a bound of an old draft": {"properties": {"price": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}},
    "required of an old draft": {"properties": {"a": {"type": "string", "required": True}}, "required": True},
    "names that no provider takes": {"properties": {"$filter": {"type": "string"}, "filter[name]": {}, "ok": {}}},
    "a required name that is not there": {"properties": {"a": {}}, "required": ["a", "b", "a", 7]},
    "null": {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}}},
    "types": {"properties": {"a": {"type": ["string", "null", "file"]}, "b": {"type": "any"}}},
    "values": {"properties": {"a": {"const": "x"}, "b": {"enum": []}, "c": {"enum": [1, "two", None, {"d": 1}]}}},
    "any JSON": {
        "properties": {"a": {"$ref": "#/$defs/any"}},
        "$defs": {"any": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/any"}}]}},
    },
    "a bomb": {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {
            f"d{n}": {"properties": {x: {"$ref": f"#/$defs/d{n + 1}"} for x in "abcdefgh"}, "type": "object"}
            for n in range(30)
        },
    },
    "long texts": {"properties": {f"p{n}": {"type": "string", "description": "word " * 9_000} for n in range(60)}},
    "numbers that no encoder takes": {
        "properties": {"a": {"minimum": -(10**30), "maximum": float("inf"), "enum": [10**30, 1], "default": 10**30}}
    },
    "half a character": {"properties": {"a": {"enum": ["\ud800", "b"], "description": "\ud800", "pattern": "\ud800"}}},
    "many values": {"properties": {"a": {"enum": [f"value {n}" for n in range(5_000)]}}},
    "many arguments": {"properties": {f"argument_{n}": {"type": "string"} for n in range(3_000)}},
}


def faults(schema: dict[str, Any]) -> list[str]:
    """Return the parts of a schema that some provider refuses."""
    jsonschema.Draft202012Validator.check_schema(schema)
    found = [] if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) else ["the top"]
    found += [key for key in ("anyOf", "oneOf", "allOf", "enum", "not", "$defs", "definitions") if key in schema]
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES * 1.5:
        found.append("large")
    pending: list[tuple[Any, int]] = [(schema, 0)]
    while pending:
        place, depth = pending.pop()
        assert isinstance(place, dict)
        if depth > MAX_DEPTH + 1:
            found.append("deep")
        found += [key for key in ("$ref", "const", "oneOf", "allOf", "pattern", "format", "default") if key in place]
        kinds = place.get("type", [])
        if "array" in ([kinds] if isinstance(kinds, str) else kinds) and not isinstance(place.get("items"), dict):
            found.append("an array without items")
        for name, inner in place.get("properties", {}).items():
            if re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) is None:
                found.append(f"the name {name}")
            pending.append((inner, depth + 1))
        pending += [
            (one, depth + 1) for one in (*place.get("anyOf", []), *([place["items"]] if "items" in place else []))
        ]
    return found


@pytest.mark.parametrize("one", CORPUS, ids=lambda one: f"{one['server']}-{one['name']}")
def test_schemas_of_public_servers_keep_their_arguments(one: dict[str, Any]) -> None:
    schema = one["inputSchema"]
    cleaned = clean_schema(schema)
    assert (faults(dict(cleaned)), set(cleaned["properties"])) == ([], set(schema.get("properties", {})))
    assert set(cleaned.get("required", [])) == set(schema.get("required") or [])
    for name, rule in schema.get("properties", {}).items():
        if "type" in rule:
            assert cleaned["properties"][name]["type"] == rule["type"]
        if "enum" in rule:
            assert cleaned["properties"][name]["enum"] == rule["enum"]


@pytest.mark.parametrize("name", SHAPES)
def test_refused_schemas_are_converted(name: str) -> None:
    cleaned = clean_schema(SHAPES[name])
    assert faults(dict(cleaned)) == []
    orjson.dumps(cleaned)


def listed_tools(form: str, request: ModelRequest) -> list[tuple[str, Any]]:
    """Return names and schemas of the tools in a request body."""
    if form == "anthropic":
        return [(tool["name"], tool["input_schema"]) for tool in anthropic.body_parts([], request)["tools"]]
    if form == "responses":
        tools = json.loads(responses.encoded_request("m", request))["tools"]
        return [(tool["name"], tool["parameters"]) for tool in tools if tool["strict"] is False]
    tools = json.loads(chat_completions.encoded_request("m", request))["tools"]
    return [(tool["function"]["name"], tool["function"]["parameters"]) for tool in tools]


@pytest.mark.parametrize("form", ["chat_completions", "responses", "anthropic"])
def test_every_protocol_lists_the_tools_unchanged(form: str) -> None:
    schemas = {f"{one['server']} {one['name']}": one["inputSchema"] for one in CORPUS} | SHAPES
    names = tool_names("all", schemas)
    tools = [ToolSchema(name=names[key], description="", parameters=clean_schema(one)) for key, one in schemas.items()]
    listed = listed_tools(form, ModelRequest(system="", transcript=(), tools=tuple(tools), max_output_tokens=None))
    assert len(dict(listed)) == len(schemas)
    for name, schema in listed:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert faults(schema) == []


_MANY = {f"p{index}": {"$ref": "#/$defs/one"} for index in range(300)}
COSTLY: dict[str, Any] = {
    "references to itself": {"allOf": [{"$ref": "#"}] * 100},
    "a long list that many refer to": {"$defs": {"one": {"enum": list(range(200_000))}}, "properties": _MANY},
    "a long value that many refer to": {"$defs": {"one": {"enum": ["x" * 1_000_000]}}, "properties": _MANY},
    "a long text that many refer to": {"$defs": {"one": {"description": "x " * 1_000_000}}, "properties": _MANY},
    "many arguments that many refer to": {
        "$defs": {"one": {"allOf": [{"properties": {f"a{index}": {} for index in range(100_000)}}]}},
        "properties": _MANY,
    },
    "many choices at the top": {"anyOf": [{"properties": {f"p{index}": {}}} for index in range(10_000)]},
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_schema_that_expands_to_millions_is_cleaned_quickly(name: str) -> None:
    began = time.process_time()
    assert faults(dict(clean_schema(COSTLY[name]))) == []
    assert time.process_time() - began < 1.5  # without limits: 4 seconds to hours, and gigabytes


@pytest.mark.parametrize(
    "place",
    [
        {"minimum": 10**30},
        {"enum": [10**30, 1]},
        {"default": -(10**30)},
        {"anyOf": [], "$ref": f"#/anyOf/{'9' * 5_000}"},
    ],
)
def test_numbers_that_no_provider_accepts_are_left_out(place: dict[str, Any]) -> None:
    assert faults(dict(clean_schema({"properties": {"a": place}, "anyOf": []}))) == []


def test_references_are_replaced_by_their_targets() -> None:
    cleaned = clean_schema(SHAPES["a reference to a property"])["properties"]
    assert cleaned["cc"]["items"] == cleaned["to"]["items"]
    assert set(clean_schema(SHAPES["all of at the top"])["properties"]) == {"of"}
    assert set(clean_schema(SHAPES["a choice at the top"])["properties"]) == {"a"}


def test_defaults_of_a_server_are_described_but_not_filled_in() -> None:
    schema = clean_schema({"properties": {"limit": {"type": "integer", "default": 10, "description": "Rows."}}})
    assert schema["properties"]["limit"]["description"] == "Rows. (default: 10)"
    assert checked_arguments("{}", schema) == {}


KEYWORDS = """type properties items anyOf oneOf allOf $ref enum const required description default minimum format
    pattern $defs additionalProperties prefixItems title"""
KEYS = st.sampled_from(KEYWORDS.split())


TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**40, -(2**70)]) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | TEXTS, inner, max_size=5),
    max_leaves=25,
)


@given(schema=JSON)
def test_any_json_becomes_a_valid_schema(schema: Any) -> None:
    cleaned = clean_schema(schema)
    assert faults(dict(cleaned)) == []
    ToolSchema(name="a", description="", parameters=cleaned)
    orjson.dumps(cleaned)  # the encoder of prompts


@given(tools=st.lists(st.text(min_size=1, max_size=90), max_size=12))
def test_names_are_short_plain_and_unique(tools: list[str]) -> None:
    names = tool_names("a-server", tools)
    assert (set(names), len(set(names.values()))) == (set(tools), len(names))
    assert all(re.fullmatch(r"a-server__[A-Za-z0-9_-]{1,54}|a-server__", name) for name in names.values())
    assert tool_names("a-server", reversed(tools)) == names


@given(text=st.text(), limit=st.integers(1, 50))
def test_descriptions_contain_only_printable_characters(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert re.search(r"[\x00-\x1f\u202a-\u202e\u200b\U000e0001]", cleaned) is None
