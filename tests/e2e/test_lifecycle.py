"""Starting, stopping, dying and being asked how it goes."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from yarl import URL

from gateway.config.settings import Config
from tests.databases import IS_POSTGRES, about_files
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_discord import ready
from tests.e2e.world import ROOT, START_SECONDS, STARTED_ANEW, STOP_SECONDS, TOKEN, World, text_of, world_in
from tests.gateway.cli.test_cli import at_a_terminal
from tests.hermes_state.helpers import locked_by_another_process
from tests.processes import ForkedProcess
from tests.sandboxes import needs_sandbox


@pytest.fixture
async def executed(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    """Telegram and a model; the gateway is started as the unit starts it, by a Python of its own."""
    async with world_in(tmp_path, protocol, program=STARTED_ANEW) as made:
        yield made


async def test_a_stop_lets_the_running_turn_finish(executed: World) -> None:
    await executed.gateway.start()
    await executed.hold(match="slow", text="here you are")
    await executed.say("slow")
    await executed.turn_runs()
    stopping = asyncio.create_task(executed.gateway.stop())
    await executed.gateway.wait_for_log("daemon.draining")
    await executed.release()
    assert await stopping == 0
    assert await executed.replies(1, wait=0) == ["here you are"]
    assert executed.query("SELECT state, restarts FROM turns") == [("finished", 0)]


async def test_doctor_without_the_credentials_of_the_unit_does_not_say_that_nothing_is_served(
    both: World, tmp_path: Path
) -> None:
    world, credentials = both, tmp_path / "credentials"
    credentials.mkdir()
    for platform in ("telegram", "discord"):
        token = world.gateway.environ.pop(f"HERMES_{platform.upper()}__TOKEN")
        (credentials / f"{platform}.token").write_text(token)
    await ready(world, CREDENTIALS_DIRECTORY=str(credentials))
    await world.converse("hello")
    del world.gateway.environ["CREDENTIALS_DIRECTORY"]  # the shell of an operator has none
    code, said = await world.command_line("doctor")
    assert code == 0, said
    assert "The gateway is running and answers." in said
    assert re.search("The running gateway serves (telegram|discord)( and |, )(telegram|discord)", said), said
    assert "settings that this command cannot see" in said
    assert ".token" not in said
    await world.gateway.stop()
    assert "no chat is configured: set telegram.token" in (await world.command_line("doctor"))[1]


async def test_a_log_file_that_is_deleted_is_opened_again(world: World) -> None:
    await world.gateway.start(HERMES_LOGGING__FILE="true")
    log = world.home / "logs" / "gateway.log"
    await world.converse("before")
    await world.gateway.wait_for_log("turn.finished")  # the last line of the turn, written after its answer is sent
    assert '"turn_id":1' in log.read_text()
    log.unlink()
    await world.converse("after")
    assert await world.gateway.stop() == 0
    assert '"turn_id":2' in log.read_text()
    assert '"turn_id":1' not in log.read_text()


def run_as_nobody_known(*words: str) -> None:
    """Run the command `hermes-gateway` as a user id without a passwd entry, and without HOME, as in a container."""
    os.environ.pop("HOME", None)
    os.chdir(ROOT)
    user = ("unshare", "--user", "--map-user=54321", "--map-group=54321")
    os.execvp("unshare", [*user, sys.executable, "-m", "gateway", *words])


@needs_sandbox
async def test_a_user_without_a_home_directory_needs_only_hermes_home(world: World, tmp_path: Path) -> None:
    world.gateway.program = partial(run_as_nobody_known, "run")
    environ = world.gateway.environ
    await world.gateway.start()
    await world.converse("hello")
    places = {environ["HERMES_HOME"]: "The gateway is running", "": "set HERMES_HOME", "~/a": "set HERMES_HOME"}
    doctor = partial(run_as_nobody_known, "doctor")
    outputs = {place: tmp_path / f"doctor-{number}" for number, place in enumerate(places)}
    runs = [ForkedProcess(doctor, {**environ, "HERMES_HOME": place}, outputs[place]) for place in places]
    assert {await run.wait() for run in runs} <= {0, 78}
    for place, words in places.items():
        assert words in text_of(outputs[place])
        assert "Traceback" not in text_of(outputs[place])
    assert await world.gateway.stop() == 0
    assert "Traceback" not in world.gateway.log_text()


async def test_a_new_operator_corrects_a_model_that_is_not_listed_and_starts_with_the_printed_command(
    both: World,
) -> None:
    """`init` asks its questions at a terminal, and its last line is typed into a shell."""
    gateway, address = both.gateway, both.llm.url + both.protocol.root
    asked = ("MODEL__NAME", "MODEL__BASE_URL", "MODEL__API_KEY", "ACCESS__ALLOW", "ACCESS__ADMINS")
    for name in (*asked, "TELEGRAM__TOKEN", "DISCORD__TOKEN"):
        del gateway.environ[f"HERMES_{name}"]
    refusal = {"status": 404, "body": {"error": {"message": "The model does not exist"}}}
    await both.script(model="lab-127k", error=refusal, times=-1)
    answers = {
        "Telegram bot token": TOKEN,
        "Discord bot token": "lab-discord-token",
        "Model name": "lab-127k",
        "API type": "",
        "Base URL of the API": address,
        "API key": "",
        "Your user id": "telegram:42",
        "does not list lab-127k; did you mean": "y",
        "(lab-127k; Enter keeps it": "lab-128k",
        "API typ": "",
        f"({address}; Enter keeps it": "",
        "API k": "",
    }
    shown = await asyncio.to_thread(at_a_terminal, gateway.environ, ["init"], answers)
    found = re.search(r"Start with: (.+?)\r", shown)
    assert found is not None, shown
    del gateway.environ["HERMES_HOME"]  # the printed command names the folder
    gateway.program = partial(os.execv, "/bin/sh", ["sh", "-c", f"exec env {found[1]}"])
    await ready(both)
    await both.converse("hello")
    assert (await both.asked(1))[-1]["body"]["model"] == "lab-128k"


async def test_what_arrives_during_the_drain_and_a_turn_cut_by_its_end_are_answered_after_the_next_start(
    world: World,
) -> None:
    await world.gateway.start(HERMES_LIFECYCLE__DRAIN_SECONDS="1")
    await world.script(match="hang", hang=True)
    await world.say("hang on")
    await world.turn_runs()
    stopping = asyncio.create_task(world.gateway.stop())
    await world.gateway.wait_for_log("daemon.draining")
    await world.say("and this?")
    assert await stopping == 0
    assert world.query("SELECT state FROM turns") == [("running",)]
    await world.gateway.start()
    cut, later = await world.replies(2)
    assert "hang on" in cut
    assert "and this?" in later
    assert world.query("SELECT state, restarts FROM turns") == [("finished", 0)] * 2


async def test_a_second_signal_cuts_the_drain_short(world: World) -> None:
    await world.gateway.start()
    await world.script(match="hang", hang=True)
    await world.say("hang on")
    await world.turn_runs()
    world.gateway.signal(signal.SIGTERM)
    await world.gateway.wait_for_log("daemon.draining")
    assert await asyncio.wait_for(world.gateway.stop(), 10) == 0
    assert world.query("SELECT state FROM turns") == [("running",)]
    assert "delivery.flush_timed_out" not in world.gateway.log_text()


async def test_a_start_that_a_locked_database_holds_up_can_be_stopped(world: World) -> None:
    await world.gateway.start()
    assert await world.gateway.stop() == 0
    seen = len(world.gateway.log_bytes())
    with locked_by_another_process(world.database, 60):
        await world.gateway.spawn(HERMES_STORE__BUSY_SECONDS="1")
        if IS_POSTGRES:
            query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            await world.until(lambda: world.query(query))
        else:
            await world.gateway.wait_for_log("another process has locked the database", since=seen)
        assert await asyncio.wait_for(world.gateway.stop(), 10) == 0


async def test_an_unknown_key_ends_with_78_and_a_crash_is_logged_and_ends_with_1(world: World) -> None:
    world.configure("sessions:\n  busy_mod: steer\n")
    code, output = await world.command_line("run")
    assert code == 78
    assert "config.yaml" in output
    assert "busy_mode" in output, "the nearest key"
    world.configure("")
    (world.home / "control.sock").mkdir(parents=True)
    await world.gateway.spawn()
    assert await world.gateway.wait() == 1
    lines = [json.loads(line) for line in world.gateway.log_text().splitlines()]
    assert "IsADirectoryError" in next(line["exception"] for line in lines if line["event"] == "daemon.crashed")


@pytest.mark.skipif(IS_POSTGRES, reason="it is welcome there, as another node")
async def test_a_second_daemon_ends_with_75_and_names_the_first(world: World) -> None:
    await world.gateway.start()
    code, output = await world.command_line("run")
    assert code == 75
    assert world.gateway.process is not None
    assert str(world.gateway.process.pid) in output
    assert "hermes-gateway url` prints a link" in output
    assert "To stop it" in output
    other = world.home.with_name("other")
    other.mkdir()
    world.gateway.environ |= {"HERMES_HOME": str(other / "home"), "TMPDIR": str(other)}
    code, output = await world.command_line("run")
    assert code == 75, "another state directory and temporary folder do not make the same token free"
    assert "Telegram token" in output
    assert "hermes-gateway url" not in output, "it would ask the other state directory's"


async def test_a_start_without_a_configured_port_takes_the_next_free_one_and_says_so(world: World) -> None:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # somebody else has it: as well
            held.enter_context(socket.create_server(("127.0.0.1", Config().local.port)))
        await world.gateway.start(HERMES_LOCAL__ENABLED="true")
        await world.gateway.wait_for_log("local.port_taken")
        assert (URL(await world.gateway.printed_url()).port or 0) > Config().local.port


_AT_A_TERMINAL = """
import os, sys
os.login_tty(0)
os.execv(sys.executable, [sys.executable, "-m", "gateway", "run"])
"""


async def test_a_gateway_ends_cleanly_with_its_terminal(executed: World) -> None:
    """The kernel and the shell both say that it was closed: the second time is no order to hurry."""
    await executed.hold(match="slow", text="here you are")
    await executed.say("slow")
    terminal, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _AT_A_TERMINAL), env=executed.environ, cwd=ROOT, stdin=theirs
    )
    os.close(theirs)
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, os.read, terminal, 65_536)  # or it would wait for room to write
    try:
        await executed.tg.get("calls", method="sendChatAction", wait=START_SECONDS, count=1)
        assert process.returncode is None
    finally:
        loop.remove_reader(terminal)
        os.close(terminal)
    process.send_signal(signal.SIGHUP)
    await executed.release()
    assert await asyncio.wait_for(process.wait(), STOP_SECONDS) == 0
    assert await executed.replies(1, wait=0) == ["here you are"]
    assert executed.query("SELECT state, restarts FROM turns") == [("finished", 0)]


async def test_a_gateway_ends_when_what_started_it_at_its_terminal_waits_for_it(executed: World) -> None:
    """`make` is told of the end of a terminal that runs nothing else, and waits for what it runs, which is not told."""
    starter = (
        "import fcntl, os, signal, subprocess, sys, termios\n"
        "os.setsid()\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "signal.signal(signal.SIGHUP, lambda *_: None)\n"
        "sys.exit(subprocess.run([sys.executable, '-m', 'gateway', 'run']).returncode)\n"
    )
    terminal, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", starter), env=executed.environ, cwd=ROOT, stdin=theirs
    )
    os.close(theirs)
    try:
        await executed.tg.get("calls", method="getUpdates", wait=START_SECONDS, count=1)
        assert process.returncode is None
        os.close(terminal)
        assert await asyncio.wait_for(process.wait(), STOP_SECONDS) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@about_files
async def test_a_database_that_is_not_ours_ends_with_78_and_stays_as_it_was(world: World) -> None:
    world.home.mkdir(mode=0o700)
    foreign = world.home / "state.db"
    foreign.write_bytes(b"not a database of ours" * 100)
    before = (foreign.read_bytes(), foreign.stat().st_mtime_ns)
    code, output = await world.command_line("run")
    assert code == 78
    assert "state.db" in output
    assert (foreign.read_bytes(), foreign.stat().st_mtime_ns) == before
    assert sorted(os.listdir(world.home)) == ["state.db"]


async def test_the_command_line_asks_the_running_daemon(world: World) -> None:
    await world.gateway.start()
    await world.say("let me in", chat_id=77)
    [reply] = await world.replies(1, chat_id=77)
    code_word = reply.split("pair approve ")[1].split()[0].rstrip(",")
    code, output = await world.command_line("status", "--json")
    assert code == 0
    status = json.loads(output)
    assert status["platforms"]["telegram"]["state"] == "running"
    code, output = await world.command_line("pair", "list", "--json")
    assert [row["user"] for row in json.loads(output)] == ["telegram:77"]
    code, output = await world.command_line("pair", "approve", code_word)
    assert code == 0, output
    await world.ask("thank you", "thank you", chat_id=77)
    code, output = await world.command_line("pair", "revoke", "telegram:77")
    assert code == 0, output
    await world.say("still there?", chat_id=77)
    assert await world.replies(2, chat_id=77, match="pairing code")


async def test_webhook_mode_acknowledges_after_the_commit(world: World) -> None:
    port = world.free_port()
    address = f"http://127.0.0.1:{port}/telegram"
    await world.gateway.start(HERMES_TELEGRAM__WEBHOOK__URL=address, HERMES_TELEGRAM__WEBHOOK__PORT=str(port))
    await world.tg.get("calls", method="setWebhook", wait=15, count=1)
    await world.say("by webhook")
    [reply] = await world.replies(1, wait=20)
    assert "by webhook" in reply
    async with world.http.post(address, json={"update_id": 1}, headers={"X-Telegram-Bot-Api-Secret-Token": "no"}) as r:
        assert r.status in (401, 403)


async def test_without_a_model_the_start_the_status_and_every_answer_say_so(world: World) -> None:
    for name in [name for name in world.environ if name.startswith("HERMES_MODEL__")]:
        del world.gateway.environ[name]
    await world.gateway.start()
    await world.gateway.wait_for_log("model.offline")
    for number in range(1, 3):
        await world.say(f"message {number}")
        assert "offline model" in (await world.replies(number))[-1]
    await world.ask("/status", "built-in offline model")


@pytest.mark.each_protocol
async def test_log_lines_of_a_turn_name_its_platform_chat_conversation_and_turn_but_no_words(world: World) -> None:
    await world.gateway.start()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        world.gateway.signal(number)  # which means nothing
    await world.say("my secret plan is a picnic")
    await world.gateway.wait_for_log("turn.finished")
    lines = [json.loads(line) for line in world.gateway.log_text().splitlines() if "turn.finished" in line]
    [(lineage_id, turn_id)] = world.query("SELECT lineage_id, id FROM turns")
    assert [(line["platform"], line["chat"], line["lineage_id"], line["turn_id"]) for line in lines] == [
        ("telegram", "telegram:42", lineage_id, turn_id)
    ]
    await world.gateway.stop()
    assert "picnic" not in world.gateway.log_text()
    assert "LABTOKEN" not in world.gateway.log_text()
