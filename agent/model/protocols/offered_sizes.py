"""What servers of OpenAI's kind say about the sizes of their models.

OpenAI itself says nothing; nearly everybody else adds fields of their own, to the one model or to the list of all.
Servers of one's own are asked in their own way, because what a model was trained for is not what they hold of it.
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

MAX_SECONDS: Final = 5.0
"""For all questions together: somebody waits for the answer to a message."""
MAX_BYTES: Final = 4_000_000
"""Of one answer. The longest lists have a few hundred models with a kilobyte or two for each."""

OPENAI_HOST: Final = "api.openai.com"
"""Not asked: it says nothing about sizes."""

_CONTEXT_NAMES: Final = ("context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens")
_OUTPUT_NAMES: Final = ("max_completion_tokens", "max_output_tokens", "max_output_length")

Get = Callable[[str], Awaitable[object]]
"""Fetches JSON from a whole address. Raises the kinds of `ModelError`."""


async def offered_limits(get: Get, model: str, base_url: str) -> ModelLimits | None:
    """What the server at `base_url` says about its model; None where it could not be asked just now. Raises nothing."""
    return await bounded_limits(model, lambda: _asked(get, model, base_url.rstrip("/")))


async def bounded_limits(model: str, ask: Callable[[], Awaitable[ModelLimits | None]]) -> ModelLimits | None:
    """What `ask` gives in good time. Being refused says nothing about the model, and is worth a line in the log."""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return await ask()
    except (TimeoutError, ModelTimeout, ModelUnavailable, ModelRateLimited) as error:
        log.info("model.sizes_not_asked", model=model, error=type(error).__name__)
        return None
    except ModelError as error:
        log.info("model.sizes_refused", model=model, error=type(error).__name__, reason=str(error))
        return ModelLimits()


async def _asked(get: Get, model: str, base_url: str) -> ModelLimits | None:
    """The one model, else the list of all, else whatever way the server of that owner has."""
    host = urlsplit(base_url).hostname or ""
    if host == OPENAI_HOST:
        return ModelLimits()
    # OpenRouter has another path for the one: its list has more than a megabyte.
    one = f"/{'model' if host.endswith('openrouter.ai') else 'models'}/{_quoted(model)}"
    row: Mapping[str, Any] | None = None
    for path in (one, "/models"):
        try:
            row = row_of(await get(base_url + path), model) or row
        except _FINAL:
            raise
        except ModelError:
            continue  # not every server knows every path
        if row is not None and limits_in(row).context_length is not None:
            return limits_in(row)
    return await _asked_in_its_own_way(get, model, base_url, row or {})


_FINAL: Final = (AuthRejected, QuotaExceeded, ModelRateLimited, ModelTimeout, ModelUnavailable)
"""Another path would be answered alike."""


async def _asked_in_its_own_way(get: Get, model: str, base_url: str, row: Mapping[str, Any]) -> ModelLimits | None:
    said, way = limits_in(row), _OWN_WAYS.get(str(row.get("owned_by")))
    if way is None:
        return said
    held = await way(get, model, base_url.removesuffix("/v1"))
    trained = next(_sizes(row.get("meta"), ("n_ctx_train",)), None)
    return held if held is None or held.context_length is not None else replace(said, context_length=trained)


def row_of(said: object, model: str) -> Mapping[str, Any] | None:
    """The one model in an answer: the answer itself, what it wraps, or the row of a list."""
    if isinstance(said, Mapping):
        wrapped = said.get("data")
        if wrapped is None:
            return said if "error" not in said else None
        said = wrapped
    if isinstance(said, Mapping):
        return said
    if not isinstance(said, list):
        return None
    rows = [row for row in said if isinstance(row, Mapping)]
    return next((row for row in rows if model == row.get("id") or model in _listed(row.get("aliases"))), None)


def limits_in(row: Mapping[str, Any]) -> ModelLimits:
    """The sizes in a description, by the names that providers give them; of several contexts the smallest."""
    top = row.get("top_provider")  # OpenRouter's: where a request most likely goes
    top = top if isinstance(top, Mapping) else {}
    contexts = [*_sizes(row, _CONTEXT_NAMES), *_sizes(top, _CONTEXT_NAMES), *_sizes(row.get("meta"), ("n_ctx",))]
    outputs = [*_sizes(row, _OUTPUT_NAMES), *_sizes(top, _OUTPUT_NAMES)]
    return ModelLimits(context_length=min(contexts, default=None), max_output_tokens=min(outputs, default=None))


def _sizes(row: object, names: tuple[str, ...]) -> Iterator[Tokens]:
    for name in names:
        value = row.get(name) if isinstance(row, Mapping) else None
        if type(value) is int and value > 0:  # a truth value is an int, too
            yield Tokens(value)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _quoted(model: str) -> str:
    return quote(model, safe="/:@")


# ---- servers of one's own


async def _of_llama_cpp(get: Get, model: str, root: str) -> ModelLimits | None:
    """Older ones tell in their list only what the model was trained for, and here what they were started with."""
    said = await get(f"{root}/props?model={quote(model, safe='')}")
    settings = said.get("default_generation_settings") if isinstance(said, Mapping) else None
    return ModelLimits(context_length=next(_sizes(settings, ("n_ctx",)), None))


async def _of_lm_studio(get: Get, model: str, root: str) -> ModelLimits | None:
    said = await get(f"{root}/api/v0/models/{_quoted(model)}")
    held = next(_sizes(said, ("loaded_context_length",)), None)
    return None if held is None else ModelLimits(context_length=held)


async def _of_ollama(get: Get, model: str, root: str) -> ModelLimits | None:
    """It cuts prompts to what it holds without a word. What that is it says only of models that are loaded."""
    said = await get(f"{root}/api/ps")
    for row in _listed(said.get("models")) if isinstance(said, Mapping) else []:
        if isinstance(row, Mapping) and row.get("name") in (model, f"{model}:latest"):
            return ModelLimits(context_length=next(_sizes(row, ("context_length",)), None))
    return None


_OWN_WAYS: Final[Mapping[str, Callable[[Get, str, str], Awaitable[ModelLimits | None]]]] = {
    "llamacpp": _of_llama_cpp,
    "library": _of_ollama,
    "organization_owner": _of_lm_studio,
}
"""By what `owned_by` says there."""
