"""Measured conversations: cached sizes equal the sizes of a full measurement."""

from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.context.limits import MIN_INPUT_WINDOW, ContextSettings, LimitSettings, limits_of
from agent.context.measure import MeasuredPromptBuilder
from agent.context.model_handle import ModelHandle
from agent.model.base import ChatModel
from agent.model.protocols.offline import OfflineModel
from agent.prompt import PromptBuilder
from agent.tools.recall import recall_tools
from agent.tools.registry import ToolRegistry
from hermes_state.models.profiles import learn_context
from hermes_state.store.writer import Store
from hermes_state.transcripts import ViewCache, hide, load_view
from hermes_state.values import EstimatedTokens, LineageId, Tokens
from tests.agent.conftest import Chat, FixedClock, Sink
from tests.agents import SingleModelAgent, TurnSettings, handle_of
from tests.clients import client_of

PROMPTS = PromptBuilder(tools=ToolRegistry(recall_tools()))


def measure_of(chat: Chat) -> MeasuredPromptBuilder:
    return MeasuredPromptBuilder(views=ViewCache(chat.store), prompts=PROMPTS)


def handle(chat: Chat, model: ChatModel, *, context: int = 131_072, reserved: int = 8_192) -> ModelHandle:
    sizes = TurnSettings(context_length=Tokens(context), max_output_tokens=Tokens(reserved))
    return handle_of(client_of(model, chat.store), sizes, chat.store, chat.clock)


@pytest.mark.parametrize(
    ("context", "reserved", "stated", "input_window"),
    [
        (8_192, 6_144, 8_000, 2_048),
        (131_072, 8_192, 128_000, 119_808),
        (131_072, 8_192, 16_384, 12_288),  # a quarter is enough for the answer
        (200_000, 100_000, 190_000, 100_000),
        (200_000, 100_000, 100_000, 75_000),
        (100_000, 95_000, 8_000, 5_000),  # as much as before
    ],
)
async def test_in_a_smaller_window_the_output_reserve_shrinks_to_a_quarter(
    context: int,
    reserved: int,
    stated: int,
    input_window: int,
    chat: Chat,
    agent: SingleModelAgent,
    model: ChatModel,
) -> None:
    small = handle(chat, model, context=context, reserved=reserved)
    assert small.limits == limits_of(context, reserved, LimitSettings()), "the answer gets its configured room"
    await chat.store.write(learn_context, model.route, model.name, Tokens(stated), Tokens(context), chat.clock.now())
    limits = await small.load_limits()
    assert (limits.context_length, limits.input_window) == (stated, input_window)


_news = st.lists(st.tuples(st.sampled_from(["states", "refuses"]), st.integers(1_000, 2_000_000)), max_size=6)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    context=st.integers(4_000, 2_000_000),
    share=st.floats(0, 1),
    threshold=st.floats(0.001, 1.0),
    hygiene=st.floats(0.85, 0.95),
    news=_news,
)
async def test_a_learned_window_moves_all_limits_together(
    store: Store, context: int, share: float, threshold: float, hygiene: float, news: list[tuple[str, int]]
) -> None:
    reserved = max(1, int((context - MIN_INPUT_WINDOW) * share))
    context_settings = ContextSettings(threshold=threshold, hygiene_threshold=hygiene)
    sizes = TurnSettings(context_length=Tokens(context), max_output_tokens=Tokens(reserved), context=context_settings)
    model = OfflineModel()
    model.name = str(uuid4())  # each example learns for itself
    handle = handle_of(client_of(model, store), sizes, store, FixedClock())
    profile = handle.profile
    here, elsewhere = LineageId(1), LineageId(2)
    for what, tokens in news:
        if what == "states":
            await profile.learn_window(here, tokens)
        else:
            profile.assume_window(here, EstimatedTokens(tokens), None)
        whole, own = handle.limits, handle.limits_for(here)
        assert handle.limits_for(elsewhere) == whole
        assert own.context_length <= whole.context_length <= context
        for limits in (whole, own):
            window, answer = limits.input_window, limits.context_length - limits.input_window
            assert answer <= reserved
            assert window * 4 >= limits.context_length * 3 or window >= context - reserved, "no more is lost"
            assert 1 <= limits.threshold <= limits.hygiene - window // 10
            assert limits.hygiene <= limits.urgent <= window


async def test_a_growing_conversation_is_measured_like_a_new_one(
    chat: Chat, agent: SingleModelAgent, model: ChatModel
) -> None:
    measure, answering = measure_of(chat), handle(chat, model)
    for number in range(6):
        turn = await chat.start(f"message {number} with some words", '[[tool:history_search {"query": "words"}]]')
        await chat.finish(turn, await agent.run(turn, Sink()))
        conversation = turn.conversation
        assert (await measure.load(conversation, answering)).size == (
            await measure_of(chat).load(conversation, answering)
        ).size
        if number == 3:
            view = await chat.store.read(load_view, turn.lineage_id)
            hidden = [row.id for row in view.transcript[2:5]]
            await chat.store.write(hide, view.session.id, hidden, "undo", chat.clock.now())
