"""POST /v1/responses."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from tests.fakes.llm_errors import openai_error, overflow_error
from tests.fakes.llm_http import Call, misbehave, send_stream, send_whole, sse
from tests.fakes.llm_items import check_items
from tests.fakes.llm_legality import Json, text_of
from tests.fakes.llm_state import prompt_of

_Event = Callable[..., bytes]
_ONLY_WHEN_STRICT = ("private_key", "unknown_key")


async def responses(call: Call) -> web.StreamResponse:
    """Check the request, count its tokens, choose a reply, and send it. Keep the conversation if `store` is true."""
    body, llm = call.body, call.llm
    given = body.get("input")
    items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    instructions = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    _require_legal(call, check_items(items, body.get("tools")))
    messages = instructions + _as_messages(items)
    _require_own_reasoning(call, items)
    tools, wanted = body.get("tools"), body.get("max_output_tokens")
    sizes = call.note_sizes(messages, tools, wanted)
    if error := overflow_error(sizes.model, sizes.prompt, int(wanted or 0), sizes.tools):
        if sizes.model.style == "openai":
            error = openai_error(
                400,
                "Your input exceeds the context window of this model. Please adjust your input and try again.",
                code="context_length_exceeded",
                param="input",
                outcome="context_overflow",
            )
        raise error
    if wanted and int(wanted) > sizes.model.max_output:
        raise openai_error(
            400,
            "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= "
            f"{sizes.model.max_output}, but got {wanted} instead.",
            code="integer_above_max_value",
            param="max_output_tokens",
            outcome="output_cap",
        )
    prompt = prompt_of(call.model, messages, is_stream=call.is_stream, has_tools=bool(tools))
    reply = call.decide(prompt, int(wanted or sizes.model.max_output))
    if early := await misbehave(call, reply, "openai"):
        return early
    cached = llm.cached_tokens(call.model, str(body.get("prompt_cache_key", "")), sizes.blocks)
    cached = int(reply.get("cached", cached))
    done = llm.completion_tokens(reply)
    call.row.update(cached_tokens=cached, completion_tokens=done)
    usage = {
        "input_tokens": sizes.prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": done,
        "output_tokens_details": {"reasoning_tokens": llm.tokens(reply.get("reasoning") or "")},
        "total_tokens": sizes.prompt + done,
        **(reply.get("usage") or {}),
    }
    output = _output(call, reply)
    base = _base(call)
    final = base | _ending(reply) | {"output": output, "usage": None if reply.get("no_usage") else usage}
    if body.get("store", True):
        llm.stored_responses[base["id"]] = items + output
    if call.is_stream:
        return await send_stream(call, reply, _frames(call, reply, base, output, final))
    return await send_whole(call, reply, final, {"x-request-id": call.row["id"]})


def _ending(reply: Json) -> Json:
    """Return the status fields of the response. A reply without a finish stays in progress."""
    match reply["finish"]:
        case None:
            return {"status": "in_progress"}
        case "length":
            return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        case "content_filter":
            return {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
        case "failed":
            error = {"code": "server_error", "message": "The model failed to generate a response."}
            return {"status": "failed", "error": reply.get("failure") or error}
        case _:
            return {"status": "completed"}


def _as_messages(items: Sequence[Json]) -> list[Json]:
    """Return the items as chat messages, for counting."""
    messages: list[Json] = []
    for item in items:
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item.get("role"), "content": item.get("content")})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                asked = {"id": item["call_id"], "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
            case "function_call_output":
                output = text_of(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
    return messages


def _require_legal(call: Call, problems: list[Json]) -> None:
    call.note_findings(problems)
    errors = [problem for problem in problems if problem["severity"] == "error"]
    first = next((problem for problem in errors if problem["rule"] not in _ONLY_WHEN_STRICT), None)
    if first is None or not call.llm.config["reject_illegal"]:
        return
    wordings = {
        "unanswered_tool_calls": f"No tool output found for function call {first['detail']}.",
        "orphan_tool_result": f"No tool call found for function call output with call_id {first['detail']}.",
    }
    message = wordings.get(first["rule"], f"Invalid 'input[{first['index']}]': {first['rule']}: {first['detail']}")
    raise openai_error(400, message, param="input", outcome="illegal_messages")


def _require_own_reasoning(call: Call, items: Sequence[Json]) -> None:
    """Raise an error for encrypted reasoning that another model created."""
    for item in items:
        sealed = item.get("encrypted_content")
        if sealed is not None and not str(sealed).startswith(f"sealed:{call.model}:"):
            message = f"The encrypted content {str(sealed)[:4]}... could not be verified."
            raise openai_error(400, message, code="invalid_encrypted_content", outcome="foreign_reasoning")


def _output(call: Call, reply: Json) -> list[Json]:
    output: list[Json] = []
    if reply.get("reasoning"):
        summary = [{"type": "summary_text", "text": reply["reasoning"]}]
        thought = {"type": "reasoning", "id": f"rs_{call.row['id']}", "summary": summary}
        if "reasoning.encrypted_content" in (call.body.get("include") or ()):
            thought["encrypted_content"] = f"sealed:{call.model}:{reply['reasoning']}"
        output.append(thought)
    if reply.get("text"):
        part = {"type": "output_text", "text": reply["text"], "annotations": [], "logprobs": []}
        if reply.get("is_refusal"):
            part = {"type": "refusal", "refusal": reply["text"]}
        output.append(
            {
                "type": "message",
                "id": f"msg_{call.row['id']}",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for one in reply["tool_calls"]:
        output.append(
            {
                "type": "function_call",
                "id": f"fc_{one['id']}",
                "call_id": one["id"],
                "name": one["name"],
                "arguments": one["arguments"],
                "status": "completed",
            }
        )
    return output


def _base(call: Call) -> Json:
    body = call.body
    return {
        "id": f"resp_{call.row['id']}",
        "object": "response",
        "created_at": int(time.time()),
        "model": call.model,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "max_output_tokens": body.get("max_output_tokens"),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": body.get("store", True),
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
    }


def _frames(call: Call, reply: Json, base: Json, output: Sequence[Json], final: Json) -> list[bytes]:
    numbers = itertools.count()

    def event(kind: str, **data: Any) -> bytes:  # Any: JSON
        return sse({"type": kind, "sequence_number": next(numbers), **data}, kind)

    opening = base | {"status": "in_progress", "output": [], "usage": None}
    frames = [event("response.created", response=opening), event("response.in_progress", response=opening)]
    for n, item in enumerate(output):
        match item["type"]:
            case "message":
                frames += _text_frames(call, reply, event, n, item)
            case "reasoning":
                frames += _reasoning_frames(call, reply, event, n, item)
            case "function_call":
                frames += _call_frames(call, reply, event, n, item)
        frames.append(event("response.output_item.done", output_index=n, item=item))
    if final["status"] != "in_progress":
        frames.append(event(f"response.{final['status']}", response=final))
    return frames


def _text_frames(call: Call, reply: Json, event: _Event, n: int, item: Json) -> list[bytes]:
    part = item["content"][0]
    key = "refusal" if part["type"] == "refusal" else "text"
    name = "response.refusal" if key == "refusal" else "response.output_text"
    extra: Json = {} if key == "refusal" else {"logprobs": []}
    place = {"item_id": item["id"], "output_index": n, "content_index": 0}
    started = item | {"status": "in_progress", "content": []}
    return [
        event("response.output_item.added", output_index=n, item=started),
        event("response.content_part.added", **place, part=part | {key: ""}),
        *(event(f"{name}.delta", **place, delta=piece, **extra) for piece in call.pieces(part[key], reply)),
        event(f"{name}.done", **place, **{key: part[key]}, **extra),
        event("response.content_part.done", **place, part=part),
    ]


def _reasoning_frames(call: Call, reply: Json, event: _Event, n: int, item: Json) -> list[bytes]:
    text = item["summary"][0]["text"]
    place = {"item_id": item["id"], "output_index": n, "summary_index": 0}
    part = {"type": "summary_text", "text": ""}
    started = {**item, "summary": []} | ({"encrypted_content": "unfinished"} if "encrypted_content" in item else {})
    return [
        event("response.output_item.added", output_index=n, item=started),
        event("response.reasoning_summary_part.added", **place, part=part),
        *(event("response.reasoning_summary_text.delta", **place, delta=piece) for piece in call.pieces(text, reply)),
        event("response.reasoning_summary_text.done", **place, text=text),
        event("response.reasoning_summary_part.done", **place, part=part | {"text": text}),
    ]


def _call_frames(call: Call, reply: Json, event: _Event, n: int, item: Json) -> list[bytes]:
    place = {"item_id": item["id"], "output_index": n}
    arguments = item["arguments"]
    pieces = call.pieces(arguments, reply)
    return [
        event("response.output_item.added", output_index=n, item=item | {"status": "in_progress", "arguments": ""}),
        *(event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces),
        event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments),
    ]
