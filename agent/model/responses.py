"""OpenAI's Responses protocol. Nothing is kept on the provider's side: every call brings the whole conversation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from agent.model import wire
from agent.model.base import ModelReply, ModelRequest, ToolSchema, maker_of
from agent.model.connections import LONGEST_CACHE_KEY
from agent.model.openai_errors import Refusal
from agent.model.openai_model import Collector, OpenAIModel
from agent.model.pools import Endpoint
from agent.model.provider_errors import stream_error
from agent.model.replies import ReplyBuilder
from agent.model.shapes_responses import Thought, instructions_and_items, kept_thought, stored_thoughts
from agent.model.usage import UsageShape, normalize_usage, reported_cost
from hermes_state.errors import ContentFiltered, ReplyMalformed
from hermes_state.values import CanonicalUsage, MicroUsd

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesSettings(Endpoint):
    """Where the model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesDialect:
    """What models and servers differ in. Starts out as reasoning models take it, and learns from what is refused."""

    asks_for_reasoning: bool = True
    replays_reasoning: bool = True

    def after(self, refusal: Refusal) -> "ResponsesDialect":
        """Without what was refused."""
        match refusal:
            case Refusal.ENCRYPTED_REASONING:
                return replace(self, asks_for_reasoning=False)
            case Refusal.REPLAYED_REASONING:
                return replace(self, replays_reasoning=False)
            case Refusal.LIMIT_NAME | Refusal.STREAM_OPTIONS | Refusal.MISSING_REASONING:
                return self


class ResponsesModel(OpenAIModel[ResponsesDialect]):
    """A model behind `POST /responses`. Close it when done."""

    def __init__(self, settings: ResponsesSettings) -> None:
        super().__init__(settings, protocol="responses", path="/responses", dialect=ResponsesDialect())

    def _encoded(self, request: ModelRequest, dialect: ResponsesDialect) -> bytes:
        return encoded_request(self.name, request, dialect, streams=self._streams)

    def _begun(self, on_text: Callable[[str], None]) -> Collector:
        return _Reply(on_text, self._maker)


def encoded_request(
    model: str, request: ModelRequest, dialect: ResponsesDialect | None = None, *, streams: bool = True
) -> bytes:
    """The body of the HTTP request."""
    dialect = dialect or ResponsesDialect()
    maker = maker_of("responses", model) if dialect.replays_reasoning else ""
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
        body["prompt_cache_key"] = request.cache_key[:LONGEST_CACHE_KEY]
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
        self.usage, self.cost = normalize_usage(usage, UsageShape.RESPONSES), reported_cost(usage)
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
