"""Checks whether a message list is legal and tidy.

Each finding has a rule, a place, a severity and a detail. `error` means that the real API rejects the list, or that it
contains data that must never be sent (a private key). `warn` means something that some providers dislike and that a
careful client avoids.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]

_KEYS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "function_call", "refusal", "audio", "annotations"},
    "tool": {"role", "content", "tool_call_id", "name"},
    "function": {"role", "content", "name"},
}
_REASONING_KEYS = {"reasoning", "reasoning_content", "reasoning_details"}
"""Keys that some servers want back with the tool calls that followed. Other servers do not use them."""
_TOLERATED_KEYS = _REASONING_KEYS | {"cache_control", "prefix"}
_IMAGE_TYPES = {"image_url", "image", "input_image"}


def compact(value: object) -> str:
    """Return JSON with sorted keys and no spaces, as used for token counts and cache keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def text_of(content: object) -> str:
    """Return all text of a message's content in any format."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return str(content)
    return "\n".join(text for text in map(_text_of_part, content) if text)


def _text_of_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    if part.get("type") == "tool_result":
        return text_of(part.get("content"))
    return str(part.get("text") or part.get("refusal") or "")


def images_in(content: object) -> int:
    """Return the number of images in a message's content."""
    parts = content if isinstance(content, list) else []
    return sum(1 for part in parts if isinstance(part, dict) and part.get("type") in _IMAGE_TYPES)


def untidy(findings: Iterable[Json]) -> list[Json]:
    """Return the findings that a careful client avoids. A user message after a tool result is allowed, as a steer or
    image."""
    return [finding for finding in findings if finding["rule"] != "user_after_tool"]


class Findings:
    """Findings so far."""

    def __init__(self) -> None:
        self.rows: list[Json] = []

    def say(self, rule: str, index: int | None, detail: str, severity: str = "error") -> None:
        self.rows.append({"rule": rule, "index": index, "severity": severity, "detail": detail})


def check_openai(messages: object, tools: object = None) -> list[Json]:
    """Return everything that is illegal or untidy in a chat completions message list."""
    checker = _OpenAIChecker()
    if not isinstance(messages, list) or not messages:
        checker.say("messages_missing", None, "messages must be a non-empty array")
        return checker.rows
    for index, message in enumerate(messages):
        if isinstance(message, dict):
            checker.check(index, message)
        else:
            checker.say("not_an_object", index, repr(message)[:80])
    checker.finish(len(messages))
    checker.check_tools(tools if isinstance(tools, list) else [])
    return checker.rows


class _OpenAIChecker(Findings):
    def __init__(self) -> None:
        super().__init__()
        self._open_calls: dict[str, int] = {}
        self._answered: set[str] = set()
        self._all_ids: set[str] = set()
        self._previous: str | None = None

    def check(self, n: int, message: Json) -> None:
        role = message.get("role")
        if not isinstance(role, str) or role not in _KEYS:
            self.say("unknown_role", n, repr(role))
            return
        self._check_keys(n, role, message)
        self._check_content(n, message.get("content"))
        if role != "tool" and self._open_calls:
            self.say("unanswered_tool_calls", n, ", ".join(self._open_calls))
            self._open_calls = {}
        if role in ("system", "developer"):
            if self._previous not in (None, "system", "developer"):
                self.say("system_not_first", n, f"after {self._previous}", "warn")
        elif role == "tool":
            self._check_result(n, message)
        elif role == "assistant":
            self._check_answer(n, message)
        elif role == "user":
            self._check_user(n, message)
        self._previous = role

    def _check_keys(self, n: int, role: str, message: Json) -> None:
        known = _KEYS[role] | (_REASONING_KEYS if message.get("tool_calls") else set())
        for key in message:
            if key.startswith("_"):
                self.say("private_key", n, key)
            elif key not in known:
                self.say("unknown_key", n, key, "warn" if key in _TOLERATED_KEYS else "error")

    def _check_content(self, n: int, content: object) -> None:
        if not isinstance(content, list):
            if content is not None and not isinstance(content, str):
                self.say("bad_content_type", n, type(content).__name__)
            return
        for part in content:
            if not isinstance(part, dict) or "type" not in part:
                self.say("bad_content_part", n, repr(part)[:80])
                continue
            for key in part:
                if key.startswith("_"):
                    self.say("private_key", n, f"content part: {key}")

    def _check_result(self, n: int, message: Json) -> None:
        call_id = message.get("tool_call_id")
        if not call_id:
            self.say("tool_without_id", n, "tool_call_id missing")
        elif call_id in self._open_calls:
            self._open_calls.pop(call_id)
            self._answered.add(call_id)
        elif call_id in self._answered:
            self.say("duplicate_tool_result", n, str(call_id))
        else:
            self.say("orphan_tool_result", n, str(call_id))
        if message.get("content") is None:
            self.say("null_content", n, "tool content must not be null")

    def _check_answer(self, n: int, message: Json) -> None:
        content, calls = message.get("content"), message.get("tool_calls")
        if self._previous == "assistant":
            self.say("alternation", n, "assistant after assistant", "warn")
        if calls is not None and calls == []:
            self.say("empty_tool_calls", n, "tool_calls must be non-empty when present")
        self._answered = set()
        for call in calls or []:
            self._check_call(n, call)
        if not calls and not text_of(content):
            self.say("empty_assistant", n, "neither content nor tool_calls", "error" if content is None else "warn")

    def _check_call(self, n: int, call: Json) -> None:
        call_id, function = call.get("id"), call.get("function") or {}
        if not call_id or call.get("type") != "function" or not function.get("name"):
            self.say("bad_tool_call", n, compact(call)[:120])
        if call_id in self._open_calls:
            self.say("duplicate_tool_call_id", n, str(call_id))
        elif call_id in self._all_ids:
            self.say("reused_tool_call_id", n, str(call_id), "warn")
        self._all_ids.add(str(call_id))
        self._open_calls[str(call_id)] = n
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            self.say("tool_arguments_not_string", n, type(arguments).__name__)
        elif not _is_object(arguments):
            self.say("tool_arguments_not_json_object", n, arguments[:80], "warn")

    def _check_user(self, n: int, message: Json) -> None:
        content = message.get("content")
        if self._previous == "user":
            self.say("alternation", n, "user after user", "warn")
        if self._previous == "tool":
            self.say("user_after_tool", n, "user right after tool result", "warn")
        if not text_of(content) and not images_in(content):
            self.say("empty_user", n, "empty user content", "warn")

    def finish(self, length: int) -> None:
        if self._open_calls:
            self.say("unanswered_tool_calls", length, ", ".join(self._open_calls))
        if self._previous == "assistant":
            self.say("ends_with_assistant", length - 1, "last message is from the assistant", "warn")

    def check_tools(self, tools: Sequence[object]) -> None:
        names = []
        for tool in tools:
            function = (tool.get("function") or {}) if isinstance(tool, dict) else {}
            name = str(function.get("name", ""))
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                self.say("bad_tool_name", None, repr(name))
            names.append(name)
        for name in {name for name in names if names.count(name) > 1}:
            self.say("duplicate_tool_name", None, name, "warn")


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "null"), dict)
    except ValueError:
        return False


def strict_refusal(body: Mapping[str, Any], server: str) -> Json | None:
    """Return the error of a strict server for a conversation that is otherwise legal, or None.

    `mistral` requires short ids, and an assistant message between tool results and a user message. `gemma` accepts no
    tools, and requires alternating roles. `never` accepts no assistant messages.
    """
    rows = [row for one in body.get("messages") or body.get("input") or [] for row in _roles_of(one)]
    kind = {"object": "error", "param": None}
    if server == "mistral":
        for call_id in (call_id for _, ids in rows for call_id in ids):
            if not re.fullmatch("[a-zA-Z0-9]{9}", call_id):
                message = f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9."
                return {**kind, "message": message, "type": "invalid_function_call", "code": "3280"}
        for before, after in itertools.pairwise(role for role, _ in rows):
            if (before, after) == ("tool", "user"):
                message = "Unexpected role 'user' after role 'tool'"
                return {**kind, "message": message, "type": "invalid_request_message_order", "code": "3230"}
    elif server == "gemma" and [role for role, _ in rows] != ["user", "assistant"] * (len(rows) // 2) + ["user"]:
        message = "Conversation roles must alternate user/assistant/user/assistant/..."
        return {**kind, "message": message, "type": "BadRequestError", "code": 400}
    elif server == "never" and any(role == "assistant" for role, _ in rows):
        return {**kind, "message": "Unexpected role 'assistant'", "type": "invalid_request_message_order", "code": "1"}
    return None


def _roles_of(row: Json) -> list[tuple[str, list[str]]]:
    """Return the roles in a message or item of any protocol, each with the ids of its calls."""
    match row.get("type", "message"):
        case "function_call":
            return [("assistant", [row["call_id"]])]
        case "function_call_output":
            return [("tool", [row["call_id"]])]
        case "reasoning":
            return []
    content = row.get("content")
    blocks = content if isinstance(content, list) else []
    results = [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
    calls = [block["id"] for block in blocks if block.get("type") == "tool_use"]
    calls += [call["id"] for call in row.get("tool_calls") or ()]
    found = [("tool", results)] if results else []
    if len(results) < len(blocks) or not blocks:
        found.append((row["role"], calls + [row[key] for key in ("tool_call_id",) if key in row]))
    return found


def check_anthropic(body: Mapping[str, Any]) -> list[Json]:
    """Return everything that is illegal or untidy in a request to the messages API, in its own wording."""
    findings = Findings()
    messages: list[Json] = body.get("messages") or []
    if not messages:
        findings.say("messages_missing", None, "messages: at least one message is required")
        return findings.rows
    pending: list[str] = []
    previous = None
    for n, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        for key in message:
            if key not in ("role", "content"):
                rule = "private_key" if key.startswith("_") else "unknown_key"
                findings.say(rule, n, f"messages.{n}.{key}: Extra inputs are not permitted")
        if role not in ("user", "assistant"):
            findings.say("unknown_role", n, f'messages: Unexpected role "{role}"')
            continue
        if n == 0 and role != "user":
            findings.say("first_not_user", n, 'messages: first message must use the "user" role')
        if role == previous:
            findings.say("alternation", n, f"{role} after {role}", "warn")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        _check_blocks(findings, n, role, blocks, pending)
        pending = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        previous = role
    if pending:
        _say_unanswered(findings, len(messages) - 1, len(messages) - 1, pending)
    return findings.rows


def _check_blocks(findings: Findings, n: int, role: str, blocks: Sequence[Json], pending: Sequence[str]) -> None:
    results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if missing := [call for call in pending if role != "user" or call not in results]:
        _say_unanswered(findings, n, n - 1, missing)
    for call in results:
        if call not in pending:
            findings.say(
                "orphan_tool_result",
                n,
                f"messages.{n}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
            )
    for block in blocks:
        if block.get("type") == "text" and not (block.get("text") or "").strip():
            findings.say("empty_text", n, "messages: text content blocks must be non-empty")


def _say_unanswered(findings: Findings, index: int, asked_at: int, calls: Sequence[str]) -> None:
    findings.say(
        "unanswered_tool_calls",
        index,
        f"messages.{asked_at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(calls)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    )
