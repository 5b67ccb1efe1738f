"""Answers in the shapes of OpenAI's two APIs: as one JSON document, and as server-sent events."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import orjson

from hermes_state.outside import Outcome

MODEL = "hermes"
"""Name of the only model. The gateway's settings choose the real one."""
Json: TypeAlias = dict[str, Any]  # Any: JSON values


def error_body(sentence: str, status: int, code: str | None) -> Json:
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}


def _event(value: Mapping[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(value) + b"\n\n"


class ChatShape(msgspec.Struct, kw_only=True):
    """Shape of `/v1/chat/completions`."""

    id: str
    created: int
    includes_usage: bool = False
    text: str = ""
    """Text that was sent. Later text can only be appended."""
    _piece: str = ""

    def grow(self, text: str) -> Iterator[bytes]:
        """Send what is new in an unfinished answer. After a tool call, an answer begins again."""
        if not (text := text.strip()):
            return
        new = text[len(self._piece) :] if text.startswith(self._piece) else f"\n\n{text}"
        self._piece, self.text = text, self.text + new
        if new:
            yield self._delta(new)

    def whole(self, outcome: Outcome) -> Json:
        choice = {"index": 0, "message": {"role": "assistant", "content": outcome.answer}, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage(outcome)}

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        yield self._chunk({}, "stop")
        if self.includes_usage:
            yield _event({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(outcome)})
        yield b"data: [DONE]\n\n"

    def fail(self, error: Json) -> Iterator[bytes]:
        yield _event(error)

    def _delta(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": MODEL}

    def _chunk(self, delta: Json, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _usage(self, outcome: Outcome, read: str = "prompt", written: str = "completion") -> Json:
        counts = {f"{read}_tokens": outcome.prompt_tokens, f"{written}_tokens": outcome.output_tokens}
        return {**counts, "total_tokens": outcome.prompt_tokens + outcome.output_tokens}


class ResponseShape(ChatShape, kw_only=True):
    """Shape of `/v1/responses`."""

    _number: int = 0
    """Number of the next event."""

    def whole(self, outcome: Outcome) -> Json:
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = self._usage(outcome, "input", "output") | details
        return self._response("completed", output=[self._item(outcome.answer)], usage=usage)

    def unfinished(self) -> Json:
        return self._response("in_progress")

    def begin(self) -> Iterator[bytes]:
        yield self._next("created", response=self.unfinished())
        yield self._next("output_item.added", item=self._item(None))
        yield self._next("content_part.added", part=self._part(""))

    def end(self, outcome: Outcome) -> Iterator[bytes]:
        yield self._next("output_text.done", text=outcome.answer, logprobs=[])
        yield self._next("content_part.done", part=self._part(outcome.answer))
        yield self._next("output_item.done", item=self._item(outcome.answer))
        yield self._next("completed", response=self.whole(outcome))

    def fail(self, error: Json) -> Iterator[bytes]:
        shown = {"code": "server_error", "message": error["error"]["message"]}
        yield self._next("failed", response=self._response("failed", error=shown))

    def _delta(self, text: str) -> bytes:
        return self._next("output_text.delta", delta=text, logprobs=[])

    def _next(self, kind: str, **values: object) -> bytes:
        place = {} if "response" in values else {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
        name, number = f"response.{kind}", self._number
        self._number += 1
        return _event({"type": name, "sequence_number": number, **place, **values}, name)

    def _response(self, status: str, **values: object) -> Json:
        head = {"id": self.id, "object": "response", "created_at": self.created, "model": MODEL, "status": status}
        return {**head, "output": [], "tools": [], "tool_choice": "none", "parallel_tool_calls": False, **values}

    def _item(self, text: str | None) -> Json:
        content, status = ([], "in_progress") if text is None else ([self._part(text)], "completed")
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": []}
