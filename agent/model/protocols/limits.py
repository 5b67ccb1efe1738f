"""Limits of models as servers of OpenAI's kind state them.

OpenAI itself says nothing; nearly everybody else adds fields of their own, to the description of the one model or to
the list of all. Servers of one's own are asked in their own way, because what a model was trained for is not what they
hold of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, urlsplit

import structlog

from agent.model.base import ModelLimits
from hermes_state.errors import (
    AuthRejected,
    ModelError,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    QuotaExceeded,
)
from hermes_state.values import Tokens

log = structlog.get_logger()

MAX_FETCH_SECONDS: Final = 5.0
"""Longest time for all requests together, in seconds: somebody waits for the answer to a message."""

_CONTEXT_NAMES: Final = ("context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens")
_OUTPUT_NAMES: Final = ("max_completion_tokens", "max_output_tokens", "max_output_length")

Get = Callable[[str], Awaitable[object]]
"""Fetches JSON from a whole address. Raises the kinds of `ModelError`."""


async def fetch_model_limits(get: Get, model: str, base_url: str) -> ModelLimits | None:
    """Limits that the server at `base_url` names for its model; None where it could not be asked just now.

    Raises nothing.
    """
    return await bounded_limits(model, lambda: _fetched(get, model, base_url.rstrip("/")))


async def bounded_limits(model: str, fetch: Callable[[], Awaitable[ModelLimits | None]]) -> ModelLimits | None:
    """Limits that `fetch` gives in good time. Being refused says nothing about the model and is logged."""
    try:
        async with asyncio.timeout(MAX_FETCH_SECONDS):
            return await fetch()
    except (TimeoutError, ModelTimeout, ModelUnavailable, ModelRateLimited) as error:
        log.info("model.sizes_not_asked", model=model, error=type(error).__name__)
        return None
    except ModelError as error:
        log.info("model.sizes_refused", model=model, error=type(error).__name__, reason=str(error))
        return ModelLimits()


async def _fetched(get: Get, model: str, base_url: str) -> ModelLimits | None:
    """Asks for the one model, else for the list of all, else as the kind of server wants it."""
    host = urlsplit(base_url).hostname or ""
    if host == "api.openai.com":
        return ModelLimits()
    # OpenRouter has another path for the one: its list has more than a megabyte.
    model_path = f"/{'model' if host.endswith('openrouter.ai') else 'models'}/{_quoted(model)}"
    row: Mapping[str, Any] = {}
    for path in (model_path, "/models"):
        try:
            row = row_of(await get(base_url + path), model) or row
        except _FINAL_ERRORS:
            raise
        except ModelError:
            continue  # not every server knows every path
        described = limits_in(row)
        if described.context_length is not None:
            return described
    fetch_held = _OWN_SERVERS.get(str(row.get("owned_by")))
    if fetch_held is None:
        return limits_in(row)
    held = await fetch_held(get, model, base_url.removesuffix("/v1"))
    trained = next(_sizes_in(row.get("meta"), ("n_ctx_train",)), None)
    return held if held is None or held.context_length is not None else replace(limits_in(row), context_length=trained)


_FINAL_ERRORS: Final = (AuthRejected, QuotaExceeded, ModelRateLimited, ModelTimeout, ModelUnavailable)
"""Errors that another path would be answered with, too."""


def row_of(answer: object, model: str) -> Mapping[str, Any] | None:
    """The one model in an answer: the answer itself, what it wraps, or the row of a list."""
    if isinstance(answer, Mapping):
        if answer.get("data") is None:
            return answer if "error" not in answer else None
        answer = answer["data"]
    if isinstance(answer, Mapping):
        return answer
    rows = [row for row in _as_list(answer) if isinstance(row, Mapping)]
    return next((row for row in rows if model == row.get("id") or model in _as_list(row.get("aliases"))), None)


def limits_in(row: Mapping[str, Any]) -> ModelLimits:
    """The sizes in a description, by the names that providers give them; of several contexts the smallest."""
    top = row.get("top_provider")  # OpenRouter's: where a request most likely goes
    top = top if isinstance(top, Mapping) else {}
    own_server = _sizes_in(row.get("meta"), ("n_ctx",))
    contexts = [*_sizes_in(row, _CONTEXT_NAMES), *_sizes_in(top, _CONTEXT_NAMES), *own_server]
    outputs = [*_sizes_in(row, _OUTPUT_NAMES), *_sizes_in(top, _OUTPUT_NAMES)]
    return ModelLimits(context_length=min(contexts, default=None), max_output_tokens=min(outputs, default=None))


def _sizes_in(row: object, names: tuple[str, ...]) -> Iterator[Tokens]:
    for name in names:
        value = row.get(name) if isinstance(row, Mapping) else None
        if type(value) is int and value > 0:  # a truth value is an int, too
            yield Tokens(value)


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _quoted(model: str) -> str:
    return quote(model, safe="/:@")


# --- servers of one's own


async def _llama_cpp_limits(get: Get, model: str, root: str) -> ModelLimits | None:
    """The window that the server was started with; older ones list only what the model was trained for."""
    answer = await get(f"{root}/props?model={quote(model, safe='')}")
    settings = answer.get("default_generation_settings") if isinstance(answer, Mapping) else None
    return ModelLimits(context_length=next(_sizes_in(settings, ("n_ctx",)), None))


async def _lm_studio_limits(get: Get, model: str, root: str) -> ModelLimits | None:
    answer = await get(f"{root}/api/v0/models/{_quoted(model)}")
    held = next(_sizes_in(answer, ("loaded_context_length",)), None)
    return None if held is None else ModelLimits(context_length=held)


async def _ollama_limits(get: Get, model: str, root: str) -> ModelLimits | None:
    """The window of a loaded model, the only ones it is told of. It cuts longer prompts without a word."""
    answer = await get(f"{root}/api/ps")
    for row in _as_list(answer.get("models")) if isinstance(answer, Mapping) else []:
        if isinstance(row, Mapping) and row.get("name") in (model, f"{model}:latest"):
            return ModelLimits(context_length=next(_sizes_in(row, ("context_length",)), None))
    return None


_OWN_SERVERS: Final[Mapping[str, Callable[[Get, str, str], Awaitable[ModelLimits | None]]]] = {
    "llamacpp": _llama_cpp_limits,
    "library": _ollama_limits,
    "organization_owner": _lm_studio_limits,
}
"""Request that such a server answers, by `owned_by` in its list."""
