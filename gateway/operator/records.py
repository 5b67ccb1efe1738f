"""Conversations and messages in full and without secrets, in pages, for exports.

The conversations come first, then the messages of each.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import orjson

from agent.context.excerpt import Redact, said
from agent.model.base import ToolSchema
from gateway.operator.places import Lookup, find_place, fitting
from hermes_state.admin.conversations import FullMessage, StoredConversation, load_conversations
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.transcripts import load_messages_behind
from hermes_state.values import LineageId, Message, MessageId, MessageRole, Millis, Transcript

PAGE_CONVERSATIONS = 100
PAGE_ROWS = 200

_THOUGHT_KEYS: Final = (
    *("reasoning_details", "reasoning_content", "reasoning", "thinking", "blocks", "content", "summary", "text"),
)
"""Keys under which protocols store readable thoughts. Encrypted thoughts have other keys."""


class ConversationsRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations after the lineage `after`: of a chat, the one of a session or message, or all."""

    place: str | None = None
    since: int = 0
    after: int = 0

    def read(self, db: Connection) -> list[StoredConversation]:
        place = find_place(db, self.place) if self.place is not None else None
        return load_conversations(db, place, Millis(self.since), LineageId(self.after), PAGE_CONVERSATIONS)

    def redacted(self, one: StoredConversation, redact: Redact) -> StoredConversation:
        return msgspec.structs.replace(one, system_prompt=one.system_prompt and redact(one.system_prompt))


class MessagesRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of a conversation after the message `after`; with `place`, only those of this one session."""

    lineage: int
    after: int = 0
    place: str | None = None

    def read(self, db: Connection) -> Transcript:
        session = find_place(db, self.place).session if self.place is not None else None
        if self.place is not None and session is None:
            raise CommandError(f"“{self.place}” is no session.")
        session_id = session.id if session is not None else None
        rows = load_messages_behind(db, LineageId(self.lineage), MessageId(self.after), PAGE_ROWS, session_id)
        return fitting(rows)

    def redacted(self, row: Message, redact: Redact) -> FullMessage:
        text, reasoning = row.text or "", row.body.reasoning
        if row.role is MessageRole.USER:
            text = "\n".join(filter(None, said(row)))
        is_json = row.role is MessageRole.TOOL and text.lstrip().startswith(("{", "["))
        thought = "" if reasoning is None else "\n\n".join(thoughts(reasoning.blocks))
        return FullMessage(
            id=row.id,
            role=row.role,
            at=row.created_at,
            content=_value(text, redact) if is_json else redact(text),
            thought=redact(thought.replace("</think>", "")),
            calls=tuple({"name": call.name, "arguments": _value(call.arguments, redact)} for call in row.body.calls),
            tool_call_id=row.tool_call_id,
            tool_name=row.tool_name,
        )


def thoughts(blocks: str) -> Iterator[str]:
    """Yield the readable texts of stored reasoning of any protocol; see `Reasoning.blocks`."""
    try:
        yield from filter(str.strip, _texts(orjson.loads(blocks)))
    except orjson.JSONDecodeError:  # written by an older version
        return


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item) if not isinstance(item, str) else ()
    elif isinstance(value, dict):
        for key in _THOUGHT_KEYS:
            yield from _texts(value.get(key))


def _value(text: str, redact: Redact) -> object:
    """Return the JSON value of a text; the text itself if it is not JSON, or if redaction leaves no JSON."""
    try:
        value = json.loads(text)  # which keeps long numbers
        return orjson.loads(redact(orjson.dumps(value).decode()))  # escapes would hide a secret
    except (TypeError, ValueError, RecursionError):  # no JSON, or numbers that no encoder accepts
        return redact(text)


def tool_row(schema: ToolSchema, redact: Redact) -> dict[str, Any]:
    """Return the definition of a tool without secrets."""
    found = _value(orjson.dumps(schema).decode(), redact)
    return found if isinstance(found, dict) else {"name": schema.name}
