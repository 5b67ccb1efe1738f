"""Process signals that stop the gateway, stop it immediately, or reload its configuration."""

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager


class SignalHandler:
    """Handles the process's signals. Sets an event when an operator asks to stop, to stop immediately or to reload."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.stopping = asyncio.Event()
        self.stopping_now = asyncio.Event()
        """Set by a second signal, which ends the wait for running turns."""
        self.reload_asked = asyncio.Event()
        self._terminals = [] if "NOTIFY_SOCKET" in environ else [number for number in (0, 1, 2) if os.isatty(number)]

    @asynccontextmanager
    async def handled(self) -> AsyncIterator[None]:
        """Handle the process's signals while the block runs."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop, signal.SIGHUP: self._hang_up}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        with self._terminal_ends_watched(loop):
            try:
                yield
            finally:
                for number in handlers:
                    loop.remove_signal_handler(number)

    @contextmanager
    def _terminal_ends_watched(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Watch for the closing of the terminal, because `make` might not forward the signal to this process."""
        if not self._terminals or not hasattr(select, "epoll"):
            yield
            return
        with select.epoll() as ends:
            ends.register(self._terminals[0], 0)  # with no events requested, epoll reports only a hang-up

            def end() -> None:
                loop.remove_reader(ends)
                self._hang_up()

            loop.add_reader(ends, end)
            try:
                yield
            finally:
                loop.remove_reader(ends)

    def _stop(self) -> None:
        if self.stopping.is_set():
            self.stopping_now.set()
        self.stopping.set()

    def _hang_up(self) -> None:
        """Stop if the terminal was closed. Without a terminal, reload. Closing a terminal can cause two calls."""
        if not self._terminals:
            self.reload_asked.set()
            return
        self.stopping.set()
        null = os.open(os.devnull, os.O_RDWR)
        for number in self._terminals:
            if not os.isatty(number):  # the terminal is closed, and a failed write to it would change the exit code
                os.dup2(null, number)
