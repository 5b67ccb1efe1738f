"""Model handles, created when first needed, and the agent that they share."""

from pathlib import Path

import pytest

from agent.context.model_handle import ModelHandle
from agent.images.scaling import ImageScaler
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel
from agent.tools.offers import OpenAccess
from gateway.config import LoadedConfig
from gateway.config.context_settings import NoticeConfig
from gateway.config.routes import completed
from gateway.config.settings import Config, ModelConfig
from gateway.daemon.agent import AgentMaker
from gateway.models.pricing import SpendingControl
from gateway.models.selection import ModelRegistry, make_model, route_of
from gateway.outbound.notices import NoticeWriter
from hermes_state.chats import load_chat
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, SystemClock
from tests.agent.engines.test_loader import ENGINE
from tests.agent.model.asking import ask, request
from tests.fakes import fake_llm, labkit
from tests.gateway.cli.test_plugin_list import put
from tests.gateway.helpers import Serve

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


def maker_in(store: Store, home: Path) -> AgentMaker:
    clock = SystemClock()
    return AgentMaker(
        store=store,
        clock=clock,
        scaler=ImageScaler(AttachmentFolder(home)),
        spending=SpendingControl(store, clock),
        access_of=lambda _: OpenAccess(),
        notices=NoticeWriter(store=store, settings=NoticeConfig, deliver=lambda _: None, clock=clock),
    )


def models_of(store: Store, home: Path, **sections: object) -> tuple[ModelRegistry, Config]:
    config = Config.model_validate({"model": MODEL, **sections})
    return maker_in(store, home).make(loaded(config, home))[1], config


def loaded(config: Config, home: Path) -> LoadedConfig:
    return LoadedConfig(config=config, home=home, warnings=(), sources={})


def model_named(models: ModelRegistry, config: Config, choice: str | None) -> ModelHandle:
    route = route_of(config.model, choice)
    assert route is not None
    return models.of(route)


async def test_a_handle_is_created_once_per_model_and_only_when_needed(store: Store, tmp_path: Path) -> None:
    models, config = models_of(store, tmp_path)
    assert models.in_use() == [models.configured.client]
    small = model_named(models, config, "small")
    assert small is model_named(models, config, "small")
    assert model_named(models, config, None) is models.configured
    assert models.in_use() == [models.configured.client, small.client]
    assert small.client.breaker is not models.configured.client.breaker


async def test_checking_the_circuit_of_an_unused_route_creates_no_handle(store: Store, tmp_path: Path) -> None:
    models, config = models_of(store, tmp_path)
    route = route_of(config.model, "small")
    assert route is not None
    assert models.open_circuit(route) is None
    assert len(models.in_use()) == 1


async def test_each_handle_has_the_window_of_its_model(store: Store, tmp_path: Path) -> None:
    models, config = models_of(store, tmp_path)
    assert models.configured.limits.context_length == 131_072
    small = model_named(models, config, "small").limits
    assert (small.context_length, small.input_window) == (16_384, 14_336)


async def test_overrides_for_a_model_apply_only_to_that_model(store: Store, tmp_path: Path) -> None:
    compression = {"models": {"small": {"threshold": 0.3}}}
    models, config = models_of(store, tmp_path, compression=compression)
    small, home = (model_named(models, config, name).limits for name in ("small", "home"))
    assert (small.threshold, home.threshold) == (16_384 * 3 // 10, home.context_length // 2)


async def test_a_plugin_engine_learns_each_answering_model(store: Store, tmp_path: Path) -> None:
    models, config = models_of(store, tmp_path)
    told = [model_named(models, config, choice).info for choice in (None, "small", "home")]
    assert [(info.name, info.base_url) for info in told] == [
        ("big", ""),
        ("small", ""),
        ("llama", "http://127.0.0.1:1/v1"),
    ]


async def test_one_agent_with_the_configured_engine_runs_the_turns_of_all_models(store: Store, tmp_path: Path) -> None:
    put(tmp_path, "sample", ENGINE)
    config, maker = Config.model_validate({"model": MODEL, "context": {"engine": "sample"}}), maker_in(store, tmp_path)
    agent, _ = maker.make(loaded(config, tmp_path))
    assert agent.context.engine.name == "sample"
    await maker.close()


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


async def test_the_anthropic_protocol_needs_its_sdk() -> None:
    pytest.importorskip("anthropic")
    settings = ModelConfig(name="claude-sonnet-4-5", protocol="anthropic", api_key="k")  # type: ignore[arg-type]
    model = make_model(completed("claude-haiku-4-5", settings), settings)
    assert (model.name, model.route) == ("claude-haiku-4-5", "anthropic:api.anthropic.com")
    await model.close()


@pytest.mark.parametrize(
    ("given_sizes", "limit"),
    [
        ({"context_length": 16_384}, 8_192),
        ({"context_length": 200_000}, 32_000),
        ({"context_length": 200_000, "max_output_tokens": 4_096}, 4_096),
    ],
)
async def test_the_default_output_limit_for_claude_leaves_room_for_the_prompt(
    given_sizes: dict[str, int], limit: int
) -> None:
    pytest.importorskip("anthropic")
    async with labkit.Server(fake_llm.make_app()) as server:
        given = {"name": "claude-lab-200k", "protocol": "anthropic", "base_url": server.url, "api_key": "k"}
        settings = ModelConfig.model_validate(given | given_sizes)
        model = make_model(settings.route, settings)
        server.app[fake_llm.LLM_KEY].models["claude-lab-200k"] = {"context": 200_000, "max_output": 32_000}
        await ask(model, request(max_output_tokens=None))
        await model.close()
        [row] = server.app[fake_llm.LLM_KEY].requests.rows
    assert (row["outcome"], row["max_tokens"]) == ("ok", limit)


async def test_only_models_with_vision_get_images(serve: Serve) -> None:
    settings = {"aliases": {"seeing": {"name": "seer", "images": True}}}
    async with serve(model=settings) as gateway:
        row = gateway.message("what is this")
        await gateway.intake.accept(row)
        await gateway.quiet()
        chat = await gateway.store.read(load_chat, ChatId(1))
        assert not await gateway.files._sees_images(chat)
        await gateway.ask("/model seeing")
        assert await gateway.files._sees_images(chat)
        await gateway.ask("/new")
        assert not await gateway.files._sees_images(chat)
