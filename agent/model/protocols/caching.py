"""Prompt caching for Claude models. Breakpoints tell the provider how far to cache a prompt.

Anthropic allows four breakpoints. The first follows the system prompt and also covers the tools. The other three follow
the newest messages, so that each call reuses the previous call's prompt. Other providers need no breakpoints.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from agent.model.base import CacheTtl

_Message: TypeAlias = Mapping[str, Any]  # the provider's JSON


def apply_anthropic_cache_control(
    messages: Sequence[_Message], ttl: CacheTtl = "5m", native: bool = False
) -> list[dict[str, Any]]:
    """Return a copy of the list with breakpoints after the system prompt and after the newest other messages.

    Plain text becomes a content part with the breakpoint. In a list of content parts, the last one gets the breakpoint.
    `native`: for Anthropic's own API, where tool results and messages without content carry the breakpoint themselves.
    Other APIs only forward breakpoints in content parts. They join adjacent tool results and use the last breakpoint.
    """
    marked = [dict(message) for message in messages]
    has_system = bool(marked) and marked[0].get("role") == "system"
    candidates = [
        index
        for index, message in enumerate(marked)
        if message.get("role") != "system" and (native or _can_carry_breakpoint(marked[index : index + 2]))
    ]
    breakpoints = candidates[has_system - 4 :]
    mark: dict[str, str] = {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}
    for index in [0, *breakpoints] if has_system else breakpoints:
        message, content = marked[index], marked[index].get("content")
        if native and (not content or message.get("role") == "tool"):
            message["cache_control"] = dict(mark)
        elif isinstance(content, str) and content:
            message["content"] = [{"type": "text", "text": content, "cache_control": dict(mark)}]
        elif content:
            message["content"] = [*content[:-1], {**content[-1], "cache_control": dict(mark)}]
    return marked


def _can_carry_breakpoint(pair: Sequence[_Message]) -> bool:
    """Return True if the first of two messages has content and they are not both tool results.

    APIs other than Anthropic's join adjacent tool results, so only the last one can carry the breakpoint.
    """
    return bool(pair[0].get("content")) and [message.get("role") for message in pair] != ["tool", "tool"]


def marks_prompts(model_name: str, route: str) -> bool:
    """Return True for a Claude model on a route (see `ChatModel.route`) that supports breakpoints."""
    protocol, _, host = route.lower().partition(":")
    is_openrouter = protocol == "chat_completions" and f".{host}".endswith(".openrouter.ai")
    return "claude" in model_name.lower() and (is_openrouter or protocol == "anthropic")
