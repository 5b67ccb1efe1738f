"""Helpers for tests that run commands in a real sandbox."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.settings import TerminalSettings
from agent.tools.terminal.running_command import RunningCommand
from agent.tools.terminal.sandbox import probe_sandbox

needs_sandbox = pytest.mark.skipif(probe_sandbox().fault is not None, reason=str(probe_sandbox().fault))


async def run(command: str, folder: Path, seconds: float = 30, **settings: Any) -> str:
    """Run a command, and return its final state and output."""
    running = await RunningCommand.start(command, folder, TerminalSettings(enabled=True, **settings))
    await running.finish(seconds)
    assert not running.is_running
    return running.report()


def processes_with(mark: str) -> list[int]:
    """Return the ids of this machine's processes whose command line contains `mark`."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                line = (path / "cmdline").read_bytes()
            except OSError:  # the process has just ended
                continue
            if mark.encode() in line:
                found.append(int(path.name))
    return found


async def all_gone(mark: str) -> bool:
    """Wait until no process with `mark` is left. Return False if some remain after ten seconds."""
    try:
        async with asyncio.timeout(10):
            while processes_with(mark):  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # there is no event for the end of other processes
    except TimeoutError:
        return False
    return True


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with these options at a folder. Skips the test if the user is not root."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder]).returncode:
        pytest.skip("this user cannot mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
