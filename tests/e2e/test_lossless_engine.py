"""The example engine, installed by pip, through everything that people and crashes do to a conversation."""

import json
import re
from collections.abc import AsyncIterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lossless import RESULT, nodes_of, tree_of
from tests.e2e.protocols import ModelProtocol
from tests.e2e.with_engine import FOLDER, run_with_engine
from tests.e2e.world import World, world_in

FILLER = "We looked at the harbour and wrote down what each boat costs. " * 8


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol, lossless: Path) -> AsyncIterator[World]:
    """A gateway with the engine in a window of 8,192 tokens."""
    async with world_in(tmp_path, protocol, program=run_with_engine) as made:
        made.gateway.environ[FOLDER] = str(lossless)
        await made.gateway.start(
            HERMES_CONTEXT__ENGINE="lossless",
            HERMES_MODEL__NAME=f"{protocol.prefix}lab-8k",
            HERMES_MODEL__CONTEXT_LENGTH="8192",
            HERMES_SESSIONS__MERGE_SECONDS="0",
            HERMES_COMPRESSION__MODE="blocking",
        )
        yield made


async def call(world: World, name: str, **arguments: Any) -> list[str]:
    """Lines of what a tool tells a model that was asked to call it."""
    word = f"CALL-{world.query('SELECT count(*) FROM turns')[0][0]}"
    await world.script_call(f"{word} ", name, **arguments)
    await world.converse(f"{word} now")
    told = json.loads(world.query(RESULT, name)[0][0])
    return list(told["lines"])


async def command(world: World, text: str, answer: str) -> None:
    """A command, until its answer is there."""
    before = len(await world.replies(0, wait=0, match=answer))
    await world.say(text)
    assert len(await world.replies(before + 1, match=answer)) == before + 1, text


async def tell(world: World, *facts: str) -> None:
    await world.converse(*(f"{fact} {FILLER}" for fact in facts))


def places(lines: list[str], word: str) -> set[str]:
    """Where the messages of people with a word are, by what was found."""
    return {found[1] for line in lines if (found := re.match(r"m\d+ user (.*?): ", line)) and word in line}


def test_it_is_found_by_its_entry_point(lossless: Path) -> None:
    [found] = distributions(path=[str(lossless)])
    [point] = found.entry_points
    assert (point.group, point.name) == ("hermes_gateway.context_engines", "lossless")


async def test_facts_are_found_again_through_compressions_undo_kills_and_new(world: World) -> None:
    await tell(world, "The berth of the Heron is PIER-17.", *(f"Day {number}." for number in range(5)))
    await command(world, "/compress the berths", "^Compressed")
    found = await call(world, "lcm_grep", pattern="berth of the heron")
    [place] = places(found, "PIER-17")
    assert place.startswith("in n")
    assert "PIER-17" in (await call(world, "lcm_expand", node=place.removeprefix("in ")))[0]

    await world.gateway.kill()
    await world.gateway.start()
    assert places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17") == {place}, "after a restart"

    count = len(nodes_of(tree_of(world)))
    summaries = "SELECT count(*) FROM model_calls WHERE purpose = 'summary' AND outcome = 'ok'"
    asked = world.query(summaries)[0][0]
    assert asked >= count > 0, "each summary is in the ledger"
    await command(world, "/compress undo", "^Compression undone")
    assert places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17") == {"in view"}
    await command(world, "/compress the berths", "^Compressed")
    assert places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17") == {place}, "the node of before"

    await tell(world, "The Heron moves to PIER-18.")
    await world.converse("/undo")
    assert places(await call(world, "lcm_grep", pattern="pier-18"), "PIER-18") <= {"taken back"}

    old = tree_of(world)
    await world.converse("/new")
    assert places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17") == set(), "another conversation"
    assert len({old, *old.parent.parent.glob("*/tree.db")}) == 2
    key = world.query("SELECT key FROM sessions WHERE lineage_id = 1 ORDER BY depth DESC LIMIT 1")[0][0]
    await world.converse(f"/resume {key[:8]}")
    assert places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17") == {place}, "taken up again"
    assert "Traceback" not in world.gateway.log_text()


async def test_a_kill_in_the_middle_of_a_compression_costs_nothing(world: World) -> None:
    await tell(world, "The berth of the Heron is PIER-17.", *(f"Day {number}." for number in range(5)))
    await world.hold(summary=True)
    await world.say("/compress")
    assert len(await world.replies(1, match="^Compressing")) == 1
    await world.gateway.kill()
    assert nodes_of(tree_of(world)) == {}, "its only summary was held"
    await world.release()
    await world.gateway.start()
    assert len(await world.replies(1, match="^Compressed")) == 1
    [place] = places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17")
    assert "PIER-17" in (await call(world, "lcm_expand", node=place.removeprefix("in ")))[0]


async def test_what_the_built_in_engine_has_compressed_joins_the_tree(world: World) -> None:
    await tell(world, "The berth of the Heron is PIER-17.", *(f"Day {number}." for number in range(8)))
    await command(world, "/compress", "^Compressed")
    await tell(world, "The rope is ROPE-4.", *(f"Week {number}." for number in range(4)))
    await command(world, "/compress here 1", "^Compressed")
    assert "in n" in str(places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17"))
    await tell(world, *(f"Year {number}." for number in range(6)))
    await command(world, "/compress", "^Compressed")
    assert "in n" in str(places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17"))
    assert places(await call(world, "lcm_grep", pattern="rope-4"), "ROPE-4") != set()


async def test_without_a_model_the_tree_grows_and_its_results_fall_under_budgets(world: World) -> None:
    await tell(world, "The berth of the Heron is PIER-17.", *(f"Day {number}." for number in range(8)))
    await world.script(summary=True, error={"kind": "500"}, times=-1)
    await command(world, "/compress", "^Compressed")
    [place] = places(await call(world, "lcm_grep", pattern="pier-17"), "PIER-17")
    assert "PIER-17" in (await call(world, "lcm_expand", node=place.removeprefix("in ")))[0]
    assert world.query("SELECT count(*) FROM model_calls WHERE purpose = 'summary' AND outcome <> 'ok'")[0][0] > 0
    await world.llm.delete("script")
    await world.converse("/new")
    await tell(world, *(f"Day {number}. {FILLER}" for number in range(12)))
    await command(world, "/compress", "^Compressed")
    await call(world, "lcm_expand", node="n1")
    shown = world.query("SELECT max(length(text)) FROM messages WHERE tool_name = 'lcm_expand'")[0][0]
    assert 1_000 < shown < 8_192 * 4 // 5
