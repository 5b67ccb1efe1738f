"""Calls through the OpenAI SDK: the common part of its two protocols.

A server that refuses a request may accept another form of it, so a model remembers the faults that its server found.

This is the only module that imports private modules of `openai`. The public `import openai` loads the types of all
requests, which takes 11 MB and 0.2 to 0.4 s at every start. Typed resources load theirs when they are first used.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from agent.model.base import CallForm, Endpoint, ModelLimits, ModelRequest, refusal_text, with_fields
from agent.model.http import HttpChatModel, Sdk
from agent.model.protocols.limits import fetch_model_limits
from agent.model.replies import ReplyBuilder
from hermes_state.errors import ModelError
from hermes_state.imports import defer
from hermes_state.values import ReasoningEffort

for package in ("openai", "openai.types", "openai.lib"):
    defer(package)

from openai._base_client import DefaultAioHttpClient  # noqa: E402  # after `defer`
from openai._client import AsyncOpenAI  # noqa: E402
from openai._exceptions import APIConnectionError, APIStatusError  # noqa: E402

OPENAI_SDK: Final = Sdk(
    client=AsyncOpenAI, http_client=DefaultAioHttpClient, refusal=APIStatusError, connection_error=APIConnectionError
)
OPENAI_HOST: Final = "api.openai.com"
BASE_URL: Final = f"https://{OPENAI_HOST}/v1"
"""Address where none is given; the SDK would look for one in the environment."""


class RequestFault(StrEnum):
    """Part of a request that a server refused, where another form may do."""

    LIMIT_NAME = "limit_name"
    """The output limit has another name there."""
    STREAM_OPTIONS = "stream_options"
    """A stream cannot be asked to end with its usage: it does so anyway, or never."""
    ENCRYPTED_REASONING = "encrypted_reasoning"
    """The model has no reasoning that could be sent along."""
    MISSING_REASONING = "missing_reasoning"
    """Every answer needs its reasoning, if only a blank one."""
    MISSING_SIGNATURE = "missing_signature"
    """Every call needs a signature, also one that another model made."""
    REPLAYED_REASONING = "replayed_reasoning"
    """The server does not accept its own reasoning, which may have been made for another account."""


class OpenAIModel(HttpChatModel, ABC):
    """Model at one path of a server. Close it when done."""

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

    def _put_otherwise(self, error: ModelError, request: ModelRequest, form: CallForm) -> tuple[ModelRequest, CallForm]:
        if (other := form.after(error)) is None and (fault := fault_of(error)) is not None:
            other = replace(form, faults=form.faults | {fault})
        return request, other or form

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        known = {  # not every model knows these words: the best comes first
            "off": ("none", "minimal", "low"),
            "minimal": ("minimal", "low"),
            "xhigh": ("xhigh", "high"),
            "max": ("max", "xhigh", "high"),
        }
        words = known.get(effort, (effort,)) if effort is not None else ()
        forms = [*map(self._effort_fields, words), {}]
        # Some models call tools only where they are told not to think.
        return [*forms, self._effort_fields("none")] if request.tools else forms

    @abstractmethod
    def _effort_fields(self, word: str) -> dict[str, Any]:
        """Fields of a request's body that ask for an effort."""

    @abstractmethod
    def _encoded(self, request: ModelRequest, faults: Collection[str], fields: Mapping[str, Any]) -> bytes:
        """Return the body of the HTTP request, without these faults, with further fields."""


def add_options(
    body: dict[str, Any], request: ModelRequest, *, limit_key: str, tools: Sequence[Mapping[str, object]]
) -> None:
    """Add the fields that both protocols name alike: output limit, tools in the API's form, and cache key."""
    if request.max_output_tokens is not None:
        body[limit_key] = request.max_output_tokens
    if tools:
        body["tools"] = tools
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key[:64]  # OpenAI refuses longer ones


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
"""Patterns of a refusal's line of code and parameter, and of its text: some servers pass on OpenAI's words alone."""


def fault_of(error: ModelError) -> RequestFault | None:
    """Return the part of the request that the provider refused, if another form may help."""
    cause, text = error.__cause__, refusal_text(error)
    if not text or not isinstance(cause, APIStatusError):
        return None
    told = f"{cause.code} {cause.param}\n{text}"
    return next((fault for fault, pattern in _FAULTS.items() if re.search(pattern, told, re.IGNORECASE)), None)
