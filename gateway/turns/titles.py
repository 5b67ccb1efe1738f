"""Titles of conversations, written by a model in the background after the first answer.

If this fails, the gateway tries again after each answer, even in another process. Failed calls are counted in the
ledger, and their number is limited.
"""

import asyncio
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from agent.model.base import Payer
from agent.model.client import RetryPolicy
from agent.model.errors import OUTCOME_OK, remedy_for
from agent.title_prompt import checked_title, title_request
from gateway.config.routes import RouteConfig
from gateway.models.routes import route_for
from gateway.models.selection import Runtime
from hermes_state import sessions
from hermes_state.aio import crash_logged
from hermes_state.errors import HermesError, ReplyMalformed
from hermes_state.models import ledger
from hermes_state.models.ledger import ModelCall
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_beginning
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, Clock, LineageId, Millis, Origin, Transcript

log = structlog.get_logger()

MAX_CALLS = 3
"""Maximum number of calls per conversation. Only failed calls are repeated."""
_REPLIED = frozenset({OUTCOME_OK, remedy_for(ReplyMalformed("")).outcome})
MAX_CONCURRENT = 2
"""Maximum number of concurrent calls in all chats. It is low because answers have priority."""
MAX_WAITING = 100
"""Maximum number of conversations that wait for a title. Other conversations get a title after their next answer."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class TitleWriter:
    """Writes titles for conversations. Failures are only logged."""

    store: Store
    runtime: Runtime
    clock: Clock
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT), init=False)
    _tasks: dict[LineageId, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _settled: set[LineageId] = field(default_factory=set, init=False)
    """Conversations that are known to need no title."""
    _is_stopped: bool = field(default=False, init=False)

    def answered(self, turn: RunningTurn, by: RouteConfig) -> None:
        """Let a model write a title in the background. Called after an answer from the route `by` is stored."""
        lineage_id = turn.lineage_id
        if self._is_stopped or lineage_id in self._settled or lineage_id in self._tasks:
            return
        runtime = self.runtime.of(turn.agent)
        route = route_for(runtime.config, "title", by)
        if route is None or len(self._tasks) >= MAX_WAITING:
            return
        work = self._see_to(turn.chat_id, lineage_id, route, runtime)
        task = self._tasks[lineage_id] = asyncio.create_task(work, name=f"title-{lineage_id}")
        task.add_done_callback(lambda _: self._tasks.pop(lineage_id, None))

    def stop(self) -> None:
        """Start no new calls and cancel running calls, because the process is ending."""
        self._is_stopped = True
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Stop, and wait until no call is running."""
        self.stop()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _see_to(self, chat_id: ChatId, lineage_id: LineageId, route: RouteConfig, runtime: Runtime) -> None:
        with crash_logged("title.crashed"):  # no other task awaits this task
            try:
                async with self._slots:
                    if await self._write(chat_id, lineage_id, route, runtime):
                        if len(self._settled) >= 4_096:
                            self._settled.clear()
                        self._settled.add(lineage_id)
            except HermesError as error:
                log.info("title.failed", error=type(error).__name__, detail=str(error))

    async def _write(self, chat_id: ChatId, lineage_id: LineageId, route: RouteConfig, runtime: Runtime) -> bool:
        """Ask for a title and store it. Return True if this conversation needs no further call."""
        rows = await self.store.read(_load_untitled, lineage_id)
        if rows is None:
            return True
        client = runtime.models.client_of(route)
        if client.breaker.open is not None or not any(row.origin is Origin.HUMAN for row in rows):
            return False
        redact, payer = self.runtime.live.redactor(), Payer(chat_id=chat_id, lineage_id=lineage_id)
        request = await asyncio.to_thread(title_request, rows, redact, now=self.clock.now(), payer=payer)

        once = client.with_policy(RetryPolicy(max_attempts=1))  # the gateway tries again after the next answer
        done = await once.complete(request, purpose="title", within=60.0)
        try:
            title = checked_title(done.reply, redact)
        except ReplyMalformed as error:
            await client.ledger.record(payer, replace(done.call, outcome=remedy_for(error).outcome))
            raise
        if await self.store.write(_keep, lineage_id, title, done.call, self.clock.now()):
            log.info("title.written")
        return True


def _load_untitled(db: Connection, lineage_id: LineageId) -> Transcript | None:
    """Return the first rows of a conversation, or None if it has a title or needs no further call."""
    if sessions.load_title(db, lineage_id) is not None:
        return None
    outcomes = ledger.call_outcomes(db, lineage_id, "title")
    if len(outcomes) >= MAX_CALLS or not _REPLIED.isdisjoint(outcomes):
        return None
    return load_beginning(db, lineage_id, 6)


@locks(lineage="lineage_id")
def _keep(db: Connection, lineage_id: LineageId, title: str, call: ModelCall, now: Millis) -> bool:
    """Record the call and store the title, unless a user has set a title in the meantime."""
    ledger.record(db, None, lineage_id, call, now)
    return sessions.give_title(db, lineage_id, title)
