"""The to-do list: changed by the model, and in the prompt exactly once after every compression."""

from typing import Any

import pytest

from agent.context.commit import settle_undo
from agent.model.base import ChatModel
from agent.model.usage import estimated_text_tokens
from agent.tools.planning import MAX_ITEMS, todo_tool
from agent.tools.registry import ToolRegistry
from hermes_state.tools.todos import TodoRow, TodoState, clear_todos, load_todos, put_todos
from hermes_state.transcripts import load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatKey, ConversationRef, Origin
from tests.agent.conftest import SENT_AT, Chat, Sink
from tests.agent.context.contexts import agent_of, compress, fill, look
from tests.agent.tools import calls
from tests.fakes.fake_llm import LLM

LIST = [
    TodoRow(id=1, text="water the plants", state=TodoState.DONE),
    TodoRow(id=2, text="[GATEWAY NOTICE] feed the cat", state=TodoState.IN_PROGRESS),
    TodoRow(id=3, text="call the harbour", state=TodoState.PENDING),
]


async def todos_in_view(chat: Chat, conversation: ConversationRef) -> list[str]:
    view = await chat.store.read(load_view, conversation.lineage_id)
    return [row.text or "" for row in view.transcript if row.origin is Origin.TODO]


async def test_after_ten_compressions_open_items_are_in_the_prompt_once(chat: Chat, small: ChatModel, llm: LLM) -> None:
    agent = agent_of(chat, small)
    conversation = await fill(chat, agent, 3_000)
    await chat.store.write(put_todos, conversation.lineage_id, LIST, SENT_AT, is_whole=True)
    for number in range(10):
        await fill(chat, agent, 3_800)
        await compress(chat, agent, conversation)
        assert (await look(chat, conversation.lineage_id)).depth == number + 1
    turn = await chat.start("and now?")
    await agent.run(turn, Sink())
    prompt = str(llm.requests.rows[-1]["body"]["messages"])
    assert (prompt.count("3. [pending] call the harbour"), prompt.count("2. [in_progress]")) == (1, 1)
    assert "water the plants" not in prompt
    assert [row["body"] for row in llm.requests.rows if "harbour" in str(row["body"])] == [
        llm.requests.rows[-1]["body"]
    ], "no summary request contains the list as a message"
    assert not any(row["violations"] for row in llm.requests.rows)


async def test_an_undone_compression_restores_the_earlier_view(chat: Chat, small: ChatModel) -> None:
    agent = agent_of(chat, small)
    conversation = await fill(chat, agent, 3_500)
    await chat.store.write(put_todos, conversation.lineage_id, LIST, SENT_AT, is_whole=True)
    await compress(chat, agent, conversation)
    [first] = await todos_in_view(chat, conversation)
    await chat.store.write(put_todos, conversation.lineage_id, LIST[:1], SENT_AT, is_whole=True)
    await fill(chat, agent, 3_500)
    await compress(chat, agent, conversation)
    assert await todos_in_view(chat, conversation) == [], "nothing is open any more"
    undo = await agent.context.plan_undo(conversation)
    assert undo is not None
    await chat.store.write(settle_undo, undo, SENT_AT)
    assert await todos_in_view(chat, conversation) == [first]
    undo = await agent.context.plan_undo(conversation)
    assert undo is not None
    await chat.store.write(settle_undo, undo, SENT_AT)
    assert await todos_in_view(chat, conversation) == []


async def test_the_todo_row_is_neither_searched_nor_counted_as_a_message(chat: Chat, small: ChatModel) -> None:
    agent = agent_of(chat, small)
    conversation = await fill(chat, agent, 3_500)
    said = (await look(chat, conversation.lineage_id)).said
    await chat.store.write(put_todos, conversation.lineage_id, LIST, SENT_AT, is_whole=True)
    await compress(chat, agent, conversation)
    assert len(await todos_in_view(chat, conversation)) == 1
    assert (await look(chat, conversation.lineage_id)).said == said


async def test_a_long_list_takes_at_most_a_tenth_of_the_threshold(chat: Chat, small: ChatModel) -> None:
    agent = agent_of(chat, small)
    conversation = await fill(chat, agent, 3_500)
    items = [TodoRow(id=n, text=f"repair pump {n} of the harbour " * 9, state=TodoState.PENDING) for n in range(1, 50)]
    items.append(TodoRow(id=50, text="write down the tides", state=TodoState.IN_PROGRESS))
    await chat.store.write(put_todos, conversation.lineage_id, items, SENT_AT, is_whole=True)
    await compress(chat, agent, conversation)
    [shown] = await todos_in_view(chat, conversation)
    assert estimated_text_tokens(shown) < 500, "of a threshold of 4,096"
    assert "1. [pending] repair pump 1 of" in shown
    assert "50. [in_progress] write down the tides" in shown, "items in progress come first"
    assert shown.endswith("more open items did not fit here: call `todo` to read them)")


async def call(chat: Chat, turn: RunningTurn, **arguments: Any) -> str:
    return (await calls.call(ToolRegistry([todo_tool(chat.clock)]), chat, turn, "todo", **arguments)).text


async def test_a_list_can_be_replaced_or_changed_item_by_item(chat: Chat) -> None:
    turn = await chat.start("hello")
    assert await call(chat, turn) == "The list is empty."
    written = await call(chat, turn, items=[{"text": "one\nline"}, {"text": "two", "state": "in_progress"}])
    assert written == "2 items, 2 open:\n1. [pending] one line\n2. [in_progress] two"
    changed = await call(chat, turn, items=[{"id": 2, "state": "done"}, {"text": "three"}], update=True)
    assert changed == "3 items, 2 open:\n1. [pending] one line\n2. [done] two\n3. [pending] three"
    assert await call(chat, turn, items=[{"text": "anew"}]) == "1 item, 1 open:\n1. [pending] anew"
    other = Chat(chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="43"))
    assert await call(other, await other.start("hello")) == "The list is empty."


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([{"text": ""}], "the text of item 2 must be 1 to 300"),
        ([{"text": "x" * 301}], "the text of item 2 must be 1 to 300"),
        ([{"id": 9, "state": "done"}], "there is no item 9"),
        ([{"text": "x", "state": "lost"}], "Invalid enum value 'lost'"),
        (["x"], "Expected `object`"),
        ([{"text": "x"}] * (MAX_ITEMS + 1), "the limit is 50"),
    ],
)
async def test_invalid_lists_change_nothing_and_give_the_reason(chat: Chat, items: list[Any], why: str) -> None:
    turn = await chat.start("hello")
    await call(chat, turn, items=[{"text": "one"}])
    assert why in await call(chat, turn, items=items, update=True)
    assert [item.text for item in await chat.store.read(load_todos, turn.lineage_id)] == ["one"]
    await chat.store.write(clear_todos, turn.lineage_id)
    assert await chat.store.read(load_todos, turn.lineage_id) == []
