"""Lanes: one per chat, first in first out inside, parallel across.

A lane is a task that starts when something waits in its chat and goes when nothing does. It claims what
waits, runs the turn, runs commands that have come to their place, and takes up a turn that a restart left open.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import Protocol

import structlog

from gateway.access.permissions import AccessControl
from gateway.models.runtime import Runtime
from gateway.turns.attachments import AttachmentPreparer
from gateway.turns.bursts import Claim, Hold, RunCommand, next_work
from gateway.turns.previews import LivePreview
from gateway.turns.runner import MAX_RESTARTS, TurnRunner
from hermes_state import inbox, journal, outbox
from hermes_state.aio import Backoff, cancel_all, own_cancellation, track, wait_until
from hermes_state.errors import StateError
from hermes_state.inbox import InboxKind, InboxRow, InboxState
from hermes_state.journal import InboxMoved, RunningTurn
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, ChatKey, Clock, Millis, TurnId, UserRef

log = structlog.get_logger()

INTERRUPTED = "stopped: the person sent a newer message"
STOPPED_FROM_MEMORY = "stopped by the person"

TURNED_AWAY = "You have no access any more, so I did not answer what still waited."
BURIED_SENTENCE = "Something in this message breaks me, so I have put it aside; please try it in other words."
MAX_CRASHES = 3
"""A message that has crashed its lane this often would do so for ever."""

RETRY_BACKOFF = Backoff()

DECISION_SECONDS = 60.0
"""Whoever asked for a stop stores it; if that never happens, the lane does it after this."""


class QueuedCommands(Protocol):
    """Runs commands that have waited for their place in a chat's queue."""

    async def run_queued(self, row: InboxRow) -> RunningTurn | None:
        """Carry out a command; the turn it opened, if it opened one (`/retry`)."""


@dataclass(slots=True)
class StoppingTurn:
    """A turn that people asked to stop: its work is cancelled, its end is not stored yet."""

    turn: RunningTurn
    partial_text: str
    reason: str
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once whoever asked has stored the stop (or failed to): only then does the lane go on."""

    def settle(self) -> None:
        self.decided.set()


@dataclass(slots=True)
class _LaneWork:
    """The turn a lane is in the middle of."""

    turn: RunningTurn
    preview: LivePreview
    task: asyncio.Task[None]
    stopping: StoppingTurn | None = None

    def begin_stop(self, reason: str) -> StoppingTurn:
        """Cancel the work now. A stop that is not stored yet is shared by all who ask for it."""
        if self.stopping is None:
            self.stopping = StoppingTurn(turn=self.turn, partial_text=self.preview.text, reason=reason)
            self.task.cancel()
        return self.stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneParts:
    """What every lane needs."""

    store: Store
    live: Runtime
    access: AccessControl
    turns: TurnRunner
    commands: QueuedCommands
    attachments: AttachmentPreparer
    clock: Clock
    slots: asyncio.Semaphore
    """Turns that may run at one time."""


class Lane:
    """The work of one chat."""

    def __init__(
        self, chat_id: ChatId, parts: LaneParts, board: dict[ChatKey, _LaneWork], *, is_after_restart: bool
    ) -> None:
        self._chat_id = chat_id
        self._parts = parts
        self._board = board
        self._is_after_restart = is_after_restart
        self._crashes = 0
        self._is_closing = False
        self.woken = asyncio.Event()
        self.work: _LaneWork | None = None

    def close(self) -> None:
        """Finish what runs and claim nothing more."""
        self._is_closing = True
        self.woken.set()

    async def run(self) -> None:
        """Work until nothing waits."""
        delays = iter(RETRY_BACKOFF)
        while not self._is_closing:
            self.woken.clear()
            try:
                with own_cancellation():
                    if not await self._step() and not self.woken.is_set():
                        return
                delays = iter(RETRY_BACKOFF)
                self._crashes = 0
            except StateError as error:
                pause = next(delays)
                log.warning("lane.delayed", chat_id=self._chat_id, error=str(error), retry_seconds=pause)
                await self._wait(pause)
            except Exception:  # the chat boundary: the rows are safe, and other chats must not notice
                log.exception("lane.crashed", chat_id=self._chat_id)
                await self._after_crash(next(delays))

    def begin_stop(self, reason: str) -> StoppingTurn | None:
        """Cancel the running turn's work now; None when none runs. A stop that is not stored yet is shared."""
        return self.work.begin_stop(reason) if self.work is not None else None

    async def _after_crash(self, pause: float) -> None:
        self._crashes += 1
        self._is_after_restart = True  # a turn that crashed its lane is counted as one that ended the process
        await self._wait(pause)

    async def _step(self) -> bool:
        """Do the next thing; False when there is none."""
        turn, rows = await self._parts.store.read(_load_work, self._chat_id)
        if turn is not None and turn.is_waiting:
            return False  # it keeps its place; whoever decides about it wakes the lane
        if turn is not None:
            await self._resume(turn)
            return True
        self._is_after_restart = False
        if self._crashes >= MAX_CRASHES:
            await self._bury(rows)
            return True
        sessions = self._parts.live.config.sessions
        work = next_work(
            rows,
            merge_ms=int(sessions.merge_seconds * 1000),
            paste_ms=int(sessions.paste_seconds * 1000),
            now=self._parts.clock.now(),
        )
        match work:
            case None:
                return False
            case Hold(until=until):
                await self._wait((until - self._parts.clock.now()) / 1000)
            case RunCommand(row=row):
                opened = await self._parts.commands.run_queued(row)
                if opened is not None:
                    async with self._parts.slots:
                        await self._execute(opened)
            case Claim(rows=claimed):
                await self._start(claimed)
        return True

    async def _wait(self, seconds: float) -> None:
        await wait_until(self.woken, max(0.0, seconds))

    async def _start(self, rows: Sequence[InboxRow]) -> None:
        parts = self._parts
        strangers = [row for row in rows if parts.access.role_of(row.sender_ref) is None]
        if strangers:  # who was let in when they wrote, and is not any more
            await parts.store.write(_turn_away, strangers, parts.clock.now())
            parts.turns.deliver(self._chat_id)
            return
        prepared = await parts.attachments.prepare(self._chat_id, rows)
        if prepared is None:
            return
        async with parts.slots:
            if self._is_closing:
                return
            ids = [row.id for row in rows]
            try:
                turn = await parts.store.write(journal.start_turn, self._chat_id, ids, prepared, parts.clock.now())
            except InboxMoved:
                return  # somebody withdrew a message meanwhile: look again
            await self._execute(turn)

    async def _bury(self, rows: Sequence[InboxRow]) -> None:
        """Give up the message that breaks the lane again and again: the chat goes on without it."""
        first = next((row for row in rows if row.kind is not InboxKind.NOTICE), None)
        if first is not None:
            log.error("inbox.buried", chat_id=self._chat_id, inbox_id=first.id)
            await self._parts.store.write(_bury, first, self._parts.clock.now())
            self._parts.turns.deliver(self._chat_id)

    async def _resume(self, turn: RunningTurn) -> None:
        """Take up a turn that is open although nobody works on it."""
        is_restart = self._is_after_restart
        if is_restart and turn.restarts >= MAX_RESTARTS:
            await self._parts.turns.give_up(turn)
            self._is_after_restart = False
            return
        async with self._parts.slots:
            if self._is_closing:
                return
            # Counting is also the proof that the database takes writes again, before a model call is paid for.
            turn = await self._parts.store.write(journal.note_resumed, turn.id, is_restart)
            self._is_after_restart = False
            log.info("turn.resumed", turn_id=turn.id, chat=turn.chat.name, restarts=turn.restarts)
            await self._execute(turn)

    async def _execute(self, turn: RunningTurn) -> None:
        turns = self._parts.turns
        preview = turns.preview_of(turn)
        task = asyncio.create_task(turns.run(turn, preview), name=f"turn-{turn.id}")
        work = self.work = self._board[turn.chat] = _LaneWork(turn=turn, preview=preview, task=task)
        try:
            await asyncio.wait({task})
            if work.stopping is not None:
                # The turn is still the chat's: whoever stores the stop finds it here, with what it had said.
                await wait_until(work.stopping.decided, DECISION_SECONDS)
        finally:
            self.work = None
            self._board.pop(turn.chat, None)
            await cancel_all([task])
        if work.stopping is not None:
            await turns.stop(turn, preview.text, work.stopping.reason)
        elif task.cancelled():
            raise asyncio.CancelledError
        if not task.cancelled():
            task.result()


class LaneDispatcher:
    """All lanes. `staff` gives them what they work with: commands need the lanes as much as lanes need commands."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._staff: LaneParts | None = None
        self._lanes: dict[ChatId, Lane] = {}
        self._board: dict[ChatKey, _LaneWork] = {}
        """The turns that run now, by the chats that people write in."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_started = False
        self._is_closing = False

    def staff(self, parts: LaneParts) -> None:
        """Called once, before anything else."""
        self._staff = parts

    @property
    def _parts(self) -> LaneParts:
        assert self._staff is not None, "lanes are staffed before they are used"
        return self._staff

    async def start(self) -> None:
        """Take up what waited, and what ran, when the process ended."""
        for chat_id in await self._parts.store.read(inbox.load_chats_with_waiting):
            self._open(chat_id, is_after_restart=True)
        self._is_started = True

    def wake(self, chat_id: ChatId) -> None:
        """Something waits in this chat. Before `start` nothing is opened: `start` finds it."""
        lane = self._lanes.get(chat_id)
        if lane is not None:
            lane.woken.set()
        elif self._is_started and not self._is_closing:
            self._open(chat_id, is_after_restart=False)

    def running_turn(self, chat_id: ChatId) -> RunningTurn | None:
        """The turn that this chat is in the middle of."""
        lane = self._lanes.get(chat_id)
        return lane.work.turn if lane is not None and lane.work is not None else None

    def running_in(self, key: ChatKey) -> RunningTurn | None:
        """The same by the chat's key: from memory, so that it needs no database."""
        work = self._board.get(key)
        return work.turn if work is not None else None

    @property
    def running_count(self) -> int:
        """How many turns run now."""
        return len(self._board)

    def begin_stop(self, chat_id: ChatId, reason: str) -> StoppingTurn | None:
        """Cancel the chat's running turn. Whoever calls stores the stop, then sets `decided`."""
        lane = self._lanes.get(chat_id)
        return lane.begin_stop(reason) if lane is not None else None

    def stop_from_memory(self, key: ChatKey, sender_ref: UserRef, is_admin: bool) -> StoppingTurn | None:
        """Stop a chat's turn while the database cannot say anything; the stored `/stop` settles it later."""
        work = self._board.get(key)
        if work is None:
            return None
        may_stop = is_admin or work.turn.started_by == sender_ref or not work.turn.chat_kind.is_shared
        return work.begin_stop(STOPPED_FROM_MEMORY) if may_stop else None

    def interrupt(self, chat_id: ChatId, turn_id: TurnId) -> None:
        """End a turn in favour of a message that has just been stored, unless the chat is in another one by now."""
        running = self.running_turn(chat_id)
        if running is None or running.id != turn_id:
            return
        stopping = self.begin_stop(chat_id, INTERRUPTED)
        if stopping is not None:
            stopping.settle()

    async def drain(self, seconds: float) -> int:
        """Let running turns finish for at most `seconds`, then cut the rest; returns how many were cut.

        A turn that is cut stays open in the database and resumes at the next start.
        """
        self._is_closing = True
        for lane in self._lanes.values():
            lane.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        return await cancel_all(self._tasks)

    def _open(self, chat_id: ChatId, *, is_after_restart: bool) -> None:
        lane = self._lanes[chat_id] = Lane(chat_id, self._parts, self._board, is_after_restart=is_after_restart)
        work = self._serve(chat_id, lane)
        try:
            task = self._group.create_task(work, name=f"lane-{chat_id}")
        except RuntimeError:  # the daemon is ending: what waits is stored, and the next start takes it up
            work.close()
            self._lanes.pop(chat_id, None)
            return
        track(self._tasks, task)

    async def _serve(self, chat_id: ChatId, lane: Lane) -> None:
        try:
            await lane.run()
        finally:
            del self._lanes[chat_id]


def _bury(db: Connection, row: InboxRow, now: Millis) -> None:
    if inbox.settle(db, row.id, InboxState.DEAD, now):
        reply = Reply(
            chat_id=row.chat_id,
            kind=OutboxKind.ERROR,
            markdown=BURIED_SENTENCE,
            dedupe_key=f"inbox:{row.id}:buried",
            reply_to=row.message_ref,
        )
        outbox.enqueue(db, reply, now)


def _turn_away(db: Connection, rows: Sequence[InboxRow], now: Millis) -> None:
    for row in rows:
        is_settled = inbox.settle(db, row.id, InboxState.DROPPED, now)
        if is_settled and row.kind is not InboxKind.NOTICE:
            reply = Reply(
                chat_id=row.chat_id,
                kind=OutboxKind.ERROR,
                markdown=TURNED_AWAY,
                dedupe_key=f"turned-away:{row.chat_id}:{row.sender_ref}:{now}",
                reply_to=row.message_ref,
            )
            outbox.enqueue(db, reply, now)


def _load_work(db: Connection, chat_id: ChatId) -> tuple[RunningTurn | None, list[InboxRow]]:
    turn = journal.find_open_turn(db, chat_id)
    return turn, [] if turn is not None else inbox.load_waiting(db, chat_id)
