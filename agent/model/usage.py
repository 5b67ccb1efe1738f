"""Token counts of providers, brought to one shape."""

from collections.abc import Mapping
from typing import Any

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
