"""The seat of a node: one connection that holds the session locks for the node's work.

If a node is killed, its socket closes and the server releases its locks. The server ends the session of a stopped or
disconnected node after some seconds of silence (`idle_session_timeout`). The node measures the silence from its last
answered request, so it gives up before the server does. Hints from other nodes arrive on the same connection, so a node
receives all hints while it has a seat.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

import psycopg
from psycopg.pq import ExecStatus

from hermes_state.aio import wait_until
from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.nodes import POOLED, SEAT
from hermes_state.engines.postgres.store import unavailable
from hermes_state.errors import DatabaseRejected
from hermes_state.store.seats import Hint, HintKind, NodeInfo, OnHint, Seat, SeatLock, SeatLost
from hermes_state.values import Millis

CHANNEL = "hermes_gateway"


# Purpose: take the first free locks. Locks beyond the limit are not tried, because the rows are not sorted and arrive
# one by one.
_TAKE = """ARRAY(SELECT place FROM unnest(ARRAY[{kinds}], ARRAY[{keys}]) WITH ORDINALITY AS asked (kind, key, place)
WHERE pg_try_advisory_lock(kind, key) LIMIT {most})"""
_LET_GO = "pg_advisory_unlock({lock.kind:d}, {lock.key:d})"

# Purpose: store the node of this seat. If the node is already stored, it has lost an earlier seat.
_NOTE = """
INSERT INTO nodes (id, name, version, role, settings, pid, seats, started_at, seated_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $7)
ON CONFLICT (id) DO UPDATE SET pid = excluded.pid, settings = excluded.settings, seats = nodes.seats + 1,
  seated_at = excluded.seated_at, gone_at = NULL
"""

_HINT = re.compile(rb"([a-z]{1,20}) ([0-9]{1,18})")

_Request = tuple[str, "asyncio.Future[bytes]"]


class PostgresSeat(Seat):
    """A node's seat. It reads the server's messages on the event loop."""

    def __init__(self, db: PostgresConnection, seconds: float, on_hint: OnHint, on_lost: Callable[[], None]) -> None:
        super().__init__()
        self._db, self._on_hint, self._on_lost = db, on_hint, on_lost
        self._server, self._socket = db.raw.pgconn, db.raw.pgconn.socket
        self._seconds = seconds
        self._confirmed_at = self._sent_at = time.monotonic()
        self._requests: deque[_Request] = deque()
        self._arrived = asyncio.Event()
        self._answer: asyncio.Future[list[bytes]] | None = None
        self._values: list[bytes] = []
        """Values received so far for the current request."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        seconds: float,
        node: NodeInfo,
        on_hint: OnHint,
        now: Millis,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Self:
        """Take a seat that the server ends after `seconds` of silence.

        If the seat is lost before `close`, `on_lost` is called and then `lost` is set. Raises `StoreUnavailable`, or
        `DatabaseRejected` if `url` is the address of a pooler.
        """
        try:
            db = await asyncio.to_thread(PostgresConnection.open, url)
            db.raw.pgconn.nonblocking = 0  # requests are smaller than any buffer
            seat = cls(db, seconds, on_hint, on_lost)
            async with AsyncExitStack() as undo:
                undo.push_async_callback(seat.close)
                await seat._sit_down(node, now)
                undo.pop_all()
        except (psycopg.Error, TimeoutError) as error:
            raise unavailable(url, error) from error
        return seat

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def is_certain(self) -> bool:
        return not self.lost.is_set() and time.monotonic() < self._confirmed_at + self._seconds

    async def take(self, locks: Sequence[SeatLock], most: int | None = None) -> set[SeatLock]:
        if not locks:
            return set()
        kinds, keys = (", ".join(str(int(number)) for number in numbers) for numbers in zip(*locks, strict=True))
        answer = self._ask(_TAKE.format(kinds=kinds, keys=keys, most="ALL" if most is None else most))
        try:
            return _taken(locks, await asyncio.shield(answer))
        except asyncio.CancelledError:
            # the cancelled caller will not know its locks, so release them
            answer.add_done_callback(partial(self._give_back, locks))
            raise

    async def let_go(self, lock: SeatLock) -> None:
        await asyncio.shield(self._ask(_LET_GO.format(lock=lock)))

    async def close(self) -> None:
        self.lost.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._end()
        self._db.close()

    def _give_back(self, locks: Sequence[SeatLock], answer: "asyncio.Future[bytes]") -> None:
        if not answer.cancelled() and answer.exception() is None and not self.lost.is_set():
            for lock in _taken(locks, answer.result()):
                self._ask(_LET_GO.format(lock=lock))

    def _ask(self, call: str) -> "asyncio.Future[bytes]":
        if self.lost.is_set():
            raise SeatLost("this node has lost its seat")
        answer: asyncio.Future[bytes] = self._loop.create_future()
        # Retrieve the error even if the caller has stopped waiting; otherwise asyncio logs it.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        self._requests.append((call, answer))
        self._arrived.set()
        return answer

    async def _serve(self) -> None:
        """Send requests, or pings when there are no requests, until the seat ends."""
        batch: list[_Request] = []
        try:
            while True:
                # Send about five requests within the time limit for silence.
                pause = self._sent_at + self._seconds / 5 - time.monotonic()
                await wait_until(self._arrived, max(0.0, pause))
                self._arrived.clear()
                # all requests of a batch are sent as one statement
                batch = [self._requests.popleft() for _ in range(min(500, len(self._requests)))]
                if self._requests:
                    self._arrived.set()
                results = await self._execute(f"SELECT {', '.join(call for call, _ in batch) or 'true'}")
                for (_, answer), result in zip(batch, results, strict=False):
                    answer.set_result(result)
                batch = []
        except (psycopg.Error, TimeoutError):
            pass  # `lost` is set, and the seat's owner logs it
        finally:
            self._end()
            for _, answer in (*batch, *self._requests):
                answer.set_exception(SeatLost("this node has lost its seat"))

    async def _sit_down(self, node: NodeInfo, now: Millis) -> None:
        await self._execute(f"SET idle_session_timeout = {int(self._seconds * 1000)}")
        pid, timeout = await self._execute("SELECT pg_backend_pid(), current_setting('idle_session_timeout')")
        if int(pid) != self._server.backend_pid or timeout == b"0":
            raise DatabaseRejected(POOLED)
        await self._execute(f"SET application_name = '{SEAT}{node.id}'")
        about = (node.id, node.name, node.version, node.role, node.settings, int(pid), now)
        await self._execute(_NOTE, [str(value).encode() for value in about])
        await self._execute(f"LISTEN {CHANNEL}")
        self._task = asyncio.create_task(self._serve(), name="seat")

    def _end(self) -> None:
        self._loop.remove_reader(self._socket)
        if not self.lost.is_set():
            self._on_lost()
            self.lost.set()

    async def _execute(self, sql: str, parameters: list[bytes] | None = None) -> list[bytes]:
        """Run one statement that returns at most one row. Return the row's values, or an empty list."""
        sent_at = self._sent_at = time.monotonic()
        answer: asyncio.Future[list[bytes]] = self._loop.create_future()
        self._answer, self._values = answer, []
        if parameters is None:  # sent as one message, because a partial message would not reset the server's timer
            self._server.send_query(sql.encode())
        else:
            self._server.send_query_params(sql.encode(), parameters)
        await asyncio.wait({answer}, timeout=self._confirmed_at + self._seconds - sent_at)
        if not answer.done():
            self._read()  # the response may have arrived while the loop was busy
        if not answer.done():
            raise TimeoutError
        values = answer.result()
        self._confirmed_at = sent_at
        return values

    def _read(self) -> None:
        """Read the server's messages: hints, a response, or the end of the session."""
        try:
            self._server.consume_input()
            while (notice := self._server.notifies()) is not None:
                if (hint := _hint_of(notice.extra)) is not None:
                    self._loop.call_soon(self._on_hint, hint)  # called later: its errors must not affect the request
            while self._answer is not None and not self._answer.done() and not self._server.is_busy():
                if (result := self._server.get_result()) is None:  # the server is ready for the next statement
                    self._answer.set_result(self._values)
                elif result.status == ExecStatus.FATAL_ERROR:
                    raise psycopg.errors.error_from_result(result)
                elif result.ntuples:
                    self._values = [result.get_value(0, column) or b"" for column in range(result.nfields)]
        except psycopg.Error as error:
            self._end()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
            elif self._task is not None:
                self._task.cancel()


def _hint_of(payload: bytes) -> Hint | None:
    """Parse a hint. Return None for kinds that only a newer version knows."""
    if (match := _HINT.fullmatch(payload)) is None or (kind := match[1].decode().upper()) not in HintKind.__members__:
        return None
    return Hint(HintKind[kind], int(match[2]))


def _taken(locks: Sequence[SeatLock], places: bytes) -> set[SeatLock]:
    """Return the locks at the positions in the response `places`, such as `{1,3}`. The first position is 1."""
    return {locks[int(place) - 1] for place in places.strip(b"{}").split(b",") if place}
