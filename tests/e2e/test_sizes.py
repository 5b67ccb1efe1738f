"""How large a model is, when nobody has configured it."""

from typing import Any

import pytest

from tests.e2e.protocols import CHAT_COMPLETIONS, ModelProtocol
from tests.e2e.test_compression import LAYERS, talk, turns
from tests.e2e.world import World

OFFER = "SELECT offered_context, offered_output FROM model_profiles"


@pytest.fixture
def unsized(world: World, protocol: ModelProtocol) -> World:
    """A gateway whose model has no configured size."""
    if protocol is not CHAT_COMPLETIONS:
        pytest.skip("what is asked for is read from the fields of chat completions")
    del world.gateway.environ["HERMES_MODEL__CONTEXT_LENGTH"]
    world.gateway.environ["HERMES_ACCESS__ADMINS"] = "telegram:42"
    return world


async def questions(world: World) -> int:
    return int((await world.llm.get("stats"))["questions"])


async def window_line(world: World) -> str:
    await world.say("/status")
    [shown] = (await world.replies(1, match="Window: "))[-1:]
    return next(line for line in shown.splitlines() if "Window: " in line)


async def first_limit(world: World) -> Any:
    await world.converse("hello")
    return (await turns(world))[-1]["body"]["max_tokens"]


async def test_the_providers_window_is_respected_and_asked_for_once(unsized: World) -> None:
    world = unsized
    await world.gateway.start(HERMES_MODEL__NAME="lab-32k", HERMES_COMPRESSION__MODE="blocking")
    assert await questions(world) == 0, "not at the start"
    await talk(world, 28)
    assert world.query(LAYERS) == [("preflight", "compressed")]
    assert "32,768 tokens (reported by the provider)" in await window_line(world)
    requests = await turns(world)
    largest = max(row["prompt_tokens"] for row in requests)
    assert 14_000 < largest < 16_384 + 1_000, "compressed at half of the window"
    assert {row["body"]["max_tokens"] for row in requests} == {8_192}
    assert (await questions(world), world.query(OFFER)) == (1, [(32_768, 8_192)])
    assert await world.gateway.stop() == 0
    await world.gateway.start()
    await world.converse("and now?")
    assert await questions(world) == 1, "a restart does not ask again"


async def test_where_the_provider_says_nothing_the_list_knows_the_family(unsized: World) -> None:
    world = unsized
    await world.llm.post("config", {"tells_sizes": False})
    await world.llm.post("models", {"gpt-4.1-mini": {"context": 1_047_576, "max_output": 32_768}})
    await world.gateway.start(HERMES_MODEL__NAME="gpt-4.1-mini")
    assert await first_limit(world) == 32_000
    assert "1,047,576 tokens (from the built-in list" in await window_line(world)
    assert world.query(OFFER) == [(None, None)]
    asked = await questions(world)
    await world.converse("again")
    assert await questions(world) == asked


async def test_a_bound_of_the_prompt_below_the_window_is_told(unsized: World) -> None:
    world = unsized
    await world.llm.post("config", {"tells_sizes": False})
    await world.llm.post("models", {"gpt-5-mini": {"context": 400_000, "max_output": 128_000}})
    await world.gateway.start(HERMES_MODEL__NAME="gpt-5-mini")
    await world.converse("hello")
    line = await window_line(world)
    assert "Window: 400,000 tokens (from the built-in list" in line
    assert line.endswith("; a prompt can use 272,000 of them")


@pytest.mark.parametrize("status", [401, 500])
async def test_a_model_that_nobody_knows_is_taken_for_one_of_32768_tokens(unsized: World, status: int) -> None:
    world = unsized
    await world.llm.post("config", {"models_status": status})
    await world.gateway.start(HERMES_MODEL__NAME="lab-64k")
    assert await first_limit(world) == 16_384, "as much as the window leaves is refused, for the model writes no more"
    assert "32,768 tokens (default" in await window_line(world)
    assert await world.replies(1, match="echo: .*hello")


async def test_a_provider_that_promises_too_much_is_corrected_by_its_refusal(unsized: World) -> None:
    world = unsized
    await world.llm.post("models", {"lab-32k": {"context": 1_000_000, "max_output": 8_192}})
    await world.gateway.start(HERMES_MODEL__NAME="lab-32k")
    await talk(world, 28)
    await world.llm.post("models", {"lab-32k": {"context": 16_384, "max_output": 4_096}})
    await world.converse("and now?")
    assert world.query(LAYERS)[-1][1] == "compressed"
    assert "16,384 tokens (reported by the provider when it refused a prompt)" in await window_line(world)
