"""Token counts of providers, brought to one shape, and the estimate that stands in for a missing one."""

from collections.abc import Mapping
from typing import Any

from agent.model.base import ModelReply, ModelRequest
from agent.sizes import CALL_TOKENS, ROW_SIZES, estimated_schema_tokens, estimated_text_tokens, kept_text_tokens
from hermes_state.values import CanonicalUsage

MOST_TOKENS = 100_000_000
"""Of one call. More is no count: it would close a conversation for ever, or not fit into the database."""


def normalize_usage(usage: Mapping[str, Any] | None) -> CanonicalUsage | None:
    """The `usage` object of a chat completions reply; None when there is none with a prompt count.

    `prompt_tokens` includes what was read from and written to the cache, so both are taken out of `input`.
    `reasoning` is a part of `output`.
    """
    if not usage or not isinstance(usage.get("prompt_tokens"), int) or usage["prompt_tokens"] > MOST_TOKENS:
        return None
    prompt = _count(usage, "prompt_tokens")
    prompt_details = usage.get("prompt_tokens_details") or {}
    output_details = usage.get("completion_tokens_details") or {}
    read = min(_count(prompt_details, "cached_tokens"), prompt)
    written = min(_count(prompt_details, "cache_write_tokens"), prompt - read)
    return CanonicalUsage(
        input=prompt - read - written,
        output=_count(usage, "completion_tokens"),
        cache_read=read,
        cache_write=written,
        reasoning=_count(output_details, "reasoning_tokens"),
    )


def _count(holder: Mapping[str, Any], key: str) -> int:
    value = holder.get(key)
    return min(max(0, value), MOST_TOKENS) if isinstance(value, int) else 0


ASSUMED_IMAGE_TOKENS = 1_000
"""Between what providers charge for a small and for a large image."""


def estimated_reply_usage(request: ModelRequest, reply: ModelReply) -> CanonicalUsage:
    """What a call used, where the provider did not say."""
    style = request.style
    rows = sum(
        ROW_SIZES.of(
            row,
            max_result_characters=style.max_result_characters,
            image_tokens=ASSUMED_IMAGE_TOKENS,
            seen_images=style.image_urls,
            is_shared=style.is_shared,
        )
        for row in request.transcript
    )
    asked = sum(CALL_TOKENS + estimated_text_tokens(call.name + call.arguments) for call in reply.calls)
    return CanonicalUsage(input=fixed_tokens(request) + rows, output=estimated_text_tokens(reply.text) + asked)


def fixed_tokens(request: ModelRequest) -> int:
    """What precedes the rows, unscaled: the system prompt and the tools' schemas."""
    tools = (estimated_schema_tokens(tool.name, tool.description, tool.parameters) for tool in request.tools)
    return kept_text_tokens(request.system) + sum(tools)
