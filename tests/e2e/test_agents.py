"""Several agents in one gateway: which of them answers, what each of them knows, and what they cost."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.tools.terminal.sandbox import probe_sandbox
from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.test_console import Visitor
from tests.e2e.test_voice import EARS, VOICE
from tests.e2e.world import GROUP, World
from tests.fakes.discord_state import ALICE, APPLICATION, BOB, GUILD, ROLES

SAID = "the orchid code is 7719"
"""Words that one agent is told, and that no other may ever read."""
AGENTS = """
access: {allow: ["telegram:42", "telegram:43"], admins: ["telegram:1", "telegram:42"]}
tools: {approval: {writes: allow, executes: allow}}
costs: {prices: {"lab-*": {input: 3, output: 15}}}
agents:
  ops:
    persona: You are the operator of the orchard.
    model: {name: lab-32k, context_length: 32000}
    tools: {use: {write_file: "off"}}
  support:
    persona: You help customers.
routes:
  - {chat: "telegram:43", agent: ops}
  - {chat: "telegram:-100200", agent: support}
"""


async def started(world: World, more: str = "") -> None:
    world.configure(AGENTS + more)
    for name in ("HERMES_ACCESS__ALLOW", "HERMES_ACCESS__ADMINS"):
        del world.gateway.environ[name]
    await world.gateway.start()


def tools_of(request: dict[str, Any]) -> set[str]:
    return {tool.get("function", tool)["name"] for tool in request["body"]["tools"]}


async def test_each_route_leads_to_an_agent_with_its_own_persona_model_and_tools(world: World) -> None:
    await started(world)
    await world.converse("hello from nobody")
    await world.say("hello to ops", chat_id=43)
    await world.replies(1, chat_id=43)
    await world.say_in_group("@lab_gateway_bot hello to support")
    await world.replies(1, chat_id=GROUP)
    plain, ops, support = await world.asked(3)
    assert [request["body"]["model"] for request in (plain, ops, support)] == ["lab-128k", "lab-32k", "lab-128k"]
    assert "operator of the orchard" in prompt_of(ops)[0].text
    assert "You help customers" in prompt_of(support)[0].text
    assert "orchard" not in conversation_of(plain) + conversation_of(support)
    assert "write_file" not in tools_of(ops)
    assert "write_file" in tools_of(plain) & tools_of(support)
    assert world.query("SELECT agent FROM sessions ORDER BY id") == [("",), ("ops",), ("support",)]
    assert world.query("SELECT agent FROM model_calls ORDER BY id") == [("",), ("ops",), ("support",)]
    await world.ask("/status", "Agent: ops .route: chat telegram:43.", chat_id=43)
    await world.ask("/agent", "Agent: default .no route matches.")


async def test_an_admin_changes_the_agent_of_a_chat_and_comes_back_by_resume(world: World) -> None:
    await started(world)
    await world.converse(SAID)
    await world.ask("/agent nobody", "There is no agent “nobody”")
    await world.ask(
        "/agent ops", "From your next message on, the agent ops answers here, in a new conversation.*/resume "
    )
    await world.ask("who are you?", "who are you")
    second = (await world.asked(2))[1]
    assert "operator of the orchard" in prompt_of(second)[0].text
    assert SAID not in conversation_of(second)
    await world.gateway.kill()
    await world.gateway.start()
    await world.converse("and after a crash?")
    assert "operator of the orchard" in prompt_of((await world.asked(3))[2])[0].text
    assert world.query("SELECT agent, count(*) FROM sessions GROUP BY agent ORDER BY agent") == [("", 1), ("ops", 1)]
    [(key,)] = world.query("SELECT key FROM sessions WHERE agent = ''")
    await world.ask(f"/resume {key[:8]}", "Back in conversation")
    await world.converse("what was the code?")
    fourth = (await world.asked(4))[3]
    assert SAID in conversation_of(fourth)
    assert "orchard" not in prompt_of(fourth)[0].text
    await world.ask("/agent auto", "the agent default answers here")
    await world.ask("/agent ops", "Only admins", chat_id=43)


async def test_asking_for_the_agent_or_taking_a_choice_back_ends_no_conversation(world: World) -> None:
    await started(world)
    await world.converse(SAID)
    await world.ask("/agent ops", "From your next message on, the agent ops answers here")
    await world.ask("/agent", "Agent: default, from the next message on ops .chosen with /agent.")
    await world.ask("/agent default", "From your next message on, the agent default answers here.$")
    await world.converse("what was the code?")
    assert SAID in conversation_of((await world.asked(2))[1])
    assert world.query("SELECT agent, end_reason FROM sessions") == [("", None)]


async def test_a_person_whose_access_was_revoked_does_not_change_the_agent(world: World) -> None:
    open_to_both = """
access: {allow: ["telegram:43"], admins: ["telegram:42"]}
agents: {support: {persona: You help customers.}}
routes: [{role: user, agent: support}]
"""
    world.configure(open_to_both)
    for name in ("HERMES_ACCESS__ALLOW", "HERMES_ACCESS__ADMINS"):
        del world.gateway.environ[name]
    await world.gateway.start()
    await world.hold(match="slow question", text="answered", times=1)
    await world.say("slow question", chat_id=43)
    await world.asked(1)
    await world.say("one more", chat_id=43)
    await world.until_rows("SELECT state FROM inbox ORDER BY id", ("claimed",), ("new",))
    world.configure(open_to_both.replace('allow: ["telegram:43"], ', ""))
    await world.reload()
    await world.release()
    assert await world.replies(1, chat_id=43, match="Your access was revoked")
    assert world.query("SELECT agent, end_reason FROM sessions") == [("support", None)]


async def test_a_reload_adds_and_removes_agents_and_only_then_ends_their_conversations(world: World) -> None:
    await started(world)
    await world.say(SAID, chat_id=43)
    await world.replies(1, chat_id=43)
    await world.hold(match="slow question", text="answered by ops", times=1)
    await world.say("slow question", chat_id=43)
    await world.asked(2)
    world.configure(
        AGENTS.replace("agent: ops}", "agent: desk}").replace(
            "  support:\n", "  desk:\n    persona: Desk.\n  support:\n"
        )
    )
    await world.reload()
    await world.release()
    assert await world.replies(2, chat_id=43, match="answered by ops|orchid") or True
    await world.ask("hello again", "hello again", chat_id=43)
    assert await world.replies(1, chat_id=43, match="The agent desk answers here from now on")
    last = (await world.asked(3))[2]
    assert prompt_of(last)[0].text.startswith("Desk.")
    assert SAID not in conversation_of(last)
    assert world.query("SELECT end_reason FROM sessions WHERE agent = 'ops'") == [("reset",)]
    world.configure(AGENTS.replace("  ops:\n", "  bops:\n").replace("agent: ops}", "agent: bops}"))
    await world.reload()
    await world.converse("still here")
    assert world.query("SELECT agent FROM chats WHERE chat_ref = '43'") == [("desk",)], "nobody wrote there since"
    await world.ask("one more", "one more", chat_id=43)
    assert world.query("SELECT agent FROM chats WHERE chat_ref = '43'") == [("bops",)]
    assert json.loads(json.dumps(world.query("SELECT count(*) FROM inbox WHERE state = 'dropped'"))) == [[0]]


SURFACES: dict[str, tuple[str, dict[str, Any]]] = {
    "search": ("history_search", {"query": "orchid code"}),
    "open": ("history_open", {"id": "m1"}),
    "files": ("list_files", {}),
    "file": ("read_file", {"path": "orchid.md"}),
    "stored result": ("read_file", {"path": "m1"}),
    "file search": ("search_files", {"pattern": "orchid"}),
    "result search": ("search_files", {"pattern": "orchid", "path": "m1"}),
    "sent file": ("send_file", {"path": "orchid.md"}),
    "terminal": ("terminal", {"command": "cat *"}),
    "commands": ("terminal", {"action": "list"}),
    "notes": ("memory", {"action": "remove", "target": "memory", "old": "no such words"}),
    "schedules": ("schedule", {"action": "list"}),
    "other schedule": ("schedule", {"action": "pause", "id": 7}),
    "to-do list": ("todo", {}),
    "sub-agent search": ("delegate", {"task": "search"}),
    "sub-agent file": ("delegate", {"task": "file"}),
}
"""Tool calls that try to find the secret. A sub-agent makes the call that is its task."""
COMMANDS = (
    *("/history", "/sessions", "/memory", "/schedule", "/todo", "/rules", "/tools", "/steps", "/queue"),
    *("/status", "/usage", "/title"),
)


async def told(world: World) -> None:
    """Tell the agent a secret that it stores wherever an agent of a chat can store something."""
    note = {"name": "memory", "arguments": {"action": "add", "target": "memory", "text": SAID}}
    person = {"name": "memory", "arguments": {"action": "add", "target": "user", "text": f"{SAID} personally"}}
    file = {"name": "write_file", "arguments": {"path": "orchid.md", "content": SAID}}
    items = [{"id": "1", "content": SAID, "status": "pending"}]
    todo = {"name": "todo", "arguments": {"todos": items}}
    times = {"name": "schedule", "arguments": {"action": "add", "cron": "0 8 * * *", "text": SAID}}
    command = {"name": "terminal", "arguments": {"command": f"echo {SAID}; sleep 287", "background": True}}
    await world.script_calls("keep this", note, person, file, todo, times, command)
    await world.converse(f"From now on, remember to keep this: {SAID}")
    await world.ask("/title orchid code 7719", "is now called")
    assert world.query("SELECT count(*) FROM schedules") == [(1,)]
    assert SAID in (world.home / "memory" / "1" / "MEMORY.md").read_text()


async def shown_by(world: World, word: str, *, only_results: bool = False) -> set[str]:
    """Return the surfaces that show the secret: commands by their replies, tools by whatever the model reads.

    `only_results`: tools only by their results.
    """
    await world.ask(f"hello {word}", f"hello {word}")  # the notice about the new conversation comes before the answer
    found = set[str]()
    for surface, (tool, arguments) in SURFACES.items():
        since = len(await world.asked(1))
        if tool == "delegate":
            called, inner = SURFACES[arguments["task"]]
            await world.script_call(f"{word} {arguments['task']}", called, **inner)
            arguments = {"task": f"{word} {arguments['task']}"}
        await world.script_call(f"{word} {surface}", tool, **arguments)
        await world.converse(f"{word} {surface}")
        requests = (await world.asked(since + 2))[since:]
        assert len(requests) >= (4 if tool == "delegate" else 2), "the tool was called"
        texts = [prompt_of(request)[-1].text if only_results else json.dumps(request["body"]) for request in requests]
        found |= {surface for text in texts if "7719" in text}
    for command in COMMANDS:
        count = len(await world.replies(0, wait=0))
        await world.say(command)
        replies = await world.replies(count + 1)
        assert len(replies) > count, command
        found |= {command for text in replies[count:] if "7719" in text}
    return found


async def test_no_surface_shows_one_agent_the_words_of_another_in_the_same_chat(world: World) -> None:
    await started(world, "terminal: {enabled: true}\n")
    await told(world)
    await world.ask("/agent support", "the agent support answers here")
    assert await shown_by(world, "support") == set()
    for action in ("run", "pause", "remove"):
        await world.ask(f"/schedule {action} 1", "There is no schedule 1 here; no schedules are set")
    written = [path for path in (world.home / "agents").rglob("*") if path.is_file()]
    assert not any("7719" in path.read_text() for path in written)
    await world.ask("/agent default", "the agent default answers here")
    found = await shown_by(world, "default", only_results=True)
    tools = {"search", "open", "file", "file search", "notes", "schedules", "sub-agent file"}
    tools |= {"terminal", "commands"} if probe_sandbox().fault is None else set()
    assert found >= {*tools, "/memory", "/schedule", "/sessions"}, "the agent itself finds them in a new conversation"


async def test_an_agent_that_has_reached_its_cap_stops_and_the_others_continue(world: World) -> None:
    world.configure(AGENTS.replace("    persona: You help customers.\n", "    costs: {daily_cap: 0.01}\n"))
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:1,telegram:42", **EARS)
    await world.script(match="long", text="word " * 1_000)
    await world.ask("/agent support", "the agent support answers here")
    await world.converse("a long one")
    await world.ask("once more", "daily spending cap of this agent has been reached .\\$0.0[0-9]+ of \\$0.01")
    await world.say("", **VOICE, file_text="OggS SAYS:and a spoken one")
    assert await world.replies(2, match="daily spending cap of this agent has been reached")
    await world.ask("/usage", "Agent support today: \\$0.0[0-9]+ of \\$0.01.*: used up, agents.support.costs.daily_cap")
    assert re.search("Caps: +agents.support.costs.daily_cap has been reached", (await world.command_line("status"))[1])
    await world.ask("ops is free", "ops is free", chat_id=43)
    await world.ask("/agent default", "the agent default answers here")
    await world.say("", **VOICE, file_text="OggS SAYS:default is free")
    assert await world.replies(1, match="default is free")
    spent = dict(world.query("SELECT agent, count(*) FROM model_calls WHERE outcome = 'ok' GROUP BY agent"))
    assert spent == {"": 2, "ops": 1, "support": 1}


async def test_a_removed_agent_keeps_its_schedules_and_questions_and_says_so(world: World) -> None:
    await started(world)
    await world.script_call("every hour", "schedule", action="add", cron="0 * * * *", text="look at the orchard")
    await world.ask("every hour", "Schedule 1 is set", chat_id=43)
    world.configure(AGENTS.replace("writes: allow", "writes: ask"))
    await world.reload()
    await world.script_call("keep a note", "schedule", action="pause", id=1)
    await world.ask("keep a note", "May I use", chat_id=43)
    world.configure(AGENTS.replace("  ops:\n", "  desk:\n").replace("agent: ops}", "agent: desk}"))
    await world.reload()
    assert (
        "agents has no ops, but it has 1 active schedule, 1 open turn. Add the agent again to continue."
        in world.gateway.log_text()
    )
    await world.gateway.kill()
    await world.gateway.start()
    await world.ask("/approve", "The agent ops is no longer configured, so I cannot finish this answer", chat_id=43)
    await world.ask("/schedule run 1", "Sending schedule 1 now", chat_id=43)
    assert await world.replies(1, chat_id=43, match="Schedule 1 is paused because its agent ops no longer answers")
    assert world.query("SELECT state, agent FROM schedules") == [("paused", "ops")]
    world.configure(AGENTS)
    await world.reload()
    await world.ask("hello ops", "hello ops", chat_id=43)
    await world.ask("/schedule resume 1", "Schedule 1 is active again", chat_id=43)
    await world.script(match="look at the orchard", text="it has apples")
    await world.ask("/schedule run 1", "it has apples", chat_id=43)


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "rerouted"])
async def test_a_message_that_waits_during_a_reload_goes_to_the_agent_that_answers_now(
    world: World, is_removed: bool
) -> None:
    await started(world, "sessions: {max_turns: 1}\n")
    await world.hold(match="slow question", text="answered", times=1)
    await world.say("slow question")
    await world.asked(1)
    await world.say("hello there", chat_id=43)
    await world.stored(2)
    changed = AGENTS.replace("  ops:\n", "  desk:\n") if is_removed else AGENTS.replace("  ops:\n", "  desk:\n  ops:\n")
    world.configure(changed.replace("agent: ops}", "agent: desk}") + "sessions: {max_turns: 1}\n")
    await world.reload()
    await world.release()
    assert await world.replies(1, chat_id=43, match="hello there")
    assert world.query("SELECT s.agent FROM turns t JOIN sessions s ON s.id = t.lineage_id ORDER BY t.id") == [
        ("",),
        ("desk",),
    ]


async def test_an_edit_of_a_message_to_one_agent_is_not_told_to_the_next(world: World) -> None:
    await started(world)
    sent = await world.say("plain words")
    await world.replies(1)
    await world.tg.post("edit", {"chat_id": 42, "message_id": sent["message"]["message_id"], "text": f"edited: {SAID}"})
    await world.until_rows("SELECT state FROM inbox WHERE kind = 'notice'", ("new",))
    await world.ask("/agent support", "the agent support answers here")
    await world.ask("what is new?", "what is new")
    assert "7719" not in json.dumps((await world.asked(2))[1]["body"])
    assert world.query("SELECT state FROM inbox WHERE kind = 'notice'") == [("dropped",)]


async def test_a_text_of_a_script_stays_in_the_conversation_in_which_people_saw_it(world: World) -> None:
    await started(world)
    await world.converse("hello")
    assert (await world.command_line("send", "telegram:42", "the backup is done"))[0] == 0
    assert await world.replies(1, match="the backup is done")
    code, output = await world.command_line("search", "backup", "--json")
    assert (code, len(json.loads(output))) == (0, 1), "it is found before the next turn"
    await world.hold(match="slowly", text="slow answer")
    await world.say("answer slowly")
    await world.until_rows("SELECT state FROM turns ORDER BY id DESC LIMIT 1", ("running",))
    assert (await world.command_line("send", "telegram:42", "the restore is done"))[0] == 0
    await world.release()
    assert await world.replies(1, match="slow answer")
    [(key,)] = world.query("SELECT key FROM sessions")
    await world.ask("/agent ops", f"/resume {key[:8]}")
    await world.ask("what is done?", "what is done")
    assert "script" not in conversation_of((await world.asked(3))[2])
    await world.ask(f"/resume {key[:8]}", "Back in conversation")
    await world.converse("and now?")
    said = conversation_of((await world.asked(4))[3])
    assert said.index("the backup is done") < said.index("slow answer") < said.index("the restore is done")


async def test_operators_and_admins_see_the_agent_of_each_conversation_and_cost(world: World) -> None:
    await started(world)
    await world.converse("hello")
    await world.say("hello to ops", chat_id=43)
    await world.replies(1, chat_id=43)
    await world.ask("/lineage telegram:43", "1 message?.*, open, agent ops|agent ops")
    await world.ask("/insights", "AGENT")
    code, output = await world.command_line("lineage", "--agent", "ops", "--json")
    assert (code, [(row["chat"], row["agent"]) for row in json.loads(output)]) == (0, [("telegram:43", "ops")])
    code, output = await world.command_line("sessions")
    assert re.search(r"^\w+ +telegram:43 \(User43\)  .* ops$", output, re.MULTILINE), output
    code, output = await world.command_line("insights", "--json")
    assert {row["agent"]: row["calls"] for row in json.loads(output)["agents"]} == {"default": 1, "ops": 1}
    code, output = await world.command_line("status", "--json")
    assert json.loads(output)["agents"] == {"ops": "lab-32k", "support": "lab-128k"}
    events = [json.loads(line) for line in world.gateway.log_text().splitlines() if '"turn.finished"' in line]
    assert [event.get("agent") for event in events] == [None, "ops"]
    code, output = await world.command_line("config", "show", "--json")
    assert json.loads(output)["settings"]["routes"]["value"][0]["agent"] == "ops"


async def test_lists_searches_and_costs_can_be_limited_to_an_agent(world: World, tmp_path: Path) -> None:
    world.configure(AGENTS)
    for name in ("HERMES_ACCESS__ALLOW", "HERMES_ACCESS__ADMINS"):
        del world.gateway.environ[name]
    await world.gateway.start(**world.web_chat())
    await world.converse("the first orchid")
    await world.say("the orchid of another chat", chat_id=43)
    await world.replies(1, chat_id=43)
    await world.ask("/agent ops", "the agent ops answers here")
    await world.converse("the second orchid")

    async def rows(*words: str) -> Any:
        code, output = await world.command_line(*words, "--json")
        assert code == 0, output
        return json.loads(output)

    def found(hits: list[dict[str, Any]]) -> set[str]:
        return {hit["text"] for hit in hits if hit["role"] == "user"}

    assert found(await rows("search", "orchid", "--agent", "ops")) == {
        "the orchid of another chat",
        "the second orchid",
    }
    assert found(await rows("search", "orchid", "--agent", "default")) == {"the first orchid"}
    own = await rows("search", "orchid", "--agent", "ops", "--chat", "telegram:42")
    assert found(own) == {"the second orchid"}
    listed = await rows("sessions", "telegram:42", "--agent", "ops")
    assert [(row["agent"], row["first_words"]) for row in listed] == [("ops", "the second orchid")]
    assert [row.get("agent") for row in await rows("lineage", "telegram:42", "--agent", "default")] == [None]
    used = await rows("usage", "--agent", "ops")
    assert (used["calls"], used["agents_today"]["ops"]["calls"], used["today"]["calls"]) == (2, 2, 3)
    assert (await rows("insights", "--agent", "ops"))["total"]["calls"] == 2
    for words in (["export"], ["trajectories", "export"]):
        target = tmp_path / f"{words[0]}.jsonl"
        await world.command_line(*words, str(target), "--agent", "ops")
        written = target.read_text()
        assert [text in written for text in ("second orchid", "another chat", "first orchid")] == [True, True, False]
    code, output = await world.command_line("sessions", "--agent", "opps")
    assert (code, "no conversations with an agent called “opps”" in output) == (1, True)
    await world.ask("/search --agent default orchid", "(?s)the first orchid(?!.*(second|another))")
    await world.ask("/lineage \u2014agent default", "(?s)Sessions of .*ended with /new(?!.*agent ops)")
    await world.ask("/insights 2 ops", "(?s)All chats, agent ops, the last 2 days:.*total +\\S+ +2")
    await world.ask("/usage", "(?s)Agent: ops .chosen with /agent.*Agent ops today: \\$")
    async with Visitor(await world.gateway.printed_url()) as owner:
        hits = await owner.read("search?words=orchid&all=1&agent=ops")
        assert ("second" in hits, "another" in hits, "first" in hits) == (True, True, False)
        assert '<option value="ops" selected>' in hits
        chats = await owner.read("chats?agent=default")
        assert ("telegram:42" in chats, "telegram:43" in chats) == (True, False), "default answered there before"
        assert "telegram:43" in await owner.read("chats?agent=ops")
        costs = await owner.read("costs?agent=ops")
        assert "2 model calls" in costs
        assert "<h2>Agents</h2>" in await owner.read("costs")
    await world.ask("/insights 24x7", "no conversations with an agent called “24x7”")
    events = [json.loads(line) for line in world.gateway.log_text().splitlines() if '"command.done"' in line]
    found_agents = {(event["command"], event.get("agent")) for event in events}
    assert found_agents == {("agent", None), *((name, "ops") for name in ("search", "lineage", "insights", "usage"))}


async def test_notes_about_people_are_shared_only_where_both_agents_say_so(world: World) -> None:
    shared = AGENTS.replace("  support:\n", "  default: {shared_notes: true}\n  support:\n    shared_notes: true\n")
    world.configure(shared)
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    person = {"name": "memory", "arguments": {"action": "add", "target": "user", "text": "likes blue ink"}}
    work = {"name": "memory", "arguments": {"action": "add", "target": "memory", "text": SAID}}
    await world.script_calls("note this", person, work)
    await world.converse("note this")
    for agent, knows in (("support", True), ("ops", False)):
        since = len(await world.asked(1))
        await world.ask(f"/agent {agent}", f"the agent {agent} answers here")
        await world.ask(f"hello {agent}", f"hello {agent}")
        [request] = (await world.asked(since + 1))[since:]
        assert ("likes blue ink" in json.dumps(request["body"])) is knows
        assert SAID not in json.dumps(request["body"])
    await world.ask("/agent support", "the agent support answers here")
    await world.ask("/memory me add prefers metric units", "USER.md: 2 entries")
    assert "metric" in (world.home / "memory" / "1" / "USER.md").read_text()
    world.configure(shared.replace("  default: {shared_notes: true}\n", ""))
    await world.reload()
    await world.ask("/memory", "There are no notes yet")


ON_DISCORD = f"""
access: {{allow: ["discord:{ALICE}", "discord:{BOB}"]}}
sessions: {{groups: per_user, max_turns: 1}}
tools: {{approval: {{writes: allow}}}}
agents: {{ops: , staff: , support: }}
routes:
  - {{guild: {GUILD}, agent: support}}
  - {{role: {ROLES[1]}, agent: staff}}
  - {{chat: "discord:300000000000000002", agent: ops}}
"""


async def test_servers_roles_and_channels_with_their_threads_lead_to_agents_also_after_a_kill(
    discord_world: World,
) -> None:
    world = discord_world

    async def say(user_id: str, content: str, **place: str) -> None:
        where = place or {"channel": "general", "mention": True}
        await world.dc.post("message", {"user_id": user_id, "content": content, **where})

    async def answered(text: str) -> None:
        assert await world.dc.get("sent", action="send|edit", match=text, wait=20, count=1), text

    async def ready() -> None:
        since = len(world.gateway.log_bytes())
        await world.gateway.start()
        await world.gateway.wait_for_log("discord running", since=since)

    def agents() -> list[tuple[object, ...]]:
        return world.query("SELECT agent FROM sessions ORDER BY id")

    world.configure(ON_DISCORD)
    for name in ("HERMES_ACCESS__ALLOW", "HERMES_ACCESS__ADMINS"):
        del world.gateway.environ[name]
    await world.dc.post("roles", {"user_id": BOB, "roles": [*ROLES]})
    thread = await world.dc.post("channel", {"channel": "bots", "thread": "plans", "user_id": BOB})
    await ready()
    await say(ALICE, "one in the server")
    await answered("one in the server")
    await say(BOB, "/whoami")
    await answered(f"Its server is `{GUILD}`. Your roles there: `{ROLES[1]}`, `{ROLES[0]}`.")
    await say(BOB, "/agent")
    await answered(f"Agent: default, from the next message on staff .route: role {ROLES[1]}")
    await world.script_call("two of the staff", "schedule", action="add", cron="0 0 1 1 *", text="three by clock")
    await say(BOB, "two of the staff")
    await answered("Schedule 1 is set")
    await say(ALICE, "four in private", dm_user_id=ALICE)
    await answered("four in private")
    await world.script(match="five is slow", hang=True, times=1)
    await say(ALICE, "five is slow", dm_user_id=ALICE)
    await world.asked(1, match="five is slow")
    await say(BOB, f"<@{APPLICATION}> six in a thread", channel_id=thread["id"])
    await world.until_rows("SELECT count(*) FROM inbox WHERE state = 'new'", (1,))
    await world.gateway.kill()
    await say(ALICE, f"<@{APPLICATION}> seven while it is down", channel_id=thread["id"])
    await ready()
    for text in ("six in a thread", "seven while it is down"):
        await answered(text)
    await say(BOB, "/schedule run 1")
    await answered("three by clock")
    assert agents() == [("support",), ("staff",), ("",), ("ops",), ("ops",)]
    await world.dc.post("roles", {"user_id": BOB, "roles": [ROLES[0]]})
    await say(BOB, "eight without the role")
    await answered("The agent support answers here from now on")
    await answered("eight without the role")
    assert agents()[5:] == [("support",)]
    await say(BOB, "/agent")
    await answered(f"Agent: support .route: guild {GUILD}")
