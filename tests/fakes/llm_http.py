"""Sending of replies, and intentional misbehaviour while sending."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from tests.fakes import labkit
from tests.fakes.labkit import j
from tests.fakes.llm_errors import Model, scripted_error
from tests.fakes.llm_legality import Json, compact, strict_refusal
from tests.fakes.llm_state import LLM, Prompt

_LOOK_SECONDS = 0.01
"""Seconds between checks whether the client of an open request has disconnected. aiohttp does not report this."""


FINDINGS: list[Json] = []
"""Illegal or untidy content in requests to any server of this process. `tests/conftest.py` checks it after each
test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request while it is served. `row` is its row in the journal."""

    llm: LLM
    request: web.Request
    body: Json
    row: Json

    @property
    def model(self) -> str:
        return str(self.body.get("model") or "")

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    def pieces(self, text: str, reply: Json) -> list[str]:
        """Return the pieces in which the text is streamed."""
        size = int(reply.get("chunk_chars") or self.llm.config["chunk_chars"])
        return [text[start : start + size] for start in range(0, len(text), size)]

    def note_sizes(self, messages: Sequence[Json], tools: Sequence[Any] | None, wanted: int | None) -> "PromptSizes":
        """Count the prompt's tokens, record them in the journal, and return them."""
        sizes = [self.llm.message_tokens(message) for message in messages]
        tool_tokens = self.llm.tool_tokens(tools)
        model = self.llm.model(self.model)
        prompt = 3 + sum(sizes) + tool_tokens
        self.row.update(
            prompt_tokens=prompt,
            message_tokens=sizes,
            tool_tokens=tool_tokens,
            context_limit=model.context,
            max_tokens=wanted,
        )
        blocks = [(compact(tool), self.llm.tokens(compact(tool)) + 8) for tool in tools or []]
        blocks += [(compact(message), size) for message, size in zip(messages, sizes, strict=True)]
        return PromptSizes(model=model, prompt=prompt, tools=tool_tokens, blocks=blocks)

    def note_findings(self, findings: list[Json]) -> None:
        """Record what is illegal or untidy in the request."""
        self.row["violations"] = findings
        FINDINGS.extend(findings)

    def decide(self, prompt: Prompt, max_output: int) -> Json:
        """Choose the reply, and record it in the journal."""
        self.row["summary"] = self.llm.summary_source(prompt) is not None
        reply = self.llm.decide(prompt, max_output)
        self.row["reply"] = {
            key: value for key, value in reply.items() if key in ("text", "tool_calls", "finish", "error")
        }
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSizes:
    """Sizes of a prompt, in tokens. `blocks` are its parts in order, for the cache."""

    model: Model
    prompt: int
    tools: int
    blocks: list[tuple[str, int]]


def sse(data: object, event: str | None = None) -> bytes:
    """Encode one server-sent event. A string is sent unchanged."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


async def misbehave(call: Call, reply: Json, dialect: str) -> web.Response | None:
    """Apply the delays, errors and hangs that a script requires before the first byte. Return None to continue."""
    for rule in call.llm.config["refuses"]:
        if _has_field(call.body, rule):
            raise scripted_error({"status": rule.get("status", 400), "body": rule["body"]}, dialect)
    if refusal := strict_refusal(call.body, call.llm.config["shape"]):
        raise scripted_error({"status": 400, "body": refusal}, dialect)
    if reply.get("delay"):
        await hold(call, float(reply["delay"]))
    if (may_go_on := reply.get("waits_for")) is not None:
        await may_go_on.wait()
    if reply.get("hang"):
        await _hang(call, labkit.FOREVER_SECONDS if reply["hang"] is True else float(reply["hang"]))
    if reply.get("reset"):
        raise labkit.Hangups
    if reply.get("error"):
        raise scripted_error(reply["error"], dialect)
    if reply.get("raw") is not None:
        return web.Response(
            status=int(reply.get("status", 200)),
            body=str(reply["raw"]).encode("utf-8", "surrogateescape"),
            content_type=reply.get("content_type", "application/json"),
        )
    return None


def _has_field(body: Json, rule: Json) -> bool:
    """Return True if the rule of `refuses` matches the request's fields. Dots separate nested names."""
    for path in rule["fields"]:
        value: Any = body
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None or (path == rule["fields"][0] and value not in rule.get("values", [value])):
            return False
    return not any(body.get(name) in values for name, values in rule.get("unless", {}).items())


def _is_anthropic(call: Call) -> bool:
    return call.request.path.endswith("/messages")


def _error_frame(call: Call) -> bytes:
    error = _late_error(call)
    return sse(error, "error" if error.get("type") == "error" else None)


def _late_error(call: Call) -> Json:
    """Return an error that is sent after a 200 status, in the protocol's format."""
    message = "The server had an error while processing your request"
    if _is_anthropic(call):
        return {"type": "error", "error": {"type": "overloaded_error", "message": message}}
    if call.is_stream and call.request.path.endswith("/responses"):
        return {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 0}
    return {"error": {"message": message, "type": "server_error", "code": None, "param": None}}


async def hold(call: Call, seconds: float) -> None:
    """Keep the request open. If the client disconnects, record this in the journal and raise `Hangups`."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if call.request.transport is None:
            call.row["outcome"] = "client_gone"
            raise labkit.Hangups
        await asyncio.sleep(min(left, _LOOK_SECONDS))


async def _hang(call: Call, seconds: float) -> NoReturn:
    """Send nothing more, then close the connection."""
    call.row["outcome"] = "hung"
    await call.llm.requests.touch()
    await hold(call, seconds)
    raise labkit.Hangups


_FILLERS = {"/messages": {"type": "ping"}, "/responses": {"type": "response.in_progress", "sequence_number": 1}}
_EMPTY_DELTA = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": ""}}]}


async def _keep_open(call: Call, reply: Json, response: web.StreamResponse) -> None:
    """Send data without content for `keep_open_seconds`."""
    filler = b" \n"
    if call.is_stream and reply.get("keep_open_with") == "event":
        protocol = next((path for path in _FILLERS if call.request.path.endswith(path)), "")
        event = _FILLERS.get(protocol, _EMPTY_DELTA)
        filler = sse(event, str(event["type"]) if protocol else None)
    elif call.is_stream:
        filler = b": keep-alive\n\n"
    until = time.monotonic() + float(reply.get("keep_open_seconds", labkit.FOREVER_SECONDS))
    while time.monotonic() < until:
        await response.write(filler)
        await hold(call, _LOOK_SECONDS)


async def send_whole(call: Call, reply: Json, whole: Json, headers: Mapping[str, str]) -> web.StreamResponse:
    """Send a reply as one body. Faults that interrupt a stream interrupt this body in the middle."""
    if reply.get("error_mid") is not None:
        call.row["outcome"] = "error_mid_stream"
        return j(_late_error(call), headers=headers)
    body = json.dumps(whole).encode()
    half = body[: len(body) // 2]
    if reply.get("malformed"):
        return web.Response(body=half, headers=headers, content_type="application/json")
    if reply.get("truncate") is None and reply.get("hang_after") is None and reply.get("keep_open") is None:
        return j(whole, headers=headers)
    response = web.StreamResponse(headers={**headers, "Content-Type": "application/json"})
    if reply.get("keep_open") is not None:
        await response.prepare(call.request)
        with contextlib.suppress(ConnectionError):
            await _keep_open(call, reply, response)
            await response.write(body)
            await response.write_eof()
        return response
    response.content_length = len(body)
    response.force_close()
    await response.prepare(call.request)
    await response.write(half)
    if reply.get("truncate") is None:
        await _hang(call, float(reply.get("hang_seconds", labkit.FOREVER_SECONDS)))
    call.row["outcome"] = "truncated"
    if reply.get("truncate_how") == "reset":
        raise labkit.Hangups
    if call.request.transport is not None:
        call.request.transport.close()  # closes before the announced length is sent
    return response


async def send_stream(call: Call, reply: Json, frames: Sequence[bytes]) -> web.StreamResponse:
    """Send the events of a reply, with the interruptions, pauses and garbage that the reply specifies."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "x-request-id": call.row["id"]}
    response = web.StreamResponse(headers=headers)
    if reply.get("truncate") is not None:
        response.force_close()
    await response.prepare(call.request)
    try:
        await _send_frames(call, reply, frames, response)
    except ConnectionError:
        call.row["outcome"] = "client_gone"
        return response
    with contextlib.suppress(ConnectionError):  # everything was sent, so the client misses nothing
        await response.write_eof()
    return response


async def _send_frames(call: Call, reply: Json, frames: Sequence[bytes], response: web.StreamResponse) -> None:
    pause: float = reply.get("chunk_delay") or call.llm.config["chunk_delay"]
    for n, frame in enumerate(frames):
        if reply.get("truncate") is not None and n >= int(reply["truncate"]):
            call.row["outcome"] = "truncated"
            if reply.get("truncate_how") == "reset":
                raise labkit.Hangups
            return
        if n == reply.get("keep_open"):
            await _keep_open(call, reply, response)
        if reply.get("hang_after") is not None and n >= int(reply["hang_after"]):
            await _hang(call, float(reply.get("hang_seconds", labkit.FOREVER_SECONDS)))
        while n == reply.get("pause_after") and not call.llm.resumed.is_set():
            call.row["paused"] = True
            await hold(call, _LOOK_SECONDS)
        call.row["paused"] = False
        if reply.get("malformed") and n == int(reply["malformed"]):
            head = b"event: content_block_delta\n" if _is_anthropic(call) else b""
            await response.write(head + b'data: {"id": "broken", "choices": [{"delta": {"content": \n\n')
        if reply.get("error_mid") is not None and n == int(reply["error_mid"]):
            call.row["outcome"] = "error_mid_stream"
            await response.write(_error_frame(call))
            return
        await response.write(frame)
        if pause:
            await hold(call, pause)
    if reply.get("keep_open", -1) >= len(frames):
        await _keep_open(call, reply, response)
