"""Measuring conversations: what is remembered gives the same sizes as looking at every row."""

import pytest

from agent.context.limits import LimitSettings, limits_of
from agent.context.profiles import ProfileBook
from agent.context.rooms import Rooms
from agent.model.chat_completions import ChatCompletionsModel
from agent.turn import Agent, scene_of
from hermes_state.profiles import learn_context
from hermes_state.transcripts import hide, load_view
from hermes_state.values import Tokens
from hermes_state.views import ViewCache
from tests.agent.conftest import Chat, Sink


def rooms_of(
    chat: Chat, agent: Agent, model: ChatCompletionsModel, *, context: int = 131_072, reserved: int = 8_192
) -> Rooms:
    return Rooms(
        store=chat.store,
        views=ViewCache(chat.store),
        prompts=agent,
        profiles=ProfileBook(chat.store, model.route, model.name, Tokens(context), chat.clock),
        reserved_output=Tokens(reserved),
        settings=LimitSettings(),
    )


@pytest.mark.parametrize(("context", "reserved"), [(131_072, 8_192), (200_000, 100_000), (8_192, 6_144)])
def test_the_answer_has_the_room_that_is_configured_for_it(
    context: int, reserved: int, chat: Chat, agent: Agent, model: ChatCompletionsModel
) -> None:
    rooms = rooms_of(chat, agent, model, context=context, reserved=reserved)
    assert rooms.limits == limits_of(context, reserved, LimitSettings())


@pytest.mark.parametrize(
    ("context", "reserved", "stated", "input_window"),
    [
        (131_072, 8_192, 128_000, 119_808),
        (131_072, 8_192, 16_384, 12_288),  # a quarter of it is enough for the answer
        (200_000, 100_000, 190_000, 100_000),
        (200_000, 100_000, 100_000, 75_000),
        (100_000, 95_000, 8_000, 5_000),  # as much as before
    ],
)
async def test_in_a_smaller_window_the_answers_room_gives_way_down_to_a_quarter(
    context: int,
    reserved: int,
    stated: int,
    input_window: int,
    chat: Chat,
    agent: Agent,
    model: ChatCompletionsModel,
) -> None:
    rooms = rooms_of(chat, agent, model, context=context, reserved=reserved)
    await chat.store.write(learn_context, model.route, model.name, Tokens(stated), Tokens(context), chat.clock.now())
    await rooms.profiles.load()
    assert (rooms.limits.context_length, rooms.limits.input_window) == (stated, input_window)


async def test_a_conversation_that_grows_is_measured_as_if_it_were_new(
    chat: Chat, agent: Agent, model: ChatCompletionsModel
) -> None:
    rooms = rooms_of(chat, agent, model)
    for number in range(6):
        turn = await chat.start(f"message {number} with some words", '[[tool:history_search {"query": "words"}]]')
        await chat.finish(turn, await agent.run(turn, Sink()))
        scene = scene_of(turn)
        assert (await rooms.load(scene)).size == (await rooms_of(chat, agent, model).load(scene)).size
        if number == 3:
            view = await chat.store.read(load_view, turn.lineage_id)
            hidden = [row.id for row in view.transcript[2:5]]
            await chat.store.write(hide, view.session.id, hidden, "undo", chat.clock.now())


async def test_a_look_is_good_for_one_turn_and_for_the_same_view_alone(
    chat: Chat, agent: Agent, model: ChatCompletionsModel
) -> None:
    rooms = rooms_of(chat, agent, model)
    turn = await chat.start("hello")
    scene = scene_of(turn)
    look = await rooms.load(scene)
    rooms.keep(scene, look)
    assert rooms.kept_view(scene) is look.view
    assert await rooms.measure(scene, look.view) is look
    assert rooms.kept_view(scene) is None
    rooms.keep(scene, look)
    assert await rooms.load(scene) is not look, "it was loaded anew"
    assert rooms.kept_view(scene) is None
