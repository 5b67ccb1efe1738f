"""Reads message lists in the chat completions format, from callers of the built-in engine and from plugins."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import orjson

from agent.context.cuts import Cut
from agent.context.summary import asking_row
from agent.engines.contract import EngineError, ListMessage
from agent.handoff import END_MARKER, framed, unframed
from agent.model.wire import WireStyle, traced_messages
from hermes_state.values import (
    Image,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SystemClock,
    ToolCall,
    Transcript,
)

INSTRUCTING = frozenset({"system", "developer"})
MessageKey: TypeAlias = tuple[str, bytes, tuple[str, ...]]
_IMAGE = Image(attachment_id=0, mime="", path="")
STYLE = WireStyle(image_urls={_IMAGE.attachment_id: ""})
"""Wire style for measuring rows made from a message list."""


class MessageListError(EngineError):
    """A plugin returned a list that providers would refuse, or that cannot be a compression of the original list."""

    def __str__(self) -> str:
        return f"returned an unusable list: {super().__str__()}"


def text_of(content: object) -> str:
    """Return all text in a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def calls_of(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """Return the tool calls of an assistant message. Skip calls that are not dictionaries."""
    given, calls = message.get("tool_calls"), list[ToolCall]()
    for call in given if isinstance(given, list) else ():
        if isinstance(call, dict):
            function = call.get("function")
            named = function if isinstance(function, dict) else {}
            name, arguments = str(named.get("name") or ""), str(named.get("arguments") or "")
            calls.append(ToolCall(id=str(call.get("id") or ""), name=name, arguments=arguments))
    return tuple(calls)


def ids_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of a message's tool calls, or the id of the call that it answers."""
    answered = message.get("tool_call_id")
    return tuple(call.id for call in calls_of(message)) or ((str(answered),) if answered else ())


def key_of(message: Mapping[str, Any]) -> MessageKey:
    """Return a key for comparing messages: role, content and ids. A single text part counts as a string."""
    content = message.get("content")
    match content:
        case [{"type": "text", "text": str() as text}]:
            content = text
    try:
        raw = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # the content is not JSON
        raw = repr(content).encode("utf-8", "surrogatepass")
    return str(message.get("role")), raw, ids_of(message)


def checked_list(value: object) -> list[ListMessage]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise MessageListError(f"it is {type(value).__name__}, not a list of messages")
    if not value:
        raise MessageListError("it is empty")
    open_calls: set[str] = set()
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise MessageListError(f"message {index} is {type(message).__name__}, not a dictionary")
        role = message.get("role")
        if not isinstance(role, str) or role not in INSTRUCTING | {"user", "assistant", "tool"}:
            raise MessageListError(f"message {index} has no known role")
        _check_content(index, role, message.get("content"))
        if role == "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or call_id not in open_calls:
                raise MessageListError(f"message {index} is a result without a call")
            open_calls.discard(call_id)
        elif open_calls:
            raise MessageListError(f"a call before message {index} has no result")
        if role == "assistant":
            open_calls = _checked_calls(index, message)
    if open_calls:
        raise MessageListError("a call at the end has no result")
    return list(value)


def _check_content(index: int, role: str, content: object) -> None:
    if content is None and role == "assistant":
        return
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise MessageListError(f"message {index} has a content part without a type")
    elif not isinstance(content, str):
        raise MessageListError(f"message {index} has no content")


def _checked_calls(index: int, message: Mapping[str, Any]) -> set[str]:
    given, calls = message.get("tool_calls"), calls_of(message)
    ids = {call.id for call in calls} - {""}
    if given is not None and (not isinstance(given, list) or not len(ids) == len(calls) == len(given)):
        raise MessageListError(f"message {index} has calls without unique ids")
    if not all(call.name for call in calls):
        raise MessageListError(f"message {index} has a call without a function name")
    return ids


class ListTranscript(msgspec.Struct, frozen=True):
    """A message list as rows, each with its original message."""

    instructions: list[ListMessage] = msgspec.field(default_factory=list)
    """Messages at the beginning that are never compressed."""
    rows: list[Message] = msgspec.field(default_factory=list)
    originals: dict[MessageId, ListMessage] = msgspec.field(default_factory=dict)

    @property
    def transcript(self) -> Transcript:
        return tuple(self.rows)

    def compressed(self, cut: Cut, summary: str) -> list[ListMessage]:
        """Return the head, handoff, kept rows and tail as messages, with the order and roles of `agent.model.wire`."""
        handoff = msgspec.structs.replace(asking_row(summary, Millis(0)), origin=Origin.SUMMARY)
        kept = [self.rows[index] for index in cut.kept]
        rows = (*self.rows[: cut.head_end], handoff, *kept, *self.rows[cut.tail_start :])
        shown = tuple(row for row in rows if row.origin is not Origin.SUMMARY or row is handoff)
        traced = traced_messages("", shown, WireStyle())
        messages = list(self.instructions)
        for message, sources in zip(traced.messages, traced.sources, strict=True):
            messages += self._as_given(message, sources)
        return messages

    def _as_given(self, message: ListMessage, sources: Sequence[Message]) -> list[ListMessage]:
        """Return the original messages for a provider message. A handoff is joined with the user message after it.

        If `agent.model.wire` added a missing result or changed a call id, return the provider message instead.
        """
        given: list[ListMessage] = []
        for row in sources:
            if row.origin is Origin.SUMMARY:
                given.append({"role": message["role"], "content": framed(row.text or "")})
                continue
            original = self.originals[row.id]
            follows_handoff = sources[0].origin is Origin.SUMMARY and row is sources[1]
            if follows_handoff and message["role"] == original["role"]:
                handoff, content = given[0]["content"], original.get("content")
                parts = [{"type": "text", "text": handoff}, *content] if isinstance(content, list) else []
                given = [{**original, "content": parts or f"{handoff}\n\n{content or ''}"}]
            else:
                given.append(original)
        return given if given and ids_of(given[-1]) == ids_of(message) else [message]


def rows_of(messages: Sequence[ListMessage]) -> ListTranscript:
    """Convert any list to rows, with the current time as their timestamp. Entries that are not messages are skipped."""
    rows, now = ListTranscript(), SystemClock().now()
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role in INSTRUCTING and not rows.rows:
            rows.instructions.append(message)
        elif role is not None:
            for text, fields, original in _rows(message):
                number = MessageId(len(rows.rows) + 1)
                rows.rows.append(msgspec.structs.replace(asking_row(text, now), id=number, seq=number, **fields))
                rows.originals[number] = original
    return rows


def _rows(message: ListMessage) -> Iterator[tuple[str, dict[str, Any], ListMessage]]:
    """Yield the text, fields and message of each row. A handoff followed by other text becomes two rows."""
    role = message["role"]
    if role in ("user", "assistant") and not calls_of(message):
        handoff, rest = _split(message.get("content"))
        text = unframed(handoff)
        if text is not None:
            yield text, {"origin": Origin.SUMMARY}, {**message, "content": handoff}
            if not rest:
                return
            message = {**message, "content": rest}
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    images = sum(isinstance(part, dict) and "image" in str(part.get("type", "")) for part in parts)
    text, fields = text_of(content), dict[str, Any](role=MessageRole.USER, origin=Origin.SYSTEM)
    if role == "assistant":
        fields = {"role": MessageRole.ASSISTANT, "origin": Origin.ASSISTANT}
    elif role == "tool":
        answered = str(message.get("tool_call_id") or "")
        fields = {"role": MessageRole.TOOL, "origin": Origin.TOOL, "tool_call_id": answered}
    elif role == "user" and (text.strip() or images):  # a blank message is not a request
        fields["origin"] = Origin.HUMAN
    yield text, {**fields, "body": MessageBody(calls=calls_of(message), images=(_IMAGE,) * images)}, message


def _split(content: object) -> tuple[str, Any]:
    parts = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    end = next((index for index, part in enumerate(parts) if END_MARKER in text_of([part])), None)
    if end is None:
        return text_of(content), None
    before, _, behind = str(parts[end]["text"]).partition(END_MARKER)
    handoff = "\n".join([*(text_of([part]) for part in parts[:end]), before]) + END_MARKER
    behind = behind.removeprefix("\n\n")
    if not isinstance(content, list):
        return handoff, behind
    return handoff, [*([{**parts[end], "text": behind}] if behind else []), *parts[end + 1 :]]
