"""OpenAI's Responses protocol. Nothing is kept on the provider's side: every call brings the whole conversation.

The neutral message list in the shape of OpenAI's Responses API: instructions, then items.

Pure functions. A call and its result are items of their own there, and so is what was thought before them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import orjson

from agent.model import wire
from agent.model.base import ModelReply, ModelRequest, ToolSchema, made_by
from agent.model.errors import stream_error
from agent.model.http import MAX_CACHE_KEY_CHARACTERS, Endpoint, RequestFault
from agent.model.protocols.openai import OpenAIModel, ReplyReader
from agent.model.replies import ReplyBuilder, serialized_reasoning
from agent.model.usage import UsageFormat, normalize_usage, reported_cost
from agent.model.wire import REASONING, WireMessage
from hermes_state.errors import ContentFiltered, ReplyMalformed
from hermes_state.values import CanonicalUsage, MicroUsd, Reasoning

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesSettings(Endpoint):
    """Where the model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDialect:
    """What models and servers differ in. Starts out as reasoning models take it, and learns from what is refused."""

    asks_for_reasoning: bool = True
    replays_reasoning: bool = True

    def after(self, refusal: RequestFault) -> "ResponsesDialect":
        """Without what was refused."""
        match refusal:
            case RequestFault.ENCRYPTED_REASONING:
                return replace(self, asks_for_reasoning=False)
            case RequestFault.REPLAYED_REASONING:
                return replace(self, replays_reasoning=False)
            case RequestFault.LIMIT_NAME | RequestFault.STREAM_OPTIONS | RequestFault.MISSING_REASONING:
                return self


class ResponsesModel(OpenAIModel[ResponsesDialect]):
    """A model behind `POST /responses`. Close it when done."""

    def __init__(self, settings: ResponsesSettings) -> None:
        super().__init__(settings, protocol="responses", path="/responses", dialect=ResponsesDialect())

    def _encoded(self, request: ModelRequest, dialect: ResponsesDialect) -> bytes:
        return encoded_request(self.name, request, dialect, streams=self._streams)

    def _begun(self, on_text: Callable[[str], None]) -> ReplyReader:
        return _Reply(on_text, self._maker)


def encoded_request(
    model: str, request: ModelRequest, dialect: ResponsesDialect | None = None, *, streams: bool = True
) -> bytes:
    """The body of the HTTP request."""
    dialect = dialect or ResponsesDialect()
    maker = made_by("responses", model) if dialect.replays_reasoning else ""
    messages = wire.chat_messages(request.system, request.transcript, replace(request.style, reasoning_of=maker))
    instructions, items = instructions_and_items(messages)
    body: dict[str, Any] = {"model": model, "input": items, "store": False, "stream": streams}
    if instructions:
        body["instructions"] = instructions
    if dialect.asks_for_reasoning:
        body["include"] = [ENCRYPTED_REASONING]
    if request.max_output_tokens is not None:
        body["max_output_tokens"] = request.max_output_tokens
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key[:MAX_CACHE_KEY_CHARACTERS]
    return orjson.dumps(body)


def _tool(tool: ToolSchema) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,  # it is on here where nothing is said, and then takes only some schemas
    }


class _Reply:
    """Collects the events of one stream, or takes the response that is whole; only the latter is of no type."""

    def __init__(self, on_text: Callable[[str], None], maker: str) -> None:
        self._reply = ReplyBuilder(on_text)
        self._maker = maker
        self._spoken: list[object] = []  # places of messages whose text came in pieces
        self._taken: set[object] = set()  # places of whole items
        self._outputs = 0
        self._thoughts: list[Thought] = []
        self._is_cut_off: bool | None = None
        self.usage: CanonicalUsage | None = None
        self.cost: MicroUsd | None = None

    def add(self, event: object) -> None:
        """Take in one event.

        Raises what the provider says went wrong, and `ReplyMalformed` when it is not shaped like an event.
        """
        try:
            self._add(event)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("an event of the provider's reply has an unknown shape") from error

    def _add(self, event: Any) -> None:
        match kind := event.get("type", ""):
            case "response.output_text.delta" | "response.refusal.delta":
                self._say(event.get("output_index"), event["delta"])
            case "response.function_call_arguments.delta":
                self._reply.counted(event["delta"])  # they come again with the whole call
            case "response.output_item.done":
                self._take(event.get("output_index", len(self._taken)), event["item"])
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(event["response"], kind.removeprefix("response."))
            case "":
                self._end(event, event["status"])
            case "error":
                raise stream_error(event)

    def _say(self, place: object, text: object) -> None:
        if place not in self._spoken:
            if self._spoken:
                self._reply.add_text("\n\n")
            else:
                self._outputs += 1
            self._spoken.append(place)
        self._reply.add_text(text)

    def _take(self, place: object, item: Mapping[str, Any]) -> None:
        """An item that is whole."""
        if place in self._taken:
            return
        self._taken.add(place)
        match item.get("type"):
            case "message" if place not in self._spoken and None not in self._spoken:
                for part in item.get("content") or ():
                    if text := part.get("text") or part.get("refusal"):
                        self._say(place, text)
            case "function_call":
                self._outputs += 1
                self._reply.add_call(
                    place, call_id=item.get("call_id") or "", name=item["name"], arguments=item["arguments"]
                )
            case "reasoning":
                self._reply.counted(json.dumps(item))
                if (thought := kept_thought(item)) is not None:
                    self._thoughts.append((self._outputs, thought))

    def _end(self, response: Mapping[str, Any], status: str) -> None:
        usage = response.get("usage")
        self.usage, self.cost = normalize_usage(usage, UsageFormat.RESPONSES), reported_cost(usage)
        if status == "failed":
            raise stream_error(response.get("error"))
        output: Sequence[Mapping[str, Any]] = response.get("output") or ()
        for place, item in enumerate(output):
            self._take(place, item)
        reason = (response.get("incomplete_details") or {}).get("reason")
        if status == "incomplete" and reason == "content_filter":
            raise ContentFiltered("the provider stopped its reply")
        if status == "completed" or (status == "incomplete" and reason == "max_output_tokens"):
            self._is_cut_off = status == "incomplete"

    def finished(self) -> ModelReply:
        """The whole reply. Raises `ReplyMalformed` when it broke off."""
        if self._is_cut_off is None:
            raise ReplyMalformed("the reply ended before it was complete")
        has_calls = self._reply.has_calls
        return self._reply.finished(
            is_cut_off=self._is_cut_off,
            usage=self.usage,
            reasoning=stored_thoughts(self._thoughts, self._outputs, self._maker) if has_calls else None,
            cost=self.cost,
        )


Item: TypeAlias = dict[str, Any]  # the API's JSON: it is only serialised
Thought: TypeAlias = tuple[int, Item]
"""A reasoning item, and how many outputs of the same answer (its text, its calls) stood before it."""

MAX_CALL_ID_CHARACTERS: Final = 64
"""The API refuses longer ones; other providers make them, and a conversation may go on from one to the next."""
_KEPT: Final = ("type", "id", "summary", "content", "encrypted_content")


def instructions_and_items(messages: Sequence[WireMessage]) -> tuple[str, list[Item]]:
    """The system prompt, and everything after it."""
    instructions = ""
    items: list[Item] = []
    for message in messages:
        match message["role"]:
            case "system":
                instructions = message["content"]
            case "user":
                items.append({"type": "message", "role": "user", "content": _content(message["content"])})
            case "assistant":
                items += _answer(message)
            case "tool":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": _call_id(message["tool_call_id"]),
                        "output": message["content"],
                    }
                )
    return instructions, items


def _content(content: str | list[dict[str, Any]]) -> str | list[Item]:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        for part in content
    ]


def _answer(message: WireMessage) -> list[Item]:
    """An answer's text and calls, each behind what was thought before it."""
    outputs: list[Item] = []
    if message["content"]:
        outputs.append({"type": "message", "role": "assistant", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        outputs.append(
            {
                "type": "function_call",
                "call_id": _call_id(call["id"]),
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    last = len(outputs) - 1
    for place, item in reversed(message.get(REASONING, ())):
        outputs.insert(min(place, last), item)  # one with nothing behind it would be refused
    return outputs


def _call_id(call_id: str) -> str:
    if len(call_id) <= MAX_CALL_ID_CHARACTERS:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


def kept_thought(item: Mapping[str, Any]) -> Item | None:
    """What is sent back of a reasoning item; None for one that holds nothing: nobody keeps it for us."""
    if not item.get("encrypted_content") and not item.get("content"):
        return None
    kept = {key: item[key] for key in _KEPT if item.get(key) is not None}
    return kept | {"summary": kept.get("summary") or []}  # required, if only to say that there is none


def stored_thoughts(thoughts: Sequence[Thought], outputs: int, made_by: str) -> Reasoning | None:
    """The reasoning items of an answer with so many outputs, to be stored beside its calls."""
    useful = [thought for thought in thoughts if thought[0] < outputs]
    if not useful:
        return None
    return serialized_reasoning(made_by, useful)
