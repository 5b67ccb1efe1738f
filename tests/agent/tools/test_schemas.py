"""Schemas of the built-in tools: each is valid JSON schema that refuses unknown arguments."""

from pathlib import Path

import jsonschema

from bench.built_in import agent_with_all_tools


async def test_every_built_in_tool_has_a_valid_schema(tmp_path: Path) -> None:
    async with agent_with_all_tools(tmp_path) as agent:
        tools = agent.offers.registry.by_name
    assert len(tools) >= 15
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(dict(tool.parameters))
        assert tool.name == "context" or tool.parameters["additionalProperties"] is False, tool.name
