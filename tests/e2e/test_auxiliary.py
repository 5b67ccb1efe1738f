"""Summaries by a model of their own over any protocol, and by whom the mode says where none is named."""

import pytest

from tests.e2e.protocols import PROTOCOLS, ModelProtocol
from tests.e2e.world import World

TALK = [f"fact {number}: " + "words " * 400 for number in range(12)]
SUMMARIES = """
SELECT route, model, outcome, input_tokens > 0 FROM model_calls WHERE purpose = 'summary' AND outcome <> 'output_cap'
"""
"""Calls for summaries. One protocol wants a limit in every request: that of a model that nobody knows is found by one
refusal, see the last test."""


async def compressed(world: World) -> None:
    await world.converse(*TALK)
    await world.ask("/compress", "Compressed")


async def test_an_admin_is_told_once_that_the_model_for_summaries_writes_none(world: World) -> None:
    await world.llm.post("script", [{"model": "lab-32k", "times": -1, "error": {"kind": "401"}}])
    await world.gateway.start(HERMES_AUXILIARY__COMPRESSION__MODEL="lab-32k", HERMES_ACCESS__ADMINS="telegram:42")
    for number in (1, 2):
        await world.converse(*TALK)
        await world.say("/compress here 1")
        assert await world.replies(number, match="Compressed")
    assert [row[1:3] for row in world.query(SUMMARIES)] == [("lab-32k", "auth"), ("lab-128k", "ok")] * 2
    [mention] = await world.replies(1, match="The summary model lab-32k failed")
    assert "lab-128k wrote this summary" in mention


@pytest.mark.parametrize(("mode", "summariser"), [("auto", "lab-64k"), ("same-as-main", "lab-128k")])
async def test_the_mode_says_whether_the_chosen_model_summarises(world: World, mode: str, summariser: str) -> None:
    await world.gateway.start(HERMES_AUXILIARY__COMPRESSION__MODE=mode, HERMES_MODEL__ALIASES='{"other": "lab-64k"}')
    await world.converse("/model other")
    await compressed(world)
    assert [row[1] for row in world.query(SUMMARIES)] == [summariser]
    answered = world.query("SELECT DISTINCT model FROM model_calls WHERE purpose = 'turn'")
    assert answered == [("lab-64k",)]


@pytest.mark.parametrize("other", PROTOCOLS.values(), ids=str)
async def test_a_separate_model_writes_summaries_over_any_protocol_and_its_unknown_output_limit_is_refused_once(
    world: World, other: ModelProtocol
) -> None:
    await world.gateway.start(
        HERMES_AUXILIARY__COMPRESSION__MODEL="lab-32k",
        HERMES_AUXILIARY__COMPRESSION__PROTOCOL=other.name,
        HERMES_AUXILIARY__COMPRESSION__BASE_URL=world.llm.url + other.root,
    )
    for number in (1, 2):
        await world.converse(*TALK)
        await world.say("/compress here 1")
        assert await world.replies(number, match="Compressed")
    outcomes = world.query("SELECT outcome FROM model_calls WHERE purpose = 'summary' ORDER BY id")
    refused = [("output_cap",)] if other.name == "anthropic" else []
    assert outcomes == [*refused, ("ok",), ("ok",)]
    for route, *row in world.query(SUMMARIES):
        assert route.startswith(f"{other}:")
        assert row == ["lab-32k", "ok", 1]
