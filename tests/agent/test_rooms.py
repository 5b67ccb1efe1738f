"""Measuring conversations: what is remembered gives the same sizes as looking at every row."""

from agent.context.limits import LimitSettings
from agent.context.profiles import ProfileBook
from agent.context.rooms import Rooms
from agent.model.chat_completions import ChatCompletionsModel
from agent.turn import Agent, scene_of
from hermes_state.transcripts import hide, load_view
from hermes_state.values import Tokens
from hermes_state.views import ViewCache
from tests.agent.conftest import Chat, Sink


def rooms_of(chat: Chat, agent: Agent, model: ChatCompletionsModel) -> Rooms:
    return Rooms(
        store=chat.store,
        views=ViewCache(chat.store),
        prompts=agent,
        profiles=ProfileBook(chat.store, model.route, model.name, Tokens(131_072), chat.clock),
        reserved_output=Tokens(8_192),
        settings=LimitSettings(),
    )


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
