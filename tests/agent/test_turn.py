"""Complete turns, with a real store, the real SDK and a fake model server."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.context.pending import CompressionRegistry
from agent.memory.sections import SectionReader
from agent.memory.skills import SkillCatalog
from agent.model.base import ChatModel
from agent.prompt import PromptBuilder
from agent.tool_calls import OUTCOME_UNKNOWN
from agent.tools.recall import recall_tools
from agent.tools.registry import Step, Tool, ToolContext, ToolRegistry
from agent.turn import CUT_OFF, ROUNDS_USED_UP, Agent
from hermes_state import journal
from hermes_state.errors import ContextOverflow, ReplyMalformed, StoreUnavailable, ToolError
from hermes_state.inbox import InboxMode
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.tool_runs import ToolResult, ToolRunState, load_tool_runs
from hermes_state.transcripts import load_view
from hermes_state.turns import RunningTurn, TurnMoved, take_up
from hermes_state.values import ChatKey, Message, MessageRole, Tokens, ToolCall, ToolEffect
from tests.agent.conftest import Chat, Sink, agent_for, settings
from tests.agents import SingleModelAgent, TurnSettings, handle_of
from tests.clients import client_of
from tests.fakes.fake_llm import LLM
from tests.hermes_state.helpers import one_batch

ANY_OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Workshop:
    """Tools that count their runs, and a factory for an agent with these tools."""

    def __init__(self, chat: Chat, model: ChatModel) -> None:
        self.chat, self.model = chat, model
        self.ran: list[tuple[str, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    def tool(self, name: str, effect: ToolEffect, result: str = "done") -> Tool:
        async def run(arguments: dict[str, Any], context: ToolContext) -> str:
            self.ran.append((name, arguments["n"]))
            self.entered.set()
            await self.gate.wait()
            return f"{result} {arguments['n']}"

        return Tool(name=name, description=name, parameters=ANY_OBJECT, effect=effect, run=run)

    def agent(self, *extra: Tool, options: TurnSettings | None = None) -> SingleModelAgent:
        tools = (
            self.tool("read", ToolEffect.READ_ONLY),
            self.tool("write", ToolEffect.WRITES),
            *recall_tools(),
            *extra,
        )
        return agent_for(self.chat, self.model, tools, configured=options)


@pytest.fixture
def shop(chat: Chat, model: ChatModel) -> Workshop:
    return Workshop(chat, model)


def tool_texts(rows: Any) -> list[str | None]:
    return [row.text for row in rows if row.role is MessageRole.TOOL]


async def test_a_turn_returns_its_answer_to_the_caller(chat: Chat, agent: SingleModelAgent) -> None:
    turn, sink = await chat.start("hello"), Sink()
    answer = await agent.run(turn, sink)
    assert answer.text == "echo: [2026-01-01 00:00] hello"
    assert answer.reported_prompt_tokens is not None
    assert (answer.call.outcome, sink.shown[-1]) == ("ok", answer.text)
    assert all(later.startswith(earlier) for earlier, later in zip(sink.shown, sink.shown[1:], strict=False))
    assert [row.role for row in await chat.said(turn)] == [MessageRole.USER]
    assert await chat.ledger() == []


async def test_the_system_prompt_is_made_once_for_every_request(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    first = await chat.start("one")
    await chat.finish(first, await agent.run(first, Sink()))
    second = await chat.start("two")
    await agent.run(second, Sink())
    one, two = (request["body"]["messages"] for request in llm.requests.rows)
    assert one[0]["role"] == "system"
    assert "history_search" in one[0]["content"]
    assert two[: len(one)] == one
    stored = (await chat.store.read(load_view, second.lineage_id)).session.system_prompt
    assert stored == one[0]["content"]


async def test_a_prompt_that_hygiene_measured_is_kept(chat: Chat, model: ChatModel, llm: LLM, tmp_path: Path) -> None:
    looks: list[str] = []

    def is_on(name: str, _: ChatKey) -> bool:
        looks.append(name)
        return False

    files = SectionReader(home=tmp_path, notes=None, skills=SkillCatalog(path=tmp_path), is_on=is_on)
    prompts = PromptBuilder(tools=ToolRegistry(()), files=files)
    agent = Agent(store=chat.store, prompts=prompts, clock=chat.clock, pending=CompressionRegistry())
    handle = handle_of(client_of(model, chat.store, chat.clock), settings(), chat.store, chat.clock)
    turn = await chat.start("one")
    measured = await agent.context.measure(turn.conversation, handle)
    await agent.run(turn, Sink().show, handle, measured)
    assert looks == ["skill"]
    [request] = llm.requests.rows
    stored = (await chat.store.read(load_view, turn.lineage_id)).session.system_prompt
    assert request["body"]["messages"][0]["content"] == measured.request.system == stored
    await agent.close()


async def test_tools_run_and_their_results_are_rows(chat: Chat, shop: Workshop) -> None:
    turn = await chat.start('[[tool:read {"n": 1}]] [[tool:write {"n": 2}]]')
    assert (await shop.agent().run(turn, Sink())).text == "tool said: done 1 | done 2"
    assert sorted(shop.ran) == [("read", 1), ("write", 2)]
    said = await chat.said(turn)
    assert [row.role for row in said] == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL, MessageRole.TOOL]
    assert await chat.ledger() == [("turn", "ok")]
    assert set((await chat.store.read(load_tool_runs, said[1].id)).values()) == {ToolRunState.DONE}


async def test_the_calls_of_an_answer_run_in_parallel(chat: Chat, shop: Workshop) -> None:
    both = asyncio.Barrier(2)

    async def meet(arguments: dict[str, Any], context: ToolContext) -> str:
        async with asyncio.timeout(20):
            await both.wait()
        return "met"

    tool = Tool(name="meet", description="", parameters=ANY_OBJECT, effect=ToolEffect.READ_ONLY, run=meet)
    turn = await chat.start('[[tool:meet {"n": 1}]] [[tool:meet {"n": 2}]]')
    assert (await shop.agent(tool).run(turn, Sink())).text == "tool said: met | met"


async def test_the_start_of_a_tool_is_committed_before_it_runs(chat: Chat, shop: Workshop) -> None:
    seen: list[Any] = []

    async def peek(arguments: dict[str, Any], context: ToolContext) -> str:
        seen.extend(
            await context.store.read(lambda db: db.execute("SELECT tool_name, state FROM tool_runs").fetchall())
        )
        return "peeked"

    tool = Tool(name="peek", description="", parameters={"type": "object"}, effect=ToolEffect.EXECUTES, run=peek)
    await shop.agent(tool).run(await chat.start("[[tool:peek]]"), Sink())
    assert seen == [("peek", "started")]


async def _crash(arguments: dict[str, Any], context: ToolContext) -> str:
    raise RuntimeError("a secret path")


async def _refuse(arguments: dict[str, Any], context: ToolContext) -> str:
    raise ToolError("the disk is full")


async def _stall(arguments: dict[str, Any], context: ToolContext) -> str:
    await asyncio.Event().wait()
    return ""


def _bad(name: str, run: Any, **more: Any) -> Tool:
    return Tool(name=name, description="", parameters={"type": "object"}, effect=ToolEffect.WRITES, run=run, **more)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("nosuch {}", "there is no tool named 'nosuch'"),
        ("read {broken", "the arguments are not JSON"),
        ("read [1]", "the arguments must be a JSON object"),
        ("read {}", "missing arguments: n"),
        ('read {"n": "two"}', "n must be of type integer"),
        ("crash {}", "the tool crashed (RuntimeError)"),
        ("refuse {}", "the disk is full"),
        ("stall {}", "no answer within 0.05 seconds"),
        ("gone {}", "there is no tool named 'gone'"),
    ],
)
async def test_tool_errors_are_results(chat: Chat, shop: Workshop, llm: LLM, call: str, told: str) -> None:
    extra = (
        _bad("crash", _crash),
        _bad("refuse", _refuse),
        _bad("stall", _stall, timeout_seconds=0.05),
        _bad("gone", _refuse, why_unavailable=lambda: "it is gone"),
    )
    name, _, arguments = call.partition(" ")
    llm.scripts.append(
        {"times": 1, "last_role": "user", "reply": {"tool_calls": [{"name": name, "arguments": arguments}]}}
    )
    turn = await chat.start("go")
    answer = await shop.agent(*extra).run(turn, Sink())
    assert told in answer.text
    assert "a secret path" not in answer.text
    [run] = (await chat.store.read(load_tool_runs, (await chat.said(turn))[1].id)).values()
    assert run is ToolRunState.FAILED


async def test_a_steer_joins_before_the_next_model_call(chat: Chat, shop: Workshop, llm: LLM) -> None:
    turn = await chat.start('[[tool:read {"n": 1}]]')
    shop.gate.clear()
    running = asyncio.create_task(shop.agent().run(turn, Sink()))
    await shop.entered.wait()
    await chat.receive("rather in French", mode=InboxMode.STEER)
    await chat.receive("and later this", mode=InboxMode.QUEUE)
    shop.gate.set()
    assert (await running).text == "echo: [2026-01-01 00:00] rather in French"
    assert [message["role"] for message in llm.requests.rows[1]["body"]["messages"]] == [
        "system", "user", "assistant", "tool", "user",
    ]  # fmt: skip


async def test_text_with_calls_is_shown_and_stored_but_is_not_the_answer(chat: Chat, shop: Workshop, llm: LLM) -> None:
    call = {"name": "read", "arguments": {"n": 1}}
    llm.scripts.append({"times": 1, "last_role": "user", "reply": {"text": "Let me look.", "tool_calls": [call]}})
    turn, sink = await chat.start("go"), Sink()
    answer = await shop.agent().run(turn, sink)
    assert "Let me look." in sink.shown
    assert answer.text == "tool said: done 1"
    assert (await chat.said(turn))[1].text == "Let me look."


async def test_an_answer_cut_by_the_output_limit_is_marked(chat: Chat, agent: SingleModelAgent, llm: LLM) -> None:
    llm.scripts.append({"times": 1, "reply": {"text": "half an ans", "finish": "length"}})
    assert (await agent.run(await chat.start("go"), Sink())).text == f"half an ans\n\n{CUT_OFF}"


async def test_a_turn_that_repeats_calls_must_answer(chat: Chat, shop: Workshop, llm: LLM) -> None:
    llm.scripts.append({"times": 2, "reply": {"tool_calls": [{"name": "read", "arguments": {"n": 1}}]}})
    answer = await shop.agent(options=settings(max_tool_rounds=2)).run(await chat.start("go"), Sink())
    assert answer.text == f"tool said: done 1\n\n{ROUNDS_USED_UP.format(2)}"
    bodies = [request["body"] for request in llm.requests.rows]
    assert [body.get("tool_choice") for body in bodies] == [None, None, "none"]
    assert bodies[2]["tools"] == bodies[0]["tools"]


async def test_a_turn_that_never_stops_calling_tools_fails(chat: Chat, shop: Workshop, llm: LLM) -> None:
    llm.scripts.append({"times": -1, "reply": {"tool_calls": [{"name": "read", "arguments": {"n": 1}}]}})
    with pytest.raises(ReplyMalformed):
        await shop.agent(options=settings(max_tool_rounds=2)).run(await chat.start("go"), Sink())
    assert len(shop.ran) == 2
    assert await chat.ledger() == [("turn", "ok"), ("turn", "ok"), ("turn", "malformed")]


# ---- room in the window


async def test_a_prompt_that_does_not_fit_is_never_sent(chat: Chat, shop: Workshop, llm: LLM) -> None:
    small = settings(context_length=Tokens(4_096), max_output_tokens=Tokens(1_024))
    turn = await chat.start("word " * 4_000)
    with pytest.raises(ContextOverflow) as raised:
        await shop.agent(options=small).run(turn, Sink())
    assert raised.value.window == 4_096
    assert (raised.value.prompt_tokens or 0) > 4_096
    assert llm.requests.rows == []
    assert len(await chat.said(turn)) == 1


# ---- resuming after a crash

CALLS = (
    ToolCall(id="c1", name="read", arguments='{"n": 1}'),
    ToolCall(id="c2", name="write", arguments='{"n": 2}'),
    ToolCall(id="c3", name="gone", arguments='{"n": 3}'),
)
RECORD = ModelCall(purpose="turn", route="r", model="m", outcome="ok", usage=None, took_ms=1)


async def _asked(chat: Chat, *calls: ToolCall) -> tuple[RunningTurn, Message]:
    """Store a turn in which the model has made `calls`, by default `CALLS`."""
    turn = await chat.start("go")
    step = ModelAnswer(text="", calls=calls or CALLS, call=RECORD, reported_prompt_tokens=None)
    return turn, await chat.store.write(journal.append_calls, turn, step, chat.clock.now())


async def _begin(chat: Chat, turn: RunningTurn, message: Message, *calls: ToolCall) -> None:
    await chat.store.write(journal.start_tools, turn, message.id, calls, chat.clock.now())


async def _end(chat: Chat, turn: RunningTurn, message: Message, call: ToolCall) -> None:
    result = ToolResult(call_message_id=message.id, call=call, text="before", state=ToolRunState.DONE)
    await chat.store.write(journal.finish_tool, turn, result, chat.clock.now())


async def test_a_call_without_a_start_row_is_run(chat: Chat, shop: Workshop) -> None:
    turn, _ = await _asked(chat)
    answer = await shop.agent().run(turn, Sink())
    assert sorted(shop.ran) == [("read", 1), ("write", 2)]
    assert "there is no tool named 'gone'" in answer.text


async def test_a_call_with_a_start_row_is_not_repeated(chat: Chat, shop: Workshop) -> None:
    execute = ToolCall(id="c4", name="execute", arguments='{"n": 4}')
    turn, message = await _asked(chat, *CALLS, execute)
    await _begin(chat, turn, message, *CALLS, execute)
    await shop.agent(shop.tool("execute", ToolEffect.EXECUTES)).run(turn, Sink())
    assert shop.ran == [("read", 1)]  # a read-only call may be repeated
    said = {row.tool_call_id: row.text for row in await chat.said(turn) if row.role is MessageRole.TOOL}
    assert said == {"c1": "done 1", "c2": OUTCOME_UNKNOWN, "c3": OUTCOME_UNKNOWN, "c4": OUTCOME_UNKNOWN}
    unknown = ToolRunState.UNKNOWN
    runs = await chat.store.read(load_tool_runs, message.id)
    assert runs == {"c1": ToolRunState.DONE, "c2": unknown, "c3": unknown, "c4": unknown}


async def test_only_calls_without_results_are_run(chat: Chat, shop: Workshop) -> None:
    turn, message = await _asked(chat)
    await _begin(chat, turn, message, CALLS[1])
    await _end(chat, turn, message, CALLS[1])
    await shop.agent().run(turn, Sink())
    assert shop.ran == [("read", 1)]
    said = {row.tool_call_id: row.text for row in await chat.said(turn) if row.role is MessageRole.TOOL}
    assert said["c2"] == "before"


async def test_a_turn_resumed_after_its_last_result_accepts_steers(chat: Chat, shop: Workshop, llm: LLM) -> None:
    turn, message = await _asked(chat)
    for call in CALLS:
        await _end(chat, turn, message, call)
    await chat.receive("in French", mode=InboxMode.STEER)
    answer = await shop.agent().run(turn, Sink())
    assert (shop.ran, answer.text, len(llm.requests.rows)) == ([], "echo: [2026-01-01 00:00] in French", 1)


@pytest.mark.parametrize("place", range(1, 40))
async def test_a_turn_cancelled_at_any_step_resumes_without_duplicates(chat: Chat, shop: Workshop, place: int) -> None:
    turn = await chat.start('[[tool:write {"n": 1}]] [[tool:read {"n": 2}]]')
    running = asyncio.create_task(shop.agent().run(turn, Sink()))
    for _ in range(place * 3):  # a cancellation can arrive at every step of the event loop
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    turn = await chat.store.write(take_up, turn, True)
    assert (await shop.agent().run(turn, Sink())).text.startswith("tool said: ")
    assert [name for name, _ in shop.ran].count("write") <= 1
    said = await chat.said(turn)
    assert (len(tool_texts(said)), len(said)) == (2, 4)


async def test_the_step_of_a_cancelled_call_ends(chat: Chat, shop: Workshop) -> None:
    steps, agent = list[Step](), shop.agent()
    shop.gate.clear()
    turn = await chat.start('[[tool:read {"n": 1}]]')
    running = asyncio.create_task(agent.agent.run(turn, Sink().show, agent.model, None, on_step=steps.append))
    await shop.entered.wait()
    running.cancel()
    await asyncio.wait([running])
    assert [step.state for step in steps] == [ToolRunState.STARTED, ToolRunState.UNKNOWN]


async def test_a_stopped_turn_ends_without_an_answer(chat: Chat, shop: Workshop) -> None:
    turn = await chat.start('[[tool:read {"n": 1}]]')
    shop.gate.clear()
    running = asyncio.create_task(shop.agent().run(turn, Sink()))
    await shop.entered.wait()
    await chat.store.write(journal.stop_turn, turn, "", "stopped", chat.clock.now(), notice="(stopped)")
    shop.gate.set()
    with pytest.raises(TurnMoved):
        await running


async def test_a_reply_for_a_stopped_turn_is_recorded(chat: Chat, shop: Workshop, llm: LLM) -> None:
    llm.add_scripts([{"match": "go", "pause_after": 1, "tool_calls": [{"name": "read", "arguments": '{"n": 1}'}]}])
    turn = await chat.start("go")
    running = asyncio.create_task(shop.agent().run(turn, Sink()))
    while not llm.requests.rows:  # noqa: ASYNC110 - the server's list has no event
        await asyncio.sleep(0.001)
    await chat.store.write(journal.stop_turn, turn, "", "stopped", chat.clock.now(), notice="(stopped)")
    llm.resumed.set()
    with pytest.raises(TurnMoved):
        await running
    assert shop.ran == []
    assert await chat.ledger() == [("turn", "ok")]


async def test_an_answer_cancelled_while_it_is_recorded_is_in_the_ledger(chat: Chat, shop: Workshop, llm: LLM) -> None:
    llm.add_scripts([{"match": "go", "pause_after": 1, "text": "an answer"}])
    turn = await chat.start("go")
    running = asyncio.create_task(shop.agent().run(turn, Sink()))
    while not llm.requests.rows:  # noqa: ASYNC110 - the server's list has no event
        await asyncio.sleep(0.001)
    async with one_batch(chat.store):
        llm.resumed.set()
        await llm.requests.query({"wait": 20}, lambda row: row["outcome"] != "open")
        await asyncio.sleep(0.2)  # the reply has been read, and now waits for the writer
        running.cancel()
        await asyncio.sleep(0.01)
    await asyncio.wait([running])
    assert running.cancelled()
    assert await chat.ledger() == [("turn", "ok")]


async def test_a_store_error_ends_the_turn(chat: Chat, shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = await chat.start('[[tool:read {"n": 1}]]')
    write = chat.store.write

    async def failing(fn: Callable[..., Any], *args: Any) -> Any:
        if fn is journal.finish_tool:
            raise StoreUnavailable("no space left")
        return await write(fn, *args)

    monkeypatch.setattr(chat.store, "write", failing)
    with pytest.raises(StoreUnavailable):
        await shop.agent().run(turn, Sink())
