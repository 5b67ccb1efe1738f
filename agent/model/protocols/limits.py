"""Model limits as stated by OpenAI-compatible servers.

OpenAI itself states no limits. Most other servers add their own fields to a model's description or to the model list.
Local servers have their own endpoints, because they can load a model with a smaller window than it was trained for.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from agent.model.base import ModelLimits
from agent.model.errors import remedy_for
from hermes_state.errors import ModelError, ModelNotFound, ReplyMalformed
from hermes_state.values import Tokens

_CONTEXT_NAMES: Final = ("context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens")
_OUTPUT_NAMES: Final = ("max_completion_tokens", "max_output_tokens", "max_output_length")


async def fetch_model_limits(get: Callable[..., Awaitable[object]], model: str, base_url: str) -> ModelLimits | None:
    """Return the limits that a server states for a model, or None if it states them only once the model is loaded.

    `get` fetches JSON from an absolute URL, to which it posts its second argument if there is one. Raises
    `ModelError` only if requests to other paths would fail in the same way.
    """
    base_url, path = base_url.rstrip("/"), quote(model, safe="/:@")
    host = urlsplit(base_url).hostname or ""
    if host == "api.openai.com":
        return ModelLimits()
    # OpenRouter has a different path for a single model, and its model list is larger than a megabyte.
    model_path = f"/{'model' if host.endswith('openrouter.ai') else 'models'}/{path}"
    row: Mapping[str, Any] = {}
    for asked in (model_path, "/models"):
        try:
            row = _row_of(await get(base_url + asked), model) or row
        except ModelError as error:
            if remedy_for(error).trouble is None or isinstance(error, ModelNotFound | ReplyMalformed):
                continue  # not every server has every path
            raise
        if (stated := limits_in(row)).context_length is not None:
            return stated
    root = base_url.removesuffix("/v1")
    match row.get("owned_by"):
        case "llamacpp":  # older versions list only the window that the model was trained for
            settings = _field(await get(f"{root}/props?model={quote(model, safe='')}"), "default_generation_settings")
            sizes = (*_sizes_in(settings, "n_ctx"), *_sizes_in(row.get("meta"), "n_ctx_train"), None)
            return replace(limits_in(row), context_length=sizes[0])
        case "organization_owner":  # LM Studio
            held = next(_sizes_in(await get(f"{root}/api/v0/models/{path}"), "loaded_context_length"), None)
            return None if held is None else ModelLimits(context_length=held)
        case "library":  # Ollama states the window only for loaded models, and silently cuts longer prompts
            for loaded in _as_list(_field(await get(f"{root}/api/ps"), "models")):
                if _field(loaded, "name") in (model, f"{model}:latest"):
                    return ModelLimits(context_length=next(_sizes_in(loaded, "context_length"), None))
            # A model that is not loaded will get the window of its Modelfile, or else of the server's settings.
            shown = await get(f"{root}/api/show", {"model": model})
            size = re.search(r"^num_ctx\s+(\d+)$", str(_field(shown, "parameters")), re.MULTILINE)
            info = _field(shown, "model_info")
            trained = _sizes_in(info, f"{_field(info, 'general.architecture')}.context_length")
            return None if size is None else ModelLimits(context_length=min((Tokens(int(size[1])), *trained)))
    return limits_in(row)


def _row_of(answer: object, model: str) -> Mapping[str, Any] | None:
    """Return the description of a model from a response: the whole object, its `data`, or one row of a list."""
    if isinstance(answer, Mapping):
        if answer.get("data") is None:
            return answer if "error" not in answer else None
        answer = answer["data"]
    if isinstance(answer, Mapping):
        return answer
    rows = [row for row in _as_list(answer) if isinstance(row, Mapping)]
    return next((row for row in rows if model == row.get("id") or model in _as_list(row.get("aliases"))), None)


def limits_in(row: Mapping[str, Any]) -> ModelLimits:
    """Return the limits in a model's description, under any known field name.

    If several fields state a limit, the smallest value wins.
    """
    top = row.get("top_provider")  # OpenRouter: the provider that most likely receives the request
    own_server = _sizes_in(row.get("meta"), "n_ctx")
    contexts = [*_sizes_in(row, *_CONTEXT_NAMES), *_sizes_in(top, *_CONTEXT_NAMES), *own_server]
    outputs = [*_sizes_in(row, *_OUTPUT_NAMES), *_sizes_in(top, *_OUTPUT_NAMES)]
    return ModelLimits(context_length=min(contexts, default=None), max_output_tokens=min(outputs, default=None))


def _sizes_in(holder: object, *names: str) -> Iterator[Tokens]:
    values = (_field(holder, name) for name in names)
    return (Tokens(value) for value in values if type(value) is int and value > 0)  # excludes booleans


def _field(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else None


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
