"""Validators for message lists: the rules of OpenAI, of Anthropic, and of templates that require alternating turns."""

import json
from collections.abc import Sequence
from typing import Any

from agent.handoff import SUMMARY_PREFIX
from tests.fakes.llm_legality import check_anthropic, check_openai, text_of

WireList = Sequence[dict[str, Any]]
_WRITTEN_BY_THE_ROWS = {"user_after_tool", "ends_with_assistant"}
"""People may write while tools run, and a list may end anywhere."""


def violations(messages: WireList) -> list[str]:
    """Objections of any of the three."""
    return [
        *(f"openai: {found}" for found in openai_violations(messages)),
        *(f"anthropic: {found}" for found in anthropic_violations(messages)),
        *(f"strict: {found}" for found in strict_violations(messages)),
    ]


def openai_violations(messages: WireList) -> list[str]:
    """Errors and warnings alike."""
    found = check_openai(list(messages))
    return [f"{one['index']} {one['rule']} {one['detail']}" for one in found if one["rule"] not in _WRITTEN_BY_THE_ROWS]


def anthropic_violations(messages: WireList) -> list[str]:
    """Build the list as an adapter sends it: separate system prompt, calls and results as blocks, results joined with
    the next human message."""
    return [
        f"{one['index']} {one['rule']} {one['detail']}" for one in check_anthropic({"messages": _as_blocks(messages)})
    ]


def _as_blocks(messages: WireList) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message["role"] == "tool" else message["role"]
        if role == "system":
            continue
        if role == "user" and sent and sent[-1]["role"] == "user" and _are_results(sent[-1]["content"]):
            sent[-1]["content"] += _blocks(message)
        else:
            sent.append({"role": role, "content": _blocks(message)})
    return sent


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content is not None else []
    calls = message.get("tool_calls", ())
    return [*parts, *({"type": "tool_use", "id": call["id"], "input": _input(call)} for call in calls)]


def _input(call: dict[str, Any]) -> Any:
    return json.loads(call["function"]["arguments"])


def _are_results(blocks: list[dict[str, Any]]) -> bool:
    return all(block["type"] == "tool_result" for block in blocks)


def strict_violations(messages: WireList) -> list[str]:
    """User and assistant alternate, the user first. Tool results belong to the assistant message with the calls.

    Some templates ignore calls and results, so two user messages around them seem adjacent. That is unavoidable if
    people write while tools run, but a handoff must not cause it.
    """
    found = []
    before, seen = "", ""
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            if place:
                found.append(f"{place} system is not first")
            continue
        if not before and role != "user":
            found.append(f"{place} {role} speaks first")
        if role == before and role != "tool":
            found.append(f"{place} {role} after {role}")
        if role == "tool" and before not in ("assistant", "tool"):
            found.append(f"{place} tool after {before}")
        if role == "user" and seen == "user" and text_of(message["content"]).startswith(SUMMARY_PREFIX):
            found.append(f"{place} a handoff follows a user behind hidden calls")
        if role == "user" or (role == "assistant" and "tool_calls" not in message):
            seen = role
        before = role
    return found
