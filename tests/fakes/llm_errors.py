"""Error texts of providers. They follow public documentation and experience; they are not recordings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes import labkit

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Properties of a model. `style` selects the error text for a prompt that is too long."""

    context: int = 131_072
    max_output: int = 16_384
    style: str = "openai"


class LLMError(Exception):
    """Error response. A `body` that is a string is sent as HTML. `outcome` is the name of the error in the journal."""

    def __init__(
        self, status: int, body: Json | str, headers: Mapping[str, str] | None = None, outcome: str = "error"
    ) -> None:
        super().__init__(outcome)
        self.status, self.body, self.headers, self.outcome = status, body, dict(headers or {}), outcome


def openai_error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    outcome: str = "error",
) -> LLMError:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return LLMError(status, body, headers, outcome)


def anthropic_error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    headers: Mapping[str, str] | None = None,
    outcome: str = "error",
) -> LLMError:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_lab"}
    return LLMError(status, body, headers, outcome)


# ---- errors that a script asks for

_OPENAI: Mapping[str, tuple[int, str, str, str | None]] = {
    "429": (
        429,
        "Rate limit reached for lab model in organization org-lab on tokens per min (TPM). Please try again in 1s.",
        "tokens",
        "rate_limit_exceeded",
    ),
    "quota": (
        429,
        "You exceeded your current quota, please check your plan and billing details.",
        "insufficient_quota",
        "insufficient_quota",
    ),
    "500": (
        500,
        "The server had an error while processing your request. Sorry about that!",
        "server_error",
        None,
    ),
    "503": (503, "The engine is currently overloaded, please try again later", "service_unavailable_error", None),
    "529": (529, "Overloaded", "overloaded_error", None),
    "401": (401, "Incorrect API key provided: lab.", "invalid_request_error", "invalid_api_key"),
    "402": (402, "Insufficient credits", "insufficient_credits", "402"),
    "404": (
        404,
        "The model `x` does not exist or you do not have access to it.",
        "invalid_request_error",
        "model_not_found",
    ),
    "413": (413, "Request Entity Too Large", "request_too_large", "413"),
    "content_filter": (
        400,
        "The response was filtered due to the prompt triggering content management policy.",
        "invalid_request_error",
        "content_filter",
    ),
    "context": (
        400,
        "This model's maximum context length is 16385 tokens. However, your messages resulted in 18000 tokens. Please "
        "reduce the length of the messages.",
        "invalid_request_error",
        "context_length_exceeded",
    ),
}
_ANTHROPIC: Mapping[str, tuple[int, str, str]] = {
    "429": (429, "This request would exceed your account's rate limit. Please try again later.", "rate_limit_error"),
    "quota": (
        400,
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
        "purchase credits.",
        "invalid_request_error",
    ),
    "402": (402, "There is an issue with your billing or payment information.", "billing_error"),
    "404": (404, "model: x", "not_found_error"),
    "529": (529, "Overloaded", "overloaded_error"),
    "503": (503, "Service unavailable", "api_error"),
    "500": (500, "Internal server error", "api_error"),
    "401": (401, "invalid x-api-key", "authentication_error"),
    "413": (413, "Request exceeds the maximum size", "request_too_large"),
    "content_filter": (400, "Output blocked by content filtering policy", "invalid_request_error"),
    "context": (400, "prompt is too long: 213462 tokens > 200000 maximum", "invalid_request_error"),
}


def scripted_error(wanted: Mapping[str, Any], dialect: str) -> LLMError:
    """Return the error that a script or fault names by `kind`, or defines by `status` and `body`."""
    kind = str(wanted.get("kind", wanted.get("status", "500")))
    after = wanted.get("retry_after")
    headers = {} if after is None else {"retry-after": f"{after:g}" if isinstance(after, int | float) else str(after)}
    headers |= wanted.get("headers") or {}
    if "body" in wanted:
        return LLMError(int(wanted.get("status", 500)), wanted["body"], headers, f"scripted {wanted.get('status')}")
    status = int(kind) if kind.isdigit() else 500
    text, outcome = f"lab error {kind}", f"scripted {kind}"
    if dialect == "anthropic":
        status, text, type_ = _ANTHROPIC.get(kind, (status, text, "api_error"))
        return anthropic_error(status, wanted.get("message", text), type_, headers=headers, outcome=outcome)
    status, text, type_, code = _OPENAI.get(kind, (status, text, "server_error", None))
    return openai_error(status, wanted.get("message", text), type_, code, headers=headers, outcome=outcome)


# ---- a prompt that is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a request, in tokens."""

    prompt: int
    tools: int
    wanted: int
    limit: int

    @property
    def total(self) -> int:
        return self.prompt + self.wanted

    @property
    def messages(self) -> int:
        return self.prompt - self.tools


_COUNTS_OUTPUT = {"vllm", "openrouter", "openai-combined"}
_OVERFLOW = "context_overflow"


def overflow_error(model: Model, prompt: int, wanted: int, tools: int) -> LLMError | None:
    """Return the error for a prompt that is too long, worded in the model's style, or None if the prompt fits."""
    sizes = Sizes(prompt=prompt, tools=tools, wanted=wanted, limit=model.context)
    if (sizes.total if model.style in _COUNTS_OUTPUT else prompt) <= model.context:
        return None
    if model.style == "disconnect":
        raise labkit.Hangups
    return _WORDINGS.get(model.style, _openai_overflow)(sizes)


def _openai_overflow(sizes: Sizes) -> LLMError:
    functions = " or functions" if sizes.tools else ""
    split = f" ({sizes.messages} in the messages, {sizes.tools} in the functions)" if sizes.tools else ""
    return openai_error(
        400,
        f"This model's maximum context length is {sizes.limit} tokens. However, your messages resulted in "
        f"{sizes.prompt} tokens{split}. Please reduce the length of the messages{functions}.",
        code="context_length_exceeded",
        param="messages",
        outcome=_OVERFLOW,
    )


def _vllm_overflow(sizes: Sizes) -> LLMError:
    message = (
        f"This model's maximum context length is {sizes.limit} tokens. However, you requested {sizes.total} tokens "
        f"({sizes.prompt} in the messages, {sizes.wanted} in the completion). Please reduce the length of the messages "
        "or completion."
    )
    body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    return LLMError(400, body, outcome=_OVERFLOW)


def _openrouter_overflow(sizes: Sizes) -> LLMError:
    message = (
        f"This endpoint's maximum context length is {sizes.limit} tokens. However, you requested about {sizes.total} "
        f"tokens ({sizes.messages} of text input, {sizes.tools} of tool input, {sizes.wanted} in the output). Please "
        'reduce the length of either one, or use the "middle-out" transform to compress your prompt automatically.'
    )
    return LLMError(400, {"error": {"message": message, "code": 400}}, outcome=_OVERFLOW)


def _llamacpp_overflow(sizes: Sizes) -> LLMError:
    error = {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": sizes.prompt,
        "n_ctx": sizes.limit,
    }
    return LLMError(400, {"error": error}, outcome=_OVERFLOW)


def _gemini_overflow(sizes: Sizes) -> LLMError:
    message = f"The input token count ({sizes.prompt}) exceeds the maximum number of tokens allowed ({sizes.limit})."
    return LLMError(400, {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}, outcome=_OVERFLOW)


def _anthropic_overflow(sizes: Sizes) -> LLMError:
    return anthropic_error(400, f"prompt is too long: {sizes.prompt} tokens > {sizes.limit} maximum", outcome=_OVERFLOW)


def _too_large(sizes: Sizes) -> LLMError:
    error = {"message": "Request too large for model", "type": "request_too_large", "code": "413"}
    return LLMError(413, {"error": error}, outcome=_OVERFLOW)


def _too_large_html(sizes: Sizes) -> LLMError:
    return LLMError(413, "<html><head><title>413 Request Entity Too Large</title></head></html>", outcome=_OVERFLOW)


def _vague(sizes: Sizes) -> LLMError:
    return openai_error(400, "Error", outcome=_OVERFLOW)


_WORDINGS: Mapping[str, Callable[[Sizes], LLMError]] = {
    "vllm": _vllm_overflow,
    "openrouter": _openrouter_overflow,
    "llamacpp": _llamacpp_overflow,
    "gemini": _gemini_overflow,
    "anthropic": _anthropic_overflow,
    "413": _too_large,
    "413-html": _too_large_html,
    "vague": _vague,
}
