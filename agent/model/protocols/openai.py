"""Shared part of the two OpenAI protocols: calls through the OpenAI SDK.

A server that refuses a request may accept a different form. A model therefore remembers why its server refused
requests. Only this module imports private modules of `openai`. The public `import openai` loads the types of all
requests, which takes 11 MB and 0.2 to 0.4 s at every start. Typed resources load their types when they are first used.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from agent.model.base import CallForm, Endpoint, ModelLimits, ModelRequest, refusal_text, with_fields
from agent.model.http import HttpChatModel, Sdk
from agent.model.protocols.limits import fetch_model_limits
from agent.model.replies import ReplyBuilder
from hermes_state.errors import ModelError
from hermes_state.imports import defer
from hermes_state.values import ReasoningEffort

for package in ("openai", "openai.types", "openai.types.shared", "openai.lib"):
    defer(package)

from openai._base_client import DefaultAioHttpClient  # noqa: E402  # after `defer`
from openai._client import AsyncOpenAI  # noqa: E402
from openai._exceptions import APIConnectionError, APIStatusError  # noqa: E402

OPENAI_SDK: Final = Sdk(
    client=AsyncOpenAI, http_client=DefaultAioHttpClient, refusal=APIStatusError, connection_error=APIConnectionError
)
OPENAI_HOST: Final = "api.openai.com"
BASE_URL: Final = f"https://{OPENAI_HOST}/v1"
"""Default base URL. Without this value, the SDK would read a URL from the environment."""


class RequestFault(StrEnum):
    """Reason why a server refused a request that it might accept in a different form."""

    LIMIT_NAME = "limit_name"
    """Refusal because the server uses another name for the output limit."""
    STREAM_OPTIONS = "stream_options"
    """Refusal because the server does not know the option that requests usage at the end of a stream."""
    ENCRYPTED_REASONING = "encrypted_reasoning"
    """Refusal because the model cannot include encrypted reasoning in a reply."""
    MISSING_REASONING = "missing_reasoning"
    """Refusal because the server requires reasoning with every answer. A single space is enough."""
    MISSING_SIGNATURE = "missing_signature"
    """Refusal because the server requires a signature for each answer's first call, even a call by another model."""
    REPLAYED_REASONING = "replayed_reasoning"
    """Refusal because the server rejects reasoning from earlier calls, perhaps because they used another account."""


class OpenAIModel(HttpChatModel, ABC):
    """Chat model on a server that uses an OpenAI protocol. Close it when done."""

    def __init__(self, endpoint: Endpoint, protocol: str, path: str, new_reply: type[ReplyBuilder]) -> None:
        super().__init__(endpoint, protocol, OPENAI_SDK, endpoint.base_url or BASE_URL, path)
        self._new_reply = new_reply

    async def _stated_limits(self) -> ModelLimits | None:
        return await fetch_model_limits(self.fetch_json, self.name, self.base_url)

    def _begun(
        self, request: ModelRequest, form: CallForm, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        payload = self._encoded(request, form.faults, with_fields(form.fields, self._endpoint.extra_body))
        return payload, self._new_reply(on_text, self._made_by, request)

    def _next_form(self, error: ModelError, request: ModelRequest, form: CallForm) -> tuple[ModelRequest, CallForm]:
        if (other := form.after(error)) is None and (fault := fault_of(error)) is not None:
            other = replace(form, faults=form.faults | {fault})
        return request, other or form

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        known = {  # not every model knows every effort; the best match comes first
            "off": ("none", "minimal", "low"),
            "minimal": ("minimal", "low"),
            "xhigh": ("xhigh", "high"),
            "max": ("max", "xhigh", "high"),
        }
        words = known.get(effort, (effort,)) if effort is not None else ()
        forms = [*map(self._effort_fields, words), {}]
        # Some models accept tools only if thinking is off.
        return [*forms, self._effort_fields("none")] if request.tools else forms

    @abstractmethod
    def _effort_fields(self, word: str) -> dict[str, Any]:
        """Return the fields of a request body that set the reasoning effort."""

    @abstractmethod
    def _encoded(self, request: ModelRequest, faults: Collection[str], fields: Mapping[str, Any]) -> bytes:
        """Return the HTTP request body, adapted to `faults`, with additional `fields`."""


def add_options(
    body: dict[str, Any], request: ModelRequest, *, limit_key: str, tools: Sequence[Mapping[str, object]]
) -> None:
    """Add the options that both protocols share: output limit, tools in the API's form, and cache key."""
    if request.max_output_tokens is not None:
        body[limit_key] = request.max_output_tokens
    if tools:
        body["tools"] = tools
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key[:64]  # OpenAI refuses longer keys


_FAULTS: Final = {
    RequestFault.LIMIT_NAME: r"\Aunsupported_parameter max_tokens\n"
    r"|max_tokens\b.{0,80}\buse\b.{0,10}max_completion_tokens",
    RequestFault.STREAM_OPTIONS: r"stream_options",
    RequestFault.ENCRYPTED_REASONING: r"\A.* include|encrypted[ _]content is not supported",
    RequestFault.MISSING_REASONING: r"reasoning_content(?s:.{0,60})(?:must be passed back|is (?:missing|required))"
    r"|missing(?s:.{0,40})reasoning_content",
    RequestFault.MISSING_SIGNATURE: r"missing.{0,40}\bthought_signature",
    RequestFault.REPLAYED_REASONING: r"\Ainvalid_encrypted_content "
    r"|\b(?:reasoning|thinking|encrypted[ _]content|thought[ _]signature)",
}
"""Pattern for each fault, matched against the error's code and parameter (the first line) and its text."""


def fault_of(error: ModelError) -> RequestFault | None:
    """Return the fault behind a refusal, or None if no other form of the request would help."""
    cause, text = error.__cause__, refusal_text(error)
    if not text or not isinstance(cause, APIStatusError):
        return None
    told = f"{cause.code} {cause.param}\n{text}"
    return next((fault for fault, pattern in _FAULTS.items() if re.search(pattern, told, re.IGNORECASE)), None)
