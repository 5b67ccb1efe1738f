"""Rounds of tool calls end to end: results larger than the window, many calls at once, calls that go wrong."""

import pytest

from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World

PROGRAM = run_with_tools
ALLOWED = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}


@pytest.mark.each_protocol
async def test_a_result_of_twice_the_window_ends_no_conversation(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__NAME="lab-8k", HERMES_MODEL__CONTEXT_LENGTH="8192")
    calls = [{"name": "register", "arguments": {"mark": "boat", "lines": 600}}]
    await world.script(match="look it up", last_role="user", tool_calls=calls, times=3)
    for _ in range(3):
        await world.converse("look it up")
    await world.converse("and now?")
    assert world.query("SELECT count(*) FROM turns WHERE state <> 'finished'") == [(0,)]
    [(longest,)] = world.query("SELECT max(length(text)) FROM messages WHERE role = 'tool' AND seq > 0")
    assert longest > 60_000
    assert world.query("SELECT count(*) FROM view_edits WHERE reason = 'persisted'") == [(3,)]
    assert await world.outcomes() <= {"ok", "tool_calls"}


@pytest.mark.each_protocol
async def test_of_twelve_calls_at_once_those_that_can_be_run_are(world: World) -> None:
    await world.gateway.start(**ALLOWED)
    calls: list[dict[str, object]] = [{"name": "write_down", "arguments": {"line": f"line {n}"}} for n in range(8)]
    calls += [
        {"name": "nothing_of_the_kind", "arguments": {}},
        {"name": "write_down", "arguments": {"lines": "misspelt"}},
        {"name": "register", "arguments": {"mark": "boat", "lines": "many"}},
        {"name": "register", "arguments": {"mark": "boat", "lines": 2}},
    ]
    await world.script(match="do it all", last_role="user", tool_calls=calls, times=1)
    await world.converse("do it all")
    states = dict(world.query("SELECT state, count(*) FROM tool_runs GROUP BY state"))
    assert states == {"done": 9, "failed": 3}
    await world.converse("and now?")


async def test_a_turn_that_has_used_up_its_rounds_says_so(world: World) -> None:
    await world.gateway.start(HERMES_AGENT__MAX_TOOL_ROUNDS="2")
    calls = [{"name": "register", "arguments": {"mark": "boat", "lines": 1}}]
    await world.script(match_any="circles", has_tools=True, tool_calls=calls, times=2)
    await world.ask("go round in circles", "used all of its 2 rounds")
