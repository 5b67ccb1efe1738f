"""Concurrent compressions of a chat, and cancellations at every point: the state is always the old or the new one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from itertools import count
from types import coroutine
from typing import Any, TypeVar

import pytest

from agent.context.cuts import SkipReason
from agent.context.job import Compressed, NotNeeded
from agent.context.limits import ContextSettings
from agent.model.base import ChatModel
from hermes_state.turns import RunningTurn, take_up
from tests.agent.conftest import Chat, Sink, dialled
from tests.agent.context.contexts import Listening, agent_of, chat_at, compress, fill_and_ask, look, summary_of
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

T = TypeVar("T")
MAX_UNCUT = 5
"""Runs that may end without a cancellation before one is cancelled after the split."""
EAGER = ContextSettings(hard_message_limit=8)
"""Hygiene acts although there is room, so that all three layers act at the same time."""


# ---- concurrent compressions


@pytest.mark.parametrize(
    "order", [("hygiene", "loop", "hand"), ("hand", "hygiene", "loop"), ("loop", "hand", "hygiene")]
)
async def test_if_all_layers_compress_at_once_one_wins_and_the_others_see_the_change(
    order: tuple[str, ...], chat: Chat, server: Server, llm: LLM
) -> None:
    """Three agents without any coordination. Their summaries arrive in the given order."""
    listening = {name: Listening() for name in order}
    llm.models |= {f"lab-{name}": {"context": 8_192, "max_output": 4_096} for name in order}
    async with (
        dialled(server, "lab-hygiene") as one,
        dialled(server, "lab-loop") as two,
        dialled(server, "lab-hand") as three,
    ):
        agents = {
            name: agent_of(chat, model, context=EAGER, listeners=[listening[name]])
            for name, model in (("hygiene", one), ("loop", two), ("hand", three))
        }
        turn = await fill_and_ask(chat, agents["loop"], 4_400)
        conversation, before = turn.conversation, (await look(chat, turn.lineage_id)).said
        may_arrive = {name: asyncio.Event() for name in order}
        for name, event in may_arrive.items():
            llm.add_scripts([{"summary": True, "model": f"lab-{name}", "waits_for": event, "text": summary_of(name)}])
        asked = len(llm.requests.rows)
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(agents["hygiene"].check(turn))
            answering = group.create_task(agents["loop"].run(turn, Sink()))
            commanded = group.create_task(compress(chat, agents["hand"], conversation))
            assert len(await llm.requests.query({"since": asked, "count": 3, "wait": 30})) == 3
            tasks = {"hygiene": checking, "loop": answering, "hand": commanded}
            for name in order:
                may_arrive[name].set()
                await asyncio.wait({tasks[name]})
        found = await look(chat, turn.lineage_id)
        assert found.depth == 1
        assert found.summary_calls == ["ok", "ok", "ok"], "the losers' summaries were paid for"
        assert len(found.compressions) == 1
        assert f"SUMMARY-BY-{order[0]}" in "".join(row.text or "" for row in found.view)
        assert found.said == before
        assert [name for name in order if listening[name].events] == [order[0]], "the losers have no events"
        outcome = commanded.result()
        if order[0] == "hand":
            assert isinstance(outcome, Compressed)
        else:
            assert isinstance(outcome, NotNeeded)
            assert outcome.why is SkipReason.MOVED
        await chat.finish(turn, answering.result())
        last = llm.requests.rows[-1]["body"]["messages"]
        assert str(last).count("CONTEXT COMPACTION — REFERENCE ONLY") == 1, "the turn continues in the winner's view"
        for agent in agents.values():
            await agent.close()


@pytest.fixture
async def rival(server: Server) -> AsyncIterator[ChatModel]:
    async with dialled(server, "lab-9k") as model:
        yield model


async def test_a_turn_with_a_refused_prompt_continues_with_the_view_of_a_faster_compression(
    chat: Chat, small: ChatModel, rival: ChatModel, llm: LLM
) -> None:
    llm.add_scripts([{"has_tools": True, "error": {"kind": "413"}}])
    released = asyncio.Event()
    llm.add_scripts([{"summary": True, "model": "lab-8k", "waits_for": released, "text": summary_of("the loser")}])
    agent, faster = agent_of(chat, small), agent_of(chat, rival)
    turn = await fill_and_ask(chat, agent, 3_500)
    running = asyncio.create_task(agent.run(turn, Sink()))
    await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")))
    assert isinstance(await compress(chat, faster, turn.conversation), Compressed)
    released.set()
    await chat.finish(turn, await running)
    found = await look(chat, turn.lineage_id)
    assert (found.compressions, found.summary_calls) == ([("manual", "compressed", "model")], ["ok", "ok"])


async def test_a_failure_after_another_compression_leaves_only_the_ledger_entry(
    chat: Chat, small: ChatModel, rival: ChatModel, llm: LLM
) -> None:
    released = asyncio.Event()
    llm.add_scripts([{"summary": True, "model": "lab-8k", "waits_for": released, "error": {"kind": "401"}}])
    agent, faster = agent_of(chat, small), agent_of(chat, rival)
    turn = await fill_and_ask(chat, agent, 3_500)
    slow = asyncio.create_task(compress(chat, agent, turn.conversation))
    await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")))
    assert isinstance(await compress(chat, faster, turn.conversation), Compressed)
    released.set()
    assert (await slow).why is SkipReason.MOVED
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("manual", "compressed", "model")]
    assert (sorted(found.summary_calls), found.state.cooldowns) == (["auth", "ok"], {})


# ---- cancelled at every await


@coroutine
def noted(work: Coroutine[Any, Any, T], note: Callable[[], None]) -> Generator[Any, Any, T]:
    """Run `work`, and call `note` each time it waits for something."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            waited = step(value)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if waited is not None:  # otherwise it only yields, which depends on the load of the machine
            note()
        try:
            value, step = (yield waited), work.send
        except BaseException as error:  # noqa: BLE001  # whatever is thrown in belongs to `work`
            value, step = error, work.throw


class Cutter:
    """Cancels its own task when that waits for the `at`-th time."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.waits = 0

    def note(self) -> None:
        self.waits += 1
        task = asyncio.current_task()
        if self.waits == self._at and task is not None:
            task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A way to cause a compression. The conversation has `tokens` when `begin` starts it."""

    tokens: int
    begin: Callable[[Chat, SingleModelAgent, RunningTurn], Coroutine[Any, Any, object]]
    question: str = "and now?"
    refusals: int = 0
    context: ContextSettings = field(default_factory=ContextSettings)


async def run(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> object:
    return await agent.run(turn, Sink())


async def tidy(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> object:
    await agent.check(turn)
    return await agent.run(turn, Sink())


async def command(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> object:
    await compress(chat, agent, turn.conversation)
    return await agent.run(turn, Sink())


TRIGGERS = {
    "preflight": Trigger(tokens=4_200, begin=run),
    "hygiene": Trigger(tokens=5_600, begin=tidy),
    "in_loop": Trigger(tokens=3_500, begin=run, question="[[tool:dump]]"),
    "overflow": Trigger(tokens=3_000, begin=run, refusals=1),
    "manual": Trigger(tokens=3_000, begin=command),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("layer", TRIGGERS)
async def test_cancellations_leave_the_old_or_new_state(layer: str, chat: Chat, small: ChatModel, llm: LLM) -> None:
    trigger, depths, at, uncut = TRIGGERS[layer], set[int](), 0, 0
    for number in count(1):
        at += 1
        own, cutter = chat_at(chat, number), Cutter(at)
        agent = agent_of(own, small, context=trigger.context)
        turn = await fill_and_ask(own, agent, trigger.tokens, trigger.question)
        before = (await look(own, turn.lineage_id)).said
        if trigger.refusals:
            rule = {"has_tools": True, "times": trigger.refusals, "error": {"kind": "413"}}
            llm.scripts[:] = []
            llm.add_scripts([rule])
        task = asyncio.create_task(_whole(noted(trigger.begin(own, agent, turn), cutter.note)))
        await asyncio.wait({task})
        await agent.close()
        turn = await own.store.write(take_up, turn)  # after any writes that the cancelled run left in the queue
        found = await look(own, turn.lineage_id)
        assert found.said >= before
        if not task.cancelled():
            assert task.exception() is None
            assert (found.depth, found.compressions[0][0]) == (1, layer)
            uncut += 1
            if depths == {0, 1} or uncut > MAX_UNCUT:
                break
            at = cutter.waits - 2 * uncut  # the number of waits varies with arriving data: cancel near the end
            continue
        depths.add(found.depth)
        assert found.depth == len(found.compressions) <= 1
        assert found.summary_calls in (["ok"] * found.depth, ["ok"]), "the cost is stored before the commit"
        llm.scripts.clear()
        fresh = agent_of(own, small, context=trigger.context)
        await own.finish(turn, await fresh.run(turn, Sink()))
        after = await look(own, turn.lineage_id)
        assert after.said > found.said
        assert after.depth in (found.depth, 1)
        await fresh.close()
    assert depths == {0, 1}, "some cancellations came before the split and some after it"
    assert number - uncut >= 5, "there was something to cancel"


async def _whole(work: Awaitable[T]) -> T:
    return await work
