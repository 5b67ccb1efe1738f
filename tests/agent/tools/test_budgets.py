"""Results that are too long for the window: stored completely, shown in part, and read in parts."""

from typing import Any

import pytest

from agent.model.base import ChatModel
from agent.tool_calls import ResultBudget
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolContext, ToolRegistry
from hermes_state.search.full_text import search
from hermes_state.values import Message, MessageRole, Tokens, ToolCall, ToolEffect
from tests.agent.conftest import Chat, Sink, agent_for, settings
from tests.agents import SingleModelAgent

ANY_OBJECT = {"type": "object"}


def long_result(length: int) -> str:
    return "beginning " + "some words " * (length // 11) + " zanzibar-end"


def agent_with(chat: Chat, model: ChatModel, *tools: Tool, window: int = 131_072) -> SingleModelAgent:
    sizes = settings(context_length=Tokens(window), max_output_tokens=Tokens(1_024))
    return agent_for(chat, model, (*recall_tools(), *tools), configured=sizes)


def reader(name: str, length: int, **changes: Any) -> Tool:
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        return long_result(arguments.get("length", length))

    return Tool(name=name, description="", parameters=ANY_OBJECT, effect=ToolEffect.READ_ONLY, run=run, **changes)


async def tool_rows(chat: Chat, turn: Any) -> list[Message]:
    return [row for row in await chat.view(turn) if row.role is MessageRole.TOOL]


async def test_a_long_result_is_stored_whole_and_shown_by_its_beginning(chat: Chat, model: ChatModel) -> None:
    turn = await chat.start("[[tool:big]]")
    await agent_with(chat, model, reader("big", 150_000)).run(turn, Sink())
    [shown] = await tool_rows(chat, turn)
    [stored] = [row for row in await chat.said(turn) if row.role is MessageRole.TOOL]
    assert stored.text == long_result(150_000)
    assert shown.text.startswith(f'<persisted-output id="m{stored.id}">')
    assert "beginning some words" in shown.text
    assert len(shown.text) < 2_500
    assert shown.tool_call_id == stored.tool_call_id


async def test_a_stored_result_is_opened_in_parts_and_is_never_stored_again(chat: Chat, model: ChatModel) -> None:
    turn = await chat.start("[[tool:big]]")
    await agent_with(chat, model, reader("big", 150_000)).run(turn, Sink())
    [stored] = [row for row in await chat.said(turn) if row.role is MessageRole.TOOL]
    tools = ToolRegistry(recall_tools())
    call = ToolCall(
        id="c", name="history_open", arguments=f'{{"id": "m{stored.id}", "offset": 149000, "limit": 20000}}'
    )
    context = ToolContext.of(turn, chat.store, result_size=ResultBudget().longest(Tokens(8_192)))
    opened = await tools.run(call, tools.check(call), context)
    assert "zanzibar-end" in opened.text
    assert ResultBudget().preview_for(tools.get("history_open"), "x" * 1_000_000, Tokens(8_192)) is None
    hits = await chat.store.read(search, "zanzibar", limit=5, lineage_id=turn.lineage_id)
    assert [hit.message_id for hit in hits] == [stored.id]


async def test_the_largest_results_of_a_round_are_shortened_first(chat: Chat, model: ChatModel) -> None:
    calls = "".join(f'[[tool:big {{"length": {length}}}]]' for length in (60_000, 90_000, 70_000, 500))
    turn = await chat.start(calls)
    await agent_with(chat, model, reader("big", 0)).run(turn, Sink())
    shown = [len(row.text or "") for row in await tool_rows(chat, turn)]
    assert shown[0] > 60_000 > 2_500 > shown[1]
    assert shown[2] > 70_000 > 1_000 > shown[3]


async def test_in_a_small_window_a_result_uses_at_most_a_fifth(chat: Chat, model: ChatModel) -> None:
    turn = await chat.start("[[tool:big]]")
    await agent_with(chat, model, reader("big", 16_000 * 2), window=16_000).run(turn, Sink())
    [shown] = await tool_rows(chat, turn)
    assert "<persisted-output" in shown.text


@pytest.mark.parametrize(
    ("text", "window", "budget", "is_long"),
    [
        ("a" * 20_000, 32_000, {}, False),
        ("漢" * 20_000, 32_000, {}, True),
        ("b" * 1_001, 128_000, {"max_shown_characters": 1_000}, True),
        ("b" * 1_000, 128_000, {"max_shown_characters": 1_000}, False),
    ],
    ids=["plain", "dense text is measured in tokens", "above its own budget", "within its own budget"],
)
def test_a_text_is_long_by_its_tokens_or_the_tools_budget(
    text: str, window: int, budget: dict[str, Any], is_long: bool
) -> None:
    tool = reader("t", 1, **budget)
    assert (ResultBudget().preview_for(tool, text, Tokens(window)) is not None) == is_long
