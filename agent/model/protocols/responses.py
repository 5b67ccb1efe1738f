"""OpenAI's Responses protocol. Every call sends the whole conversation, so the provider need not store it.

A request consists of instructions and items. A tool call, its result, and the reasoning before them are separate items.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import orjson
from msgspec.structs import replace

from agent.model.base import Endpoint, ModelReply, ModelRequest, made_by, with_fields
from agent.model.errors.classifier import error_in, stream_error
from agent.model.http import NOTHING, KeptPromptCache
from agent.model.protocols.openai import OpenAIModel, RequestFault, add_options
from agent.model.replies import MAX_ITEMS, ReplyBuilder, padded_json, serialized_reasoning
from agent.model.usage import normalize_usage, reported_cost
from agent.model.wire import REASONING, WireMessage, chat_messages
from hermes_state.errors import ContentRejected, ReplyMalformed
from hermes_state.values import Reasoning, Transcript


class ResponsesModel(OpenAIModel):
    """Chat model that is called through `POST /responses`. Close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "responses", "/responses", ResponsesReplyBuilder)

    def _effort_fields(self, word: str) -> dict[str, Any]:
        return {"reasoning": {"effort": word}}

    def _encoded(self, request: ModelRequest, faults: Collection[str], fields: Mapping[str, Any]) -> bytes:
        return encoded_request(self.name, request, faults, fields, streams=self._streams, kept=self._kept)


def encoded_request(
    model: str,
    request: ModelRequest,
    faults: Collection[str] = (),
    fields: Mapping[str, Any] = MappingProxyType({}),
    *,
    streams: bool = True,
    kept: KeptPromptCache | None = None,
) -> bytes:
    """Return the HTTP request body, adapted to `faults`, with additional `fields`."""
    reasoning_of = made_by("responses", model) if RequestFault.REPLAYED_REASONING not in faults else ""
    style = replace(request.style, reasoning_of=reasoning_of)

    def render(rows: Transcript, call_ids: set[str]) -> list[Item]:
        return items_of(chat_messages("", rows, style, call_ids))

    start = kept.beginning_of(request, render, reasoning_of) if kept is not None else NOTHING
    items = start.before(render(request.transcript[start.rows :], set(start.call_ids)))
    body: dict[str, Any] = {"model": model, "input": items, "store": False, "stream": streams}
    if request.system:
        body["instructions"] = request.system
    if RequestFault.ENCRYPTED_REASONING not in faults:
        body["include"] = ["reasoning.encrypted_content"]
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": False,  # the default, true, accepts only some schemas
        }
        for tool in request.tools
    ]
    add_options(body, request, limit_key="max_output_tokens", tools=tools)
    return orjson.dumps(with_fields(body, fields))


Item: TypeAlias = dict[str, Any]  # the API's JSON
ReasoningItem: TypeAlias = tuple[int, Item]
"""Number of outputs (text and calls) that precede a reasoning item in its answer, and the item."""
MAX_CALL_ID_CHARACTERS: Final = 64
"""Maximum length of a call id that the API accepts. Other providers' ids, from earlier calls, can be longer."""


def items_of(messages: Sequence[WireMessage]) -> list[Item]:
    """Return the items of all messages except the system prompt."""
    items: list[Item] = []
    for message in messages:
        match message["role"]:
            case "user":
                content = message["content"]
                if not isinstance(content, str):
                    content = [
                        {"type": "input_text", "text": part["text"]}
                        if part["type"] == "text"
                        else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
                        for part in content
                    ]
                items.append({"type": "message", "role": "user", "content": content})
            case "assistant":
                items += _answer_items(message)
            case "tool":
                call_id = _call_id(message["tool_call_id"])
                items.append({"type": "function_call_output", "call_id": call_id, "output": message["content"]})
    return items


def _answer_items(message: WireMessage) -> list[Item]:
    """Return an answer's text and calls, each preceded by its reasoning."""
    outputs: list[Item] = []
    if message["content"]:
        outputs.append({"type": "message", "role": "assistant", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        called = {"type": "function_call", "call_id": _call_id(call["id"]), "name": name, "arguments": arguments}
        outputs.append(called)
    last = len(outputs) - 1
    for index, item in reversed(message.get(REASONING, ())):
        outputs.insert(min(index, last), item)  # the API refuses reasoning at the end of an answer
    return outputs


def _call_id(call_id: str) -> str:
    if len(call_id) <= MAX_CALL_ID_CHARACTERS:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


class ResponsesReplyBuilder(ReplyBuilder):
    """Builds a reply from the events of a stream, or from a complete response, which has no `type`."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        super().__init__(on_text, made_by, request)
        self._streamed: list[object] = []
        """Indexes of messages whose text was streamed in pieces."""
        self._done: set[object] = set()
        """Indexes of complete items."""
        self._outputs = 0
        self._reasoning: list[ReasoningItem] = []
        self._is_cut_off: bool | None = None

    def read_event(self, event: Any) -> None:
        match kind := event.get("type", ""):
            case "response.output_text.delta" | "response.refusal.delta":
                self._add_message_text(event.get("output_index"), event["delta"])
            case _ if kind.endswith(".delta"):
                self.counted(event["delta"])  # only counted, because the complete item repeats the call or reasoning
            case "response.output_item.done":
                self._add_item(event.get("output_index", len(self._done)), event["item"])
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event["response"], kind.removeprefix("response."))
            case "" | "error" if (error := error_in(event)) is not None:
                raise stream_error(error, self.request)
            case "":
                self._end(event, event["status"])

    def _check(self, index: object) -> None:
        if index is not None and not isinstance(index, int):
            raise TypeError("the index of an item must be a number")
        if max(len(self._done), len(self._streamed)) > MAX_ITEMS:
            raise ReplyMalformed(f"the reply has more than {MAX_ITEMS} items")

    def _add_message_text(self, index: object, text: object) -> None:
        self._check(index)
        if index not in self._streamed:
            if self._streamed:
                self.add_text("\n\n")
            else:
                self._outputs += 1
            self._streamed.append(index)
        self.add_text(text)

    def _add_item(self, index: object, item: Mapping[str, Any]) -> None:
        self._check(index)
        if index in self._done:
            return
        self._done.add(index)
        match item.get("type"):
            case "message" if index not in self._streamed and None not in self._streamed:
                for part in item.get("content") or ():
                    if text := part.get("text") or part.get("refusal"):
                        self._add_message_text(index, text)
            case "function_call":
                self._outputs += 1
                self.add_call(index, call_id=item.get("call_id") or "", name=item["name"], arguments=item["arguments"])
            case "reasoning":
                self.counted(padded_json(item))
                if (sent_back := replayed_item(item)) is not None:
                    self._reasoning.append((self._outputs, sent_back))

    def _end(self, response: Mapping[str, Any], status: str) -> None:
        usage = response.get("usage")
        self.usage, self.cost = normalize_usage(usage, "responses"), reported_cost(usage)
        if status == "failed":
            raise stream_error(response.get("error"), self.request)
        output: Sequence[Mapping[str, Any]] = response.get("output") or ()
        for index, item in enumerate(output):
            self._add_item(index, item)
        reason = (response.get("incomplete_details") or {}).get("reason")
        if status == "incomplete" and reason == "content_filter":
            raise ContentRejected("the provider's filter stopped the reply")
        if status == "completed" or (status == "incomplete" and reason == "max_output_tokens"):
            self._is_cut_off = status == "incomplete"

    def finished(self) -> ModelReply:
        if self._is_cut_off is None:
            raise self.broken_off("the reply ended before it was complete")
        return self.built(
            is_cut_off=self._is_cut_off,
            reasoning=lambda _thought: stored_reasoning(self._reasoning, self._outputs, self._made_by),
        )


def replayed_item(item: Mapping[str, Any]) -> Item | None:
    """Return the fields of a reasoning item to send back to the provider; None for an item without content."""
    if not item.get("encrypted_content") and not item.get("content"):
        return None
    fields = ("type", "id", "summary", "content", "encrypted_content")
    sent_back = {key: item[key] for key in fields if item.get(key) is not None}
    return sent_back | {"summary": sent_back.get("summary") or []}  # required even if empty


def stored_reasoning(items: Sequence[ReasoningItem], outputs: int, made_by: str) -> Reasoning | None:
    """Return the reasoning to store with the calls. `outputs`: number of outputs in the answer."""
    useful = [item for item in items if item[0] < outputs]
    return serialized_reasoning(made_by, useful) if useful else None
