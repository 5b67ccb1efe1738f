"""Calls through the OpenAI SDK: what its two protocols share.

A server that does not take a request may take it put in another way, so a model remembers the faults that its server
found in requests.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from agent.model.base import CallSettings, EndpointSettings, ModelLimits, ModelRequest, refusal_text, with_fields
from agent.model.http import HttpChatModel
from agent.model.protocols.limits import fetch_model_limits
from agent.model.protocols.openai_sdk import OPENAI_SDK, APIStatusError
from agent.model.replies import ReplyBuilder
from hermes_state.errors import ModelError
from hermes_state.values import ReasoningEffort

OPENAI_HOST: Final = "api.openai.com"
BASE_URL: Final = f"https://{OPENAI_HOST}/v1"
"""Address where none is given; the SDK would look for one of whoever runs us."""
MAX_CACHE_KEY_CHARACTERS: Final = 64
"""Longest cache key, in characters; OpenAI refuses longer ones."""


class RequestFault(StrEnum):
    """Part of a request that a server did not take, where the same can be asked in another way."""

    LIMIT_NAME = "limit_name"
    """The output limit goes by another name there."""
    STREAM_OPTIONS = "stream_options"
    """A stream cannot be asked to end with what it used: it does so anyway, or never."""
    ENCRYPTED_REASONING = "encrypted_reasoning"
    """The model has no reasoning that could be sent along."""
    MISSING_REASONING = "missing_reasoning"
    """Every answer has to say what was thought before it, if only that nothing was."""
    MISSING_SIGNATURE = "missing_signature"
    """Every call has to have its signature, if only one that stands for none: another model made it, say."""
    REPLAYED_REASONING = "replayed_reasoning"
    """Reasoning that came from there is not taken back: it was made for another account, say."""


class OpenAIModel(HttpChatModel, ABC):
    """A model behind one path of a server. Close it when done."""

    def __init__(self, endpoint: EndpointSettings, protocol: str, path: str, new_reply: type[ReplyBuilder]) -> None:
        super().__init__(endpoint, protocol, OPENAI_SDK, endpoint.base_url or BASE_URL, path)
        self._new_reply = new_reply

    async def _stated_limits(self) -> ModelLimits | None:
        return await fetch_model_limits(self.fetch_json, self.name, self.base_url)

    def _begun(
        self, request: ModelRequest, form: CallSettings, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        payload = self._encoded(request, form.faults, with_fields(form.fields, self._endpoint.extra_body))
        return payload, self._new_reply(on_text, self._made_by, request)

    def _put_otherwise(
        self, error: ModelError, request: ModelRequest, form: CallSettings
    ) -> tuple[ModelRequest, CallSettings]:
        if (other := form.after(error)) is None and (fault := fault_of(error)) is not None:
            other = replace(form, faults=form.faults | {fault})
        return request, other or form

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        words = _EFFORT_WORDS.get(effort, (effort,)) if effort is not None else ()
        forms = [*map(self._effort_fields, words), {}]
        # Some models call tools only where they are told not to think, whatever else is said or not said.
        return [*forms, self._effort_fields("none")] if request.tools else forms

    @abstractmethod
    def _effort_fields(self, word: str) -> dict[str, Any]:
        """Fields of a request's body that ask for an effort."""

    @abstractmethod
    def _encoded(self, request: ModelRequest, faults: Collection[str], fields: Mapping[str, Any]) -> bytes:
        """The body of the HTTP request, without these faults, with further fields."""


_EFFORT_WORDS: Final[Mapping[ReasoningEffort, tuple[str, ...]]] = {
    "off": ("none", "minimal", "low"),
    "minimal": ("minimal", "low"),
    "xhigh": ("xhigh", "high"),
    "max": ("max", "xhigh", "high"),
}
"""Words for efforts that not every model knows, the best first."""


def add_options(
    body: dict[str, Any], request: ModelRequest, *, limit_key: str, tools: Sequence[Mapping[str, object]]
) -> None:
    """Add what both protocols ask for in the same words: output limit, tools in the API's form, and cache key."""
    if request.max_output_tokens is not None:
        body[limit_key] = request.max_output_tokens
    if tools:
        body["tools"] = tools
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key[:MAX_CACHE_KEY_CHARACTERS]


_NEWER_LIMIT = re.compile(r"max_tokens\b.{0,80}\buse\b.{0,10}max_completion_tokens", re.IGNORECASE)
"""Wording for servers that pass on what OpenAI said and leave its codes out."""
_UNSUPPORTED_ENCRYPTION = re.compile(r"encrypted[ _]content is not supported", re.IGNORECASE)
_MISSING_REASONING = re.compile(
    r"reasoning_content.{0,60}(?:must be passed back|is (?:missing|required))|missing.{0,40}reasoning_content",
    re.IGNORECASE | re.DOTALL,
)
_MISSING_SIGNATURE = re.compile(r"missing.{0,40}\bthought_signature", re.IGNORECASE)
_REASONING = re.compile(r"\b(?:reasoning|thinking|encrypted[ _]content|thought[ _]signature)", re.IGNORECASE)


def fault_of(error: ModelError) -> RequestFault | None:
    """The part of the request that the provider did not take, if asking in another way may help."""
    cause, text = error.__cause__, refusal_text(error)
    if not text or not isinstance(cause, APIStatusError):
        return None
    param = str(cause.param or "")
    if (cause.code == "unsupported_parameter" and param == "max_tokens") or _NEWER_LIMIT.search(text):
        return RequestFault.LIMIT_NAME
    if "stream_options" in text or param.startswith("stream_options"):
        return RequestFault.STREAM_OPTIONS
    if param.startswith("include") or _UNSUPPORTED_ENCRYPTION.search(text):
        return RequestFault.ENCRYPTED_REASONING
    if _MISSING_REASONING.search(text):
        return RequestFault.MISSING_REASONING
    if _MISSING_SIGNATURE.search(text):
        return RequestFault.MISSING_SIGNATURE
    if cause.code == "invalid_encrypted_content" or _REASONING.search(text):
        return RequestFault.REPLAYED_REASONING
    return None
