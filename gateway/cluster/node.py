"""Cluster node: does its share of the work while it holds a seat, the database connection that holds the node's locks.

Each chat, each account and the housekeeping belong to one node at a time. A node looks for unowned work twice a second.
Nodes also send each other hints about their writes. Without a cluster, a single daemon does all the work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from gateway.cluster.lanes import LockedChats, load_of
from gateway.turns.lanes import LaneRegistry, RunCommand
from gateway.turns.ownership import AllChats
from hermes_state.aio import Backoff, cancel_all, retried, run_until
from hermes_state.errors import StateError
from hermes_state.store.seats import Hint, HintKind, NodeInfo, OnHint, Seat, SeatLock, SeatLost
from hermes_state.text import counted
from hermes_state.values import ChatId

log = structlog.get_logger()

SWEEP_SECONDS = 0.5
"""Seconds between two sweeps, which search the database for unowned work. They find work even if a hint was lost."""
DUTY_BACKOFF = Backoff(max_seconds=60.0)

OnHintOf = Callable[[int], None]


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """Work that only one node does at a time."""

    name: str
    lock: SeatLock
    run: Callable[[], Awaitable[None]]
    take_up: Callable[[], Awaitable[None]] | None = None
    """Called before `run` to finish work that the previous owner left unfinished."""


@dataclass(eq=False, slots=True)
class NodeState:
    """Current seat and duties of a node. Other parts use it to check whether work still belongs to this node."""

    seat: Seat | None = None
    duties: list[Duty] = field(default_factory=list)
    seats_lost: int = 0
    hints_received: int = 0

    def is_certain(self) -> bool:
        """Return True as long as no other node can have taken over this node's work."""
        return self.seat is not None and self.seat.is_certain

    def health(self, info: NodeInfo, chats: int) -> Mapping[str, Any]:
        """Return the health of this node for `--json` output, or an empty mapping for a single daemon."""
        if self.seat is None or not self.seat.is_shared:
            return {}
        health = {
            "id": info.id,
            "name": info.name,
            "role": info.role,
            "has_seat": self.is_certain(),  # without a seat, other nodes may take over this node's work
            "seats_lost": self.seats_lost,
            "hints_received": self.hints_received,
            "chats": chats,
            "duties": [duty.name for duty in self.duties],
        }
        return {"node": health}

    def status_line(self, info: NodeInfo) -> str | None:
        """Return the `/status` line about this node, or None for a single daemon."""
        if self.seat is None or not self.seat.is_shared:
            return None
        lost = f"; it has lost its seat {counted(self.seats_lost, 'time')} since it started" if self.seats_lost else ""
        return f"- Node: `{info.name}`, {'active' if self.is_certain() else 'without a seat right now'}{lost}"


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Node:
    """Claims this node's seat, then takes over unowned duties and chats that have waiting work."""

    state: NodeState
    open_seat: Callable[[OnHint], Awaitable[Seat]]
    duties: Sequence[Duty]
    lanes: LaneRegistry
    run_command: RunCommand
    on_hint: Mapping[HintKind, OnHintOf]
    """Handlers for hints that do not concern lanes."""
    abandon: Callable[[], Awaitable[None]]
    """Stops the work of this node's duties after the seat is lost."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    async def start(self) -> None:
        """Claim the seat and unowned work. `run` starts the duties. Raises the errors of `open_seat`, or `SeatLost`."""
        self.state.seat = seat = await self.open_seat(self._take_hint)
        if seat.is_shared:  # the node may have missed hints about values that it caches
            for kind in (HintKind.ACCESS, HintKind.ASKED, HintKind.SCHEDULED, HintKind.LEARNED):
                self._take_hint(Hint(kind, 0))
        try:
            if not await run_until(seat.lost, self._take_first(seat)):
                raise SeatLost("the node lost its seat before it could start work")
        except StateError:  # release the locks, so that other nodes can take them
            seat.lost.set()
            await self._give_up(seat)
            raise

    async def run(self) -> None:
        """Do this node's share of the work, until cancelled."""
        assert self.state.seat is not None, "`start` must run first"
        while True:
            seat = self.state.seat
            self._tasks = [asyncio.ensure_future(self._run_duty(duty)) for duty in self.state.duties]
            try:
                if seat.is_shared:  # a lost seat must end a sweep, which can wait for the database indefinitely
                    await run_until(seat.lost, self._sweep(seat))
                else:
                    await seat.lost.wait()
            finally:
                await self._give_up(seat)
            log.warning("seat.lost", turns=len(self.lanes.own))
            await retried(self._start_again, StateError, "seat.missing", backoff=Backoff(0.2, 2.0))
            log.info("seat.acquired")

    async def close(self) -> None:
        if self.state.seat is not None:
            await self.state.seat.close()

    async def _sweep(self, seat: Seat) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)  # the sweep is needed because hints can be lost
            try:
                for duty in await self._lock_free(seat):
                    await self._take_over(duty, seat)
                await self.lanes.sweep()
            except StateError as error:
                log.warning("node.delayed", error=str(error))

    async def _take_first(self, seat: Seat) -> None:
        for duty in await self._lock_free(seat):
            await self._take_up(duty, seat)
        alone = AllChats(store=self.lanes.store, open=self.lanes.open)
        await self.lanes.start(self.run_command, LockedChats(self.lanes, seat) if seat.is_shared else alone)

    async def _lock_free(self, seat: Seat) -> list[Duty]:
        wanted = [duty for duty in self.duties if duty not in self.state.duties]
        taken = await seat.take([duty.lock for duty in wanted]) if wanted else set()
        return [duty for duty in wanted if duty.lock in taken]

    async def _take_up(self, duty: Duty, seat: Seat) -> None:
        if duty.take_up is not None:
            await duty.take_up()
        if seat.is_shared:
            log.info("duty.acquired", duty=duty.name)
        self.state.duties.append(duty)

    async def _take_over(self, duty: Duty, seat: Seat) -> None:
        """Start an unowned duty. If this fails, a node (perhaps this one) takes over the duty at its next sweep."""
        try:
            await self._take_up(duty, seat)
        except Exception as error:  # the error must not affect other duties or chats
            log.warning("duty.delayed", duty=duty.name, exc_info=not isinstance(error, StateError), error=str(error))
            await seat.let_go(duty.lock)
        else:
            self._tasks.append(asyncio.ensure_future(self._run_duty(duty)))

    async def _run_duty(self, duty: Duty) -> None:
        """Run a duty and restart it after a crash, because this node still holds the duty's lock."""
        for pause in DUTY_BACKOFF:
            try:
                await duty.run()
            except Exception:  # the error must not affect other duties; most errors are already handled inside the duty
                log.exception("duty.crashed", duty=duty.name, retry_seconds=pause)
            else:
                return
            await asyncio.sleep(pause)  # no event reports that the cause of the crash is gone

    async def _give_up(self, seat: Seat) -> None:
        """End the duties. If the seat was lost, end all work without storing it: other nodes may have taken over."""
        if not seat.lost.is_set():
            await cancel_all(self._tasks)
            return
        self.state.seats_lost += 1
        await asyncio.gather(self.lanes.abandon(), self.abandon(), cancel_all(self._tasks))
        self.state.duties = []
        await seat.close()

    async def _start_again(self) -> None:
        await self.lanes.let_go(*self.lanes.own.values())
        await self.start()

    def _take_hint(self, hint: Hint) -> None:
        self.state.hints_received += 1
        if hint.kind is HintKind.WORK:
            # Wait briefly, so that the node that stored the message, or a less busy node, can take the chat first.
            pause = 0.005 + 0.05 * load_of(self.lanes)
            asyncio.get_running_loop().call_later(pause, self.lanes.wake, ChatId(hint.id))
        elif hint.kind is HintKind.STOPPED:
            for active in self.lanes.active.values():
                if active.turn.id == hint.id and active.stop_reason is None:
                    active.begin_stop("stopped on another node").settle_stop()
        elif (act := self.on_hint.get(hint.kind)) is not None:
            act(hint.id)
