"""One agent for each model in use: made when it is first needed, from one configuration, closed with the rest."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.engines.adapter import PluginEngine
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel
from agent.turn import Agent
from gateway.assembly import make_agents
from gateway.config import LoadedConfig
from gateway.config.routes import completed
from gateway.config.settings import Config, ModelConfig
from gateway.models.agents import Agents
from gateway.models.pricing import Pricing
from gateway.models.selection import ClientRegistry, make_model, route_of
from hermes_state.chats import load_chat
from hermes_state.store.view_cache import ViewCache
from hermes_state.store.writer import Store
from hermes_state.transcripts import View
from hermes_state.values import ChatId, ConversationRef, SystemClock
from tests.agent.asking import ask, request
from tests.agent.test_plugins import ENGINE
from tests.fakes import fake_llm, labkit
from tests.gateway.helpers import serving
from tests.gateway.test_plugins import put

MODEL = {
    "name": "big",
    "api_key": "k",
    "context_length": 131_072,
    "aliases": {
        "small": {"name": "small", "context_length": 16_384, "max_output_tokens": 2_048},
        "responses": {"name": "big", "protocol": "responses", "streaming": False},
        "home": {"name": "llama", "base_url": "http://127.0.0.1:1/v1"},
        "echo": {"protocol": "offline"},
    },
}


async def silence(_conversation: ConversationRef, _view: View) -> None:
    """Nobody is told."""


@contextmanager
def agents_of(store: Store, home: Path, **sections: object) -> Iterator[tuple[Agents, Config]]:
    config = Config.model_validate({"model": MODEL, **sections})
    clock = SystemClock()
    loaded = LoadedConfig(config=config, home=home, warnings=(), sources={})
    lines = ClientRegistry(config, Pricing(store, clock))
    yield make_agents(loaded, lines, store=store, extra_tools=(), listeners=(), on_wait=silence, clock=clock), config


def agent_named(agents: Agents, config: Config, choice: str | None) -> Agent:
    route = route_of(config.model, choice)
    assert route is not None
    return agents.of(route)


async def test_an_agent_is_made_once_for_each_model_and_only_when_it_is_needed(store: Store, tmp_path: Path) -> None:
    with agents_of(store, tmp_path) as (agents, config):
        assert [agent for _, agent in agents.in_use()] == [agents.configured]
        small = agent_named(agents, config, "small")
        assert small is agent_named(agents, config, "small")
        assert agent_named(agents, config, None) is agents.configured
        assert [agent for _, agent in agents.in_use()] == [agents.configured, small]
        assert small.line.breaker is not agents.configured.line.breaker
        await agents.close()


async def test_long_conversations_are_kept_once_however_many_models_there_are(store: Store, tmp_path: Path) -> None:
    gc.collect()
    before = _view_caches()
    with agents_of(store, tmp_path) as (agents, config):
        assert len({id(agent_named(agents, config, choice)) for choice in (None, "small", "home")}) == 3
        assert _view_caches() == before + 1
        await agents.close()


def _view_caches() -> int:
    return sum(isinstance(one, ViewCache) for one in gc.get_objects())


async def test_each_has_the_window_of_its_model(store: Store, tmp_path: Path) -> None:
    with agents_of(store, tmp_path) as (agents, config):
        assert agents.configured.context.limits.context_length == 131_072
        small = agent_named(agents, config, "small").context.limits
        assert (small.context_length, small.input_window) == (16_384, 14_336)


async def test_what_holds_for_one_model_by_its_name_holds_for_it_alone(store: Store, tmp_path: Path) -> None:
    compression = {"models": {"small": {"threshold": 0.3}}}
    with agents_of(store, tmp_path, compression=compression) as (agents, config):
        small, home = (agent_named(agents, config, name).context.limits for name in ("small", "home"))
        assert small.threshold == 16_384 * 3 // 10
        assert home.threshold == home.context_length // 2


async def test_a_plugin_sees_one_conversation_whatever_model_answers_in_it(store: Store, tmp_path: Path) -> None:
    put(tmp_path, "sample", ENGINE)
    with agents_of(store, tmp_path, context={"engine": "sample"}) as (agents, config):
        engines = [agent.context._drafts.engine for agent in (agents.configured, agent_named(agents, config, "small"))]
        first, second = engines
        assert isinstance(first, PluginEngine)
        assert isinstance(second, PluginEngine)
        assert first._instances is second._instances
        assert (first._model.name, second._model.name) == ("big", "small")


async def test_drafts_on_their_way_are_shared_by_all_also_across_a_reload(store: Store, tmp_path: Path) -> None:
    with agents_of(store, tmp_path) as (old, config), agents_of(store, tmp_path) as (new, _):
        new.follow(old)
        drafts = [
            agent.context._drafts for agent in (old.configured, new.configured, agent_named(new, config, "small"))
        ]
        assert len({id(one._pending) for one in drafts}) == 1


@pytest.mark.parametrize(
    ("alias", "kind", "route"),
    [
        ("small", ChatCompletionsModel, "chat_completions:api.openai.com"),
        ("responses", ResponsesModel, "responses:api.openai.com"),
        ("home", ChatCompletionsModel, "chat_completions:127.0.0.1"),
        ("echo", OfflineModel, "offline"),
    ],
)
async def test_each_protocol_has_its_model(alias: str, kind: type, route: str) -> None:
    settings = ModelConfig.model_validate(MODEL)
    model = make_model(settings.alias_route(alias), settings)
    assert isinstance(model, kind)
    assert model.route == route
    await model.close()


async def test_claude_at_home_needs_its_sdk() -> None:
    pytest.importorskip("anthropic")
    settings = ModelConfig(name="claude-sonnet-4-5", protocol="anthropic", api_key="k")  # type: ignore[arg-type]
    model = make_model(completed("claude-haiku-4-5", settings), settings)
    assert (model.name, model.route) == ("claude-haiku-4-5", "anthropic:api.anthropic.com")
    await model.close()


@pytest.mark.parametrize(("context_length", "limit"), [(16_384, 8_192), (200_000, 32_000)])
async def test_where_a_call_sets_no_limit_claude_is_asked_for_what_leaves_room_for_a_prompt(
    context_length: int, limit: int
) -> None:
    pytest.importorskip("anthropic")
    async with labkit.Server(fake_llm.make_app()) as server:
        given = {"name": "claude-lab-200k", "protocol": "anthropic", "base_url": server.url, "api_key": "k"}
        settings = ModelConfig.model_validate({**given, "context_length": context_length})
        model = make_model(settings.route, settings)
        server.app[fake_llm.LLM_KEY].models["claude-lab-200k"] = {"context": context_length, "max_output": 32_000}
        await ask(model, request(max_output_tokens=None))
        await model.close()
        [row] = server.app[fake_llm.LLM_KEY].requests.rows
    assert (row["outcome"], row["max_tokens"]) == ("ok", limit)


async def test_images_are_for_models_that_see_them(store: Store, tmp_path: Path) -> None:
    settings = {"aliases": {"seeing": {"name": "seer", "images": True}}}
    async with serving(store, tmp_path, model=settings) as gateway:
        row = gateway.message("what is this")
        await gateway.intake.accept(row)
        await gateway.quiet()
        chat = await gateway.store.read(load_chat, ChatId(1))
        assert not await gateway.files._sees_images(chat)
        await gateway.ask("/model seeing")
        assert await gateway.files._sees_images(chat)
        await gateway.ask("/new")
        assert not await gateway.files._sees_images(chat)
