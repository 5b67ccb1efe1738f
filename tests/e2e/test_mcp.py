"""MCP servers behind a whole gateway: real servers of the SDK, real processes, approvals by button."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.agent.tools.test_mcp_servers import LINES
from tests.e2e.protocols import prompt_of
from tests.e2e.world import World
from tests.sandboxes import all_gone, processes_with

SERVER = Path(__file__).parents[1] / "fakes" / "mcp_server.py"


def events(world: World) -> list[str]:
    """What has happened to the server."""
    path = world.home.parent / "mcp.log"
    return path.read_text().splitlines() if path.exists() else []


async def happened(world: World, event: str) -> None:
    await world.until(lambda: any(line.startswith(event) for line in events(world)))


def server(world: World, **block: Any) -> dict[str, Any]:
    env = {"FAKE_MCP_LOG": str(world.home.parent / "mcp.log"), "HARBOUR_KEY": "harbour-secret-1"}
    return {"command": sys.executable, "args": [str(SERVER), "stdio", str(world.home)], "env": env, **block}


async def start(world: World, **servers: Mapping[str, Any]) -> None:
    """Start the gateway, and wait until its servers are connected. The person whose turn it is may say yes."""
    await world.gateway.start(HERMES_MCP__SERVERS=json.dumps(servers), HERMES_TOOLS__APPROVAL__MCP="ask")
    for name in servers:
        await connected(world, name)


async def connected(world: World, name: str = "harbour", since: int = 0) -> None:
    def is_connected() -> bool:
        lines = world.gateway.log_bytes()[since or world.gateway.started_from :].splitlines()
        found = [json.loads(line) for line in lines if b"mcp.server_connected" in line and line.endswith(b"}")]
        return any(line["server"] == name for line in found)

    await world.until(is_connected)


async def call(world: World, tool: str, arguments: Mapping[str, Any] | None = None, word: str = "go") -> str:
    """Have the model call a tool; returns what it is told."""
    await world.script_call(word, tool, **(arguments or {}))
    before = len(await world.asked(0, wait=0))
    await world.converse(word)
    return prompt_of((await world.asked(before + 2))[before + 1])[-1].text


READS = {"effects": {"*": "reads"}}


@pytest.mark.each_protocol
async def test_a_call_waits_for_the_button_and_shows_server_tool_and_arguments(world: World) -> None:
    await start(world, harbour=server(world))
    await world.script_call("book it", "harbour__book", boat="Anna", days=3)
    await world.say("book it")
    [question] = await world.replies(1, match="May I use")
    assert all(word in question for word in ("harbour__book", "book", "harbour", "Anna", "3"))
    assert "book Anna 3" not in events(world)
    await world.press("Yes, once")
    assert await world.replies(1, match="booked: Anna for 3 days")
    assert events(world).count("book Anna 3") == 1


async def test_a_tool_that_reads_needs_no_question_if_the_operator_says_so_or_trusts_the_servers_hint(
    world: World,
) -> None:
    servers = {"port": server(world, trust_hints=True), "pier": server(world, effects={"look": "reads"})}
    await start(world, harbour=server(world), **servers)
    assert "pier 7" in await call(world, "port__look", {"boat": "Anna"})
    assert "pier 7" in await call(world, "pier__look", {"boat": "Anna"}, word="once more")
    await world.script_call("look again", "harbour__look", boat="Anna")
    await world.ask("look again", "May I use")


CHANGED_HINT = """
begin(tools={"listChanged": True})
for reads in (True, False):
    tools("look", annotations={"readOnlyHint": reads})
    asked = hear()
    say(id=asked["id"], result={"content": [{"type": "text", "text": "pier 7"}]})
    say(method="notifications/tools/list_changed")
hear()
"""


async def test_a_tool_whose_trusted_hint_changes_is_asked_about_again(world: World) -> None:
    odd = {"command": sys.executable, "args": ["-c", LINES + CHANGED_HINT, str(world.home)]}
    await start(world, odd={**odd, "trust_hints": True})
    assert "pier 7" in await call(world, "odd__look")
    await world.gateway.wait_for_log("mcp.list_changed")
    await world.script_call("go on", "odd__look")
    await world.ask("go on", "May I use")
    await world.say("/approve")
    assert len(await world.replies(2, match="pier 7")) == 2


async def test_results_of_every_kind_reach_the_model(world: World) -> None:
    block = server(world, **READS)
    await start(world, harbour={**block, "env": {**block["env"], "FAKE_MCP_GARBAGE": "1"}})
    assert "mcp.line_ignored" in world.gateway.log_text(), "garbage on standard output is left out"
    text = await call(world, "harbour__picture")
    assert "the pier" in text
    assert "harbour://map" in text
    assert "high at noon" in text
    assert world.query("SELECT mime FROM attachments") == [("image/png",)]
    assert '"high":12' in (await call(world, "harbour__tides", word="tide")).replace(" ", "")
    assert "the harbour is closed" in await call(world, "harbour__refuse", word="fail")
    assert "declined" in await call(world, "harbour__ask_back", word="back")
    assert "a map" in await call(world, "harbour__read_resource", {"uri": "harbour://map"}, word="map")
    assert "Unknown resource" in await call(world, "harbour__read_resource", {"uri": "harbour://x"}, word="none")
    greeting = await call(
        world, "harbour__get_prompt", {"name": "greeting", "arguments": {"name": "Ann"}}, word="greet"
    )
    assert "user:\nAhoy Ann" in greeting


async def test_a_server_is_given_none_of_the_gateways_variables_and_no_secret_of_its_own_is_shown(
    world: World,
) -> None:
    await start(world, harbour=server(world, **READS))
    names = set((await call(world, "harbour__environ")).split())
    assert "HARBOUR_KEY" in names
    assert not [name for name in names if name.startswith("HERMES_")]
    assert "harbour-secret-1" not in world.gateway.log_text()
    assert not processes_with("harbour-secret-1")
    assert "ready for boats" in world.gateway.log_text()
    code, shown = await world.command_line("config", "show", "--json")
    assert code == 0
    assert "HARBOUR_KEY" in shown
    assert "harbour-secret-1" not in shown


async def test_a_call_that_takes_too_long_crashes_or_floods_is_told_and_the_server_goes_on(world: World) -> None:
    await start(world, harbour=server(world, **READS), slow=server(world, seconds=1, **READS))
    assert "no answer within 1 seconds" in await call(world, "slow__hang", word="wait")
    await happened(world, "hang cancelled")
    await assert_a_flood_takes_no_memory(world)
    since = len(world.gateway.log_bytes())
    assert "ended during the call" in await call(world, "harbour__crash")
    await connected(world, since=since)
    assert "pier 7" in await call(world, "harbour__look", {"boat": "Eva"}, word="look")
    assert sum(line.startswith("started") for line in events(world)) == 3


async def test_stop_cancels_the_call_at_the_server(world: World) -> None:
    await start(world, harbour=server(world, **READS))
    await world.script(match="wait", last_role="user", tool_calls=[{"name": "harbour__hang", "arguments": {}}])
    await world.say("wait")
    await happened(world, "hang")
    await world.say("/stop")
    await happened(world, "hang cancelled")
    assert "pier 7" in await call(world, "harbour__look", {"boat": "Eva"}, word="look")


def most_memory(pid: int, *, is_reset: bool = False) -> int:
    """Most memory that a process has had since the last reset, in kB."""
    if is_reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


async def assert_a_flood_takes_no_memory(world: World) -> None:
    """An answer of 100 MB is refused while it arrives."""
    assert world.gateway.process is not None
    before = most_memory(world.gateway.process.pid, is_reset=True)
    assert "larger than the limit for a message" in await call(world, "harbour__flood", {"megabytes": 100}, word="much")
    assert most_memory(world.gateway.process.pid) - before < 64 * 1024


async def test_a_changed_list_is_known_at_once_and_listed_in_the_next_conversation(world: World) -> None:
    await start(world, harbour=server(world, **READS))
    await call(world, "harbour__open_pier")
    await world.gateway.wait_for_log("mcp.list_changed")
    assert "moored at 7" in await call(world, "harbour__moor", {"pier": 7}, word="moor")
    assert "harbour__moor" not in str((await world.asked(1))[-1]["body"]["tools"])
    await world.converse("/new", "hello")
    assert "harbour__moor" in str((await world.asked(1))[-1]["body"]["tools"])


async def test_servers_come_go_and_change_with_a_reload(world: World) -> None:
    await start(world)
    world.configure(json.dumps({"mcp": {"servers": {"harbour": server(world)}}}))
    del world.gateway.environ["HERMES_MCP__SERVERS"]
    await world.gateway.stop()
    await world.gateway.start()
    await connected(world)
    world.configure(json.dumps({"mcp": {"servers": {"harbour": server(world, deny=["book"])}}}))
    since = len(world.gateway.log_bytes())
    await world.reload()
    await connected(world, since=since)
    await world.say("/mcp", chat_id=1)
    [listed] = await world.replies(1, chat_id=1, match="harbour")
    assert "connected since" in listed
    assert "harbour__look" in listed
    assert "harbour__book" not in listed
    assert "1 resource" in listed
    assert "1 prompt" in listed
    world.configure("mcp: {servers: {}}\n")
    await world.reload()
    assert await all_gone(str(world.home))
    await world.ask("/mcp", "No MCP servers are configured", chat_id=1)


BAD_LISTS = """
begin(tools={}, resources={}, prompts={})
asked = hear()
say(id=asked["id"], result={"tools": [
    {"name": "look", "inputSchema": {"type": "object"}},
    {"name": "book", "inputSchema": {"type": "string", "properties": {"required": ["boat"], "days": {"type": "int"}}}},
    {"name": "sail", "inputSchema": None},
    None,
]})
for error in ({"code": -32601, "message": "Method not found"}, "no prompts here"):
    asked = hear()
    say(id=asked["id"], error=error)
while True:
    asked = hear()
    say(id=asked["id"], result={"content": [{"type": "text", "text": f"{asked['params']['name']} is done"}]})
"""


@pytest.mark.each_protocol
async def test_lists_and_tools_that_are_wrong_cost_nothing_else_of_the_server(world: World) -> None:
    await start(world, odd={"command": sys.executable, "args": ["-c", LINES + BAD_LISTS, str(world.home)], **READS})
    for tool in ("look", "book"):
        assert f"{tool} is done" in await call(world, f"odd__{tool}", word=f"{tool} now")
    await world.say("/mcp", chat_id=1)
    [listed] = await world.replies(1, chat_id=1, match="odd")
    assert "connected since" in listed
    assert "resources/list failed: Method not found" in listed
    assert "prompts/list failed: the server's answer does not follow the protocol" in listed
    assert "odd__sail" in listed


async def test_servers_that_cannot_start_hold_nothing_up_and_say_why(world: World) -> None:
    words = "raise SystemExit('no key harbour-secret-1 for port 7')"
    odd = {"command": sys.executable, "args": ["-c", words], "env": {"HARBOUR_KEY": "harbour-secret-1"}}
    servers = {"ghost": {"command": "no-such-program"}, "odd": odd}
    await world.gateway.start(HERMES_MCP__SERVERS=json.dumps(servers))
    await world.converse("hello")
    await world.until(lambda: all(f'"server":"{name}"' in world.gateway.log_text() for name in servers))
    await world.gateway.wait_for_log("mcp.server_failed")
    await world.say("/mcp", chat_id=1)
    [listed] = await world.replies(1, chat_id=1, match="ghost")
    assert "the program ended with exit code 1: no key [redacted] for port 7" in listed
    assert "the program no-such-program is not on the PATH" in listed
    assert "next attempt in" in listed
    assert "not connected" in await call(world, "ghost__look", {})
    code, found = await world.command_line("doctor")
    assert "no-such-program" in found
    assert code != 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_gateways_end_leaves_no_child_behind(world: World, number: int) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1_000)"
    deaf = {"command": sys.executable, "args": ["-c", stubborn, f"{world.home}/deaf"]}
    await world.gateway.start(HERMES_MCP__SERVERS=json.dumps({"deaf": deaf, "harbour": server(world)}))
    await connected(world)
    await world.until(lambda: processes_with(f"{world.home}/deaf"))
    world.gateway.signal(number)
    await world.gateway.wait()
    assert await all_gone(str(world.home))


async def listening(port: int) -> None:
    """Wait until somebody takes connections there."""
    async with asyncio.timeout(20):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_back", [True, False], ids=["is back", "is not back yet"])
async def test_a_server_over_http_is_called_and_found_again_after_a_restart(world: World, is_back: bool) -> None:
    port = world.free_port()
    environ = {**os.environ, "FAKE_MCP_LOG": str(world.home.parent / "mcp.log")}
    words = (sys.executable, str(SERVER), "http", str(port))
    process = await asyncio.create_subprocess_exec(*words, env=environ, stderr=asyncio.subprocess.DEVNULL)
    try:
        headers = {"Authorization": "Bearer harbour-secret-2"}
        await listening(port)
        await start(world, harbour={"url": f"http://127.0.0.1:{port}/mcp", "headers": headers, **READS})
        assert "pier 7" in await call(world, "harbour__look", {"boat": "Eva"})
        if is_back:
            await assert_a_flood_takes_no_memory(world)
        process.kill()
        await process.wait()
        since = len(world.gateway.log_bytes())
        if not is_back:
            assert "Error:" in await call(world, "harbour__look", {"boat": "Eva"}, word="lost")
        process = await asyncio.create_subprocess_exec(*words, env=environ, stderr=asyncio.subprocess.DEVNULL)
        await listening(port)
        if is_back:
            assert "Error:" in await call(world, "harbour__look", {"boat": "Eva"}, word="lost")
        await connected(world, since=since)
        assert "pier 7" in await call(world, "harbour__look", {"boat": "Eva"}, word="back")
        assert "harbour-secret-2" not in world.gateway.log_text()
    finally:
        process.kill()
        await process.wait()
