"""Sub-agents: turns inside a turn, whose cost is charged to the conversation.

A sub-agent has fewer tools and ends with a report.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Final
from weakref import WeakValueDictionary

import structlog
from structlog.contextvars import bound_contextvars

from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.model.base import Payer
from agent.prompt import PromptBuilder, subagent_prompt
from agent.tool_calls import ResultBudget
from agent.tools.offers import OfferRegistry, OpenAccess, Policy, ToolAccess
from agent.tools.planning import DELEGATE
from agent.tools.registry import OnStep, Tool, ToolRegistry
from agent.turn import Agent
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
from hermes_state.values import ChatKey, ChatKind, Clock, MessageId, ToolEffect, TurnId, TurnState, UserRef

log = structlog.get_logger()

MAX_PARALLEL: Final = 3
"""Maximum number of sub-agents that work for one turn at the same time. One turn must not use up the provider's rate
limit, which all chats share.
"""
SECONDS: Final = 600.0
"""Time limit for one sub-agent, in seconds. It starts again after a restart. The turn's deadline also applies."""

OF_THE_CONVERSATION = (
    "only the conversation's main agent may use this tool: describe the call that you need in your report"
)
NEEDS_A_YES = "it may need approval, and a sub-agent cannot ask people: report what should be done"
NOT_GIVEN = "the main agent did not give it to this sub-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentAccess(OpenAccess):
    """Access rules of a sub-agent, which can use read-only tools and tools that its chat allows without approval.

    Tools for the conversation's own data (notes, to-do list, files for people) are not available.
    """

    access: ToolAccess
    person: UserRef
    """User who started the parent turn."""
    names: frozenset[str] | None = None
    """Names of the tools that the parent turn chose. None: all tools that these rules allow."""

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        is_reading = tool.effect is ToolEffect.READ_ONLY
        if tool.name in (DELEGATE, "schedule") or not (is_reading or tool.needs_approval):
            return OF_THE_CONVERSATION
        if not is_reading and self.access.policy(tool, chat) is not Policy.ALLOW:
            return NEEDS_A_YES
        if self.names is not None and tool.name not in self.names and not tool.is_essential:
            return NOT_GIVEN
        return self.access.refusal(tool, chat, kind, self.person)

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        """Return a call's policy. Calls that need approval are denied, because a sub-agent cannot ask people."""
        return Policy.ALLOW if self.access.policy(tool, chat) is Policy.ALLOW else Policy.DENY


@dataclass(eq=False, slots=True, kw_only=True)
class SubagentRunner:
    """Runs sub-agents, a few at a time for each turn. A failed sub-agent fails only the tool call that started it."""

    store: Store
    clock: Clock
    tools: ToolRegistry
    access: ToolAccess
    budget: ResultBudget = field(default_factory=ResultBudget)
    zone: tzinfo = UTC
    redact: Callable[[str], str] = redact
    _slots: WeakValueDictionary[TurnId, asyncio.Semaphore] = field(default_factory=WeakValueDictionary, init=False)

    async def run(
        self,
        parent: RunningTurn,
        model: ModelHandle,
        call: tuple[MessageId, str],
        task: str,
        tools: tuple[str, ...] | None,
        *,
        on_step: OnStep = lambda step: None,
    ) -> str:
        """Run the sub-agent that a tool call requests, and return its report. `on_step` receives its tool calls.

        After an interruption, the sub-agent continues from its stored rows. While the store is unavailable, the
        sub-agent waits. Raises `ToolError` if there is no report.
        """
        access = SubagentAccess(access=self.access, person=parent.started_by)
        for name in tools or ():
            tool = self.tools.get(name)
            refusal = None if tool is None else access.refusal(tool, parent.chat, parent.chat_kind, None)
            if tool is None or refusal is not None:
                raise ToolError(f"{name[:64]!r} cannot be given to a sub-agent: {refusal or 'there is no such tool'}")
        access = replace(access, names=None if tools is None else frozenset(tools))
        slot = self._slots.get(parent.id) or asyncio.Semaphore(MAX_PARALLEL)
        self._slots[parent.id] = slot

        async def take_up() -> str:
            opened = await self.store.write(open_subagent, parent, *call, task, self.clock.now())
            if isinstance(opened, RunningTurn):
                with bound_contextvars(subagent_id=opened.id):
                    return await self._work(opened, model.subagent_model() or model, access, on_step)
            if opened.state is not TurnState.FINISHED:
                raise ToolError(opened.text)
            return opened.text

        async with slot:
            try:
                # Do not wait for a broken store: the parent turn continues, or its next write reports the error.
                return await retried(take_up, StoreUnavailable, "subagent.delayed", unless=(StoreBroken,))
            except TurnMoved as error:
                raise ToolError("the turn has ended") from error

    async def _work(self, turn: RunningTurn, model: ModelHandle, access: SubagentAccess, on_step: OnStep) -> str:
        began = time.monotonic()
        agent = self._agent(turn, access)
        try:
            async with asyncio.timeout(SECONDS):
                answer = await agent.run(turn, lambda _: None, model, on_step=on_step)
        except (StoreUnavailable, TurnMoved):
            raise
        except TimeoutError:
            reason = f"it did not finish within {SECONDS:g} seconds"
            raise await self._failed(turn, "TimeoutError", reason) from None
        except ModelError as error:
            spent = " (the spending cap has been reached)" if isinstance(error, SpendingCapExceeded) else ""
            raise await self._failed(turn, type(error).__name__, f"its model failed{spent}", error) from error
        except Exception as error:  # the parent turn and its other sub-agents continue
            log.exception("subagent.crashed")
            raise await self._failed(turn, type(error).__name__, "it crashed") from error
        finally:
            await agent.close()
        text, tokens = answer.text or "The sub-agent ended without a report.", answer.reported_prompt_tokens
        final = ModelAnswer(text=text, call=answer.call, reported_prompt_tokens=tokens)
        try:
            await self.store.write_with_retry(_store_report, turn, final, self.clock)
        except TurnMoved:  # the sub-agent was stopped: store only the cost
            await model.client.ledger.record(Payer.of(turn.conversation), answer.call)
            raise
        log.info("subagent.finished", seconds=round(time.monotonic() - began, 3))
        return text

    def _agent(self, turn: RunningTurn, access: SubagentAccess) -> Agent:
        offers = OfferRegistry(self.tools, self.store, access)
        names = [tool.name for tool in offers.usable(turn.chat, turn.chat_kind)]
        return Agent(
            store=self.store,
            prompts=PromptBuilder(tools=self.tools, offers=offers, zone=self.zone, system=subagent_prompt(names)),
            clock=self.clock,
            pending=CompressionRegistry(),
            redact=self.redact,
            max_tool_rounds=20,  # after the last round, the sub-agent must report
            budget=self.budget,
        )

    async def _failed(self, turn: RunningTurn, kind: str, reason: str, error: ModelError | None = None) -> ToolError:
        """Mark a sub-agent's turn as failed, and return the error for the parent turn."""
        log.warning("subagent.failed", error=kind, detail=None if error is None else str(error))
        sentence = f"the sub-agent returned no report: {reason}"
        await self.store.write_with_retry(journal.fail_turn, turn, kind, sentence, self.clock.now())
        return ToolError(sentence)


@locks(chat="turn.chat_id")
def _store_report(db: Connection, turn: RunningTurn, final: ModelAnswer, clock: Clock) -> None:
    """Store a report. Each attempt reads the clock again, so the cost counts towards the day of the commit."""
    journal.finish_turn(db, turn, final, clock.now())
