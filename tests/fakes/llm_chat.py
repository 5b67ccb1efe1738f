"""POST /v1/chat/completions."""

import time

from aiohttp import web

from tests.fakes.llm_errors import openai_error, overflow_error
from tests.fakes.llm_http import Call, misbehave, send_stream, send_whole, sse
from tests.fakes.llm_legality import Json, check_openai
from tests.fakes.llm_state import prompt_of

_ONLY_WHEN_STRICT = ("private_key", "unknown_key", "null_content")


async def chat_completions(call: Call) -> web.StreamResponse:
    """Check the request, count its tokens, choose a reply, and send it, streamed or not."""
    body, llm = call.body, call.llm
    messages, tools = body.get("messages"), body.get("tools")
    if not call.model:
        raise openai_error(400, "you must provide a model parameter")
    _require_legal(call)
    assert isinstance(messages, list)
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    sizes = call.note_sizes([message for message in messages if isinstance(message, dict)], tools, wanted)
    model = sizes.model
    if wanted and int(wanted) > model.max_output:
        raise openai_error(
            400,
            f"max_tokens is too large: {wanted}. This model supports at most {model.max_output} completion tokens, "
            f"whereas you provided {wanted}.",
            code="invalid_value",
            param="max_tokens",
            outcome="output_cap",
        )
    if error := overflow_error(model, sizes.prompt, int(wanted or 0), sizes.tools):
        raise error
    prompt = prompt_of(call.model, messages, is_stream=call.is_stream, has_tools=bool(tools))
    room = max(1, model.context - sizes.prompt)
    reply = call.decide(prompt, min(int(wanted or model.max_output), room))
    if early := await misbehave(call, reply, "openai"):
        return early
    cached = llm.cached_tokens(call.model, str(body.get("prompt_cache_key", "")), sizes.blocks)
    cached = int(reply.get("cached", cached))
    usage = _usage(call, reply, sizes.prompt, cached)
    if call.is_stream:
        return await send_stream(call, reply, _frames(call, reply, usage))
    return await send_whole(call, reply, _whole(call, reply, usage), {"x-request-id": call.row["id"]})


def _require_legal(call: Call) -> None:
    config = call.llm.config
    problems = check_openai(call.body.get("messages"), call.body.get("tools"))
    call.note_findings(problems)
    errors = [problem for problem in problems if problem["severity"] == "error"]
    fatal = [problem for problem in errors if config["strict_keys"] or problem["rule"] not in _ONLY_WHEN_STRICT]
    if not fatal or not (config["reject_illegal"] or fatal[0]["rule"] == "messages_missing"):
        return
    first = fatal[0]
    wordings = {
        "orphan_tool_result": "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        "unanswered_tool_calls": "An assistant message with 'tool_calls' must be followed by tool messages responding "
        "to each 'tool_call_id'. The following tool_call_ids did not have response messages: " + first["detail"],
    }
    message = wordings.get(first["rule"], f"Invalid 'messages[{first['index']}]': {first['rule']}: {first['detail']}")
    raise openai_error(400, message, param="messages", outcome="illegal_messages")


def _usage(call: Call, reply: Json, prompt: int, cached: int) -> Json:
    done = call.llm.completion_tokens(reply)
    call.row.update(cached_tokens=cached, completion_tokens=done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": done,
        "total_tokens": prompt + done,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": call.llm.tokens(reply.get("reasoning") or ""),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        **(reply.get("usage") or {}),
    }


def _whole(call: Call, reply: Json, usage: Json) -> Json:
    text, calls = reply.get("text"), reply["tool_calls"]
    message: Json = {
        "role": "assistant",
        "content": text if text is not None or calls else "",
        "refusal": None,
        "annotations": [],
    }
    if reply.get("reasoning"):
        message["reasoning_content"] = reply["reasoning"]
    if calls:
        message["tool_calls"] = [_wire_call(one) for one in calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply["finish"]}
    whole = _head(call, "chat.completion") | {
        "service_tier": "default",
        "choices": [] if reply.get("no_choices") else [choice],
    }
    return whole if reply.get("no_usage") else whole | {"usage": usage}


def _frames(call: Call, reply: Json, usage: Json) -> list[bytes]:
    """Return the events of a streamed reply, in order."""
    with_usage = bool((call.body.get("stream_options") or {}).get("include_usage")) and not reply.get("no_usage")
    head = _head(call, "chat.completion.chunk")
    silent = {"usage": None} if with_usage else {}

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse(head | {"choices": [choice]} | silent)

    text = reply.get("text") or ""
    frames = [chunk({"role": "assistant", "content": "" if text else None, "refusal": None})]
    frames += [chunk({"reasoning_content": piece}) for piece in call.pieces(reply.get("reasoning") or "", reply)]
    frames += [chunk({"content": piece}) for piece in call.pieces(text, reply)]
    for n, one in enumerate(reply["tool_calls"]):
        frames.append(chunk({"tool_calls": [{"index": n, **_wire_call(one | {"arguments": ""})}]}))
        frames += [
            chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
            for piece in call.pieces(one["arguments"], reply)
        ]
    frames.append(chunk({}, reply["finish"]))
    if with_usage:
        frames.append(sse(head | {"choices": [], "usage": usage}))
    if not reply.get("no_done"):
        frames.append(sse("[DONE]"))
    return frames


def _head(call: Call, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{call.row['id']}",
        "object": kind,
        "created": int(time.time()),
        "model": call.model,
        "system_fingerprint": "fp_lab",
    }


def _wire_call(call: Json) -> Json:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}
