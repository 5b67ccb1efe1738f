"""The built-in model: honest, deterministic, and able to run a complete turn."""

from agent.model.base import ModelRequest
from agent.model.protocols.offline import MODEL_SETUP_HINT, OfflineModel
from agent.turn import Answer
from hermes_state.turns import RunningTurn
from hermes_state.values import MessageRole
from tests.agent.conftest import Chat, Sink, agent_for
from tests.agent.context.rows import human


async def answered(chat: Chat, text: str, sink: Sink | None = None) -> tuple[RunningTurn, Answer]:
    """Finish a turn with the offline model."""
    turn = await chat.start(text)
    answer = await agent_for(chat, OfflineModel(pause_seconds=0)).run(turn, sink or Sink())
    await chat.finish(turn, answer)
    return turn, answer


async def test_every_answer_says_what_it_is_and_grows_in_small_pieces(chat: Chat) -> None:
    for text in ("hello", "search for hello", "open m1", ""):
        sink = Sink()
        _, answer = await answered(chat, text, sink)
        assert "offline model" in answer.text
        assert MODEL_SETUP_HINT in answer.text
        assert (len(sink.shown) > 10, sink.shown[-1]) == (True, answer.text)
        assert all(later.startswith(earlier) for earlier, later in zip(sink.shown, sink.shown[1:], strict=False))


async def test_a_search_or_an_open_request_calls_the_tool_and_shows_the_result(chat: Chat) -> None:
    await answered(chat, "the code word is xylophone")
    turn, answer = await answered(chat, "please search for xylophone")
    assert "m1 " in answer.text
    assert "the code word is xylophone" in answer.text
    said = [row for row in await chat.said(turn) if row.turn_id == turn.id]
    assert [row.role for row in said[1:3]] == [MessageRole.ASSISTANT, MessageRole.TOOL]
    assert said[2].tool_name == "history_search"
    assert "> the code word is xylophone" in (await answered(chat, "open m1"))[1].text


async def test_the_same_rows_give_the_same_answer_and_usage() -> None:
    request = ModelRequest(system="S", transcript=(human("hello"),), max_output_tokens=1_000)
    model = OfflineModel(pause_seconds=0)
    one, two = [await model.complete(request, lambda text: None) for _ in range(2)]
    assert one == two
    assert min(one.usage.prompt, one.usage.output) > 0
