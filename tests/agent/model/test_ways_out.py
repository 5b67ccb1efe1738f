"""Conversations are never stuck, even if compression is held back."""

from collections.abc import Callable

import pytest

from agent.context.limits import ContextSettings
from agent.context.model_handle import SummaryRoute
from agent.context.state import ContextState, stored_form
from agent.model.base import ChatModel, ModelReply, ModelRequest
from agent.tools.recall import recall_tools
from hermes_state import sessions
from hermes_state.errors import ModelNotFound, ModelTimeout
from hermes_state.values import ChatKind, LineageId, Tokens
from tests.agent.conftest import Chat, Sink, dialled
from tests.agent.context.contexts import (
    WORDS,
    agent_of,
    asked_for_summaries,
    asked_for_turns,
    chat_at,
    clock_of,
    fill_and_ask,
    look,
    summary_of,
)
from tests.clients import client_of
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

LONG = "the harbour master counted every boat twice and wrote it down with great care " * 30


async def remember(chat: Chat, lineage_id: LineageId, state: ContextState) -> None:
    session = await chat.store.read(sessions.load_tip, lineage_id)
    await chat.store.write(sessions.set_context_state, session.id, stored_form(state))


@pytest.mark.parametrize("held", [ContextState(strikes=2, blocked_at=20_000), ContextState(held_at=20_000)])
async def test_beyond_a_window_chats_are_compressed(held: ContextState, chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the scribe")}])
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 8_600)
    await remember(chat, turn.lineage_id, held)
    await chat.finish(turn, await agent.run(turn, Sink()))
    found = await look(chat, turn.lineage_id)
    assert {kind for _, _, kind in found.compressions} == {"model"}
    assert all(row["outcome"] == "ok" for row in asked_for_turns(llm)), "no prompt that cannot fit was sent"


@pytest.mark.parametrize("status", [404, 405])
async def test_a_wrong_address_causes_no_compression(status: int, chat: Chat, small: ChatModel, llm: LLM) -> None:
    """Near the end of the window, an unexplained refusal counts as an overflow. This refusal has a reason."""
    agent = agent_of(chat, small)
    turn = await fill_and_ask(chat, agent, 5_700)
    await remember(chat, turn.lineage_id, ContextState(strikes=2, blocked_at=20_000))
    llm.add_scripts([{"times": -1, "error": {"status": status, "body": {"error": {"message": "Not here"}}}}])
    with pytest.raises(ModelNotFound):
        await agent.run(turn, Sink())
    assert (await look(chat, turn.lineage_id)).compressions == []


async def test_an_endless_summary_is_aborted_and_remembered(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """Every piece arrives in time, so only the deadline ends the call. Without a cooldown, every message would wait."""
    endless = {"summary": True, "times": -1, "text": "word " * 5_000, "chunk_chars": 5, "chunk_delay": 0.01}
    llm.add_scripts([endless])
    agent = agent_of(chat, small, context=ContextSettings(summary_seconds=0.3))
    turn = await fill_and_ask(chat, agent, 4_200)
    await chat.finish(turn, await agent.run(turn, Sink()))
    found = await look(chat, turn.lineage_id)
    assert (found.compressions, found.summary_calls) == ([("preflight", "aborted", "timeout")], ["timeout"])
    assert found.state.cooldowns, "the next message does not wait"


async def test_a_cooldown_begins_when_the_call_has_failed(chat: Chat, small: ChatModel, llm: LLM) -> None:
    """A call may take longer to fail than the shortest cooldown, which would be over if counted from the beginning."""
    slow_chat = chat_at(chat, "slow")
    clock = clock_of(slow_chat)

    class Slow:
        route, name = "lab:slow", "slow"

        async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
            clock.pass_seconds(170)
            raise ModelTimeout("the provider stopped answering")

        async def close(self) -> None:
            """Do nothing, because there are no connections."""

    routes = [SummaryRoute(client=client_of(Slow(), slow_chat.store, clock), context_length=Tokens(8_192))]
    agent = agent_of(slow_chat, small, routes=routes)
    turn = await fill_and_ask(slow_chat, agent, 4_200)
    await slow_chat.finish(turn, await agent.run(turn, Sink()))
    [cooldown] = (await look(slow_chat, turn.lineage_id)).state.cooldowns.values()
    assert cooldown.until == clock.now() + 60_000


async def test_in_the_smallest_window_no_useless_summary_is_made(chat: Chat, server: Server, llm: LLM) -> None:
    """There, the kept part of every compression fills nearly all room below the threshold."""
    chat.kind = ChatKind.GROUP
    async with dialled(server, "lab-4k") as model:
        agent = agent_of(chat, model, context_length=4_096, tools=recall_tools())
        for number in range(40):
            turn = await chat.start(f"Q{number} {WORDS[:150]}")
            await chat.finish(turn, await agent.run(turn, Sink()))
    found = await look(chat, turn.lineage_id)
    assert found.depth > 3
    assert asked_for_summaries(llm) == found.depth < 20
