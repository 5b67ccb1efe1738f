"""Sub-agents: tasks that the agent hands on, each a turn of its own, with fewer tools, that ends with a report.

A sub-agent is an agent whose conversation is its task. Its steps are rows like any turn's, so a restart goes on where
it stood; its conversation is compressed like any other; what it costs counts to the turn that it works for.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from functools import partial
from weakref import WeakValueDictionary

import structlog
from structlog.contextvars import bound_contextvars

from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.model.base import Payer
from agent.prompt import PromptBuilder, subagent_prompt
from agent.settings import SubagentSettings
from agent.tools.budgets import ResultBudget
from agent.tools.delegate import DELEGATE
from agent.tools.offers import OfferRegistry, OpenAccess, Policy, ToolAccess
from agent.tools.registry import DelegateRequest, Tool, ToolRegistry
from agent.turn import Agent, Answer
from hermes_state import journal
from hermes_state.aio import retried
from hermes_state.errors import ModelError, SpendingCapExceeded, StoreBroken, StoreUnavailable, ToolError
from hermes_state.journal import ModelAnswer
from hermes_state.redaction import redact
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.tools.subagents import open_subagent
from hermes_state.turns import RunningTurn, TurnMoved
from hermes_state.values import ChatKey, ChatKind, Clock, ToolEffect, TurnId, TurnState, UserRef

log = structlog.get_logger()

NO_REPORT = "The sub-agent ended without a word."
OF_THE_CONVERSATION = "it belongs to the conversation, not to a sub-agent: report what should be done with it"
NEEDS_A_YES = "a person may have to allow it, whom a sub-agent cannot ask: report what should be done"
NOT_GIVEN = "it was not given to this sub-agent"

KEPT_TOOLS = frozenset({DELEGATE, "schedule"})
"""Tools that the conversation keeps, beside those that change what is its own without a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentAccess(OpenAccess):
    """Tools of a sub-agent: those that read, and those that its chat allows without a question.

    What belongs to a conversation (its notes, its list, files that people are given) is left to it.
    """

    access: ToolAccess
    person: UserRef
    """Person whose message the turn that it works for answers."""
    names: frozenset[str] | None = None
    """The only tools that it is given; None: all that it may have."""

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        """Reason why a sub-agent may not use a tool; None: it may."""
        is_reading = tool.effect is ToolEffect.READ_ONLY
        if tool.name in KEPT_TOOLS or not (is_reading or tool.needs_approval):
            return OF_THE_CONVERSATION
        if not is_reading and self.access.policy(tool, chat) is not Policy.ALLOW:
            return NEEDS_A_YES
        if self.names is not None and tool.name not in self.names and not tool.is_essential:
            return NOT_GIVEN
        return self.access.refusal(tool, chat, kind, self.person)

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        """Policy for a call that writes or executes: it is done or refused, and nobody is asked."""
        return Policy.ALLOW if self.access.policy(tool, chat) is Policy.ALLOW else Policy.DENY


@dataclass(eq=False, slots=True, kw_only=True)
class SubagentRunner:
    """Runs sub-agents, some of a turn at a time; each is its own error boundary, and a failure that call's alone."""

    store: Store
    clock: Clock
    tools: ToolRegistry
    access: ToolAccess
    settings: SubagentSettings = field(default_factory=SubagentSettings)
    budget: ResultBudget = field(default_factory=ResultBudget)
    zone: tzinfo = UTC
    redact: Callable[[str], str] = redact
    _slots: WeakValueDictionary[TurnId, asyncio.Semaphore] = field(default_factory=WeakValueDictionary, init=False)

    async def run(self, parent: RunningTurn, model: ModelHandle, request: DelegateRequest) -> str:
        """The report of the sub-agent of a call, which goes on where it stands, also behind a store that was not there.

        Raises `ToolError` where there is none. Cancelled, it stays open with its steps stored.
        """
        access = self._access_for(parent, request)
        slot = self._slots.get(parent.id) or asyncio.Semaphore(self.settings.max_parallel)
        self._slots[parent.id] = slot
        async with slot:
            try:
                # No waiting mends a broken store: the turn goes on, or the next write tells the chat.
                call = partial(self._take_up, parent, model, request, access)
                return await retried(call, StoreUnavailable, "subagent.delayed", unless=(StoreBroken,))
            except TurnMoved as error:
                raise ToolError("the turn has ended") from error

    async def _take_up(
        self, parent: RunningTurn, model: ModelHandle, request: DelegateRequest, access: SubagentAccess
    ) -> str:
        """The report of a call's sub-agent, opened if it was not. Raises `ToolError` for one that has ended without."""
        opened = await self.store.write(open_subagent, parent, *request.call, request.task, self.clock.now())
        if isinstance(opened, RunningTurn):
            with bound_contextvars(subagent_id=opened.id):
                return await self._work(opened, model.subagent_model() or model, access)
        if opened.state is not TurnState.FINISHED:
            raise ToolError(opened.text)
        return opened.text

    def _access_for(self, parent: RunningTurn, request: DelegateRequest) -> SubagentAccess:
        """Raises `ToolError` for a tool that is named and cannot be given."""
        access = SubagentAccess(access=self.access, person=parent.started_by)
        if request.tools is None:
            return access
        for name in request.tools:
            tool = self.tools.get(name)
            refusal = None if tool is None else access.refusal(tool, parent.chat, parent.chat_kind, None)
            if tool is None or refusal is not None:
                raise ToolError(f"{name[:64]!r} cannot be given to a sub-agent: {refusal or 'there is no such tool'}")
        return replace(access, names=frozenset(request.tools))

    async def _work(self, turn: RunningTurn, model: ModelHandle, access: SubagentAccess) -> str:
        """Bring a sub-agent to its report."""
        began, seconds = time.monotonic(), self.settings.seconds
        agent = self._agent(turn, access)
        try:
            async with asyncio.timeout(seconds):
                answer = await agent.run(turn, lambda _: None, model)
        except (StoreUnavailable, TurnMoved):
            raise
        except TimeoutError:
            reason = f"it was not done within {seconds:g} seconds"
            raise await self._failed(turn, "TimeoutError", reason) from None
        except ModelError as error:
            spent = " (what may be spent is used up)" if isinstance(error, SpendingCapExceeded) else ""
            raise await self._failed(turn, type(error).__name__, f"its model has failed{spent}", error) from error
        except Exception as error:  # the boundary of a sub-agent: the others and the turn go on
            log.exception("subagent.crashed")
            raise await self._failed(turn, type(error).__name__, "it broke") from error
        finally:
            await agent.close()
        report = await self._finish(turn, model, answer)
        log.info("subagent.finished", seconds=round(time.monotonic() - began, 3))
        return report

    def _agent(self, turn: RunningTurn, access: SubagentAccess) -> Agent:
        """An agent for this one turn, with the built-in context engine; nobody is told of what that does."""
        offers = OfferRegistry(self.tools, self.store, access)
        names = [tool.name for tool in offers.usable(turn.chat, turn.chat_kind)]
        return Agent(
            store=self.store,
            prompts=PromptBuilder(tools=self.tools, offers=offers, zone=self.zone, system=subagent_prompt(names)),
            clock=self.clock,
            pending=CompressionRegistry(),
            redact=self.redact,
            max_tool_rounds=self.settings.max_rounds,
            budget=self.budget,
        )

    async def _finish(self, turn: RunningTurn, model: ModelHandle, answer: Answer) -> str:
        text, tokens = answer.text or NO_REPORT, answer.reported_prompt_tokens
        final = ModelAnswer(text=text, call=answer.call, reported_prompt_tokens=tokens)
        try:
            await self.store.write_with_retry(_store_report, turn, final, self.clock)
        except TurnMoved:  # it was stopped meanwhile: only its cost is kept
            await model.client.ledger.record(Payer.of(turn.conversation), answer.call)
            raise
        return text

    async def _failed(self, turn: RunningTurn, kind: str, reason: str, error: ModelError | None = None) -> ToolError:
        """End a sub-agent without a report; the error that tells its parent."""
        log.warning("subagent.failed", error=kind, detail=None if error is None else str(error))
        sentence = f"the sub-agent has no report: {reason}"
        await self.store.write_with_retry(journal.fail_turn, turn, kind, sentence, self.clock.now())
        return ToolError(sentence)


@locks(chat="turn.chat_id")
def _store_report(db: Connection, turn: RunningTurn, final: ModelAnswer, clock: Clock) -> None:
    """The end of a sub-agent. Of now however long it was tried: else the day's costs would miss it."""
    journal.finish_turn(db, turn, final, clock.now())
