"""Lanes, the workers of chats. Work runs in order inside a chat, and in parallel across chats.

A lane is a task that exists while its chat has work. It runs turns and queued commands, and resumes a turn after a
restart. `ownership.py` decides in which chats this process works.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import structlog
from msgspec.structs import replace

from gateway.access.permissions import AccessControl
from gateway.config import LoadedConfig
from gateway.models.selection import Runtime
from gateway.outbound.notices import tell_expired
from gateway.turns.attachments import AttachmentHandler
from gateway.turns.bursts import held_until, next_burst
from gateway.turns.ownership import Ownership
from gateway.turns.refusals import pause_schedules, refuse
from gateway.turns.runner import MAX_RESTARTS, ActiveTurn, TurnRunner
from hermes_state import attachments, inbox, journal
from hermes_state.agents import RoutedAgent, load_state, settle
from hermes_state.aio import Backoff, cancel_all, own_cancellation, track, wait_until
from hermes_state.chats import is_unreachable, load_chat
from hermes_state.errors import StateError, StoreBroken
from hermes_state.inbox import InboxKind, InboxRow, InboxState
from hermes_state.journal import InboxMoved, PreparedMessage
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn, find_open_turn, find_unended, let_go, take_up
from hermes_state.values import ChatId, ChatKey, ChatKind, ChatScope, Clock, InboxId, InputKind, Millis, TurnId, UserRef

log = structlog.get_logger()

INTERRUPTED = "stopped: the person sent a newer message"
TURNED_AWAY = "Your access was revoked, so I did not answer your queued messages."
DEAD_LETTER_SENTENCE = "I could not process this message. Please try wording it differently."
RETRY_BACKOFF = Backoff()

RunCommand: TypeAlias = Callable[[InboxRow], Awaitable[RunningTurn | None]]
"""Runs a queued command. Returns the turn that the command opened (`/retry`), or None."""


class Lane:
    """Worker for one chat. It ends when no work is left."""

    def __init__(self, chat_id: ChatId, lanes: "LaneRegistry", ownership: Ownership, run_command: RunCommand) -> None:
        self._chat_id, self._lanes, self._ownership, self._run_command = chat_id, lanes, ownership, run_command
        self._crashes = 0
        self._is_closing = False
        self._held: tuple[InboxId | None, float] = (None, 0.0)
        self.woken = asyncio.Event()

    def close(self) -> None:
        """Let the running work finish, and start no new work."""
        self._is_closing = True
        self.woken.set()

    async def run(self, started: RunningTurn | None) -> None:
        """Work until the queue is empty. If `started` is given, first run this turn, which is already stored."""
        delays = iter(RETRY_BACKOFF)
        while not self._is_closing:
            self.woken.clear()
            try:
                with own_cancellation():
                    turn, started = started, None
                    if turn is not None:
                        await self._execute_in_slot(turn)
                    elif not await self._step() and not self.woken.is_set():
                        return
                delays = iter(RETRY_BACKOFF)
                self._crashes = 0
                if self._ownership.has_queue:
                    return  # end this lane, because other chats have waited longer
            except StateError as error:
                pause = next(delays)
                log.warning("lane.delayed", chat_id=self._chat_id, error=str(error), retry_seconds=pause)
                if isinstance(error, StoreBroken):
                    with suppress(StateError):  # if the row of the chat cannot be read, the chat gets no notice
                        chat = await self._lanes.store.read(load_chat, self._chat_id)
                        self._lanes.turns.delivery.tell_broken(chat.key)
                await wait_until(self.woken, pause)
            except Exception:  # the rows are safe, and the error must not affect other chats
                log.exception("lane.crashed", chat_id=self._chat_id)
                self._crashes += 1
                self._lanes.own.pop(self._chat_id, None)  # a crash of the lane counts as a restart of the turn
                await wait_until(self.woken, next(delays))

    async def _step(self) -> bool:
        """Do the next piece of work. Return False if no work is left."""
        loaded = self._lanes.runtime.live.loaded
        turn, rows, has_remains, routed, agent = await self._lanes.store.read_short(
            _load_work, self._chat_id, self._lanes.routed_agent
        )
        if turn is not None and turn.is_waiting:
            return False  # the turn stays open, and the approval decision opens a new lane
        if turn is not None:
            await self._resume(turn)
            return True
        if has_remains:
            await self._lanes.store.write(attachments.remove_unbound_parts, self._chat_id)
        if self._crashes >= 3:
            await self._dead_letter(rows)
            return True
        burst = next_burst(rows, merge_ms=int(self._lanes.runtime.config.sessions.merge_seconds * 1000))
        if not burst:
            return False
        sender = next(row.sender_ref for row in burst if row.kind is not InboxKind.NOTICE)
        if not self._lanes.access.has_access(sender):
            if await self._lanes.access.load_role(sender) is not None:
                return True  # another node gave the person a role, which can lead to another agent
        elif routed is not None:
            await self._lanes.change_agent(self._chat_id, routed)
            return True
        if burst[0].kind is InboxKind.COMMAND:
            opened = await self._run_command(burst[0])
            if opened is not None:
                self._lanes.own[self._chat_id] = opened
                await self._execute_in_slot(opened)
        elif (seconds := self._held_for(burst[-1], held_until(burst, rows))) > 0:
            await wait_until(self.woken, seconds)
        else:
            await self._start(burst, loaded, agent)
        return True

    def _held_for(self, last: InboxRow, until: Millis) -> float:
        """Return the seconds to wait for a burst. Uses the monotonic clock, because the system clock can change."""
        if self._held[0] != last.id:
            held_ms = min(until - self._lanes.clock.now(), until - last.received_at)
            self._held = last.id, time.monotonic() + held_ms / 1000
        return self._held[1] - time.monotonic() if until else 0.0

    async def _start(self, rows: Sequence[InboxRow], loaded: LoadedConfig, agent: str) -> None:
        """Start a turn. `loaded` is the configuration whose routes selected the agent."""
        lanes = self._lanes
        revoked = [row for row in rows if await lanes.access.load_role(row.sender_ref) is None]
        if revoked:  # the senders' access was revoked after they wrote the messages
            key, now = f"inbox:{revoked[0].id}:turned-away", lanes.clock.now()
            await lanes.store.write(refuse, revoked, InboxState.DROPPED, TURNED_AWAY, key, now)
            lanes.turns.delivery.wake(self._chat_id)
            return
        if any(row.payload.attachments for row in rows) and not await self._ownership.can_fetch(self._chat_id):
            self._is_closing = True  # the process that serves the chat's account fetches the files
            return
        lost = [row for row in rows if row.payload.via is InputKind.SCHEDULED and row.payload.agent != agent]
        if lost:
            await lanes.store.write(pause_schedules, lost, lanes.clock.now())
            lanes.turns.delivery.wake(self._chat_id)
            return
        prepared = await lanes.attachments.of(agent).prepare(self._chat_id, rows)
        if prepared is None:
            return
        async with lanes.slots:
            if self._is_closing or lanes.runtime.live.loaded is not loaded:  # a reload may have changed the agent
                return
            ids = [row.id for row in rows]
            try:
                work = (self._chat_id, ids, prepared, lanes.clock.now())
                turn = await lanes.store.write(_start_turn, *work, lanes.access)
            except InboxMoved:  # a message was withdrawn in the meantime, so read the rows again
                return
            await self._execute(turn)

    async def _dead_letter(self, rows: Sequence[InboxRow]) -> None:
        """Set aside a message that crashes the lane repeatedly, so that the chat continues with the next message."""
        first = next((row for row in rows if row.kind is not InboxKind.NOTICE), None)
        if first is not None:
            log.error("inbox.dead_lettered", chat_id=self._chat_id, inbox_id=first.id)
            key, now = f"inbox:{first.id}:buried", self._lanes.clock.now()
            await self._lanes.store.write(refuse, [first], InboxState.DEAD, DEAD_LETTER_SENTENCE, key, now)
            self._lanes.turns.delivery.wake(self._chat_id)

    async def _resume(self, turn: RunningTurn) -> None:
        """Resume an open turn that no process is working on. After a crash, the resumption counts as a restart."""
        is_restart = not self._lanes.is_own(turn)
        if is_restart and turn.restarts >= MAX_RESTARTS:
            await self._lanes.turns.give_up(turn)
            return
        async with self._lanes.slots:
            if self._is_closing:
                return
            # This write also checks that the database can be written, before a model call costs money.
            turn = await self._lanes.store.write(take_up, turn, is_restart)
            log.info("turn.resumed", turn_id=turn.id, chat=turn.chat.name, restarts=turn.restarts)
            await self._execute(turn)

    async def _execute_in_slot(self, turn: RunningTurn) -> None:
        """Run a newly stored turn as soon as a slot is free."""
        has_to_wait = self._lanes.slots.locked()
        async with self._lanes.slots:
            if self._is_closing:
                return
            if has_to_wait and await self._lanes.store.read_short(find_unended, turn) is None:
                self._lanes.disown(turn)  # the turn was stopped in the meantime
                return
            await self._execute(turn)

    async def _execute(self, turn: RunningTurn) -> None:
        self._lanes.own[turn.chat_id] = turn
        turns = self._lanes.turns
        preview = turns.previews.of(turn)
        task = asyncio.create_task(turns.run(turn, preview), name=f"turn-{turn.id}")
        active = self._lanes.active[turn.chat] = ActiveTurn(turn=turn, preview=preview, task=task)
        try:
            # The turn stays in `active` until its end is stored, so that `/stop` can find it.
            await active.wait_for_end()
        finally:
            self._lanes.active.pop(turn.chat, None)
            await cancel_all([task])
        if active.stop_reason is not None:
            await turns.stop(turn, preview.text, active.stop_reason)
        elif task.cancelled():
            raise asyncio.CancelledError
        if task.cancelled() or task.result():
            self._lanes.disown(turn)
        else:
            await self._lanes.let_go(turn)


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class LaneRegistry:
    """Lanes by chat. Opens lanes for chats with work, and stops and drains running turns."""

    store: Store
    runtime: Runtime
    access: AccessControl
    turns: TurnRunner
    attachments: AttachmentHandler
    clock: Clock
    group: asyncio.TaskGroup
    slots: asyncio.Semaphore
    """Limits the number of turns that run at the same time."""
    active: dict[ChatKey, ActiveTurn] = field(default_factory=dict, init=False)
    """Running turns by chat."""
    own: dict[ChatId, RunningTurn] = field(default_factory=dict, init=False)
    """Open turns that this process has stored or resumed. Continuing one of these turns does not count as a restart."""
    stopped_for: dict[InboxId, TurnId] = field(default_factory=dict, init=False)
    """Turns ended by a `/stop` that was not stored yet, by the command's inbox row. Removed when the command runs."""
    _lanes: dict[ChatId, Lane] = field(default_factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _run_command: RunCommand | None = field(default=None, init=False)
    _ownership: Ownership | None = field(default=None, init=False)
    """None before `start` and after `abandon`, when no lane can open."""
    _is_closing: bool = field(default=False, init=False)

    async def start(self, run_command: RunCommand, ownership: Ownership) -> None:
        """Start lanes for chats with work, and resume interrupted turns. `run_command` runs queued commands."""
        self._run_command, self._ownership = run_command, ownership
        await self.sweep()

    async def sweep(self) -> None:
        """Find chats in the database that have work but no lane. Raises `StateError` if the database cannot be read."""
        if self._ownership is not None:
            await self._ownership.sweep()

    async def abandon(self) -> None:
        """End all work without storing anything, because another process may now own the chats."""
        self._ownership = None
        await asyncio.sleep(0)  # a lane that is cancelled before its first step would never release its chat
        await cancel_all(self._tasks)

    def works_by(self, ownership: Ownership) -> bool:
        """Return True as long as this ownership is valid and lanes can open."""
        return ownership is self._ownership and not self._is_closing

    def routed_agent(self, chat: ChatKey, kind: ChatKind, scope: ChatScope | None, person: UserRef) -> RoutedAgent:
        """Return the agent that the routes select for a person in a chat."""
        return self.runtime.routed_agent(chat, scope or ChatScope(), self.access.role_in(chat, kind, person))

    async def change_agent(self, chat_id: ChatId, routed: RoutedAgent) -> None:
        """Let the agent of the chat's next turn take over, and tell the context engine of the last agent."""
        ended = await self.store.write(settle, chat_id, routed, self.clock.now())
        if ended is not None:
            await self.runtime.of(ended.agent).agent.context.ended(ended.session_id, was_reset=True)
            self.turns.delivery.wake(chat_id)

    @property
    def served(self) -> Collection[ChatId]:
        """Chats that have a lane."""
        return self._lanes.keys()

    @property
    def room(self) -> int:
        """Number of lanes that can open now and get a slot immediately."""
        return self.runtime.config.sessions.max_turns - len(self._lanes)

    def has_room(self, ahead: int = 0) -> bool:
        """Return True if a new turn can run now without overtaking others. `ahead` new turns will come before it."""
        ownership = self._ownership
        is_open = ownership is not None and self.works_by(ownership) and not ownership.leaves_new
        return is_open and self.room > ahead and not self.slots.locked()

    def wake(
        self, chat_id: ChatId, started: RunningTurn | None = None, asked_at: float = 0.0, *, is_new: bool = False
    ) -> None:
        """Wake the chat's lane because work is waiting. Before `start`, do nothing: `start` will find the work.

        `started` is a turn that was stored for the chat after `asked_at` (monotonic clock). `is_new` is True for a
        message that this process has just stored.
        """
        if started is not None:
            self.own[chat_id] = started
        lane = self._lanes.get(chat_id)
        if lane is not None:
            lane.woken.set()
        elif self._ownership is not None and not self._is_closing:
            self._ownership.want(chat_id, started, asked_at, is_new=is_new)

    def is_own(self, turn: RunningTurn) -> bool:
        """Return True if this process stored or resumed the turn and its lane has not crashed since."""
        own = self.own.get(turn.chat_id)
        return own is not None and own.id == turn.id

    def disown(self, turn: RunningTurn) -> None:
        """Forget a turn that has ended or that another node continues."""
        if self.is_own(turn):
            del self.own[turn.chat_id]

    def tell_all_broken(self) -> None:
        """Tell every chat with a running turn that the database is broken."""
        for chat in self.active:
            self.turns.delivery.tell_broken(chat)

    def running_turn(self, chat_id: ChatId) -> RunningTurn | None:
        return active.turn if (active := self._active_in(chat_id)) is not None else None

    def running_in(self, key: ChatKey) -> RunningTurn | None:
        """Return the running turn of the chat with this key. This needs no database."""
        return active.turn if (active := self.active.get(key)) is not None else None

    def begin_stop(self, chat_id: ChatId, reason: str) -> ActiveTurn | None:
        """Cancel and return the chat's running turn, if any. The caller must store the stop and call `settle_stop`."""
        return active.begin_stop(reason) if (active := self._active_in(chat_id)) is not None else None

    def stop_from_memory(
        self, key: ChatKey, sender_ref: UserRef, is_admin: bool, named: TurnId | None = None
    ) -> ActiveTurn | None:
        """Stop a chat's turn while the database is unavailable. The stop is settled when the stored `/stop` runs.

        `named` is the only turn to stop, or None for any turn.
        """
        if (active := self.active.get(key)) is None or named not in (None, active.turn.id):
            return None
        may_stop = is_admin or active.turn.started_by == sender_ref or not active.turn.chat_kind.is_shared
        return active.begin_stop("stopped with /stop") if may_stop else None

    def interrupt(self, chat_id: ChatId, turn_id: TurnId) -> None:
        """Stop a turn in favour of a newly stored message, unless the chat already runs another turn."""
        self.turns.on_question()  # the turn may have been waiting for an approval
        active = self._active_in(chat_id)
        if active is not None and active.turn.id == turn_id:
            active.begin_stop(INTERRUPTED).settle_stop()

    async def drain(self, seconds: float) -> int:
        """Give turns up to `seconds` to finish, then cancel the rest. Return the number of cancelled turns.

        A cancelled turn stays open and resumes at the next start. Its resumption does not count as a restart.
        """
        self._is_closing = True
        for lane in self._lanes.values():
            lane.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        cut = await cancel_all(self._tasks)
        with suppress(StateError, TimeoutError):  # if this fails, the resumption counts as a restart
            async with asyncio.timeout(2.0):
                await self.let_go(*self.own.values())
        return cut

    async def let_go(self, *turns: RunningTurn) -> None:
        """Record that this process left `turns` without a crash, so that resuming them does not count as a restart."""
        if turns:
            await self.store.write(let_go, [turn.id for turn in turns])
        for turn in turns:
            self.disown(turn)

    def _active_in(self, chat_id: ChatId) -> ActiveTurn | None:
        return next((active for active in self.active.values() if active.turn.chat_id == chat_id), None)

    def open(self, chat_id: ChatId, started: RunningTurn | None = None) -> None:
        """Open the lane of a chat that this process owns, unless it is already open or the registry is closing."""
        ownership = self._ownership
        if ownership is None or self._is_closing or chat_id in self._lanes:
            return
        assert self._run_command is not None, "`start` sets it together with the ownership"
        lane = self._lanes[chat_id] = Lane(chat_id, self, ownership, self._run_command)
        if self.begin(self._serve(chat_id, lane, ownership, started), f"lane-{chat_id}") is None:
            self._lanes.pop(chat_id, None)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Start a task that `drain` waits for and `abandon` cancels. Return None if the daemon is stopping."""
        try:
            return track(self._tasks, self.group.create_task(work, name=name))
        except RuntimeError:  # the work is stored, and the next start finds it
            work.close()
            return None

    async def _serve(self, chat_id: ChatId, lane: Lane, ownership: Ownership, started: RunningTurn | None) -> None:
        try:
            await ownership.serve(chat_id, lane.run, started)
        finally:
            del self._lanes[chat_id]
            ownership.note_end(chat_id, lane.woken.is_set())


@locks(inbox="inbox_ids", chat="chat_id")
def _start_turn(
    db: Connection,
    chat_id: ChatId,
    inbox_ids: Sequence[InboxId],
    prepared: Mapping[InboxId, PreparedMessage],
    now: Millis,
    access: AccessControl,
) -> RunningTurn:
    tell_expired(db, chat_id, now)
    shows_talk = access.hears_somewhere and access.hears(replace(load_chat(db, chat_id).key, user_ref=""))
    return journal.start_turn(db, chat_id, inbox_ids, prepared, now, shows_talk=shows_talk)


def _load_work(
    db: Connection, chat_id: ChatId, routed_of: Callable[[ChatKey, ChatKind, ChatScope, UserRef], RoutedAgent]
) -> tuple[RunningTurn | None, list[InboxRow], bool, RoutedAgent | None, str]:
    """Return the open turn, or else the waiting rows, and True if unbound document parts must be removed.

    The last values are None, unless another agent must take over before the first row, and the agent of that row.
    """
    turn = find_open_turn(db, chat_id)
    rows = inbox.load_waiting(db, chat_id) if turn is None else []
    scheduled = {row.id for row in rows if row.payload.via is InputKind.SCHEDULED}
    held = scheduled if scheduled and is_unreachable(db, chat_id) else ()
    has_remains = turn is None and load_note(db, attachments.PARTS_NOTE.format(chat_id)) is not None
    waiting = [row for row in rows if not row.runs_at_once and row.id not in held]
    first, routed, agent = next((row for row in waiting if row.kind is not InboxKind.NOTICE), None), None, ""
    if first is not None and not first.asks_for_agent:
        chat = load_chat(db, chat_id)
        routed = routed_of(chat.key, chat.kind, chat.scope, first.sender_ref)
        state = load_state(db, chat_id, routed)
        agent, routed = state.agent, None if state.next_agent == state.agent else routed
    return turn, waiting, has_remains, routed, agent
