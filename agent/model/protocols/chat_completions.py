"""The chat completions protocol of OpenAI and compatible servers.

The API has no field for reasoning, so servers add their own: `reasoning_details` (OpenRouter), `reasoning_content`
(DeepSeek and many local servers) or `reasoning`. We collect the reasoning and send it back with the tool calls that
followed it. Each stored block contains the message fields to send back.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from io import StringIO
from types import MappingProxyType
from typing import Any, Final

import orjson
from msgspec.structs import replace

from agent.model.base import CacheTtl, Endpoint, ModelReply, ModelRequest, made_by, with_fields
from agent.model.errors.classifier import error_in, stream_error
from agent.model.http import NOTHING, KeptPromptCache
from agent.model.protocols.caching import apply_anthropic_cache_control, marks_prompts
from agent.model.protocols.openai import OPENAI_HOST, OpenAIModel, RequestFault, add_options
from agent.model.replies import MAX_ITEMS, ReplyBuilder, padded_json, serialized_reasoning
from agent.model.usage import normalize_usage, reported_cost
from agent.model.wire import REASONING, WireMessage, chat_messages
from hermes_state.errors import ContentRejected, ModelUnavailable, ReplyMalformed
from hermes_state.values import Reasoning, Transcript


class ChatCompletionsModel(OpenAIModel):
    """Chat model that is called through `POST /chat/completions`. Close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "chat_completions", "/chat/completions", ChatReplyBuilder)
        is_openai = self.host == OPENAI_HOST
        self.sends_cache_key = is_openai if endpoint.sends_cache_key is None else endpoint.sends_cache_key
        self._cache_ttl = endpoint.cache_ttl if marks_prompts(self.name, self.route) else None

    def _effort_fields(self, word: str) -> dict[str, Any]:
        host, is_on = self.host, word != "none"
        if host.endswith(".aliyuncs.com"):
            return {"enable_thinking": is_on}
        effort = {"reasoning_effort": word}
        if not re.search(r"(?:^|\.)(?:deepseek\.com|z\.ai|bigmodel\.cn|moonshot\.(?:ai|cn)|volces\.com)$", host):
            return effort
        return {"thinking": {"type": "enabled"}, **effort} if is_on else {"thinking": {"type": "disabled"}}

    def _encoded(self, request: ModelRequest, faults: Collection[str], fields: Mapping[str, Any]) -> bytes:
        cache_ttl = self._cache_ttl if request.cache_key else None
        if not self.sends_cache_key:
            request = replace(request, cache_key="")
        return encoded_request(
            self.name, request, faults, fields, streams=self._streams, cache_ttl=cache_ttl, kept=self._kept
        )


def encoded_request(
    model: str,
    request: ModelRequest,
    faults: Collection[str] = (),
    fields: Mapping[str, Any] = MappingProxyType({}),
    *,
    streams: bool = True,
    cache_ttl: CacheTtl | None = None,
    kept: KeptPromptCache | None = None,
) -> bytes:
    """Return the HTTP request body, adapted to `faults`, with additional `fields`.

    If `cache_ttl` is None, there are no cache breakpoints.
    """
    reasoning_of = made_by("chat_completions", model) if RequestFault.REPLAYED_REASONING not in faults else ""
    style = replace(request.style, reasoning_of=reasoning_of)

    def render(rows: Transcript, call_ids: set[str], system: str = "") -> list[WireMessage]:
        messages = chat_messages(system, rows, style, call_ids)
        restore_reasoning(messages, faults)
        return messages

    start = kept.beginning_of(request, render, frozenset(faults)) if kept is not None else NOTHING
    messages = render(request.transcript[start.rows :], set(start.call_ids), request.system)
    if cache_ttl is not None:
        messages = apply_anthropic_cache_control(messages, cache_ttl)
    body: dict[str, Any] = {"model": model, "messages": start.before(messages, at=bool(request.system))}
    if streams:
        body["stream"] = True
        if RequestFault.STREAM_OPTIONS not in faults:
            body["stream_options"] = {"include_usage": True}
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in request.tools
    ]
    # OpenAI's newer models accept only `max_completion_tokens`, most other servers only `max_tokens`.
    limit_key = "max_completion_tokens" if RequestFault.LIMIT_NAME in faults else "max_tokens"
    add_options(body, request, limit_key=limit_key, tools=tools)
    return orjson.dumps(with_fields(body, fields))


class ChatReplyBuilder(ReplyBuilder):
    """Builds a reply from the chunks of a stream, or from a complete response."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        super().__init__(on_text, made_by, request)
        self._texts: dict[str, StringIO] = {}
        self._details: list[dict[str, Any]] = []
        self._further: list[StringIO] = []
        """For each reasoning detail, the text that arrived after its first piece."""
        self._thinking = StringIO()
        self._extras: dict[str, dict[str, Any]] = {}
        """Fields to send back with a call, by the call's index."""
        self._finish: str | None = None

    def read_event(self, event: Any) -> None:
        if (error := error_in(event)) is not None:
            raise stream_error(error, self.request)
        choice: Mapping[str, Any] = (event.get("choices") or ({},))[0]
        if error := choice.get("error"):
            raise stream_error(error, self.request)
        # Groq and Moonshot report usage in other fields.
        if usage := event.get("usage") or choice.get("usage") or (event.get("x_groq") or {}).get("usage"):
            self.usage = normalize_usage(usage, "chat_completions")
            self.cost = reported_cost(usage)
        is_piece = "delta" in choice
        delta: Mapping[str, Any] = choice.get("delta") or choice.get("message") or {}
        self.add_reasoning(delta, is_piece=is_piece)
        self._add_content(delta.get("content"))
        if refusal := delta.get("refusal"):
            self.add_text(refusal)
        for number, piece in enumerate(delta.get("tool_calls") or ()):
            self._add_call_piece(piece, number, is_piece=is_piece)
        self._finish = choice.get("finish_reason") or self._finish

    def _add_content(self, content: Any) -> None:
        """Add text or content parts. Some parts are reasoning."""
        for part in content if isinstance(content, list) else [content] if content else ():
            match part:
                case {"type": "thinking"}:  # Mistral's API, whose thinking can again be a list of parts
                    texts = part.get("thinking") or ()
                    for text in [texts] if isinstance(texts, str) else texts:
                        self._thinking.write(self.counted(text if isinstance(text, str) else text.get("text") or ""))
                case {"type": "text" | "output_text", "text": text} | {"type": "refusal", "refusal": text} | str(text):
                    self.add_text(text)
                case {"type": str(kind)} if kind != "text":
                    pass  # an image or a reference
                case _:
                    raise TypeError("expected text")

    def _add_call_piece(self, piece: Mapping[str, Any], number: int, *, is_piece: bool) -> None:
        """Add a piece of a call, or a complete call. `number`: its position in the provider's list of calls."""
        index = piece.get("index") if is_piece else number
        if index is not None and not isinstance(index, int):
            raise TypeError("the index of a call must be a number")
        function: Mapping[str, Any] = piece.get("function") or {}
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        place = self.add_call(index, call_id=piece.get("id") or "", name=name, arguments=arguments)
        if extras := {key: piece[key] for key in _CALL_EXTRAS if piece.get(key)}:
            self.counted(padded_json(extras))
            self._extras.setdefault(str(place), {}).update(extras)

    def add_reasoning(self, message: Mapping[str, Any], *, is_piece: bool) -> None:
        """Add the reasoning of a message or of a streamed piece."""
        for key in _TEXTS:
            if text := message.get(key):
                self._texts.setdefault(key, StringIO()).write(self.counted(text))
        for detail in message.get(_DETAILS) or ():
            if not (is_piece and self._continued(detail)):
                if len(self._details) >= MAX_ITEMS:
                    raise ReplyMalformed(f"the reply has more than {MAX_ITEMS} reasoning blocks")
                self.counted(padded_json(detail))
                self._details.append(dict(detail))
                self._further.append(StringIO())

    def _continued(self, piece: Mapping[str, Any]) -> bool:
        """Append a piece to the last reasoning detail. Return False if the piece starts a new detail.

        The pieces of a detail are stored as one text, because one signature covers all of them.
        """
        before = self._details[-1] if self._details else {}
        field = _IN_PIECES.get(str(piece.get("type")))
        if field is None or any(before.get(key) != piece.get(key) for key in ("type", "index")):
            return False
        if not isinstance(before.get(field) or "", str):
            raise TypeError("expected text")
        self._further[-1].write(self.counted(piece.get(field) or ""))
        # Count repeated fields only once: when single words are streamed, they are most of the data.
        changed = {key: value for key, value in piece.items() if value not in (None, before.get(key)) and key != field}
        if changed:
            self.counted(padded_json(changed))
            before |= changed
        return True

    def finished(self) -> ModelReply:
        if self._finish is None:
            raise self.broken_off("the reply ended without a finish reason")
        if self._finish == "content_filter":
            raise ContentRejected("the provider's filter stopped the reply")
        if self._finish == "error":
            raise ModelUnavailable("the provider aborted the reply")
        return self.built(is_cut_off=self._finish == "length", reasoning=self.stored_reasoning)

    def stored_reasoning(self, thought: str) -> Reasoning | None:
        """Return the reasoning to store. Reasoning details from the server replace the text, because they include it.

        `thought`: text between think tags, for servers that do not separate the reasoning.
        """
        texts = {key: text.getvalue() for key, text in self._texts.items()} or ({_CONTENT: thought} if thought else {})
        blocks: list[dict[str, Any]] = [{key: text} for key, text in texts.items()][:1]
        if self._details:
            blocks = [{_DETAILS: [_joined(*one) for one in zip(self._details, self._further, strict=True)]}]
        elif thinking := self._thinking.getvalue():
            blocks = [{_THINKING: [{"type": "text", "text": thinking}]}]
        if self._extras:
            blocks.append({_EXTRAS: self._extras})
        return serialized_reasoning(self._made_by, blocks) if blocks else None


_DETAILS: Final = "reasoning_details"
_CONTENT: Final = "reasoning_content"
_TEXTS: Final = (_CONTENT, "reasoning")
_THINKING: Final = "thinking"
"""Key of a stored block whose reasoning becomes the first part of the message's content."""
_EXTRAS: Final = "tool_calls"
"""Key of a stored block that holds the extra fields of each call, by the call's index."""
_CALL_EXTRAS: Final = ("extra_content", "provider_specific_fields")
"""Fields of a call that Google's API and its proxies expect back."""
_IN_PIECES: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Maps each type of reasoning detail to the field that is streamed in pieces."""


def _joined(detail: Mapping[str, Any], further: StringIO) -> Mapping[str, Any]:
    if not (text := further.getvalue()):
        return detail
    field = _IN_PIECES[detail["type"]]
    return {**detail, field: (detail.get(field) or "") + text}


def restore_reasoning(messages: Sequence[WireMessage], faults: Collection[str]) -> None:
    """Add the stored reasoning to each message, in the form that the server expects.

    DeepSeek requires reasoning for every answer, including those of other models. Google requires a signature for the
    first call of each answer. `faults` states which of these rules apply to the current server.
    """
    for message in messages:
        calls, is_answer = message.get("tool_calls", ()), message["role"] == "assistant"
        for fields in message.pop(REASONING, ()):
            if _THINKING in fields:
                text = [{"type": "text", "text": message["content"]}] if message["content"] else []
                message["content"] = [{"type": "thinking", "thinking": fields[_THINKING]}, *text]
            elif _EXTRAS in fields:
                for index, extras in fields[_EXTRAS].items():
                    message["tool_calls"][int(index)] |= extras
            else:
                message |= fields
        has_reasoning = any(key in message for key in (_DETAILS, *_TEXTS))
        if RequestFault.MISSING_REASONING in faults and is_answer and not has_reasoning:
            message[_CONTENT] = " "  # servers treat an empty string as missing
        is_signed = any(key in call for call in calls for key in _CALL_EXTRAS)
        if RequestFault.MISSING_SIGNATURE in faults and calls and not is_signed:
            # Google's official placeholder for calls made by other models.
            calls[0]["extra_content"] = {"google": {"thought_signature": "skip_thought_signature_validator"}}
