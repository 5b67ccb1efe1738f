"""A long conversation with Claude, tools and compression and all: what its provider reads from its cache."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.protocols import ANTHROPIC, ModelProtocol
from tests.e2e.world import World, world_in

WINDOW = "claude-lab-16k"
CLAUDE: dict[str, str] = {
    "HERMES_MODEL__NAME": WINDOW,
    "HERMES_MODEL__CONTEXT_LENGTH": "16384",
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "4096",
    "HERMES_MODEL__CACHE_TTL": "1h",
    "HERMES_AGENT__PERSONA": "You are patient and exact. " * 150,
}


@pytest.fixture
def protocol() -> ModelProtocol:
    """The one that marks what is to be cached."""
    return ANTHROPIC


PARAGRAPH = "The rollout of the billing service touched invoices, ledgers and the export job. " * 9


def logged(world: World, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in world.gateway.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


async def test_each_call_of_a_long_conversation_reads_what_the_one_before_it_left(world: World) -> None:
    await world.gateway.start(**CLAUDE, HERMES_COMPRESSION__MODE="blocking")
    for turn in range(14):
        tool = '[[tool:history_search {"query": "rollout"}]] ' if turn % 3 == 1 else ""
        await world.converse(f"{tool}Note {turn}: {PARAGRAPH}")
    assert await world.gateway.stop() == 0  # the last turn may have shown a part of its answer only

    made = await world.asked(0, wait=0)
    calls = [call for call in made if call["outcome"] == "ok" and not call["summary"]]
    assert any(call.get("summary") for call in made), "summaries are asked for, too"
    splits = [n for n in range(1, len(calls)) if calls[n]["prompt_tokens"] < calls[n - 1]["prompt_tokens"]]
    reads = [call["cached_tokens"] for call in calls]
    left = [call["cached_tokens"] + call["cache_written"] for call in calls]
    for n in range(1, len(calls)):
        if n not in splits:
            assert reads[n] == left[n - 1], f"call {n}"
    kept = [reads[n] for n in splits[1:]]  # the first one adds a paragraph to the system prompt
    assert kept, "this conversation is to be compressed twice"
    assert min(kept) > 1_000, "tools and system prompt are still read after a compression"
    assert all(call["cache_breakpoints"] <= 4 for call in calls)
    assert _ttls(calls) == {"1h"}
    rows = world.query("SELECT sum(cache_read_tokens), sum(cache_write_tokens) FROM model_calls WHERE purpose = 'turn'")
    assert rows == [(sum(reads), sum(call["cache_written"] for call in calls))]

    [told] = logged(world, "prompt_cache.configured")
    assert (told["is_on"], told["route"], told["ttl"]) == (True, "anthropic:127.0.0.1", "1h")


def _ttls(calls: Sequence[dict[str, Any]]) -> set[str]:
    bodies = [call["body"] for call in calls]
    parts = [
        part for body in bodies for part in (*body["system"], *(p for m in body["messages"] for p in m["content"]))
    ]
    return {part["cache_control"].get("ttl", "5m") for part in parts if "cache_control" in part}


async def test_a_model_of_another_name_is_asked_without_marks(world: World) -> None:
    await world.gateway.start(**{**CLAUDE, "HERMES_MODEL__NAME": "lab-16k"})
    await world.converse("hello")
    [told] = logged(world, "prompt_cache.configured")
    assert (told["is_on"], told["route"]) == (False, "anthropic:127.0.0.1")
    assert "cache_control" not in json.dumps([call["body"] for call in await world.asked(1)])


async def test_a_gateway_whose_sdk_is_missing_does_not_start_and_says_how_to_get_it(
    tmp_path: Path, protocol: ModelProtocol
) -> None:
    without = "import runpy, sys; sys.modules['anthropic'] = None; runpy.run_module('gateway', run_name='__main__')"
    async with world_in(tmp_path, protocol, program=("-c", without, "run")) as world:
        await world.gateway.spawn(**CLAUDE)
        assert await world.gateway.wait() == 78
        assert "`make anthropic`" in world.gateway.log_text()
