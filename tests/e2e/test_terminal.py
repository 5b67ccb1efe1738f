"""The terminal of a whole gateway: offered when it is on, ended by /stop and by the gateway's end."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.e2e.chats import PLATFORMS, chat_on
from tests.e2e.protocols import ModelProtocol, prompt_of
from tests.e2e.test_discord import ALICE, ready, say, sent
from tests.e2e.world import World
from tests.sandboxes import all_gone, needs_sandbox, processes_with

pytestmark = needs_sandbox

ON = {"HERMES_TERMINAL__ENABLED": "true", "HERMES_TOOLS__APPROVAL__EXECUTES": "allow"}


async def started(mark: str) -> None:
    """Wait until a process with `mark` runs."""
    async with asyncio.timeout(15):
        while not processes_with(mark):  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # processes of others have no event to wait for


async def test_it_is_off_by_default_and_switched_on_by_a_reload(world: World) -> None:
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    await world.converse("hello")
    config = world.home / "config.yaml"
    config.write_text("terminal:\n  enabled: true\n")
    world.gateway.signal(signal.SIGHUP)
    await world.gateway.wait_for_log("config.reloaded")
    await world.script(
        match="who", last_role="user", tool_calls=[{"name": "terminal", "arguments": {"command": "id -u"}}]
    )
    await world.converse("who are you")
    first, *_, last = await world.asked(3)
    assert '"terminal"' not in str(first["body"].get("tools")).replace("'", '"')
    assert "[exit code 0;" in str(last["body"])
    assert (await world.visible())[-1].endswith("\n1000")


async def test_files_of_a_chat_stay_in_its_workspace(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script(
        match="note", last_role="user", tool_calls=[{"name": "terminal", "arguments": {"command": "echo hi > note"}}]
    )
    await world.converse("note it")
    [note] = world.home.glob("workspaces/*/note")
    assert note.read_text() == "hi\n"
    assert (world.home / "workspaces").stat().st_mode & 0o777 == 0o700


async def test_stop_ends_the_command(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script(
        match="long", last_role="user", tool_calls=[{"name": "terminal", "arguments": {"command": "sleep 289"}}]
    )
    await world.say("long work")
    await started("sleep\x00289")
    await world.say("/stop")
    assert await all_gone("sleep\x00289")
    assert await world.replies(1, match="Stopped")
    assert world.query("SELECT state FROM tool_runs") == [("stopped",)]


async def test_a_killed_gateway_leaves_no_command_and_runs_none_again(world: World) -> None:
    await world.gateway.start(**ON)
    command = "echo x >> times; sleep 288"
    await world.script(
        match="long", last_role="user", tool_calls=[{"name": "terminal", "arguments": {"command": command}}]
    )
    await world.say("long work")
    await started("sleep\x00288")
    await world.gateway.kill()
    assert await all_gone("sleep 288")
    await world.gateway.start()
    await world.replies(1)
    assert world.query("SELECT state FROM tool_runs") == [("unknown",)]
    [times] = world.home.glob("workspaces/*/times")
    assert times.read_text() == "x\n"


async def test_the_end_of_a_background_command_is_told_to_people_and_to_the_model(world: World) -> None:
    await world.gateway.start(**ON)
    arguments = {"command": "while test ! -e go; do sleep 0.05; done; exit 9", "background": True}
    await world.script(match="build", last_role="user", tool_calls=[{"name": "terminal", "arguments": arguments}])
    await world.converse("build it")
    [folder] = world.home.glob("workspaces/*")
    (folder / "go").touch()
    [notice] = await world.replies(1, match="Background command")
    assert "has ended: exit code 9. Command: while test" in notice
    count = len(await world.asked(0, wait=0))
    await world.converse("and now?")
    prompt = prompt_of((await world.asked(count + 1))[-1])
    assert "[gateway notice] Background command" in str(prompt)
    assert await world.violations() == []


@pytest.mark.parametrize(
    "change", ["terminal: {enabled: false}", "tools: {use: {terminal: off}}", "tools: {use: {terminal: admins}}"]
)
async def test_a_reload_that_takes_the_terminal_away_ends_background_commands(world: World, change: str) -> None:
    world.home.mkdir()
    config = world.home / "config.yaml"
    config.write_text("terminal: {enabled: true}")
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    arguments = {"command": "sleep 286", "background": True}
    await world.script(match="serve", last_role="user", tool_calls=[{"name": "terminal", "arguments": arguments}])
    await world.converse("serve it")
    await started("sleep\x00286")
    config.write_text(f"terminal: {{enabled: true}}\n{change}" if change.startswith("tools") else change)
    world.gateway.signal(signal.SIGHUP)
    assert await all_gone("sleep\x00286")
    [notice] = await world.replies(1, match="Background command")
    assert "stopped: the terminal was disabled" in notice


async def test_a_reload_leaves_commands_of_chats_that_keep_the_terminal(world: World) -> None:
    world.home.mkdir()
    config = world.home / "config.yaml"
    config.write_text("terminal: {enabled: true}")
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    arguments = {"command": "sleep 285", "background": True}
    await world.script(match="serve", last_role="user", tool_calls=[{"name": "terminal", "arguments": arguments}])
    await world.converse("serve it")
    await started("sleep\x00285")
    config.write_text("terminal: {enabled: true}\ntools: {use: {terminal: off}, use_on: {telegram: {terminal: on}}}")
    world.gateway.signal(signal.SIGHUP)
    await world.gateway.wait_for_log("config.reloaded")
    assert processes_with("sleep\x00285")


async def test_a_stopped_gateway_ends_background_commands_and_says_so_later(world: World) -> None:
    await world.gateway.start(**ON)
    arguments = {"command": "sleep 287", "background": True}
    await world.script(match="serve", last_role="user", tool_calls=[{"name": "terminal", "arguments": arguments}])
    await world.converse("serve it")
    await started("sleep\x00287")
    assert await world.gateway.stop() == 0
    assert await all_gone("sleep\x00287")
    await world.gateway.start()
    [notice] = await world.replies(1, match="Background command")
    assert "stopped: the gateway is stopping" in notice


async def test_a_command_is_shown_and_run_only_after_a_yes_and_polling_needs_none(world: World) -> None:
    await world.gateway.start(HERMES_TERMINAL__ENABLED="true", HERMES_TOOLS__APPROVAL__EXECUTES="ask")
    arguments = {"command": "echo hi > note; exit 3"}
    await world.script(match="note", last_role="user", tool_calls=[{"name": "terminal", "arguments": arguments}])
    await world.say("note it")
    [question] = await world.replies(1)
    assert "echo hi > note; exit 3" in question
    assert not list(world.home.glob("workspaces/*/note"))
    await world.say("/approve")
    assert "[exit code 3;" in (await world.replies(3))[-1]
    listing = [{"name": "terminal", "arguments": {"action": "list"}}]
    await world.script(match="what runs", last_role="user", tool_calls=listing)
    await world.say("what runs?")
    assert "no background commands" in (await world.replies(4))[-1]


@pytest.mark.parametrize("how", ["configuration", "pairing"])
async def test_revoking_access_ends_background_commands_and_open_questions(world: World, how: str) -> None:
    world.gateway.environ.pop("HERMES_ACCESS__ALLOW")
    world.home.mkdir(mode=0o700)
    config = world.home / "config.yaml"
    config.write_text("terminal: {enabled: true}\naccess: {allow: [telegram:42, telegram:43]}")
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    if how == "pairing":
        config.write_text("terminal: {enabled: true}\naccess: {allow: [telegram:43]}")
        world.gateway.signal(signal.SIGHUP)
        await world.gateway.wait_for_log("config.reloaded")
        await world.say("let me in")
        [reply] = await world.replies(1)
        await world.say(f"/pair approve {reply.split('pair approve ')[1].split()[0].rstrip(',')}", chat_id=1)
        await world.replies(1, chat_id=1)
    calls = {"sleep\x00283": 43, "sleep\x00284": 42}
    for mark, chat_id in calls.items():
        arguments = {"command": mark.replace("\0", " "), "background": True}
        call = [{"name": "terminal", "arguments": arguments}]
        await world.script(match="serve", last_role="user", tool_calls=call, times=1)
        await world.say("serve it", chat_id=chat_id)
        await started(mark)
    note = [{"name": "write_file", "arguments": {"path": "note.md", "content": "x"}}]
    await world.script(match="note it", last_role="user", tool_calls=note, times=2)
    for chat_id in (42, 43):
        await world.replies(2 if how == "pairing" and chat_id == 42 else 1, chat_id=chat_id)
        await world.say("note it", chat_id=chat_id)
        assert await world.replies(1, chat_id=chat_id, match="note.md")
    if how == "configuration":
        config.write_text("terminal: {enabled: true}\naccess: {allow: [telegram:43]}")
        world.gateway.signal(signal.SIGHUP)
    else:
        await world.say("/pair revoke telegram:42", chat_id=1)
    assert await all_gone("sleep\x00284")
    [notice, *_] = await world.replies(1, match="Background command")  # the answer that follows may quote it
    assert "stopped: access was revoked" in notice
    async with asyncio.timeout(15):
        while world.query("SELECT count(*) FROM approvals WHERE state = 'expired'") != [(1,)]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # a database of another process has no event to wait for
    assert processes_with("sleep\x00283"), "that of somebody who keeps access"
    assert world.query("SELECT count(*) FROM approvals WHERE state = 'pending'") == [(1,)]
    assert not list(world.home.glob("workspaces/*/note.md"))


async def test_revoking_access_ends_what_was_started_on_discord(discord_world: World) -> None:
    world = discord_world
    config = world.home / "config.yaml"
    access = {key: value for key, value in world.gateway.environ.items() if key.startswith("HERMES_ACCESS__ALLOW")}
    for key in access:
        world.gateway.environ.pop(key)
    world.home.mkdir(mode=0o700, exist_ok=True)
    config.write_text(f"terminal: {{enabled: true}}\naccess: {{allow: [discord:{ALICE}]}}")
    await ready(world, HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    call = [{"name": "terminal", "arguments": {"command": "sleep 282", "background": True}}]
    await world.script(match="serve", last_role="user", tool_calls=call, times=1)
    await say(world, "serve it")
    await started("sleep\x00282")
    note = [{"name": "write_file", "arguments": {"path": "note.md", "content": "x"}}]
    await world.script(match="note it", last_role="user", tool_calls=note, times=1)
    await sent(world, 1)
    await say(world, "note it")
    assert any("note.md" in text for text in await sent(world, 2))
    config.write_text("terminal: {enabled: true}")
    world.gateway.signal(signal.SIGHUP)
    assert await all_gone("sleep\x00282")
    assert await sent(world, 1, match="access was revoked")
    async with asyncio.timeout(15):
        while world.query("SELECT count(*) FROM approvals WHERE state = 'expired'") != [(1,)]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # a database of another process has no event to wait for


HIDE = "import os, time; [os.write(os.memfd_create('x'), bytes(1 << 24)) for _ in range(16)]; time.sleep(300)"


@pytest.mark.each_protocol
@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f'/usr/bin/python3 -c "{HIDE}"', "stopped: it used more than 128 MB of memory"),
        ("trap '' TERM; sleep 279 & wait", "stopped: it took longer than 2 s"),
        ("kill -SEGV $$", "ended by SIGSEGV"),
    ],
    ids=["too much memory", "too long", "by a signal"],
)
async def test_the_reason_why_a_command_ended_is_told(
    tmp_path: Path, protocol: ModelProtocol, platform: str, command: str, reason: str
) -> None:
    call = [{"name": "terminal", "arguments": {"command": command, "seconds": 2 if "sleep 279" in command else 60}}]
    async with chat_on(platform, tmp_path, protocol) as chat:
        await chat.start(**ON, HERMES_TERMINAL__MEMORY_MB="128")
        await chat.world.script(match="run it", last_role="user", tool_calls=call, times=1)
        await chat.ask("run it", reason)
