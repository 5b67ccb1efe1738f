"""Summaries that are interrupted before they are committed."""

import asyncio

from agent.context.limits import ContextSettings
from agent.context.pending import CompressionRegistry
from agent.model.base import ChatModel
from tests.agent.conftest import Chat, Sink
from tests.agent.context.contexts import agent_of, asked_for_summaries, fill_and_ask, look, summary_of
from tests.fakes.fake_llm import LLM


async def test_a_summary_that_is_ready_at_shutdown_is_in_the_ledger(chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "pause_after": 2}])
    agent = agent_of(chat, small, context=ContextSettings(hard_message_limit=30, hold_seconds=0.05))
    turn = await fill_and_ask(chat, agent, 4_300)
    await agent.check(turn)
    [prepared] = [task for task in asyncio.all_tasks() if task.get_name() == f"compression-{turn.lineage_id}"]
    llm.resumed.set()
    await asyncio.wait({prepared}, timeout=10)
    await agent.close()
    assert (await look(chat, turn.lineage_id)).summary_calls == ["ok"]


async def test_a_summary_started_before_a_reload_is_committed_after_it(chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "pause_after": 2}])
    context = ContextSettings(hard_message_limit=30, hold_seconds=0.05)
    pending = CompressionRegistry()
    before, after = (agent_of(chat, small, context=context, pending=pending) for _ in range(2))
    turn = await fill_and_ask(chat, before, 4_300)
    await before.check(turn)
    await chat.finish(turn, await before.run(turn, Sink()))
    assert (await look(chat, turn.lineage_id)).compressions == [], "the turn has not waited for it"
    [prepared] = [task for task in asyncio.all_tasks() if task.get_name() == f"compression-{turn.lineage_id}"]
    llm.resumed.set()
    await asyncio.wait({prepared}, timeout=10)
    turn = await chat.start("and then?")
    await after.check(turn)
    assert (await look(chat, turn.lineage_id)).compressions == [("hygiene", "compressed", "model")]
    assert asked_for_summaries(llm) == 1
    await chat.finish(turn, await after.run(turn, Sink()))
    await before.close()
    await after.close()
