"""Background compressions: a later step commits or drops them, never both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from sqlite3 import Connection

import pytest

from agent.context.job import Compressed, CompressionResult
from agent.context.limits import ContextSettings
from agent.context.pending import MAX_KEPT, CompressionRegistry
from agent.model.base import ChatModel
from agent.tools.registry import Tool, ToolContext
from hermes_state import journal, sessions, transcripts
from hermes_state.turns import RunningTurn
from hermes_state.values import ConversationRef, LineageId, MessageRole, ToolEffect
from tests.agent.conftest import Chat, Sink, dialled
from tests.agent.context.contexts import agent_of, asked_for_summaries, fill_and_ask, look, summary_of
from tests.agents import SingleModelAgent
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

WINDOW = 32_768
"""Limits: threshold 16,384 tokens, hygiene 22,119, without room 22,610."""
LINES = "The harbour master counted every boat twice and wrote it down with great care. " * 40


@pytest.fixture
async def medium(server: Server, llm: LLM) -> AsyncIterator[ChatModel]:
    llm.add_scripts([{"summary": True, "times": -1, "text": summary_of("the slow scribe"), "pause_after": 2}])
    async with dialled(server, "lab-32k") as model:
        yield model


def started(chat: Chat, model: ChatModel, **options: object) -> SingleModelAgent:
    options = {"is_background": True} | options
    return agent_of(chat, model, context_length=WINDOW, **options)  # type: ignore[arg-type]  # those of `agent_of`


@pytest.fixture
async def agent(chat: Chat, medium: ChatModel) -> AsyncIterator[SingleModelAgent]:
    agent = started(chat, medium)
    yield agent
    await agent.close()


async def answer(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    prompt = await agent.check(turn)
    await chat.finish(turn, await agent.run(turn, Sink(), prompt))


async def prepared(llm: LLM, agent: SingleModelAgent, lineage_id: LineageId) -> None:
    """Let the model finish the summary."""
    llm.resumed.set()
    await agent.agent.context.pending.wait(lineage_id, 10)


async def begun(chat: Chat, agent: SingleModelAgent, llm: LLM) -> RunningTurn:
    """A turn that is answered while its summary is being written."""
    turn = await fill_and_ask(chat, agent, 16_500)
    await answer(chat, agent, turn)
    await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")))
    assert agent.agent.context.pending.is_pending(turn.lineage_id)
    return turn


async def test_the_next_step_of_the_turn_commits_a_summary(chat: Chat, medium: ChatModel, llm: LLM) -> None:
    async def wait(arguments: dict[str, object], context: ToolContext) -> str:
        await prepared(llm, agent, context.lineage_id)
        return "waited"

    schema = {"type": "object"}
    tool = Tool(name="wait", description="Waits.", parameters=schema, effect=ToolEffect.READ_ONLY, run=wait)
    agent = started(chat, medium, tools=[tool])
    turn = await fill_and_ask(chat, agent, 16_500, "[[tool:wait]]")
    assert "waited" in (await agent.run(turn, Sink())).text
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("preflight", "compressed", "model")]
    assert [row.role for row in found.view[-3:]] == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL]
    first, second = (row["body"]["messages"] for row in llm.requests.rows if row["body"].get("tools"))
    assert len(second) < len(first)
    await agent.close()


async def test_a_pending_summary_is_requested_once_for_all_turns(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    turn = await begun(chat, agent, llm)
    for text in ("and then?", "and now?"):
        await answer(chat, agent, await chat.start(text))
    assert (await look(chat, turn.lineage_id)).depth == 0
    assert asked_for_summaries(llm) == 1


@pytest.mark.parametrize("refused", [False, True])
async def test_without_room_a_turn_awaits_the_summary(refused: bool, chat: Chat, medium: ChatModel, llm: LLM) -> None:
    """In one case only the provider notices that there is no room."""
    waits = asyncio.Event()

    async def tell(conversation: ConversationRef, view: object) -> None:
        waits.set()

    agent = started(chat, medium, context=ContextSettings(quiet_seconds=0), on_wait=tell)
    turn = await begun(chat, agent, llm)
    if refused:
        llm.add_scripts([{"has_tools": True, "error": {"kind": "413"}}])
    following = await chat.start("and then?" if refused else LINES * 16)
    running = asyncio.create_task(answer(chat, agent, following))
    await asyncio.wait_for(waits.wait(), 10)
    assert not running.done()
    llm.resumed.set()
    await running
    found = await look(chat, turn.lineage_id)
    assert found.compressions[0] == ("preflight", "compressed", "model")
    assert asked_for_summaries(llm) == found.depth == 1
    await agent.close()


async def test_a_turn_that_fits_waits_for_no_pending_summary(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    turn = await begun(chat, agent, llm)
    following = await chat.start(LINES * 12)
    prompt = await asyncio.wait_for(agent.check(following), 10)
    assert prompt.limits.urgent <= prompt.estimated < prompt.limits.input_window
    await chat.finish(following, await asyncio.wait_for(agent.run(following, Sink(), prompt), 10))
    assert (await look(chat, turn.lineage_id)).depth == 0


async def test_in_blocking_mode_a_turn_waits_and_below_the_threshold_nothing_is_prepared(
    chat: Chat, medium: ChatModel, agent: SingleModelAgent, llm: LLM
) -> None:
    turn = await fill_and_ask(chat, agent, 15_500)
    await answer(chat, agent, turn)
    assert (agent.agent.context.pending.is_pending(turn.lineage_id), asked_for_summaries(llm)) == (False, 0)
    llm.resumed.set()
    blocking = started(chat, medium, is_background=False)
    await answer(chat, blocking, await fill_and_ask(chat, blocking, 16_500))
    assert (await look(chat, turn.lineage_id)).compressions == [("preflight", "compressed", "model")]
    await blocking.close()


async def test_a_background_failure_is_reported_once(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    llm.scripts.clear()
    llm.add_scripts([{"summary": True, "times": -1, "error": {"kind": "401"}}])
    turn = await fill_and_ask(chat, agent, 16_500)
    await answer(chat, agent, turn)
    await prepared(llm, agent, turn.lineage_id)
    for text in ("and then?", "and now?"):
        await answer(chat, agent, await chat.start(text))
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("preflight", "aborted", "auth")]
    assert len([text for text in found.told if "could not compress" in text]) == 1
    assert asked_for_summaries(llm) == 1, "the route cools down"


# ---- events between a summary and its commit


Event = Callable[[Chat, SingleModelAgent, RunningTurn], Awaitable[None]]


async def process_ends(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    await agent.close()


async def new(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    before = await chat.store.read(sessions.load_tip, turn.lineage_id)
    await chat.store.write(sessions.reset, turn.chat_id, chat.clock.now())
    await agent.context.ended(before.id, was_reset=True)


async def compress(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    result = await agent.context.prepare_by_hand(turn.conversation)
    assert isinstance(await chat.store.write(agent.context.settle, result, chat.clock.now()), Compressed)


async def compress_undo(chat: Chat, agent: SingleModelAgent, turn: RunningTurn) -> None:
    assert await agent.context.plan_undo(turn.conversation) is None, "nothing was or will be compressed"


EVENTS: dict[str, tuple[Event, list[str]]] = {
    "the process ends": (process_ends, []),
    "/new": (new, []),
    "/compress": (compress, ["manual"]),
    "/compress undo": (compress_undo, []),
}


@pytest.mark.parametrize("is_ready", [False, True], ids=["under way", "ready"])
@pytest.mark.parametrize("event", EVENTS)
async def test_an_overtaken_summary_is_dropped_but_paid_for(
    event: str, is_ready: bool, chat: Chat, agent: SingleModelAgent, llm: LLM
) -> None:
    happen, layers = EVENTS[event]
    turn = await begun(chat, agent, llm)
    if is_ready:
        await prepared(llm, agent, turn.lineage_id)
    if layers:  # otherwise the other summary would be held, too
        llm.resumed.set()
    await happen(chat, agent, turn)
    found = await chat.store.read(compressed, turn.lineage_id)
    assert found == layers, "the view is the old view or the one of the other compression"
    outcome = "ok" if is_ready else "cancelled"
    summaries = [outcome for purpose, outcome in await chat.ledger() if purpose == "summary"]
    assert summaries[: 1 + len(layers)] == [outcome, *["ok" for _ in layers]]
    assert not agent.agent.context.pending.is_pending(turn.lineage_id)


async def test_a_summary_of_a_changed_view_is_dropped_but_paid(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    turn = await begun(chat, agent, llm)
    await prepared(llm, agent, turn.lineage_id)
    session = await chat.store.read(sessions.load_tip, turn.lineage_id)
    rows = [row.id for row in await chat.view(turn) if row.turn_id == turn.id]
    await chat.store.write(transcripts.hide, session.id, rows, "undo", chat.clock.now())
    await agent.check(await chat.start("something else"))
    found = await look(chat, turn.lineage_id)
    assert (found.compressions, found.summary_calls) == ([], ["ok"])
    assert not set(rows) & {row.id for row in found.view}


def compressed(db: Connection, lineage_id: LineageId) -> list[str]:
    """Layers of a conversation's compressions."""
    query = """SELECT layer FROM compressions c JOIN sessions s ON s.id = c.parent_id
        WHERE s.lineage_id = ? AND outcome = 'compressed' ORDER BY c.id"""
    return [row[0] for row in db.execute(query, (lineage_id,))]


async def test_a_stopped_turn_leaves_the_summary_to_the_next(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    turn = await fill_and_ask(chat, agent, 22_700)
    waiting = asyncio.create_task(agent.run(turn, Sink()))
    await llm.requests.query({"wait": 20}, lambda row: bool(row.get("summary")))
    waiting.cancel()
    await asyncio.wait({waiting})
    await chat.store.write(journal.stop_turn, turn, "", "stopped", chat.clock.now(), notice="(stopped)")
    await prepared(llm, agent, turn.lineage_id)
    await answer(chat, agent, await chat.start("and then?"))
    found = await look(chat, turn.lineage_id)
    assert found.compressions == [("preflight", "compressed", "model")]
    assert (asked_for_summaries(llm), found.summary_calls) == (1, ["ok"])


async def test_a_new_model_commits_a_summary_started_for_the_old_model(
    chat: Chat, agent: SingleModelAgent, llm: LLM, server: Server
) -> None:
    turn = await begun(chat, agent, llm)
    await prepared(llm, agent, turn.lineage_id)
    async with dialled(server, "lab-128k") as other:
        agent.model = started(chat, other).model
        following = await chat.start("and then?")
        await chat.finish(following, await agent.run(following, Sink()))
        assert await chat.store.read(compressed, turn.lineage_id) == ["preflight"]


async def test_the_number_of_uncommitted_summaries_is_bounded() -> None:
    tasks, hold = CompressionRegistry(), asyncio.Event()

    async def prepare() -> CompressionResult:
        await hold.wait()
        raise AssertionError("it was given up")

    for number in range(MAX_KEPT + 1):
        await tasks.begin(LineageId(number), prepare())
    assert not tasks.is_pending(LineageId(0))
    assert tasks.is_pending(LineageId(1))
    await tasks.close()
    assert not tasks.is_pending(LineageId(1))
