"""Functions of a batch side by side on one connection, so that their statements share the trips to the server.

Each runs in a greenlet until it needs a result. Once all of them do, what they have asked for travels in one trip
(libpq's pipeline mode), and each goes on with its own result: together they take the trips of the longest of them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import psycopg
from greenlet import getcurrent, greenlet

from hermes_state.engines.postgres.connection import PostgresConnection


def run_pipelined(db: PostgresConnection, functions: Sequence[Callable[[], None]]) -> None:
    """Run functions that need not follow each other, inside the open transaction.

    One that begins a savepoint goes on when all others have ended. Raises what the first of them has raised; none of
    them runs on then. An error of the server's reaches all that wait for it, whoever's it is.
    """
    if len(functions) == 1:
        functions[0]()
    else:
        _PipelinedRun(db, functions).run()


class _PipelinedRun:
    """Functions that take turns on a connection. Implements `connection.SharedTrips`."""

    def __init__(self, db: PostgresConnection, functions: Sequence[Callable[[], None]]) -> None:
        self._db = db
        self._scheduler = getcurrent()
        self._running = [greenlet(function) for function in functions]
        self._postponed: list[greenlet] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self._running:
                self._take_turns()
                self._send()
            for one in self._postponed:
                one.switch()
        except BaseException as error:
            self._end(error)
            raise

    def wait(self) -> None:
        self._scheduler.switch()
        if self._failure is not None:
            raise self._failure

    def wait_for_all(self) -> None:
        self._postponed.append(getcurrent())
        self.wait()

    def _take_turns(self) -> None:
        """Let each run until it waits or has ended."""
        self._db.shared_trips = self
        try:
            for one in self._running:
                one.switch()
        finally:
            self._db.shared_trips = None
        self._running = [one for one in self._running if not one.dead and one not in self._postponed]

    def _send(self) -> None:
        try:
            self._db.sync()
        except psycopg.Error as error:
            self._failure = error

    def _end(self, error: BaseException) -> None:
        """Raise the error in all that have not ended: nothing may be left that would run on later."""
        self._failure = error
        for one in (*self._running, *self._postponed):
            with suppress(BaseException):  # it is told already
                one.throw(error)
