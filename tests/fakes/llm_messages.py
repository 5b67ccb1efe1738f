"""POST /v1/messages: the Anthropic protocol."""

import hashlib
import json
import time
from collections.abc import Sequence

from aiohttp import web

from tests.fakes.llm_errors import Model, anthropic_error, overflow_error
from tests.fakes.llm_http import Call, misbehave, send_stream, send_whole, sse
from tests.fakes.llm_legality import Json, check_anthropic, compact, text_of
from tests.fakes.llm_state import CACHE_MIN, LLM, prompt_of, without_cache_control

_MAX_BREAKPOINTS = 4
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


async def messages(call: Call) -> web.StreamResponse:
    """Check the request, count its tokens, choose a reply, and send it, streamed or not."""
    body, llm = call.body, call.llm
    if not call.request.headers.get("anthropic-version"):
        raise anthropic_error(400, "anthropic-version: header is required")
    if not body.get("max_tokens"):
        raise anthropic_error(400, "max_tokens: Field required")
    _require_legal(call)
    blocks = _cache_blocks(llm, body)
    marks = sum(1 for _, _, is_mark in blocks if is_mark)
    if marks > _MAX_BREAKPOINTS:
        message = f"A maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {marks}."
        raise anthropic_error(400, message, outcome="cache_control")
    rows = _with_system(body)
    wanted = int(body["max_tokens"])
    sizes = call.note_sizes(rows, body.get("tools"), wanted)
    call.row["cache_breakpoints"] = marks
    _require_room(call, sizes.model, sizes.prompt, sizes.tools, wanted)
    prompt = prompt_of(call.model, _openai_shaped(rows), is_stream=call.is_stream, has_tools=bool(body.get("tools")))
    reply = call.decide(prompt, wanted)
    if early := await misbehave(call, reply, "anthropic"):
        return early
    read, written = _use_cache(llm, call.model, blocks)
    read = int(reply.get("cached", read))
    done = llm.completion_tokens(reply)
    call.row.update(cached_tokens=read, cache_written=written, completion_tokens=done)
    usage = {
        "input_tokens": max(0, sizes.prompt - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": done,
        "service_tier": "standard",
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        **(reply.get("usage") or {}),
    }
    content = _content(reply)
    finish: str = reply["finish"]
    stop = _STOP_REASONS.get(finish, finish)
    head: Json = {
        "id": f"msg_{call.row['id']}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    if call.is_stream:
        return await send_stream(call, reply, _frames(call, reply, head, content, stop, usage))
    whole = head | {"content": content, "stop_reason": stop, "usage": usage}
    return await send_whole(call, reply, whole, {"request-id": call.row["id"]})


def _with_system(body: Json) -> list[Json]:
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return system + list(body.get("messages") or [])


def _require_legal(call: Call) -> None:
    problems = check_anthropic(call.body)
    call.note_findings(problems)
    fatal = [problem for problem in problems if problem["severity"] == "error"]
    if fatal and call.llm.config["reject_illegal"]:
        raise anthropic_error(400, fatal[0]["detail"], outcome="illegal_messages")


def _require_room(call: Call, model: Model, prompt: int, tools: int, wanted: int) -> None:
    if wanted > model.max_output:
        raise anthropic_error(
            400,
            f"max_tokens: {wanted} > {model.max_output}, which is the maximum allowed number of output tokens for "
            f"{call.model}",
            outcome="output_cap",
        )
    if prompt > model.context:
        own = Model(context=model.context, style="anthropic" if model.style == "openai" else model.style)
        if error := overflow_error(own, prompt, wanted, tools):
            raise error
    if prompt + wanted > model.context:
        raise anthropic_error(
            400,
            f"input length and `max_tokens` exceed context limit: {prompt} + {wanted} > {model.context}, decrease "
            "input length or `max_tokens` and try again",
            outcome="output_cap",
        )


def _cache_blocks(llm: LLM, body: Json) -> list[tuple[str, int, bool]]:
    """Return every part of the prompt in order, with its text, its tokens, and True if it ends at a breakpoint."""
    blocks: list[tuple[str, int, bool]] = []
    for tool in body.get("tools") or []:
        text = compact(without_cache_control(tool))
        blocks.append((text, llm.tokens(text) + 8, "cache_control" in tool))
    for message in _with_system(body):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        for n, part in enumerate(parts):
            size = llm.message_tokens({"role": message["role"] if n == 0 else "", "content": [part]})
            text = message["role"] + compact(without_cache_control(part))
            blocks.append((text, size - (3 if n else 0), "cache_control" in part))
    return blocks


def _use_cache(llm: LLM, model: str, blocks: Sequence[tuple[str, int, bool]]) -> tuple[int, int]:
    """Return the tokens read from and written to the cache. Only prefixes that end at a breakpoint are cached."""
    now = time.monotonic()
    digest = hashlib.sha256()
    read = total = last_mark = 0
    for text, size, is_mark in blocks:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        total += size
        key = (model, digest.hexdigest())
        is_large = total >= CACHE_MIN
        if is_large and now - llm.anthropic_cache.get(key, -1e9) <= llm.config["cache_ttl"]:
            read = total
            llm.anthropic_cache[key] = now
        if is_large and is_mark:
            last_mark = total
            llm.anthropic_cache[key] = now
    if not any(is_mark for _, _, is_mark in blocks):
        read = 0
    return read, max(0, last_mark - read)


def _openai_shaped(rows: Sequence[Json]) -> list[Json]:
    """Return the list in the form that scripts and directives use, with tool results as separate messages."""
    shaped: list[Json] = []
    for message in rows:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        results = [part for part in parts if part.get("type") == "tool_result"]
        others = [part for part in parts if part.get("type") != "tool_result"]
        shaped += [{"role": "tool", "content": text_of(part.get("content"))} for part in results]
        if others:
            shaped.append({"role": message["role"], "content": others})
    return shaped


def _content(reply: Json) -> list[Json]:
    content: list[Json] = [{"type": "text", "text": reply["text"]}] if reply.get("text") else []
    for call in reply["tool_calls"]:
        try:
            arguments = json.loads(call["arguments"])
        except ValueError:
            arguments = {}
        call_id = call["id"].replace("call_", "toolu_")
        content.append({"type": "tool_use", "id": call_id, "name": call["name"], "input": arguments})
    return content


def _frames(call: Call, reply: Json, head: Json, content: Sequence[Json], stop: str, usage: Json) -> list[bytes]:
    def event(kind: str, **data: object) -> bytes:
        return sse({"type": kind, **data}, kind)

    frames = [
        event("message_start", message=head | {"usage": usage | {"output_tokens": 1}}),
        sse({"type": "ping"}, "ping"),
    ]
    for n, block in enumerate(content):
        if block["type"] == "text":
            text, empty, key, kind = block["text"], {"type": "text", "text": ""}, "text", "text_delta"
        else:
            text, empty = json.dumps(block["input"]), block | {"input": {}}
            key, kind = "partial_json", "input_json_delta"
        frames.append(event("content_block_start", index=n, content_block=empty))
        for piece in call.pieces(text, reply):
            frames.append(event("content_block_delta", index=n, delta={"type": kind, key: piece}))
        frames.append(event("content_block_stop", index=n))
    frames.append(event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage))
    frames.append(event("message_stop"))
    return frames
