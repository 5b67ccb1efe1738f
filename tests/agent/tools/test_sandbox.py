"""Attempts to escape from the terminal's sandbox, with the real bubblewrap."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent.settings import TerminalSettings
from agent.tools.terminal.sandbox import command_words, probe_sandbox, terminal_fault
from hermes_state.errors import ToolError
from tests.sandboxes import needs_sandbox, run

pytestmark = needs_sandbox

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Workspace below a state directory that contains a secret."""
    home = tmp_path / "home"
    made = home / "workspaces" / "1"
    made.mkdir(parents=True)
    (home / ".env").write_text("HERMES_TELEGRAM__TOKEN=sesame\n")
    return made


async def test_a_command_starts_in_the_workspace_and_its_files_stay(folder: Path) -> None:
    assert (await run("pwd; echo hello > note", folder)).endswith("\n/workspace\n")
    assert (folder / "note").read_text() == "hello\n"


@pytest.mark.parametrize(
    "path", ["/x", "/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/dev/x", "/proc/sys/kernel/core_pattern", "/bin/x"]
)
async def test_nothing_outside_the_workspace_can_be_written(path: str, folder: Path) -> None:
    report = await run(f"echo x > {path}", folder)
    assert report.startswith("[exit code 1;")
    assert any(words in report for words in ("Read-only file system", "Permission denied"))


async def test_the_state_directory_is_not_visible(folder: Path) -> None:
    home = folder.parents[1]
    report = await run(f"cat {home}/.env ../.env ../../.env /proc/1/root{home}/.env; ls -a ..", folder)
    assert "sesame" not in report
    assert report.count("No such file or directory") == 4
    assert "sesame" not in await run("grep -rs sesame / --exclude-dir=usr --exclude-dir=proc", folder)


async def test_the_gateways_variables_are_not_visible(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_MODEL__API_KEY", "sesame")
    report = await run("env; cat /proc/*/environ | tr '\\0' '\\n'", folder)
    assert "HOME=/tmp" in report
    assert "sesame" not in report
    assert "HERMES" not in report


async def test_processes_of_the_machine_are_neither_seen_nor_signalled(folder: Path) -> None:
    outside = await asyncio.create_subprocess_exec("sleep", "100")
    try:
        report = await run(f"ls /proc | grep -c '^[0-9]'; kill -9 {outside.pid}; kill -9 -1", folder)
        assert "No such process" in report
        assert int(report.splitlines()[1]) < 8
        outside.terminate()
        assert await outside.wait() == -signal.SIGTERM
    finally:
        if outside.returncode is None:
            outside.kill()


async def test_the_network_is_off_unless_allowed(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo through"
        assert "Connection refused" in await run(connect, folder)
        assert "through" in await run(connect, folder, network=True)
    assert "through" not in await run("exec 3<>/dev/tcp/192.0.2.1/80 && echo through", folder)


async def test_abstract_sockets_of_the_machine_are_not_visible(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0hermes-test-abstract")
        server.listen()
        look = "grep -q hermes-test-abstract /proc/net/unix"
        assert "[exit code 0;" in await run(look, folder, unsafe=True)
        assert "[exit code 1;" in await run(look, folder)


SOCKETS = """
import ctypes, errno, socket
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    socket.socket(family, socket.SOCK_DGRAM).close()
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET, 1 << 32 | socket.AF_VSOCK):
    made = ctypes.CDLL(None, use_errno=True).syscall(NUMBER, ctypes.c_ulong(family), 1, 0)
    print(family, made, errno.errorcode[ctypes.get_errno()])
print("io_uring", ctypes.CDLL(None, use_errno=True).syscall(425, 1, None), errno.errorcode[ctypes.get_errno()])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
async def test_only_sockets_confined_by_the_network_namespace_can_be_created(folder: Path) -> None:
    """AF_VSOCK would reach the host of a virtual machine, even without a network."""
    (folder / "sockets.py").write_text(SOCKETS.replace("NUMBER", "41"))
    for network in (False, True):
        _, *lines = (await run("/usr/bin/python3 sockets.py", folder, network=network)).splitlines()
        assert [line.split()[1:] for line in lines] == [["-1", "EAFNOSUPPORT"]] * 4 + [["-1", "ENOSYS"]]
    assert "Seccomp:\t2" in await run("grep Seccomp: /proc/self/status", folder)


async def test_setuid_programs_give_no_privileges(folder: Path) -> None:
    report = await run(
        "cp /usr/bin/id me; chmod 6755 me; ./me -u; ./me -ru; grep -E 'Cap|NoNew' /proc/self/status", folder
    )
    assert report.splitlines()[1:3] == ["1000", "1000"]
    assert "NoNewPrivs:\t1" in report
    assert {line.split()[1] for line in report.splitlines() if line.startswith("Cap")} == {"0" * 16}


@pytest.mark.parametrize(
    "attempt", ["unshare --user true", "unshare --mount true", "mount -t tmpfs none /tmp", "chroot / true"]
)
async def test_no_namespaces_or_mounts_can_be_created(attempt: str, folder: Path) -> None:
    if "--disable-userns" not in probe_sandbox().options:
        pytest.skip("this machine lets sandboxes have namespaces of their own")
    assert "[exit code 0;" not in await run(attempt, folder)


async def test_a_link_out_of_the_workspace_is_broken(folder: Path) -> None:
    (folder / "planted").symlink_to(folder.parents[1] / ".env")
    report = await run(f"ln -s {folder.parents[1]} out; cat planted out/.env", folder)
    assert report.count("No such file or directory") == 2


async def test_temporary_files_are_private_bounded_and_gone_afterwards(folder: Path) -> None:
    assert "[exit code 0;" in await run("echo kept > /tmp/note; test ! -e /tmp/pytest-of-root", folder)
    assert "No such file" in await run("cat /tmp/note", folder)
    for place in ("/tmp", "/dev/shm"):
        report = await run(f"head -c 100M /dev/zero > {place}/big; stat -c %s {place}/big", folder, memory_mb=64)
        assert "No space left on device" in report
        assert f"\n{32 << 20}\n" in f"{report}\n"


TERMINAL_PROGRAM = """
import asyncio, fcntl, os, sys, termios
from pathlib import Path
from agent.tools.terminal.running_command import RunningCommand
from agent.settings import TerminalSettings

os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
open("/dev/tty").close()  # this process has a terminal

async def main():
    command = await RunningCommand.start("tty; : < /dev/tty", Path(sys.argv[1]), TerminalSettings(enabled=True))
    await command.finish(30)
    sys.stderr.write(command.report())

asyncio.run(main())
"""


async def test_commands_cannot_use_the_gateways_terminal(folder: Path) -> None:
    """A program with a terminal can type commands for the operator (TIOCSTI)."""
    ours, theirs = os.openpty()
    try:
        words = (sys.executable, "-c", TERMINAL_PROGRAM, str(folder))
        process = await asyncio.create_subprocess_exec(*words, stdin=theirs, stderr=asyncio.subprocess.PIPE, cwd=ROOT)
        _, said = await asyncio.wait_for(process.communicate(), 60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "not a tty" in said.decode()
    assert "/dev/tty: No such device or address" in said.decode()


USER_PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from agent.tools.terminal.running_command import RunningCommand
from agent.settings import TerminalSettings

async def run(command):
    running = await RunningCommand.start(command, Path(sys.argv[1]), TerminalSettings(enabled=True, max_processes=20))
    await running.finish(30)
    return running.report()

asyncio.run(run("true"))  # all that is imported late
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print(asyncio.run(run("id -u; echo mine > note; for n in $(seq 40); do sleep 2 & done; wait")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_sandbox_works_without_root_and_processes_are_limited() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # only root can access pytest's own folders
    try:
        folder.chmod(0o777)
        words = (sys.executable, "-c", USER_PROGRAM, str(folder))
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, cwd=ROOT, check=False)
        assert "\n1000\n" in done.stdout, done.stderr
        assert "Resource temporarily unavailable" in done.stdout
        assert (folder / "note").stat().st_uid == 65534
    finally:
        shutil.rmtree(folder)


def test_without_bubblewrap_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    probe_sandbox.cache_clear()
    try:
        fault = terminal_fault(TerminalSettings(enabled=True))
        assert "apt install bubblewrap" in fault
        with pytest.raises(ToolError, match="apt install bubblewrap"):
            command_words("true", tmp_path, TerminalSettings(enabled=True))
        assert terminal_fault(TerminalSettings(enabled=True, unsafe=True)) is None
    finally:
        probe_sandbox.cache_clear()


@pytest.mark.parametrize(
    ("command", "reason"), [("echo \0", "NUL"), (" \n", "empty"), ("echo " + "é" * 60_000, "write it to a file")]
)
def test_an_invalid_command_is_refused(command: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=reason):
        command_words(command, tmp_path, TerminalSettings(enabled=True))


def test_a_workspace_below_usr_is_refused() -> None:
    with pytest.raises(ToolError, match="below /usr"):
        command_words("true", Path("/usr/local/lib"), TerminalSettings(enabled=True))
