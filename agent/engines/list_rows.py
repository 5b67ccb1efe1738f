"""Message lists as rows and back, for the pure steps that work on rows.

The rows exist for this one compression: their ids are places in a list, which nobody can look up, so they are kept
out of every text. What stays in the list are the messages that were given, never copies made from rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agent.context.cuts import Cut
from agent.engines.mapping import INSTRUCTING, ListMessage, call_ids, images_in, text_of
from agent.handoff import END_MARKER, parse_handoff, unframed
from agent.model.wire import BEGINS_LATER, LOST_RESULT
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import (
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
    Transcript,
)

_STUB_ID = re.compile(r"(?<=\[pruned) m\d+(?=: )|(?<=: the same result) as m\d+(?=, which came later\])")
_STUB_CALL = "; history_open reads them]"


@dataclass(frozen=True, slots=True)
class ListRows:
    """A list as rows."""

    before: tuple[ListMessage, ...]
    """Instructions, which come first and are never compressed."""
    transcript: Transcript
    messages: tuple[ListMessage, ...]
    """The message of each row."""
    images: tuple[int, ...]

    def middle(self, pruned: Transcript, cut: Cut) -> tuple[Transcript, str | None]:
        """The rows that a handoff is to stand for, and what the handoffs among them say."""
        rows = cut.middle(pruned)
        said = [parse_handoff(row.text or "").text for row in rows if row.origin is Origin.SUMMARY]
        rest = tuple(_without_ids(row) for row in rows if row.origin is not Origin.SUMMARY)
        return rest, "\n\n".join(said) or None

    def assembled(self, cut: Cut, handoff: str) -> list[ListMessage]:
        """Head, handoff, what is open, tail. The handoff's role keeps roles alternating, and calls have their results.

        Where neither role does, it begins the user message that follows.
        """
        head = _paired([self.messages[place] for place in range(cut.head_end) if not self._is_handoff(place)])
        if head and head[0]["role"] != "user":
            head.insert(0, {"role": "user", "content": BEGINS_LATER})
        places = [*cut.kept, *range(cut.tail_start, len(self.messages))]
        behind = [self.messages[place] for place in places if not self._is_handoff(place)]
        message: ListMessage = {"role": "user", "content": handoff}
        if behind and behind[0]["role"] == "user":
            if head and head[-1]["role"] in ("user", "tool"):
                message["role"] = "assistant"
            else:
                message["content"] = _joined(handoff, behind.pop(0).get("content"))
        return [*self.before, *head, message, *_paired(behind)]

    def _is_handoff(self, place: int) -> bool:
        return self.transcript[place].origin is Origin.SUMMARY


def rows_of(messages: Iterable[ListMessage], now: Millis) -> ListRows:
    """A list of any provenance as rows; what is no message is left out. Lists know no times: all is of `now`."""
    before: list[ListMessage] = []
    rows: list[Message] = []
    kept: list[ListMessage] = []
    images: list[int] = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role in INSTRUCTING and not rows:
            before.append(message)
        elif role is not None:
            for row, shown in _rows(message, len(rows) + 1, now):
                rows.append(row)
                kept.append(shown)
                images.append(images_in(shown.get("content")))
    return ListRows(tuple(before), tuple(rows), tuple(kept), tuple(images))


def _rows(message: ListMessage, number: int, now: Millis) -> Iterable[tuple[Message, ListMessage]]:
    """One row, or two for a handoff that stands in one message with what people said after it."""
    content, role = message.get("content"), message.get("role")
    handoff, rest = _split(content) if role in ("user", "assistant") and not call_ids(message) else ("", content)
    record = unframed(handoff)
    if record is not None:
        yield _row(number, now, MessageRole.USER, Origin.SUMMARY, record), {**message, "content": handoff}
        if rest:
            said = {**message, "content": rest}
            yield _row(number + 1, now, MessageRole.USER, Origin.HUMAN, text_of(rest)), said
    elif role == "assistant":
        yield _row(number, now, MessageRole.ASSISTANT, Origin.ASSISTANT, text_of(content), body=_body(message)), message
    elif role == "tool":
        call_id = str(message.get("tool_call_id") or "")
        yield _row(number, now, MessageRole.TOOL, Origin.TOOL, text_of(content), tool_call_id=call_id), message
    else:
        origin = Origin.HUMAN if role == "user" else Origin.SYSTEM
        yield _row(number, now, MessageRole.USER, origin, text_of(content)), message


def _split(content: object) -> tuple[str, Any]:
    """A handoff, and what stands behind its end in the same message."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": str(content)}]
    at = next((at for at, part in enumerate(parts) if END_MARKER in text_of([part])), None)
    if at is None:
        return text_of(content), None
    before, _, behind = str(parts[at]["text"]).partition(END_MARKER)
    handoff = "\n".join([*(text_of([part]) for part in parts[:at]), before]) + END_MARKER
    behind = behind.removeprefix("\n\n")
    if not isinstance(content, list):
        return handoff, behind
    rest = [*([{**parts[at], "text": behind}] if behind else []), *parts[at + 1 :]]
    return handoff, rest


def _row(number: int, now: Millis, role: MessageRole, origin: Origin, text: str, **changes: Any) -> Message:
    values: dict[str, Any] = {"body": EMPTY_BODY, "tool_call_id": None, **changes}
    return Message(
        id=MessageId(number),
        session_id=SessionId(0),
        seq=number,
        role=role,
        origin=origin,
        text=text,
        sender_ref=None,
        sender_name=None,
        turn_id=None,
        tool_name=None,
        created_at=now,
        **values,
    )


def _body(message: Mapping[str, Any]) -> MessageBody:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return EMPTY_BODY
    return MessageBody(calls=tuple(_call(call) for call in calls if isinstance(call, dict)))


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    named = function if isinstance(function, dict) else {}
    return ToolCall(
        id=str(call.get("id") or ""), name=str(named.get("name") or ""), arguments=str(named.get("arguments") or "")
    )


def _without_ids(row: Message) -> Message:
    """A row as it was pruned, without the ids under which nothing can be opened."""
    text = row.text or ""
    if row.role is MessageRole.TOOL and text.startswith("[pruned "):
        return msgspec.structs.replace(row, text=_STUB_ID.sub("", text).replace(_STUB_CALL, "]"))
    calls = tuple(msgspec.structs.replace(call, arguments=_STUB_ID.sub("", call.arguments)) for call in row.body.calls)
    return msgspec.structs.replace(row, body=msgspec.structs.replace(row.body, calls=calls)) if calls else row


def _joined(handoff: str, content: object) -> object:
    """The handoff in front of what a person said, in one message."""
    if isinstance(content, list):
        return [{"type": "text", "text": handoff}, *content]
    return f"{handoff}\n\n{content or ''}"


def _paired(messages: Sequence[ListMessage]) -> list[ListMessage]:
    """Every result behind its call: those of lost calls are left out, lost ones are made up for."""
    paired: list[ListMessage] = []
    waiting: dict[str, None] = {}
    for message in messages:
        if message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id in waiting:
                del waiting[call_id]
                paired.append(message)
            continue
        paired += _lost(waiting)
        waiting = dict.fromkeys(call_ids(message)) if message["role"] == "assistant" else {}
        paired.append(message)
    return paired + _lost(waiting)


def _lost(waiting: Iterable[str]) -> list[ListMessage]:
    return [{"role": "tool", "tool_call_id": call_id, "content": LOST_RESULT} for call_id in waiting]
