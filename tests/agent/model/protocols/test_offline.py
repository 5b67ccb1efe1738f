"""The built-in model: honest, deterministic, and able to run a complete turn."""

from agent.model.base import ModelRequest
from agent.model.protocols.offline import MODEL_SETUP_HINT, OfflineModel
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from hermes_state.values import MessageRole
from tests.agent.conftest import Chat, Sink, settings
from tests.agent.context.rows import human
from tests.agents import SingleModelAgent
from tests.clients import client_of


def offline_agent(chat: Chat) -> SingleModelAgent:
    return SingleModelAgent(
        store=chat.store,
        client=client_of(OfflineModel(pause_seconds=0), chat.store, chat.clock),
        tools=ToolRegistry(recall_tools()),
        settings=settings(),
        clock=chat.clock,
    )


async def test_every_answer_says_what_it_is_and_how_to_get_a_real_model(chat: Chat) -> None:
    for text in ("hello", "search for hello", "open m1", ""):
        turn = await chat.start(text)
        answer = await offline_agent(chat).run(turn, Sink())
        assert "offline model" in answer.text
        assert MODEL_SETUP_HINT in answer.text
        await chat.finish(turn, answer)


async def test_an_answer_grows_in_small_pieces(chat: Chat) -> None:
    sink = Sink()
    answer = await offline_agent(chat).run(await chat.start("hello"), sink)
    assert len(sink.shown) > 10
    assert sink.shown[-1] == answer.text
    assert all(later.startswith(earlier) for earlier, later in zip(sink.shown, sink.shown[1:], strict=False))


async def test_a_search_request_calls_the_tool_and_shows_the_result(chat: Chat) -> None:
    first = await chat.start("the code word is xylophone")
    await chat.finish(first, await offline_agent(chat).run(first, Sink()))
    turn = await chat.start("please search for xylophone")
    answer = await offline_agent(chat).run(turn, Sink())
    assert "m1 " in answer.text
    assert "the code word is xylophone" in answer.text
    said = await chat.said(turn)
    assert [row.role for row in said[-2:]] == [MessageRole.ASSISTANT, MessageRole.TOOL]
    assert said[-1].tool_name == "history_search"


async def test_an_open_request_reads_the_message(chat: Chat) -> None:
    first = await chat.start("the code word is xylophone")
    await chat.finish(first, await offline_agent(chat).run(first, Sink()))
    answer = await offline_agent(chat).run(await chat.start("open m1"), Sink())
    assert "> the code word is xylophone" in answer.text


async def test_the_same_rows_give_the_same_answer_and_usage() -> None:
    request = ModelRequest(system="S", transcript=(human("hello"),), max_output_tokens=1_000)
    model = OfflineModel(pause_seconds=0)
    one, two = [await model.complete(request, lambda text: None) for _ in range(2)]
    assert one == two
    assert one.usage is not None
    assert one.usage.prompt > 0
    assert one.usage.output > 0
