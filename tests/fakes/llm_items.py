"""Checks whether the input of a Responses request is legal and tidy. Findings have the form of `llm_legality`."""

import json
import re
from collections.abc import Sequence

from tests.fakes.llm_legality import Findings, Json

_KEYS = {
    "message": {"type", "role", "content", "id", "status"},
    "function_call": {"type", "call_id", "name", "arguments", "id", "status"},
    "function_call_output": {"type", "call_id", "output", "id", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
}


def check_items(items: Sequence[Json], tools: Sequence[Json] | None = None) -> list[Json]:
    """Return everything that is illegal or untidy in an input."""
    checker = _Checker()
    for n, item in enumerate(items):
        checker.check(n, item)
    checker.finish(len(items))
    for tool in tools or ():
        if tool.get("type") == "function" and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(tool.get("name"))):
            checker.say("bad_tool_name", None, repr(tool.get("name")))
    return checker.rows


class _Checker(Findings):
    def __init__(self) -> None:
        super().__init__()
        self._open_calls: dict[str, None] = {}
        self._all_ids: set[str] = set()
        self._before = ""
        self._is_reasoning_open = False

    def check(self, n: int, item: Json) -> None:
        kind = item.get("type", "message")
        if kind not in _KEYS:
            self.say("unknown_type", n, repr(kind))
            return
        for key in item.keys() - _KEYS[kind]:
            self.say("private_key" if key.startswith("_") else "unknown_key", n, key)
        is_output = kind == "function_call" or (kind == "message" and item.get("role") == "assistant")
        if self._is_reasoning_open and not is_output and kind != "reasoning":
            self.say("reasoning_without_item", n, "reasoning was provided without its required following item")
        self._is_reasoning_open = kind == "reasoning"
        if kind not in ("function_call", "function_call_output") and self._open_calls and kind != "reasoning":
            self.finish(n)
        before, self._before = self._before, str(item.get("role") or kind)
        match kind:
            case "message":
                self._check_message(n, item, before)
            case "function_call":
                self._check_call(n, item)
            case "function_call_output":
                self._check_output(n, item)
            case "reasoning" if not isinstance(item.get("summary"), list):
                self.say("missing_summary", n, "Missing required parameter: summary")

    def _check_message(self, n: int, item: Json, before: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in ("user", "assistant", "system", "developer"):
            self.say("unknown_role", n, repr(role))
        if role == before:
            self.say("alternation", n, f"{role} after {role}", "warn")
        if not before and role == "assistant":
            self.say("first_not_user", n, "an assistant speaks first", "warn")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else list(content or ())
        if not parts:
            self.say("empty_content", n, "no content")
        for part in parts:
            self._check_part(n, part)

    def _check_part(self, n: int, part: Json) -> None:
        match part.get("type"):
            case "input_text" | "output_text" if str(part.get("text") or "").strip():
                return
            case "input_image" if isinstance(part.get("image_url"), str):
                return
            case "refusal":
                return
        self.say("bad_content_part", n, repr(part)[:80])

    def _check_call(self, n: int, item: Json) -> None:
        call_id = str(item.get("call_id"))
        if call_id in self._all_ids:
            self.say("duplicate_tool_call_id", n, call_id)
        if not 1 <= len(call_id) <= 64:
            self.say("bad_call_id", n, f"a call_id with {len(call_id)} characters")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(item.get("name"))):
            self.say("bad_tool_call", n, repr(item.get("name")))
        try:
            is_object = isinstance(json.loads(item["arguments"]), dict)
        except ValueError:
            is_object = False
        if not is_object:
            self.say("tool_arguments_not_json_object", n, item["arguments"][:80], "warn")
        self._all_ids.add(call_id)
        self._open_calls[call_id] = None

    def _check_output(self, n: int, item: Json) -> None:
        if item["call_id"] not in self._open_calls:
            self.say("orphan_tool_result", n, item["call_id"])
        self._open_calls.pop(item["call_id"], None)
        if not isinstance(item.get("output"), str | list):
            self.say("bad_output", n, repr(item.get("output"))[:80])

    def finish(self, length: int) -> None:
        for call_id in self._open_calls:
            self.say("unanswered_tool_calls", length, call_id)
        self._open_calls = {}
        if self._is_reasoning_open and self._before == "reasoning":
            self.say("reasoning_without_item", length, "reasoning was provided without its required following item")
