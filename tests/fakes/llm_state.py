"""State of the fake model server, and the choice of replies. Independent of any protocol."""

import asyncio
import itertools
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes import labkit
from tests.fakes.llm_errors import Model
from tests.fakes.llm_legality import Json, compact, images_in, text_of
from tests.fakes.llm_summary import HEADING, SUMMARY_REGEX, summarize

_MODELS: Mapping[str, Json] = {
    "lab-4k": {"context": 4_096, "max_output": 2_048},
    "lab-8k": {"context": 8_192, "max_output": 4_096},
    "lab-32k": {"context": 32_768, "max_output": 8_192},
    "lab-64k": {"context": 65_536, "max_output": 16_384},
    "lab-128k": {"context": 131_072, "max_output": 16_384},
    "lab-200k": {"context": 200_000, "max_output": 32_000},
}
_SCRIPT_KEYS = (
    *("model", "match", "match_any", "last_role", "stream", "summary", "has_tools", "min_images", "times", "skip"),
)
_IMAGE_TOKENS = 765
CACHE_MIN, CACHE_STEP = 1_024, 128
"""Tokens of the shortest prompt in the cache, and the unit in which cached tokens are counted."""
SUMMARY_MIN_CHARS = 300
_FILLER = "0123456789 lorem ipsum dolor. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request in the form that scripts and directives use."""

    model: str
    last_user: str
    all_text: str
    system: str
    last_role: str | None
    tool_results: Sequence[str]
    """The tool results at the end of the prompt, cut to 500 characters each."""
    is_stream: bool
    has_tools: bool
    images: int = 0


def prompt_of(model: str, messages: Sequence[Any], *, is_stream: bool, has_tools: bool) -> Prompt:
    """Return the parts of a message list on which replies depend."""
    rows = [message for message in messages if isinstance(message, dict)]
    users = [text_of(row.get("content")) for row in rows if row.get("role") == "user"]
    systems = [text_of(row.get("content")) for row in rows if row.get("role") in ("system", "developer")]
    tail = itertools.takewhile(lambda row: row.get("role") == "tool", reversed(rows))
    return Prompt(
        model=model,
        last_user=users[-1] if users else "",
        all_text="\n".join(text_of(row.get("content")) for row in rows),
        system="\n".join(systems),
        last_role=rows[-1].get("role") if rows else None,
        tool_results=[text_of(row.get("content"))[:500] for row in tail][::-1],
        is_stream=is_stream,
        has_tools=has_tools,
        images=sum(images_in(row.get("content")) for row in rows),
    )


class LLM:
    """Models, scripts, faults, settings, and the journal of requests. `reset` clears them."""

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self._bytes_per_token = bytes_per_token
        self.faults = labkit.Faults()
        self.reset()

    def reset(self) -> None:
        self.requests = labkit.Journal()
        self.scripts: list[Json] = []
        self.resumed = asyncio.Event()
        self.faults.clear()
        self.faults.fired.clear()
        self.stored_responses: dict[str, list[Json]] = {}
        self.anthropic_cache: dict[tuple[str, str], float] = {}
        self._cache: dict[str, list[tuple[float, list[tuple[str, int]]]]] = {}
        self.models: dict[str, Json] = {name: dict(info) for name, info in _MODELS.items()}
        self.config: Json = {
            "bytes_per_token": self._bytes_per_token,
            "reject_illegal": True,
            "strict_keys": False,
            "chunk_chars": 24,
            "chunk_delay": 0.0,
            "latency": 0.0,
            "cache_ttl": 300.0,
            "api_key": "",
            "log_bodies": True,
            "tells_sizes": True,
            "models_status": 200,
            "refuses": [],
            "shape": "",
        }
        self.questions = 0
        """Number of requests to list the models or describe one."""
        self.request_ids = itertools.count(1)
        self._call_ids = itertools.count(1)

    def model(self, name: str) -> Model:
        """Return a known model, or one whose window is the `NNk` in its name. `name@style` selects the overflow error's
        style."""
        base, _, style = name.partition("@")
        info = self.models.get(name) or self.models.get(base)
        if info is None:
            size = re.search(r"(\d+)([kK])\b", base)
            info = {"context": int(size[1]) * 1_024} if size else {}
        known = Model(**info)
        return Model(context=known.context, max_output=known.max_output, style=style) if style else known

    # ---- tokens, as the module docstring of `fake_llm` defines them

    def tokens(self, text: str) -> int:
        return math.ceil(len(text.encode("utf-8", "surrogatepass")) / self.config["bytes_per_token"]) if text else 0

    def message_tokens(self, message: Json) -> int:
        content = message.get("content")
        total = 3 + self.tokens(str(message.get("role", ""))) + self.tokens(text_of(content))
        total += _IMAGE_TOKENS * images_in(content)
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            total += 3 + self.tokens(str(function.get("name", ""))) + self.tokens(str(function.get("arguments", "")))
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("type") == "tool_use":
                total += 3 + self.tokens(block.get("name", "")) + self.tokens(compact(block.get("input", {})))
        if message.get("role") == "tool":
            total += self.tokens(str(message.get("tool_call_id", "")))
        return total + (self.tokens(message["name"]) if message.get("name") else 0)

    def tool_tokens(self, tools: Sequence[Any] | None) -> int:
        return sum(self.tokens(compact(without_cache_control(tool))) + 8 for tool in tools or [])

    def completion_tokens(self, reply: Json) -> int:
        said = self.tokens(reply.get("text") or "") + self.tokens(reply.get("reasoning") or "")
        calls = reply.get("tool_calls") or []
        return said + sum(3 + self.tokens(call["name"]) + self.tokens(call["arguments"]) for call in calls)

    def cached_tokens(self, model: str, key: str, blocks: list[tuple[str, int]]) -> int:
        """Return the tokens of the longest prefix shared with an earlier prompt, rounded down. Also stores the
        prompt."""
        now = time.monotonic()
        name = f"{model}|{key}"
        seen = [entry for entry in self._cache.get(name, []) if now - entry[0] <= self.config["cache_ttl"]]
        best = max((_shared_tokens(blocks, earlier) for _, earlier in seen), default=0)
        self._cache[name] = [*seen, (now, blocks)][-64:]
        return best // CACHE_STEP * CACHE_STEP if best >= CACHE_MIN else 0

    # ---- what the model says

    def add_scripts(self, rules: Sequence[Json]) -> int:
        """Add script rules to the queue, and return its length. Keys that are not conditions become the reply."""
        for rule in rules:
            rule.setdefault("times", 1)
            if "reply" not in rule:
                rule["reply"] = {key: rule.pop(key) for key in list(rule) if key not in _SCRIPT_KEYS}
            self.scripts.append(rule)
        return len(self.scripts)

    def decide(self, prompt: Prompt, max_output: int) -> Json:
        """Choose the reply for any protocol: text, tool calls, finish, and faults."""
        reply = self._scripted(prompt)
        if reply is None and (source := self.summary_source(prompt)):
            reply = {"text": summarize(source)}
        reply = dict(_default_reply(prompt) if reply is None else reply)
        reply["tool_calls"] = [self._whole_call(call) for call in reply.get("tool_calls") or []]
        reply.setdefault("finish", "tool_calls" if reply["tool_calls"] else "stop")
        text = reply.get("text") or ""
        if self.tokens(text) > max_output:
            kept = text.encode()[: int(max_output * self.config["bytes_per_token"])]
            reply["text"], reply["finish"] = kept.decode(errors="ignore"), "length"
        return reply

    def summary_source(self, prompt: Prompt) -> str | None:
        """Return the text to summarise if the request asks for a summary, or None.

        Requests with tools do not count, because their history can contain requests for summaries.
        """
        if prompt.has_tools:
            return None
        if self._asks_for_summary(prompt.last_user):
            return prompt.last_user
        if re.search(SUMMARY_REGEX, prompt.system[:800]) and self._asks_for_summary(prompt.system):
            return prompt.all_text
        return None

    def _asks_for_summary(self, text: str) -> bool:
        is_long = len(text) >= SUMMARY_MIN_CHARS
        return is_long and re.search(SUMMARY_REGEX, text) is not None and len(HEADING.findall(text)) >= 2

    def _whole_call(self, call: Json) -> Json:
        arguments = call.get("arguments", {})
        return {
            "id": call.get("id") or f"call_lab{next(self._call_ids):06d}",
            "name": call["name"],
            "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
        }

    def _scripted(self, prompt: Prompt) -> Json | None:
        for rule in self.scripts:
            if rule["times"] == 0 or not self._applies(rule, prompt):
                continue
            if rule.get("skip", 0) > 0:
                rule["skip"] -= 1
                continue
            if rule["times"] > 0:
                rule["times"] -= 1
            rule["used"] = rule.get("used", 0) + 1
            reply: Json = rule["reply"]
            return reply
        return None

    def _applies(self, rule: Json, prompt: Prompt) -> bool:
        for key, text in (("model", prompt.model), ("match", prompt.last_user), ("match_any", prompt.all_text)):
            if rule.get(key) and not re.search(rule[key], text):
                return False
        if prompt.images < rule.get("min_images", 0):
            return False
        if rule.get("last_role") and rule["last_role"] != prompt.last_role:
            return False
        claims = {"stream": prompt.is_stream, "has_tools": prompt.has_tools}
        if "summary" in rule:
            claims["summary"] = self.summary_source(prompt) is not None
        return all(bool(rule[key]) == value for key, value in claims.items() if key in rule)


def without_cache_control(value: Any) -> Any:  # Any: JSON of any shape
    """Return a copy without the marks for cache breakpoints."""
    if isinstance(value, dict):
        return {key: without_cache_control(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [without_cache_control(inner) for inner in value]
    return value


def _shared_tokens(blocks: Sequence[tuple[str, int]], earlier: Sequence[tuple[str, int]]) -> int:
    shared = 0
    for (block, size), (other, _) in zip(blocks, earlier, strict=False):
        if block == other:
            shared += size
            continue
        common = os.path.commonprefix([block, other])  # noqa: RUF071  # of characters is what is wanted here
        return shared + int(len(common.encode()) / max(1, len(block.encode())) * size)
    return shared


# ---- directives: a message that steers the model


def _default_reply(prompt: Prompt) -> Json:
    """Return the text of tool results, or the reply that directives specify, or else an echo."""
    if prompt.last_role == "tool":
        return {"text": "tool said: " + " | ".join(prompt.tool_results)}
    reply: Json = {}
    for name, argument in re.findall(r"\[\[(\w+)(?::|\s)?\s*(.*?)\]\]", prompt.last_user, re.DOTALL):
        _follow(name, argument, prompt, reply)
    if "text" not in reply and not reply.get("tool_calls"):
        reply["text"] = f"echo: {prompt.last_user}"
    return reply


def _follow(directive: str, argument: str, prompt: Prompt, reply: Json) -> None:
    match directive:
        case "tool":
            name, _, arguments = argument.strip().partition(" ")
            reply.setdefault("tool_calls", []).append({"name": name, "arguments": arguments.strip() or "{}"})
        case "size":
            length = int(argument)
            reply["text"] = (_FILLER * (length // len(_FILLER) + 1))[:length]
        case "sleep":
            reply["delay"] = float(argument)
        case "say":
            reply["text"] = argument
        case "error":
            reply["error"] = {"kind": argument.strip()}
        case "recall":
            pieces = re.split(r"[\n.]", prompt.all_text)
            hits = [piece.strip() for piece in pieces if re.search(argument.strip(), piece) and "[[recall" not in piece]
            reply["text"] = "recall: " + (" / ".join(dict.fromkeys(hits))[:1_500] or "NOT FOUND")
