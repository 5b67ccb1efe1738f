"""Commands that use too much, do not end, or are abandoned: all end, and no process survives."""

import asyncio
import signal
import sys
import tracemalloc
from pathlib import Path

import pytest

from agent.settings import TerminalSettings
from agent.tools.terminal.running_command import OutputReader, RunningCommand, readable
from tests.sandboxes import all_gone, needs_sandbox, processes_with, run

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("exit 3", "exit code 3"),
        ("kill -TERM $$", "ended by SIGTERM"),
        ("exit 200", "exit code 200"),
        ("nosuch", "exit code 127"),
        ("exec >&- 2>&-; sleep 0.3; exit 4", "exit code 4"),
    ],
)
@needs_sandbox
async def test_a_report_says_how_a_command_ended(command: str, state: str, tmp_path: Path) -> None:
    assert (await run(command, tmp_path)).startswith(f"[{state}; ")


@needs_sandbox
async def test_a_fork_bomb_is_killed(tmp_path: Path) -> None:
    """The kernel limits the number of processes, for root in a control group, and the event loop is not blocked."""
    report = await run("bomb() { bomb | bomb & }; bomb; sleep 300", tmp_path, seconds=2, max_processes=50)
    assert report.startswith("[stopped: it took longer than 2 s;")
    assert "Resource temporarily unavailable" in report
    assert await all_gone("sleep 300")


@needs_sandbox
async def test_a_single_process_is_limited_to_the_memory_of_all(tmp_path: Path) -> None:
    report = await run("x=$(head -c 200M /dev/zero | tr '\\0' x); echo ${#x}", tmp_path, memory_mb=64)
    assert "cannot allocate" in report or "more than 64 MB of memory" in report, "its own limit, or the limit of all"


HOARD = "import time; kept = bytes([1]) * (16 << 20); print('has it', flush=True); time.sleep(300)"


@needs_sandbox
async def test_processes_that_use_too_much_memory_together_are_killed(tmp_path: Path) -> None:
    """Each process keeps its memory, so that the sum only grows."""
    hoard = f'/usr/bin/python3 -c "{HOARD}" &'
    report = await run(f"{hoard * 8} wait", tmp_path, memory_mb=64, seconds=100)
    assert report.startswith("[stopped: it used more than 64 MB of memory;")


@needs_sandbox
async def test_a_gigabyte_of_output_uses_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        report = await run("echo first; head -c 1G /dev/zero | tr '\\0' x; echo; echo last", tmp_path, seconds=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
    assert (report.splitlines()[1], report.splitlines()[-1]) == ("first", "last")
    assert "bytes left out …]" in report
    assert len(report) < 21_000


@needs_sandbox
async def test_a_command_that_ignores_signals_is_killed_at_its_time_limit(tmp_path: Path) -> None:
    report = await run("trap '' TERM INT HUP; echo begun; sleep 298 & wait; sleep 298", tmp_path, seconds=1)
    assert report.startswith("[stopped: it took longer than 1 s;")
    assert report.endswith("begun\n")
    assert await all_gone("sleep\x00298")


@needs_sandbox
async def test_background_processes_end_with_their_command(tmp_path: Path) -> None:
    report = await run("(setsid nohup sleep 297 > /dev/null 2>&1 &) ; setsid sleep 297 & disown; echo done", tmp_path)
    assert report.endswith("done\n")
    assert await all_gone("sleep\x00297")


@needs_sandbox
async def test_a_command_cancelled_at_any_moment_leaves_no_process(tmp_path: Path) -> None:
    """Killing bubblewrap's first process is not enough in the milliseconds in which it starts the others."""
    for step in range(40):
        task = asyncio.create_task(run("echo; sleep 296", tmp_path))
        await asyncio.sleep(step * 0.0005)  # the test tries different moments
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await all_gone("sleep 296")


MANY_PROGRAM = """
import asyncio, sys
from pathlib import Path
from agent.tools.terminal.running_command import RunningCommand
from agent.settings import TerminalSettings

async def start(pause):
    await asyncio.sleep(pause)
    settings = TerminalSettings(enabled=True)
    command = await RunningCommand.start("setsid sleep 295 & sleep 295", Path(sys.argv[1]), settings)
    print("begun", flush=True)
    await command.finish(None)

async def main():
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(start(number * 0.01))

asyncio.run(main())
"""


@needs_sandbox
async def test_nothing_survives_a_killed_gateway(tmp_path: Path) -> None:
    """Some commands have just begun, and for some the sandbox is not even set up."""
    words = (sys.executable, "-c", MANY_PROGRAM, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    for _ in range(6):
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"begun\n"
    assert processes_with("sleep 295")
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert await all_gone("sleep 295")
    assert await all_gone("sleep\x00295")


@needs_sandbox
async def test_output_of_any_bytes_is_text(tmp_path: Path) -> None:
    report = await run(r"printf 'a\0b\377\033[31mred\033[0m \303\251\n'", tmp_path)
    assert report.endswith("\nab�red é\n")


async def test_limits_apply_without_a_sandbox(tmp_path: Path) -> None:
    report = await run("pwd; sleep 294", tmp_path, seconds=1, unsafe=True)
    assert report.endswith(f"{tmp_path}\n")
    assert "longer than 1 s" in report
    assert await all_gone("sleep\x00294")
    assert (await run("sleep 293 & echo done", tmp_path, unsafe=True)).endswith("done\n")
    assert await all_gone("sleep\x00293")


@needs_sandbox
async def test_a_report_of_a_running_command_has_the_new_output(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    running = await RunningCommand.start(
        "mkfifo go; echo one; read x < go; echo two", tmp_path, TerminalSettings(enabled=True)
    )
    end = asyncio.create_task(running.finish(30))
    while not fifo.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # there is no event for files of another process
    while (first := running.report()).endswith("(no output)"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert first.startswith("[still running; ")
    assert first.endswith("one\n")
    await asyncio.to_thread(fifo.write_text, "\n")
    await end
    assert running.report().endswith("]\ntwo\n")


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"short"], "short"),
        ([b"0123456789", b"abcdefghij"], "01234\n[… 10 characters left out …]\nfghij"),
        ([b"0123456789" * 10, b"abcdefghij"], "01234\n[… 100 bytes left out …]\nfghij"),
        (["é".encode()[:1], "é".encode()[1:]], "é"),
    ],
)
def test_beginning_and_end_of_a_long_output_are_kept(pieces: list[bytes], text: str) -> None:
    reader = OutputReader(10)
    for piece in pieces:
        reader.add(piece)
    assert (reader.take(), reader.take()) == (text, "")


def test_endless_escape_sequences_are_parsed_quickly() -> None:
    assert len(readable("\x1b]" * 20_000 + "\r" * 20_000)) < 100_000
