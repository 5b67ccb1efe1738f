"""The tool `context`: fill level of the window, and requests for a compression."""

from agent.context.limits import ContextSettings
from agent.model.base import ChatModel
from agent.tools.planning import context_tool
from hermes_state.values import MessageRole
from tests.agent.conftest import Chat, Sink
from tests.agent.context.contexts import agent_of, fill_and_ask, look, summary_of
from tests.fakes.fake_llm import LLM


def results(rows: object) -> list[str]:
    return [row.text or "" for row in rows if row.role is MessageRole.TOOL]  # type: ignore[attr-defined]


async def test_the_context_tool_reports_the_fill_level(chat: Chat, small: ChatModel) -> None:
    agent = agent_of(chat, small, tools=[context_tool])
    turn = await fill_and_ask(chat, agent, 2_000, "[[tool:context]]")
    await agent.run(turn, Sink())
    [told] = results(await chat.view(turn))
    assert "of 8,192 tokens" in told
    assert "automatically at 4,096" in told


async def test_a_requested_compression_runs_before_the_next_step(chat: Chat, small: ChatModel, llm: LLM) -> None:
    llm.models["lab-8k"] = {"context": 32_768, "max_output": 8_192}
    agent = agent_of(chat, small, tools=[context_tool], context_length=32_768)
    llm.add_scripts([{"summary": True, "text": summary_of("the agent itself")}])
    turn = await fill_and_ask(chat, agent, 6_000, '[[tool:context {"action": "compress", "focus": "the harbour"}]]')
    await agent.run(turn, Sink())
    assert (await look(chat, turn.lineage_id)).compressions == [("in_loop", "compressed", "model")]
    summary, after = llm.requests.rows[-2:]
    assert "the harbour" in str(summary["body"]["messages"])
    assert "SUMMARY-BY-the agent itself" in str(after["body"]["messages"])
    assert "A compression will run" in str(after["body"]["messages"][-1])


async def test_the_agent_cannot_compress_if_compression_is_off(chat: Chat, small: ChatModel) -> None:
    agent = agent_of(chat, small, tools=[context_tool], context=ContextSettings(enabled=False))
    turn = await fill_and_ask(chat, agent, 3_000, '[[tool:context {"action": "compress"}]]')
    await agent.run(turn, Sink())
    [told] = results(await chat.view(turn))
    assert "no compression is possible now: it is switched off" in told
    assert (await look(chat, turn.lineage_id)).depth == 0
