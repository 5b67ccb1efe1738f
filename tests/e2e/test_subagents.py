"""Sub-agents end to end: work side by side, a failure of one, kills, stops, costs, and who sees what of them."""

import json
import re
from typing import Any

import pytest

from agent.subagents import MAX_PARALLEL
from tests.e2e.protocols import prompt_of
from tests.e2e.test_approvals import notebook
from tests.e2e.test_costs import PRICES, as_json
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World
from tests.hermes_state.helpers import locked_by_another_process

PROGRAM = run_with_tools
ALLOWED = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}
REGISTER = {"name": "register", "arguments": {"mark": "boat", "lines": 2}}


def delegating(*tasks: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "delegate", "arguments": {"task": task, **more}} for task in tasks]


async def hand_on(world: World, *tasks: str, **more: Any) -> None:
    """The agent hands tasks on as soon as it is told to."""
    await world.script_calls("hand it on", *delegating(*tasks, **more))


def subagents(world: World) -> list[tuple[str, str]]:
    """State and task of each sub-agent, in the order in which they were opened."""
    return world.query(
        """SELECT t.state, m.text FROM turns t JOIN messages m ON m.turn_id = t.id AND m.role = 'user'
        WHERE t.parent_turn_id IS NOT NULL ORDER BY m.text"""
    )


async def results(world: World) -> list[str]:
    """Results of calls in the newest prompt, in its order."""
    return [row.text for row in prompt_of((await world.asked(0, wait=0))[-1]) if row.role == "tool"]


@pytest.mark.each_protocol
async def test_three_work_side_by_side_and_one_that_fails_leaves_the_others_alone(world: World) -> None:
    await world.gateway.start()
    await hand_on(world, "count barrels", "count ropes", "count lamps")
    await world.script(match="count ropes", error={"kind": "content_filter"}, times=-1)
    await world.script_calls("count barrels", REGISTER)
    await world.hold(match="count lamps", text="twelve lamps")
    await world.say("hand it on")
    held = await world.asked(5)
    assert any("count lamps" in str(row["body"]) for row in held)
    await world.release()
    [answer] = await world.replies(1)
    assert "twelve lamps" in answer
    said = await results(world)
    assert [text[:10] for text in said] == ["tool said:", "Error: the", "twelve lam"]
    assert "its model failed" in said[1]
    assert subagents(world) == [
        ("finished", "count barrels"),
        ("finished", "count lamps"),
        ("failed", "count ropes"),
    ]
    assert world.query("SELECT state, count(*) FROM turns WHERE parent_turn_id IS NULL GROUP BY 1") == [("finished", 1)]
    await world.converse("and now?")


async def test_after_a_kill_each_goes_on_where_it_stood_and_one_answer_comes(world: World) -> None:
    await world.gateway.start(**ALLOWED)
    await hand_on(world, "write it down", "count lamps", "count ropes")
    await world.script_call("write it down", "write_down", line="buy flour")
    await world.script(match="count ropes", text="nine ropes", times=1)
    await world.hold(match="write it down", last_role="tool", text="never heard", times=1)
    await world.hold(match="count lamps", text="never heard", times=1)
    await world.say("hand it on")
    await world.asked(5)  # its own, three of theirs, and the next of the one that has written
    await world.until(lambda: ("finished", "count ropes") in subagents(world))
    await world.gateway.kill()
    await world.script(match="count lamps", text="twelve lamps", times=1)
    await world.gateway.start()
    [answer] = await world.replies(1)
    assert answer == "tool said: tool said: written: buy flour | twelve lamps | nine ropes"
    assert notebook(world) == ["buy flour"]
    assert [state for state, _ in subagents(world)] == ["finished"] * 3
    asked = [row for row in await world.asked(0, wait=0) if "count ropes" in prompt_of(row)[1].text]
    assert len(asked) == 1, "a report that is there is not asked for again"
    assert world.query("SELECT DISTINCT state FROM tool_runs") == [("done",)]
    await world.converse("and now?")
    assert len(await world.replies(0, wait=0)) == 2


async def test_a_call_that_a_kill_has_cut_off_is_unknown_to_its_subagent(world: World) -> None:
    await world.gateway.start(**ALLOWED)
    await hand_on(world, "wait for it")
    await world.script_call("wait for it", "stall")
    await world.say("hand it on")
    await world.until(lambda: notebook(world))
    await world.gateway.kill()
    await world.gateway.start()
    [answer] = await world.replies(1)
    assert "Outcome unknown" in answer
    assert notebook(world) == ["begun"]


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_database_that_takes_nothing_for_a_while_loses_no_report(world: World, is_last: bool) -> None:
    await world.gateway.start(HERMES_STORE__BUSY_SECONDS="1")
    await hand_on(world, "count lamps")
    await world.script(match="count lamps", last_role="tool", text="twelve lamps", times=-1)
    reply = {"text": "twelve lamps"} if is_last else {"tool_calls": [REGISTER]}
    await world.hold(match="count lamps", times=-1, **reply)
    await world.say("hand it on")
    await world.asked(2)
    with locked_by_another_process(world.database, 2.6):
        await world.release()
        [answer] = await world.replies(1, wait=30)
    assert answer == "tool said: twelve lamps"
    assert subagents(world) == [("finished", "count lamps")]
    assert len(await world.asked(0, wait=0)) <= (3 if is_last else 5), "only a step that was lost is asked for again"


async def test_stop_ends_them_with_the_turn(world: World) -> None:
    await world.gateway.start()
    await hand_on(world, "count barrels", "count lamps")
    await world.hold(match="count", text="never heard", times=-1)
    await world.say("hand it on")
    await world.asked(3)
    await world.ask("/stop", "Stopped")
    assert [state for state, _ in subagents(world)] == ["stopped", "stopped"]
    assert world.query("SELECT DISTINCT end_reason FROM sessions WHERE kind = 'subagent'") == [("finished",)]
    assert len(await world.asked(2, outcome="client_gone")) == 2
    await world.release()
    await world.converse("and now?")
    assert world.query("SELECT count(*) FROM turns WHERE ended_at IS NULL") == [(0,)]


async def test_what_they_cost_counts_to_the_conversation_and_its_caps(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES)
    await hand_on(world, "count barrels", "count lamps")
    await world.script_calls("count barrels", REGISTER)
    await world.converse("hand it on", "/usage")
    assert "3 subagents for $" in (await world.visible())[-1]
    [(root,)] = world.query("SELECT id FROM sessions WHERE kind = 'root'")
    rows = world.query("SELECT purpose, lineage_id, turn_id, cost_microusd FROM model_calls ORDER BY id")
    assert sorted(purpose for purpose, *_ in rows) == ["subagent"] * 3 + ["turn"] * 2
    assert {(lineage, turn) for _, lineage, turn, _ in rows} == {(root, 1)}
    spent = sum(cost for *_, cost in rows)
    assert world.query("SELECT id, cost_microusd FROM sessions WHERE cost_microusd > 0") == [(root, spent)]
    assert (await as_json(world, "usage"))["cost_usd"] == round(spent / 1_000_000, 6)


async def test_a_subagent_stops_at_the_cap_of_its_conversation(world: World) -> None:
    await world.gateway.start(HERMES_COSTS__PRICES=PRICES, HERMES_COSTS__CONVERSATION_CAP="0.008")
    await hand_on(world, "count barrels")
    await world.script(match="count barrels", tool_calls=[REGISTER], times=-1)
    await world.ask("hand it on", "Send /new to start another one")
    [(error,)] = world.query("SELECT error FROM turns WHERE parent_turn_id IS NOT NULL")
    assert "the spending cap has been reached" in error


async def test_they_are_no_conversations_of_the_chat(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await hand_on(world, "count the heron's barrels")
    await world.script_calls("heron", REGISTER)
    await world.script(match="heron", last_role="tool", text="all counted", times=1)
    await world.converse("hand it on")
    [(key, parent)] = world.query(
        "SELECT substr(s.key, 1, 8), substr(p.key, 1, 8) FROM sessions s JOIN sessions p ON p.id = s.parent_session_id"
    )
    await world.converse("/sessions")
    assert key not in (await world.visible())[-1]
    await world.converse(f"/resume {key}")
    assert key not in str(world.query("SELECT key FROM sessions JOIN chats ON active_session_id = sessions.id"))
    await world.script_call("look back", "history_search", query="boat 001")
    await world.converse("look back")
    assert "Nothing in this conversation or an earlier one" in (await world.visible())[-1]
    await world.converse("/lineage")
    assert re.search(rf"{key} .*, sub-agent of {parent}, ", (await world.visible())[-1])
    rows = await as_json(world, "lineage", parent)
    assert [(row["session"][:8], row["kind"]) for row in rows] == [(parent, "root"), (key, "subagent")]
    assert [row["session"][:8] for row in await as_json(world, "sessions")] == [parent]


async def test_nothing_that_would_ask_is_done_and_rounds_come_to_an_end(world: World) -> None:
    await world.gateway.start()
    await hand_on(world, "write it down")
    calls = [
        {"name": "write_down", "arguments": {"line": "buy flour"}},
        {"name": "delegate", "arguments": {"task": "and so on"}},
        {"name": "memory", "arguments": {"action": "add", "text": "flour"}},
    ]
    await world.script(match="write it down", has_tools=True, tool_calls=calls, times=20)
    await world.say("hand it on")
    [answer] = await world.replies(1)
    assert "a sub-agent cannot ask people: report what should be done" in answer
    assert "only the conversation's main agent may use this tool" in answer
    assert "used all of its 20 rounds" in answer
    assert notebook(world) == []
    assert len(subagents(world)) == 1
    [request] = [row for row in await world.asked(0, wait=0) if "write it down" in prompt_of(row)[-1].text][:1]
    assert "You are a sub-agent" in prompt_of(request)[0].text
    names = json.dumps(request["body"]["tools"])
    assert "register" in names
    assert not any(f'"{name}"' in names for name in ("write_down", "delegate", "memory", "todo", "send_file"))


async def test_tools_can_be_narrowed_and_one_that_cannot_be_given_is_named(world: World) -> None:
    await world.gateway.start(**ALLOWED)
    await hand_on(world, "count barrels", tools=["register"])
    await world.script_calls("give more", *delegating("write", tools=["todo"]))
    await world.converse("hand it on")
    request = next(row for row in await world.asked(0, wait=0) if "count barrels" in prompt_of(row)[-1].text)
    names = [tool.get("function", tool)["name"] for tool in request["body"]["tools"]]
    assert sorted(names) == ["history_open", "history_search", "register"]
    await world.converse("give more")
    assert "'todo' cannot be given to a sub-agent" in (await world.visible())[-1]


async def test_more_than_may_work_at_a_time_wait_and_without_sub_agents_the_tool_is_not_offered(world: World) -> None:
    await world.gateway.start()
    await hand_on(world, "count barrels", "count barrels of flour", "count barrels of oil", "count lamps")
    await world.hold(match="count barrels", times=MAX_PARALLEL)
    await world.say("hand it on")
    await world.asked(1 + MAX_PARALLEL)
    assert len(subagents(world)) == MAX_PARALLEL
    await world.release()
    await world.replies(1)
    assert [state for state, _ in subagents(world)] == ["finished"] * 4
    await world.gateway.stop()
    await world.gateway.start(HERMES_AUXILIARY__DELEGATE="off")
    await world.converse("/new", "hello")
    request = (await world.asked(1))[-1]
    names = [tool.get("function", tool)["name"] for tool in request["body"]["tools"]]
    assert "history_search" in names
    assert "delegate" not in names


async def test_its_conversation_and_its_parents_are_compressed_like_any_other(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__NAME="lab-8k", HERMES_MODEL__CONTEXT_LENGTH="8192")
    much = [{"name": "register", "arguments": {"mark": "boat", "lines": 45}}]
    await hand_on(world, "count the barrels of the heron")
    await world.script(match_any="count the barrels", match="count the barrels", tool_calls=much, times=6)
    await world.converse("hand it on")
    [(root,)] = world.query("SELECT id FROM sessions WHERE kind = 'subagent'")
    assert world.query("SELECT max(depth) FROM sessions WHERE lineage_id = ?", root)[0][0] > 0
    assert subagents(world) == [("finished", "count the barrels of the heron")]
    last = [row for row in await world.asked(0, wait=0) if "You are a sub-agent" in prompt_of(row)[0].text][-1]
    assert any("count the barrels of the heron" in said.text for said in prompt_of(last)[1:])
    active = "SELECT s.kind, s.depth FROM chats c JOIN sessions s ON s.id = c.active_session_id"
    assert world.query(active) == [("root", 0)]
    assert len(await as_json(world, "sessions")) == 1
    calls = [{"name": "register", "arguments": {"mark": "boat", "lines": 45}}]
    await world.script(match="look it up", last_role="user", tool_calls=calls, times=6)
    for _ in range(6):
        await world.converse("look it up")
    [(depth,)] = world.query("SELECT s.depth FROM chats c JOIN sessions s ON s.id = c.active_session_id")
    assert depth > 0
    unfinished = {"client_gone", "open"}  # a summary that was still being written at the sub-agent's end, or still is
    assert await world.outcomes() <= {"ok", "tool_calls"} | unfinished


async def test_the_model_is_the_conversations_unless_another_is_named(world: World) -> None:
    aliases = "model: {aliases: {other: lab-64k, small: lab-32k}}\n"
    world.configure(aliases)
    await world.gateway.start()
    await world.converse("/model other")
    for mode, model in (("", "lab-64k"), ("small", "lab-32k"), ("main", "lab-128k")):
        if mode:
            world.configure(f"{aliases}auxiliary: {{delegate: {mode}}}\n")
            await world.reload()
        await hand_on(world, f"count barrels for {mode}")
        await world.converse("hand it on")
        used = "SELECT model FROM model_calls WHERE purpose = ? ORDER BY id DESC LIMIT 1"
        assert (world.query(used, "subagent"), world.query(used, "turn")) == ([(model,)], [("lab-64k",)]), mode


@pytest.mark.each_protocol
async def test_an_answer_has_no_more_sub_agents_than_are_allowed(world: World) -> None:
    await world.gateway.start()
    await hand_on(world, *(f"count barrel {number}" for number in range(30)))
    await world.converse("hand it on")
    assert [state for state, _ in subagents(world)] == ["finished"] * 20
    refused = [text for text in await results(world) if "no more are allowed" in text]
    assert len(refused) == 10
    assert len(await world.asked(0, wait=0)) == 22
    await hand_on(world, "count the last barrel")
    await world.converse("hand it on")
    assert len(subagents(world)) == 21, "the next answer may have its own"
