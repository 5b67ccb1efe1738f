"""Gateway processes for tests, forked from a process that has already imported everything.

Importing the SDKs takes two seconds of processor time, which most tests can save. Like a new process, the forked
process has a separate environment, output, signals and exit code. But it shares the fork server's string hashes, and
ends without `atexit` handlers. Tests that depend on either start a new process.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from gateway import cli

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__, "tests.preload"])


class ForkedProcess:
    """Process that runs `main` with the environment `environ` and writes to `log`. Needs a running event loop.

    It has some of the attributes and methods of `asyncio.subprocess.Process`.
    """

    def __init__(self, main: Callable[[], object], environ: Mapping[str, str], log: Path) -> None:
        self._process: ForkServerProcess = _context.Process(
            target=_run, args=(main, dict(environ), str(log)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.returncode: int | None = None
        """Exit code, negative for a signal, or None while the process is running."""
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        self._ended.set()

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it is still running."""
        if self.returncode is None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # the process has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_gateway() -> None:
    """Run the command `hermes-gateway run`."""
    run_command("run")


def run_command(*words: str) -> None:
    """Run the command `hermes-gateway` with these arguments."""
    sys.argv = ["hermes-gateway", *words]
    cli.main()


def _run(main: Callable[[], object], environ: dict[str, str], log: str) -> None:
    gc.freeze()  # the collector can ignore what the fork server has imported
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    main()
