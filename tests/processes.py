"""The gateway as a process of a test: forked from one that has imported everything.

Importing the SDKs takes two seconds of a processor, which a test that is about something else need not spend. The
forked process has its own environment, output, signals and exit code, as one that was started. It shares the fork
server's string hashes, and ends without `atexit` handlers: what depends on either is tested with a process that is
started anew.
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
    """A process that runs `main` with the environment `environ` and writes to `log`. Belongs to a running event loop.

    Its attributes and methods are some of those of `asyncio.subprocess.Process`.
    """

    def __init__(self, main: Callable[[], object], environ: Mapping[str, str], log: Path) -> None:
        self._process: ForkServerProcess = _context.Process(
            target=_run, args=(main, dict(environ), str(log)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.returncode: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        self._ended.set()

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal the process, if it still lives."""
        if self.returncode is None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has ended this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_gateway() -> None:
    """The command `hermes-gateway run`."""
    run_command("run")


def run_command(*words: str) -> None:
    """The command `hermes-gateway` with these words."""
    sys.argv = ["hermes-gateway", *words]
    cli.main()


def _run(main: Callable[[], object], environ: dict[str, str], log: str) -> None:
    gc.freeze()  # what the fork server has imported is not walked over again
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    main()
