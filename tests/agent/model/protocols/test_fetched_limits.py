"""Model sizes as stated by servers, under various names."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from agent.model import http
from agent.model.base import ChatModel, Endpoint, ModelLimits
from agent.model.protocols import limits
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel
from hermes_state.errors import ModelNotFound
from tests.agent.conftest import dialled
from tests.agent.model.asking import said
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

NAME = "maker/lab-model"
NOTHING = ModelLimits()


def answering(answers: Mapping[str, object]) -> tuple[Callable[[str], Any], list[str]]:
    """Fake fetcher with answers by address, which records the requested addresses."""
    asked: list[str] = []

    async def get(address: str, body: object = None) -> object:
        assert (body == {"model": NAME}) == address.endswith("/api/show")  # the only address that wants a POST
        asked.append(address)
        if address not in answers:
            raise ModelNotFound("HTTP 404")
        found = answers[address]
        if isinstance(found, Exception):
            raise found
        return found

    return get, asked


ROOT = "http://10.0.0.2:1234"
API = f"{ROOT}/v1"
ONE = f"{API}/models/{NAME}"
ALL = f"{API}/models"
ROUTER = "https://openrouter.ai/api/v1"
TRAINED = {"model_info": {"general.architecture": "llama", "llama.context_length": 8_192}}
"""Part of Ollama's description of a model: the window that the model was trained for."""


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": NAME, "context_length": 131_072}, said(131_072)),
        ({"id": NAME, "max_model_len": 40_960}, said(40_960)),
        ({"id": NAME, "max_context_length": 131_072}, said(131_072)),
        ({"id": NAME, "context_window": 131_072, "max_completion_tokens": 65_536}, said(131_072, 65_536)),
        ({"id": NAME, "meta": {"n_ctx": 8_192, "n_ctx_train": 131_072}}, said(8_192)),
        ({"id": NAME, "context_length": 131_072, "max_model_len": 16_384}, said(16_384)),
        ({"id": NAME, "context_length": True, "max_model_len": "8192"}, NOTHING),
        ({"id": NAME, "context_length": -1, "max_model_len": 0, "context_window": 8_192.5}, NOTHING),
        ({"id": NAME, "top_provider": "nobody", "meta": [1]}, NOTHING),
    ],
)
async def test_sizes_are_found_under_many_names(row: dict[str, object], expected: ModelLimits) -> None:
    for answers in ({ONE: row}, {ONE: {"data": row}}, {ALL: {"data": [{"id": "x"}, row]}}, {ALL: [row]}):
        get, _ = answering(answers)
        assert await limits.fetch_model_limits(get, NAME, API) == expected


async def test_the_limits_of_the_resellers_top_provider_count() -> None:
    top = {"context_length": 128_000, "max_completion_tokens": 16_384, "is_moderated": True}
    row = {"id": NAME, "context_length": 400_000, "top_provider": top}
    get, asked = answering({f"{ROUTER}/model/{NAME}": {"data": row}})
    assert await limits.fetch_model_limits(get, NAME, ROUTER) == said(128_000, 16_384)
    assert len(asked) == 1
    get, asked = answering({})
    assert await limits.fetch_model_limits(get, "gpt-4.1-mini", "https://api.openai.com/v1/") == NOTHING
    assert asked == [], "OpenAI is not asked"


async def test_the_model_list_is_fetched_only_if_needed() -> None:
    row = {"id": "other", "aliases": [NAME], "max_model_len": 16_384}
    get, asked = answering({ONE: {"id": NAME}, ALL: {"data": [row]}})
    assert await limits.fetch_model_limits(get, NAME, API) == said(16_384)
    assert asked == [ONE, ALL]


@pytest.mark.parametrize(
    "strange", [None, 7, "text", [], {}, {"data": None}, {"data": 7}, {"data": ["x"]}, {"error": "no"}, [[]]]
)
async def test_an_unknown_shape_states_no_limits(strange: object) -> None:
    get, _ = answering({ONE: strange, ALL: strange})
    assert await limits.fetch_model_limits(get, NAME, API) == NOTHING


@pytest.mark.parametrize(
    ("row", "address", "answer", "expected"),
    [
        (
            {"owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}},
            f"{ROOT}/props?model=maker%2Flab-model",
            {"default_generation_settings": {"n_ctx": 4_096}},
            said(4_096),
        ),
        (
            {"owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}},
            f"{ROOT}/props?model=maker%2Flab-model",
            {"default_generation_settings": {"n_ctx": 0}},
            said(131_072),
        ),
        (
            {"owned_by": "organization_owner"},
            f"{ROOT}/api/v0/models/{NAME}",
            {"max_context_length": 131_072, "loaded_context_length": 4_096},
            said(4_096),
        ),
        ({"owned_by": "organization_owner"}, f"{ROOT}/api/v0/models/{NAME}", {"max_context_length": 131_072}, None),
        (
            {"owned_by": "library"},
            f"{ROOT}/api/ps",
            {"models": [{"name": "x", "context_length": 1}, {"name": f"{NAME}:latest", "context_length": 4_096}]},
            said(4_096),
        ),
        ({"owned_by": "library"}, f"{ROOT}/api/show", {"parameters": 'stop "x"', **TRAINED}, None),
        (
            {"owned_by": "library"},
            f"{ROOT}/api/show",
            {"parameters": "num_ctx    2048\nstop x", **TRAINED},
            said(2_048),
        ),
        ({"owned_by": "library"}, f"{ROOT}/api/show", {"parameters": "num_ctx 16384", **TRAINED}, said(8_192)),
    ],
)
async def test_local_servers_state_the_loaded_window(
    row: dict[str, object], address: str, answer: object, expected: ModelLimits | None
) -> None:
    get, asked = answering({f"{ROOT}/api/ps": {"models": []}, ONE: {"id": NAME, **row}, address: answer})
    assert await limits.fetch_model_limits(get, NAME, API) == expected
    assert asked[-1] == address


async def test_every_protocol_fetches_limits(server: Server) -> None:
    url = f"{server.url}/v1"
    for model in (
        ChatCompletionsModel(Endpoint(model="lab-32k", api_key="k", base_url=url)),
        ResponsesModel(Endpoint(model="lab-32k", api_key="k", base_url=url)),
        AnthropicModel(Endpoint(model="lab-32k", api_key="k", base_url=server.url)),
    ):
        assert await model.fetch_limits() == said(32_768, 8_192)
        await model.close()
    assert await OfflineModel().fetch_limits() == NOTHING
    gone = ChatCompletionsModel(Endpoint(model="m", api_key="", base_url="http://127.0.0.1:9/v1"))
    assert await gone.fetch_limits() is None
    await gone.close()


@pytest.mark.parametrize(
    ("status", "expected"), [(404, NOTHING), (400, NOTHING), (401, NOTHING), (429, None), (500, None)]
)
async def test_a_refusal_is_not_retried(server: Server, llm: LLM, status: int, expected: ModelLimits | None) -> None:
    llm.config["models_status"] = status
    is_final = status not in (404, 400)
    async with dialled(server, "lab-32k") as model:
        with capture_logs() as logs:
            assert await model.fetch_limits() == expected
    assert len([line for line in logs if line["event"].startswith("model.limits_")]) == is_final
    assert llm.questions == (1 if is_final else 2), "the single model, and the list if that may help"


@asynccontextmanager
async def told_by(tell: Callable[[web.Request], Any]) -> AsyncIterator[ChatModel]:
    """Yield a model whose server answers every question about models in this way."""
    app = web.Application()
    app.router.add_get("/v1/models", tell)
    app.router.add_get("/v1/models/{name:.+}", tell)
    async with Server(app) as running, dialled(running, "lab-32k") as model:
        yield model


async def test_fetching_limits_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_FETCH_SECONDS", 0.05)

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with told_by(hang) as model:
        assert await model.fetch_limits() is None


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b'{"id": "' + b"x" * 5_000_000 + b'"}', b"\xff\xfe", b""])
async def test_a_too_long_or_invalid_body_states_no_limits(body: bytes) -> None:
    async def tell(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async with told_by(tell) as model:
        assert await model.fetch_limits() == NOTHING
