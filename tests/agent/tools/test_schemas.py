"""Schemas of the built-in tools: valid, closed, and limited to keywords that every provider accepts."""

import json
import re
from pathlib import Path

import jsonschema

from bench.built_in import agent_with_all_tools
from gateway.config.tool_settings import BUILT_IN_TOOLS


async def test_every_built_in_tool_has_a_valid_schema(tmp_path: Path) -> None:
    async with agent_with_all_tools(tmp_path) as agent:
        tools = agent.offers.registry.by_name
    assert sorted(tools) == BUILT_IN_TOOLS.split(), "the names that settings may switch"
    for tool in tools.values():
        schema = dict(tool.schema.parameters)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False, tool.name
        assert not {"$ref", "$defs", "anyOf", "title", "null"} & set(re.findall(r'"([^"]+)"', json.dumps(schema)))
