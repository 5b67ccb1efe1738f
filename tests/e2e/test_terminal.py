"""The terminal of a whole gateway: offered when it is on, ended by /stop and by the gateway's end."""

import pytest

from tests.e2e.chats import Chat
from tests.e2e.protocols import prompt_of
from tests.e2e.test_discord import ALICE, ready, say, sent
from tests.e2e.world import World
from tests.sandboxes import all_gone, needs_sandbox, processes_with

pytestmark = needs_sandbox

ON = {"HERMES_TERMINAL__ENABLED": "true", "HERMES_TOOLS__APPROVAL__EXECUTES": "allow"}


async def serve(world: World, command: str, chat_id: int = 42) -> None:
    """Have the model start a command in the background, and wait until it runs."""
    await world.script_call("serve", "terminal", command=command, background=True)
    await world.say("serve it", chat_id=chat_id)
    await world.until(lambda: processes_with(command.replace(" ", "\0")))


async def test_it_is_off_by_default_and_switched_on_by_a_reload(world: World) -> None:
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    await world.converse("hello")
    world.configure("terminal:\n  enabled: true\n")
    await world.reload()
    await world.script_call("who", "terminal", command="echo hi > note; id -u")
    await world.converse("who are you")
    first, *_, last = await world.asked(3)
    assert '"terminal"' not in str(first["body"].get("tools")).replace("'", '"')
    assert "[exit code 0;" in str(last["body"])
    assert (await world.visible())[-1].endswith("\n1000")
    [note] = world.home.glob("workspaces/*/note")
    assert note.read_text() == "hi\n"
    assert (world.home / "workspaces").stat().st_mode & 0o777 == 0o700


async def test_a_stop_and_a_kill_end_a_command_and_it_is_not_run_again(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script_call("long", "terminal", command="sleep 289")
    await world.say("long work")
    await world.until(lambda: processes_with("sleep\x00289"))
    await world.say("/stop")
    assert await all_gone("sleep\x00289")
    assert await world.replies(1, match="Stopped")
    assert world.query("SELECT state FROM tool_runs") == [("stopped",)]
    count = len(await world.replies(0, wait=0))
    await world.script_call("long", "terminal", command="echo x >> times; sleep 288")
    await world.say("long work")
    await world.until(lambda: processes_with("sleep\x00288"))
    await world.gateway.kill()
    assert await all_gone("sleep 288")
    await world.gateway.start()
    await world.replies(count + 1)
    assert world.query("SELECT state FROM tool_runs ORDER BY id") == [("stopped",), ("unknown",)]
    [times] = world.home.glob("workspaces/*/times")
    assert times.read_text() == "x\n"


async def test_the_end_of_a_background_command_is_told_to_people_and_to_the_model(world: World) -> None:
    await world.gateway.start(**ON)
    command = "while test ! -e go; do sleep 0.05; done; exit 9"
    await world.script_call("build", "terminal", command=command, background=True)
    await world.converse("build it")
    [folder] = world.home.glob("workspaces/*")
    (folder / "go").touch()
    [notice] = await world.replies(1, match="Background command")
    assert "has ended: exit code 9. Command: while test" in notice
    count = len(await world.asked(0, wait=0))
    await world.converse("and now?")
    prompt = prompt_of((await world.asked(count + 1))[-1])
    assert "[gateway notice] Background command" in str(prompt)


async def test_a_reload_that_takes_the_terminal_away_ends_background_commands_and_so_does_a_stop(world: World) -> None:
    enabled = "terminal: {enabled: true}\n"
    changes = (
        "terminal: {enabled: false}",
        f"{enabled}tools: {{use: {{terminal: off}}}}",
        f"{enabled}tools: {{use: {{terminal: admins}}}}",
    )
    world.configure(enabled)
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    for count, change in enumerate(changes, start=1):
        await serve(world, f"sleep 286.{count}")
        world.configure(f"{enabled}tools: {{use: {{terminal: off}}, use_on: {{telegram: {{terminal: on}}}}}}")
        await world.reload()
        assert processes_with(f"sleep\x00286.{count}"), "this chat keeps the terminal"
        world.configure(change)
        await world.reload()
        assert await all_gone(f"sleep\x00286.{count}")
        stopped = "Background command.*stopped: the terminal was disabled"
        assert len(await world.replies(count, match=stopped)) == count
        world.configure(enabled)
        await world.reload()
        await world.converse("/new")
    await serve(world, "sleep 287")
    assert await world.gateway.stop() == 0
    assert await all_gone("sleep\x00287")
    await world.gateway.start()
    assert await world.replies(1, match="Background command.*stopped: the gateway is stopping")


async def test_a_command_is_shown_and_run_only_after_a_yes_and_polling_needs_none(world: World) -> None:
    await world.gateway.start(HERMES_TERMINAL__ENABLED="true", HERMES_TOOLS__APPROVAL__EXECUTES="ask")
    await world.script_call("note", "terminal", command="echo hi > note; exit 3")
    await world.say("note it")
    [question] = await world.replies(1)
    assert "echo hi > note; exit 3" in question
    assert not list(world.home.glob("workspaces/*/note"))
    await world.say("/approve")
    assert "[exit code 3;" in (await world.replies(3))[-1]
    await world.script_call("what runs", "terminal", action="list")
    await world.say("what runs?")
    assert "no background commands" in (await world.replies(4))[-1]


@pytest.mark.parametrize("how", ["configuration", "pairing"])
async def test_revoking_access_ends_background_commands_and_open_questions(world: World, how: str) -> None:
    world.gateway.environ.pop("HERMES_ACCESS__ALLOW")
    world.configure("terminal: {enabled: true}\naccess: {allow: [telegram:42, telegram:43]}")
    await world.gateway.start(HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    if how == "pairing":
        world.configure("terminal: {enabled: true}\naccess: {allow: [telegram:43]}")
        await world.reload()
        await world.say("let me in")
        [reply] = await world.replies(1)
        await world.say(f"/pair approve {reply.split('pair approve ')[1].split()[0].rstrip(',')}", chat_id=1)
        await world.replies(1, chat_id=1)
    await serve(world, "sleep 283", 43)
    await serve(world, "sleep 284", 42)
    note = [{"name": "write_file", "arguments": {"path": "note.md", "content": "x"}}]
    await world.script(match="note it", last_role="user", tool_calls=note, times=2)
    for chat_id in (42, 43):
        await world.replies(2 if how == "pairing" and chat_id == 42 else 1, chat_id=chat_id)
        await world.ask("note it", "note.md", chat_id=chat_id)
    if how == "configuration":
        world.configure("terminal: {enabled: true}\naccess: {allow: [telegram:43]}")
        await world.reload()
    else:
        await world.say("/pair revoke telegram:42", chat_id=1)
    assert await all_gone("sleep\x00284")
    [notice, *_] = await world.replies(1, match="Background command")  # the answer that follows may quote it
    assert "stopped: access was revoked" in notice
    await world.until_rows("SELECT count(*) FROM approvals WHERE state = 'expired'", (1,))
    assert processes_with("sleep\x00283"), "that of somebody who keeps access"
    assert world.query("SELECT count(*) FROM approvals WHERE state = 'pending'") == [(1,)]
    assert not list(world.home.glob("workspaces/*/note.md"))


async def test_revoking_access_ends_what_was_started_on_discord(discord_world: World) -> None:
    world = discord_world
    world.gateway.environ.pop("HERMES_ACCESS__ALLOW")
    world.configure(f"terminal: {{enabled: true}}\naccess: {{allow: [discord:{ALICE}]}}")
    await ready(world, HERMES_TOOLS__APPROVAL__EXECUTES="allow")
    await world.script_call("serve", "terminal", command="sleep 282", background=True)
    await say(world, "serve it")
    await world.until(lambda: processes_with("sleep\x00282"))
    await world.script_call("note it", "write_file", path="note.md", content="x")
    await sent(world, 1)
    await say(world, "note it")
    assert any("note.md" in text for text in await sent(world, 2))
    world.configure("terminal: {enabled: true}")
    await world.reload()
    assert await all_gone("sleep\x00282")
    assert await sent(world, 1, match="access was revoked")
    await world.until_rows("SELECT count(*) FROM approvals WHERE state = 'expired'", (1,))


HIDE = "import os, time; [os.write(os.memfd_create('x'), bytes(1 << 24)) for _ in range(16)]; time.sleep(300)"


REASONS = {
    f'/usr/bin/python3 -c "{HIDE}"': "stopped: it used more than 128 MB of memory",
    "trap '' TERM; sleep 279 & wait": "stopped: it took longer than 2 s",
    "kill -SEGV $$": "ended by SIGSEGV",
}


@pytest.mark.each_protocol
async def test_the_reason_why_a_command_ended_is_told(chat: Chat) -> None:
    await chat.start(**ON, HERMES_TERMINAL__MEMORY_MB="128")
    for command, reason in REASONS.items():
        seconds = 2 if "sleep 279" in command else 60
        await chat.world.script_call("run it", "terminal", command=command, seconds=seconds)
        await chat.ask("run it", reason)
