"""What people set for the calls of a model, from the environment and the chat to the wire."""

import json
from typing import Any

import pytest

from tests.e2e.test_compression import SMALL, summaries, talk, turns
from tests.e2e.world import World

Json = dict[str, Any]
WANTED = "Write the title now"
SETTINGS = {
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "4000",
    "HERMES_MODEL__REASONING_EFFORT": "medium",
    "HERMES_MODEL__EXTRA_HEADERS": json.dumps({"x-lab": "yes"}),
    "HERMES_MODEL__EXTRA_BODY": json.dumps({"service_tier": "flex"}),
}


def effort_of(body: Json) -> Any:
    """The effort that a request asks for, whatever the protocol; a budget counts as what it is a half of."""
    if "thinking" in body:
        return body.get("output_config", {}).get("effort") or body["thinking"]["type"]
    return body.get("reasoning_effort") or body.get("reasoning", {}).get("effort")


@pytest.mark.each_protocol
async def test_settings_of_a_task_and_the_effort_of_a_conversation_reach_the_provider(world: World) -> None:
    calm = '{"calm": {"name": "claude-opus-4-6", "reasoning_effort": "off"}}'
    title = {"HERMES_MODEL__ALIASES": calm, "HERMES_AUXILIARY__TITLE": "calm"}
    await world.gateway.start(HERMES_MODEL__NAME="claude-opus-4-6", **title, **SETTINGS)
    await world.converse("one")
    efforts = {WANTED in str(request["body"]): effort_of(request["body"]) for request in await world.asked(2)}
    assert efforts[False] == "medium"
    assert efforts[True] in ("none", "disabled")
    await world.ask("/think high", "reasoning effort in this conversation is high")
    await world.converse("two")
    await world.ask("/think off", "reasoning effort in this conversation is off")
    await world.converse("three")
    requests = [request for request in await world.asked(4) if WANTED not in str(request["body"])]
    bodies = [request["body"] for request in requests]
    assert [body["service_tier"] for body in bodies] == ["flex"] * 3
    assert requests[0]["headers"]["x-lab"] == "yes"
    assert [effort_of(body) for body in bodies][:2] == ["medium", "high"]
    assert effort_of(bodies[2]) in ("none", "disabled")
    await world.say("/model")
    shown = "reasoning effort off \\(chosen here\\), header x-lab, field service_tier"
    assert await world.replies(1, match=shown)


@pytest.mark.each_protocol
async def test_a_setting_that_the_provider_refuses_costs_no_answer(world: World) -> None:
    error = {"type": "invalid_request_error", "message": "Unsupported parameter: 'temperature' is not supported."}
    refused = {"fields": ["temperature"], "body": {"type": "error", "error": error}}
    await world.llm.post("config", {"refuses": [refused]})
    await world.gateway.start(HERMES_MODEL__NAME="lab-128k", HERMES_MODEL__TEMPERATURE="0.3")
    await world.converse("one")
    await world.converse("two")
    bodies = [request["body"] for request in await world.asked(3)]
    assert ["temperature" in body for body in bodies] == [True, False, False]


@pytest.mark.each_protocol
async def test_top_p_in_extra_body_is_sent_for_turns_and_summaries(world: World) -> None:
    extra = {
        "HERMES_MODEL__EXTRA_BODY": json.dumps({"top_p": 0.9}),
        "HERMES_AUXILIARY__COMPRESSION__EXTRA_BODY": json.dumps({"top_p": 0.5}),
    }
    await world.gateway.start(**SMALL, **extra)
    await talk(world, 20)
    await world.ask("/compress", "^Compressed: ")
    assert {request["body"]["top_p"] for request in await turns(world)} == {0.9}
    assert {request["body"]["top_p"] for request in await summaries(world)} == {0.5}
