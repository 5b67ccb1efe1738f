"""Stored rows, made without a database."""

import itertools
from typing import Any

from hermes_state.sessions import Session
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import (
    ChatId,
    LineageId,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
    TurnId,
)

NEW_YEAR = Millis(1_767_225_600_000)  # 2026-01-01 00:00 UTC
_ids = itertools.count(1)


def row(role: MessageRole, text: str | None, *, origin: Origin | None = None, **changes: Any) -> Message:
    number = next(_ids)
    default = {MessageRole.USER: Origin.HUMAN, MessageRole.ASSISTANT: Origin.ASSISTANT, MessageRole.TOOL: Origin.TOOL}[
        role
    ]
    values: dict[str, Any] = {
        "id": MessageId(number),
        "session_id": SessionId(1),
        "seq": number,
        "role": role,
        "origin": origin or default,
        "text": text,
        "body": EMPTY_BODY,
        "sender_ref": "telegram:42" if role is MessageRole.USER else None,
        "sender_name": "Ann" if role is MessageRole.USER else None,
        "turn_id": TurnId(number),
        "tool_call_id": None,
        "tool_name": None,
        "created_at": NEW_YEAR,
    }
    return Message(**(values | changes))


def human(text: str, **changes: Any) -> Message:
    return row(MessageRole.USER, text, **changes)


def answer(text: str | None, *calls: str, **changes: Any) -> Message:
    asked = tuple(ToolCall(id=call, name="look", arguments="{}") for call in calls)
    return row(MessageRole.ASSISTANT, text, **({"body": MessageBody(calls=asked)} | changes))


def result(call_id: str, text: str = "seen") -> Message:
    return row(MessageRole.TOOL, text, tool_call_id=call_id, tool_name="look")


def session(number: int = 1, parent: int | None = None, **changes: Any) -> Session:
    values: dict[str, Any] = {
        "id": SessionId(number),
        "key": f"s{number}",
        "chat_id": ChatId(1),
        "parent_session_id": None if parent is None else SessionId(parent),
        "lineage_id": LineageId(1),
        "depth": 0 if parent is None else 1,
        "system_prompt": "You help.",
        "started_at": Millis(0),
        "version": 1,
        "next_seq": 100,
        "message_count": 0,
    }
    return Session(**(dict.fromkeys(Session.__struct_fields__) | values | changes))
