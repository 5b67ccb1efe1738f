"""Commands that use memory which no process owns: the kernel counts this memory, and the command is killed."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.sandboxes import needs_sandbox, run, small_disk

pytestmark = [
    needs_sandbox,
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the attacks are Python programs"),
]

ROOT = Path(__file__).parents[3]

PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from agent.tools.terminal.running_command import RunningCommand
from agent.settings import TerminalSettings

async def run(command, seconds=20):
    running = await RunningCommand.start(command, Path(sys.argv[1]), TerminalSettings(enabled=True, memory_mb=128))
    await running.finish(seconds)
    return running.report()

asyncio.run(run("sleep 1"))  # all that is imported late
if sys.argv[2] != "root":
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
print(asyncio.run(run("/usr/bin/python3 attack.py")))
"""

ATTACKS = {
    "files in memory": """
import os
kept = [os.memfd_create("x") for _ in range(16)]
for fd in kept:
    for _ in range(16):
        os.write(fd, bytes(1 << 20))
""",
    "shared memory of System V": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(16):
    at = libc.shmat(libc.shmget(0, 16 << 20, 0o1600), None, 0)
    ctypes.memset(at, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(at))
""",
    "messages of System V": """
import ctypes
libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(bytes([1]) * 8, 8200)
for _ in range(20_000):
    queue = libc.msgget(0, 0o1600)
    while libc.msgsnd(queue, text, 8000, 0o4000) == 0:
        pass
""",
    "shared memory without a name": """
import mmap
kept = [mmap.mmap(-1, 16 << 20) for _ in range(16)]
for one in kept:
    one.write(bytes(16 << 20))
""",
    "names of empty files in /tmp": """
for number in range(1_000_000):
    open(f"/tmp/{number}", "x").close()
""",
}

FOR_THE_KERNEL = {
    "files in memory of a process that hides": """
import ctypes, os
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
kept = [os.memfd_create("x") for _ in range(16)]
for fd in kept:
    for _ in range(16):
        os.write(fd, bytes(1 << 20))
""",
    "files in memory on their way to nobody": """
import os, socket
ours, theirs = socket.socketpair()
for _ in range(16):
    fd = os.memfd_create("x")
    for _ in range(16):
        os.write(fd, bytes(1 << 20))
    socket.send_fds(ours, [b"x"], [fd])
    os.close(fd)
""",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Workspace that every user can access. Only root can access pytest's own folders."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


def attacked(attack: str, folder: Path, user: str) -> str:
    """Run an attack as a command, and return its report."""
    (folder / "attack.py").write_text(f"{attack}\nimport time\ntime.sleep(300)\n")
    words = (sys.executable, "-c", PROGRAM, str(folder), user)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, and control groups are root's")
@pytest.mark.parametrize(
    ("name", "user"), [*product(ATTACKS, ("root", "nobody")), *((name, "root") for name in FOR_THE_KERNEL)]
)
def test_memory_that_no_process_owns_counts(name: str, user: str, folder: Path) -> None:
    report = attacked((ATTACKS | FOR_THE_KERNEL)[name], folder, user)
    assert report.startswith("[stopped: it used more than 128 MB of memory;")


SEVERAL_CHATS = """
import asyncio, os, sys
from pathlib import Path
from agent.tools.terminal.running_command import RunningCommand
from agent.settings import TerminalSettings


async def chat(name, command, count):
    folder = Path(sys.argv[1], name)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    async def one():
        running = await RunningCommand.start(command, folder, TerminalSettings(enabled=True), has_end=False)
        await running.finish(8)
        return name + ": " + running.report()
    return await asyncio.gather(*(one() for _ in range(count)))

async def main():
    await chat("first", "sleep 1", 1)  # all that is imported late
    if sys.argv[3] != "root":
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    greedy = asyncio.create_task(chat("greedy", sys.argv[2], 4))
    await asyncio.sleep(1)
    for report in await chat("other", "for n in 1 2 3 4 5; do (sleep 0.1; echo worked) & done; wait", 2):
        print(report)
    for report in await greedy:
        print(report)

asyncio.run(main())
"""


@pytest.fixture
def small_group() -> Iterator[list[Path]]:
    """Control group of a unit with `TasksMax=160` and `MemoryMax=512M`."""
    made = []
    for kind, file, value in (("memory", "memory.limit_in_bytes", 512 << 20), ("pids", "pids.max", 160)):
        group = Path(f"/sys/fs/cgroup/{kind}/hermes-test-{os.getpid()}")
        try:
            group.mkdir()
            made.append(group)
            (group / file).write_text(str(value))
        except OSError as error:
            pytest.skip(f"no control groups of version 1 here: {error}")
    yield made
    for group in made:
        for folder in (*group.glob("*/*/*/"), *group.glob("*/*/"), *group.glob("*/"), group):
            folder.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups are root's")
@pytest.mark.parametrize(
    ("greedy", "user"),
    [
        ("for n in $(seq 90); do sleep 100 & done; wait", "root"),
        ("/usr/bin/python3 -c 'import time; kept = bytearray(200 << 20); time.sleep(100)'", "nobody"),
    ],
    ids=["processes", "memory"],
)
def test_a_greedy_chat_does_not_block_others(greedy: str, user: str, folder: Path, small_group: list[Path]) -> None:
    join = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in small_group)
    words = ("sh", "-c", f'{join} && exec "$@"', "join", sys.executable, "-c", SEVERAL_CHATS, str(folder), greedy, user)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    reports = done.stdout.split("other: ")[1:]
    assert [report.count("worked") for report in reports] == [5, 5], done.stdout + done.stderr
    assert all("[exit code 0;" in report for report in reports)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("size=300m,nr_inodes=200k", 'for ((n = 0; ; n++)); do : > "$n"; done'),
        ("size=400m", 'for ((n = 0; ; n++)); do head -c 1M /dev/zero > "$n"; done'),
    ],
    ids=["files", "bytes"],
)
async def test_a_command_that_fills_the_disk_is_killed_in_time(options: str, command: str, tmp_path: Path) -> None:
    with small_disk(tmp_path, options):
        assert "the disk is almost full;" in await run(command, tmp_path)
        left = os.statvfs(tmp_path)
        assert left.f_bavail > 0
        assert left.f_favail > 0


async def test_a_single_file_cannot_fill_the_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path, "size=64m"):
        await run("fallocate -l 64M big || fallocate -l 60M big", tmp_path)
        assert os.statvfs(tmp_path).f_bavail > 0
