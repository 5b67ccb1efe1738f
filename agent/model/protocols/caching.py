"""Prompt caching of Claude models: the breakpoints up to which a provider keeps a prompt for the next call.

Other providers cache what they see as they like. Anthropic caches what ends at a breakpoint, four of them at most: one
stands behind the system prompt (tools come before it and are covered), three behind the newest messages, so that each
call finds what the one before it left, and the new rows stand behind that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from agent.model.base import CacheTtl

MAX_BREAKPOINTS = 4
"""Most breakpoints that the API allows in one request."""

_Message: TypeAlias = Mapping[str, Any]  # the provider's JSON


def apply_anthropic_cache_control(
    messages: Sequence[_Message], ttl: CacheTtl = "5m", native: bool = False
) -> list[dict[str, Any]]:
    """The list with its breakpoints: behind a system prompt at its beginning, and behind the newest other messages.

    The given list and what is in it stay as they are; messages that get no mark are shared with it. Text becomes one
    part, which carries the mark; of a list the last part does.

    `native`: for Anthropic's own API, where tools' results and messages without content carry it themselves. Others
    pass marks on from content parts only, also those of results, so that a message without content gets none; and they
    join adjacent results, of which the last counts.
    """
    marked = [dict(message) for message in messages]
    has_system = bool(marked) and marked[0].get("role") == "system"
    candidates = [
        index
        for index, message in enumerate(marked)
        if message.get("role") != "system" and (native or _ends_message(marked[index : index + 2]))
    ]
    breakpoints = candidates[has_system - MAX_BREAKPOINTS :]
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


def _ends_message(pair: Sequence[_Message]) -> bool:
    """True if the first of two messages has content that is not joined to the second one's."""
    return bool(pair[0].get("content")) and [message.get("role") for message in pair] != ["tool", "tool"]


def marks_prompts(model_name: str, route: str) -> bool:
    """True for a model at a route, as `ChatModel.route` names it, whose prompts are marked for caching.

    They are for Claude models, by name, where the marks are known to be understood.
    """
    protocol, _, host = route.lower().partition(":")
    is_openrouter = protocol == "chat_completions" and f".{host}".endswith(".openrouter.ai")
    return "claude" in model_name.lower() and (is_openrouter or protocol == "anthropic")
