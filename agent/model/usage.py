"""Usage of model calls: providers' token counts in one common form, and estimates where a count is missing."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agent.model.base import ModelReply, ModelRequest
from agent.model.wire import WireStyle
from agent.tokens import (
    BLOCK_TOKENS,
    CALL_TOKENS,
    ROW_TOKENS,
    RowTokenCache,
    cached_text_tokens,
    estimated_schema_tokens,
    estimated_text_tokens,
)
from hermes_state.values import CanonicalUsage, Message, MicroUsd, micro_usd

MAX_TOKENS = 100_000_000
"""Highest plausible token count of one call. A higher count could block a conversation, or overflow the database."""
UsageFormat: TypeAlias = Literal["chat_completions", "responses", "anthropic"]
"""API whose field names a `usage` object uses."""


def normalize_usage(usage: object, format: UsageFormat | None = None) -> CanonicalUsage | None:
    """Convert a provider's `usage`, a mapping or an SDK object. Return None if it has no prompt count.

    If `format` is None, the field names determine the format. In chat completions and responses, the prompt count
    includes tokens read from and written to the cache, so these are subtracted to get `input`. Anthropic, and proxies
    that only rename its fields, do not include them. `output` includes `reasoning`. Counts that are strings, booleans
    or negative are ignored.

    >>> normalize_usage(
    ...     {"prompt_tokens": 900, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 800}}
    ... )
    CanonicalUsage(input=100, output=20, cache_read=800, cache_write=0, reasoning=0)
    """
    if format is None:
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")
        if _field(usage, "prompt_tokens") is not None:  # check first: some servers add the fields of other APIs
            format = "chat_completions"
        elif any(_field(usage, name) is not None for name in cached):
            format = "anthropic"  # without cache counts, Anthropic's field names equal those of responses
    if format == "chat_completions":
        return _openai_usage(usage, prompt="prompt_tokens", output="completion_tokens")
    if format != "anthropic":
        return _openai_usage(usage, prompt="input_tokens", output="output_tokens")
    fresh = _count(usage, "input_tokens")
    read = _count(usage, "cache_read_input_tokens") or 0
    written = _count(usage, "cache_creation_input_tokens") or 0
    if fresh is None or fresh + read + written > MAX_TOKENS:
        return None
    return CanonicalUsage(
        input=fresh,
        output=_bounded(usage, "output_tokens"),
        cache_read=read,
        cache_write=written,
        reasoning=_bounded(_field(usage, "output_tokens_details"), "thinking_tokens"),
    )


_APART = ("cache_creation_input_tokens", "cache_write_input_tokens", "cache_read_input_tokens")
"""Anthropic's names for cache counts. A proxy with these fields may not include their tokens in its prompt count."""


def _openai_usage(usage: object, *, prompt: str, output: str) -> CanonicalUsage | None:
    """Convert a `usage` whose prompt count includes cached tokens. Servers use different fields for cached tokens."""
    total = _count(usage, prompt)
    if total is None or total > MAX_TOKENS:
        return None
    holders = (usage, _field(usage, "prompt_tokens_details"), _field(usage, "input_tokens_details"))
    read, written = (
        max(min(_count(holder, name) or 0, MAX_TOKENS) for holder in holders if holder is not None for name in names)
        for names in (
            ("cached_tokens", "prompt_cache_hit_tokens", _APART[2]),
            ("cache_creation_tokens", "cache_write_tokens", *_APART[:2]),
        )
    )
    done, cached = _bounded(usage, output), sum(_bounded(usage, name) for name in _APART)
    # If there are more cached tokens than prompt tokens, or the total says so, the prompt count excludes them.
    if cached > total or (cached > 0 and _count(usage, "total_tokens") == total + done + cached):
        total = min(total + read + written, MAX_TOKENS)
    read = min(read, total)
    written = min(written, total - read)
    return CanonicalUsage(
        input=total - read - written,
        output=done,
        cache_read=read,
        cache_write=written,
        reasoning=_bounded(_field(usage, f"{output}_details"), "reasoning_tokens"),
    )


def reported_cost(usage: object) -> MicroUsd | None:
    """Return the cost reported by a provider such as OpenRouter; None for 0, which means that the price is unknown."""
    cost = _amount(_field(usage, "cost"))
    if _field(usage, "is_byok") is True:  # with the user's own key, `cost` is only the reseller's fee
        cost += _amount(_field(_field(usage, "cost_details"), "upstream_inference_cost"))
    return micro_usd(cost) if cost else None


def _amount(value: object) -> float:
    # The highest plausible cost of a call is 10,000 US dollars.
    return float(value) if isinstance(value, int | float) and 0 < value <= 10_000 else 0.0


def _field(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, (dict, Mapping)) else getattr(holder, name, None)


def _bounded(holder: object, name: str) -> int:
    return min(_count(holder, name) or 0, MAX_TOKENS)


def _count(holder: object, name: str) -> int | None:
    """Return a token count as an integer, because some servers send floats; None for any other value."""
    value = _field(holder, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < math.inf else None  # `math.isfinite` would fail on an int of 400 digits


@dataclass(frozen=True, slots=True)
class Size:
    """Size of all or part of a prompt: estimated tokens of its text, not adjusted to the model, and image count."""

    text: int
    images: int

    @property
    def tokens(self) -> int:
        """Total tokens. Each image counts as 1,000 tokens, a value between those of small and large images."""
        return self.text + self.images * 1_000

    def __add__(self, other: "Size") -> "Size":
        return Size(self.text + other.text, self.images + other.images)

    def __sub__(self, other: "Size") -> "Size":
        return Size(self.text - other.text, self.images - other.images)


def estimated_prompt_size(request: ModelRequest) -> Size:
    """Return the estimated size of a complete prompt."""
    return Size(fixed_tokens(request), 0) + rows_size(request.transcript, request.style)


def estimated_reply_usage(request: ModelRequest, reply: ModelReply) -> CanonicalUsage:
    """Return the estimated usage of a call, for providers that report none."""
    prompt = estimated_prompt_size(request).tokens
    calls = sum(CALL_TOKENS + estimated_text_tokens(call.name + call.arguments) for call in reply.calls)
    return CanonicalUsage(input=prompt, output=estimated_text_tokens(reply.text) + calls)


def rows_size(rows: Iterable[Message], style: WireStyle, sizes: RowTokenCache = ROW_TOKENS) -> Size:
    """Return the estimated size of rows as sent to a provider. Reads every row, so avoid repeated calls."""
    text_of, limit, is_shared = sizes.text_tokens, style.max_result_characters, style.is_shared
    text, images, maker = 0, 0, style.reasoning_of
    for row in rows:
        text += text_of(row, limit, is_shared=is_shared, reasoning_of=maker)
        if row.body.images:
            urls, notes = style.image_urls, style.image_notes
            seen = sum(
                one.attachment_id in urls and (row.id, one.attachment_id) not in notes for one in row.body.images
            )
            images += seen
            text += (len(row.body.images) - seen) * BLOCK_TOKENS
    return Size(text, images)


def fixed_tokens(request: ModelRequest) -> int:
    """Return the estimated tokens of the system prompt and the tool schemas, not adjusted to the model."""
    tools = (estimated_schema_tokens(tool.name, tool.description, tool.parameters) for tool in request.tools)
    return cached_text_tokens(request.system) + sum(tools)
