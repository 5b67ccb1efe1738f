"""Conversations that outgrow their window: real store, real SDK, a fake model server."""

from collections.abc import Sequence
from dataclasses import replace
from sqlite3 import Connection

from agent.context.job import Compressed, CompressionJob, ContextEvent
from agent.context.limits import ContextSettings
from agent.model.base import ChatModel
from hermes_state import sessions
from hermes_state.transcripts import NewMessage, append, load_messages, load_view
from hermes_state.values import ConversationRef, MessageRole, Millis, Origin, Tokens
from tests.agent.conftest import Chat, Sink, agent_for, settings
from tests.agent.context.contexts import Listening
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM

FILLER = "The quick brown fox jumps over the lazy dog and runs through the forest. " * 8


SMALL = settings(context_length=Tokens(8_192), max_output_tokens=Tokens(2_048))


async def converse(chat: Chat, agent: SingleModelAgent, texts: Sequence[str]) -> int:
    """Run whole turns, one after the other, and return the lineage."""
    lineage_id = 0
    for text in texts:
        turn = await chat.start(text)
        await chat.finish(turn, await agent.run(turn, Sink()))
        lineage_id = turn.lineage_id
    return lineage_id


async def test_repeated_compressions_lose_nothing(chat: Chat, model: ChatModel, llm: LLM) -> None:
    listening = Listening()
    agent = agent_for(chat, model, configured=SMALL, listeners=[listening])
    texts = [f"Message {number}: TICKET-{number} {FILLER}" for number in range(120)]
    lineage_id = await converse(chat, agent, texts)
    assert len(listening.compressions) >= 5
    assert {event.prepared.summary_kind for event in listening.compressions} == {"model"}
    said = await chat.store.read(load_messages, lineage_id, 10_000)
    assert [row.text for row in said if row.role is MessageRole.USER] == texts
    view = (await chat.store.read(load_view, lineage_id)).transcript
    assert sum(row.origin is Origin.SUMMARY for row in view) == 1
    assert len(view) < 60
    assert (await chat.store.read(sessions.load_tip, lineage_id)).depth == len(listening.compressions)
    await agent.close()


async def test_hooks_run_before_a_split_and_listeners_with_it(chat: Chat, model: ChatModel, llm: LLM) -> None:
    order: list[str] = []

    async def flush(job: CompressionJob) -> None:
        order.append(f"before, with {len(job.view.transcript)} messages")

    def reinject(db: Connection, conversation: ConversationRef, event: ContextEvent, now: Millis) -> None:
        assert isinstance(event, Compressed)
        todo = NewMessage(role=MessageRole.USER, origin=Origin.TODO, text="Open: water the plants.")
        append(db, event.child.id, todo, now)
        order.append("with it")

    agent = agent_for(
        chat,
        model,
        configured=replace(SMALL, context=ContextSettings(mode="blocking")),
        listeners=[reinject],
        before_split=[flush],
    )
    await converse(chat, agent, [f"Message {number}: {FILLER}" for number in range(14)])
    assert order[0].startswith("before, with ")
    assert order[1] == "with it"
    assert "Open: water the plants." in str(llm.requests.rows[-1]["body"]["messages"])
