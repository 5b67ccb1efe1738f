"""Test conversations for compressions: people in several languages, answers, parallel tool calls and their results."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.passages import passages
from hermes_state.transcripts import EMPTY_BODY, NewMessage
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
    TurnId,
)

BEGAN_AT = 1_767_225_600_000

_SPOKEN = ("English", "English", "Chinese", "Japanese", "Korean", "Russian", "Arabic", "emoji")
_RETURNED = ("Python", "JSON", "logs", "hex, base64", "English")
_TOOLS = ("read_file", "run", "search", "fetch")
_PEOPLE = (("telegram:1", "Ada"), ("telegram:2", "Grace"))


class Conversation:
    """Messages of one chat, the same for the same seed. About a third of them are tool results.

    `length`: factor for the length of each message. A few messages only fill a window if they are long.
    """

    questions: Sequence[int] = (1,)
    """Possible numbers of messages before an answer."""
    steps: Sequence[int] = (0, 0, 1, 1, 2)
    """Possible numbers of model calls with tool calls before an answer."""
    code_share = 0.3
    """Share of the answers that contain code."""

    def __init__(self, seed: int = 7, *, length: int = 1) -> None:
        self._chance = random.Random(seed)
        self._length = length
        texts = passages()
        self._spoken = [texts[language] for language in _SPOKEN]
        self._returned = ["\n".join(texts[kind]) for kind in _RETURNED]
        self._steps = itertools.count(1)

    def transcript(self, count: int) -> Transcript:
        """Return at least `count` rows, in complete turns. The last row is a message without an answer yet."""
        rows: list[Message] = []
        for turn in itertools.count(1):
            if len(rows) >= count - 1:
                break
            rows += self._turn(len(rows), turn)
        asked = _row(len(rows), turn, MessageRole.USER, Origin.HUMAN, self._said(), sender=_PEOPLE[0])
        return (*rows, asked)

    def _turn(self, at: int, turn: int) -> Iterator[Message]:
        indexes = itertools.count(at)

        def row(role: MessageRole, origin: Origin, text: str, **more: Any) -> Message:
            return _row(next(indexes), turn, role, origin, text, **more)

        for _ in range(self._chance.choice(self.questions)):
            yield row(MessageRole.USER, Origin.HUMAN, self._said(), sender=self._chance.choice(_PEOPLE))
        for _ in range(self._chance.choice(self.steps)):
            calls = tuple(self._call() for _ in range(self._chance.choice((1, 1, 2, 3))))
            yield row(MessageRole.ASSISTANT, Origin.ASSISTANT, "Let me look.", body=MessageBody(calls=calls))
            for call in calls:
                yield row(MessageRole.TOOL, Origin.TOOL, self._result(), call=call)
        answer = "\n\n".join(self._said() for _ in range(self._chance.choice((1, 1, 2, 3))))
        if self._chance.random() < self.code_share:
            answer += f"\n\n```python\n{self._piece(self._returned[0], 600)}\n```"
        yield row(MessageRole.ASSISTANT, Origin.ASSISTANT, answer)

    def _said(self) -> str:
        texts = self._chance.choice(self._spoken)
        pieces = (self._chance.choice(texts)[: self._chance.randint(40, 900)] for _ in range(self._length))
        return f"{' '.join(pieces)} (OPS-{self._chance.randint(1, 9_999)})"

    def _call(self) -> ToolCall:
        number = next(self._steps)
        arguments: dict[str, object] = {
            "path": f"/srv/app/part_{number % 97}/module_{number % 311}.py",
            "limit": number,
        }
        if number % 10 == 0:
            arguments["content"] = self._piece(self._returned[0], 2_000)
        return ToolCall(id=f"call_{number}", name=_TOOLS[number % len(_TOOLS)], arguments=json.dumps(arguments))

    def _result(self) -> str:
        """Return a few words or many pages. Most results are short, but long results have most of the text."""
        size = min(20_000, int(self._chance.lognormvariate(6.2, 1.4)) * self._length)
        return f"step {next(self._steps)}\n{self._piece(self._chance.choice(self._returned), size)}"

    def _piece(self, text: str, size: int) -> str:
        start = self._chance.randrange(max(1, len(text) - size))
        return text[start : start + size]


class Chat(Conversation):
    """Messages of people and answers, without tools."""

    questions = (1, 1, 1, 2, 3)
    steps = (0,)
    code_share = 0.1


class Tools(Conversation):
    """Messages of an agent at work. Most of the text is in long tool results."""

    steps = range(3, 10)
    code_share = 0.0


def _row(
    index: int,
    turn: int,
    role: MessageRole,
    origin: Origin,
    text: str,
    *,
    sender: tuple[str | None, str | None] = (None, None),
    call: ToolCall | None = None,
    body: MessageBody = EMPTY_BODY,
) -> Message:
    return Message(
        id=MessageId(index + 1),
        session_id=SessionId(1),
        seq=index + 1,
        role=role,
        origin=origin,
        text=text,
        body=body,
        sender_ref=sender[0],
        sender_name=sender[1],
        turn_id=TurnId(turn),
        tool_call_id=call.id if call is not None else None,
        tool_name=call.name if call is not None else None,
        created_at=Millis(BEGAN_AT + index * 60_000),
    )


def as_chat_messages(transcript: Sequence[Message]) -> list[Mapping[str, Any]]:
    """Return the rows as a Chat Completions list, the format that other programs use."""
    return [_as_chat_message(row) for row in transcript]


def _as_chat_message(row: Message) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": row.role.value, "content": row.text}
    if row.body.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in row.body.calls
        ]
    if row.tool_call_id is not None:
        message["tool_call_id"] = row.tool_call_id
    return message


def as_new_message(row: Message) -> NewMessage:
    """Return the row as a new message to store. It belongs to no turn."""
    return NewMessage(
        role=row.role,
        origin=row.origin,
        text=row.text,
        body=row.body,
        sender_ref=row.sender_ref,
        sender_name=row.sender_name,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
    )
