"""POST /v1/responses."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.fakes.labkit import j
from tests.fakes.llm_errors import openai_error, overflow_error
from tests.fakes.llm_http import Call, misbehave, send_stream, sse
from tests.fakes.llm_legality import Findings, Json, text_of
from tests.fakes.llm_state import prompt_of


async def responses(call: Call) -> web.StreamResponse:
    """Check, count, decide and answer, streamed or not; the conversation is kept for `previous_response_id`."""
    body, llm = call.body, call.llm
    items = _all_items(call)
    instructions = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    messages, problems = _as_messages(items)
    messages = instructions + messages
    _require_legal(call, problems)
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
    prompt = prompt_of(call.model, messages, is_stream=call.is_stream, has_tools=bool(tools))
    reply = call.decide(prompt, int(wanted or sizes.model.max_output))
    if early := await misbehave(call, reply, "openai"):
        return early
    cached = llm.cached_tokens(call.model, str(body.get("prompt_cache_key", "")), sizes.blocks)
    done = llm.completion_tokens(reply)
    call.row.update(cached_tokens=cached, completion_tokens=done)
    usage = {
        "input_tokens": sizes.prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": done,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sizes.prompt + done,
    }
    output = _output(call, reply)
    base = _base(call)
    is_cut = reply["finish"] == "length"
    final = base | {"status": "incomplete" if is_cut else "completed", "output": output, "usage": usage}
    if is_cut:
        final["incomplete_details"] = {"reason": "max_output_tokens"}
    llm.stored_responses[base["id"]] = items + output
    if call.is_stream:
        return await send_stream(call, reply, _frames(call, reply, base, output, final))
    return j(final, headers={"x-request-id": call.row["id"]})


def _all_items(call: Call) -> list[Json]:
    """The input, behind the conversation that it continues."""
    given = call.body.get("input")
    items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    previous = call.body.get("previous_response_id")
    if not previous:
        return items
    if previous not in call.llm.stored_responses:
        raise openai_error(
            400,
            f"Previous response with id '{previous}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return call.llm.stored_responses[previous] + items


def _as_messages(items: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """The items as chat messages, and what is wrong with them."""
    messages: list[Json] = []
    findings = Findings()
    open_ids: dict[str, None] = {}
    for n, item in enumerate(items):
        for key in item:
            if key.startswith("_"):
                findings.say("private_key", n, key)
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item.get("role"), "content": item.get("content")})
            case "function_call":
                open_ids[item["call_id"]] = None
                function = {"name": item["name"], "arguments": item["arguments"]}
                asked = {"id": item["call_id"], "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
            case "function_call_output":
                if item["call_id"] not in open_ids:
                    findings.say("orphan_tool_result", n, item["call_id"])
                open_ids.pop(item["call_id"], None)
                output = text_of(item.get("output"))
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
    for call_id in open_ids:
        findings.say("unanswered_tool_calls", None, call_id)
    return messages, findings.rows


def _require_legal(call: Call, problems: list[Json]) -> None:
    call.note_findings(problems)
    first = next((problem for problem in problems if problem["rule"] != "private_key"), None)
    if first is None or not call.llm.config["reject_illegal"]:
        return
    if first["rule"] == "unanswered_tool_calls":
        message = f"No tool output found for function call {first['detail']}."
    else:
        message = f"No tool call found for function call output with call_id {first['detail']}."
    raise openai_error(400, message, param="input", outcome="illegal_messages")


def _output(call: Call, reply: Json) -> list[Json]:
    output: list[Json] = []
    if reply.get("text"):
        part = {"type": "output_text", "text": reply["text"], "annotations": [], "logprobs": []}
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
        if item["type"] == "message":
            part = item["content"][0]
            place = {"item_id": item["id"], "output_index": n, "content_index": 0}
            started = item | {"status": "in_progress", "content": []}
            frames.append(event("response.output_item.added", output_index=n, item=started))
            frames.append(event("response.content_part.added", **place, part=part | {"text": ""}))
            for piece in call.pieces(part["text"], reply):
                frames.append(event("response.output_text.delta", **place, delta=piece, logprobs=[]))
            frames.append(event("response.output_text.done", **place, text=part["text"], logprobs=[]))
            frames.append(event("response.content_part.done", **place, part=part))
        else:
            place = {"item_id": item["id"], "output_index": n}
            started = item | {"status": "in_progress", "arguments": ""}
            frames.append(event("response.output_item.added", output_index=n, item=started))
            for piece in call.pieces(item["arguments"], reply):
                frames.append(event("response.function_call_arguments.delta", **place, delta=piece))
            whole = {"name": item["name"], "arguments": item["arguments"]}
            frames.append(event("response.function_call_arguments.done", **place, **whole))
        frames.append(event("response.output_item.done", output_index=n, item=item))
    frames.append(event(f"response.{final['status']}", response=final))
    return frames
