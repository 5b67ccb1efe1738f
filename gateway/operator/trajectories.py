"""Conversations as trajectories, for `hermes-gateway trajectories export`: from the daemon, or from a file at rest.

First the conversations, then the turns of each, both in pages: nobody holds a whole conversation in memory.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
import orjson

from agent.tools.registry import Tool
from gateway.operator.lookups import LOOKUP_SECONDS, MAX_PAGE_CHARS, Redact, Row, find_place
from hermes_state.admin.conversations import StoredConversation, load_conversations
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_messages_behind
from hermes_state.values import LineageId, Message, MessageId, MessageRole, Millis

PAGE_CONVERSATIONS = 100
PAGE_ROWS = 200

Page: TypeAlias = list[StoredConversation] | list[Message]


class ConversationsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations behind the lineage `after`: of a chat, the one of a session or message, or all."""

    place: str | None = None
    since: int = 0
    after: int = 0

    def read(self, db: Connection) -> Page:
        place = find_place(db, self.place) if self.place is not None else None
        return load_conversations(db, place, Millis(self.since), LineageId(self.after), PAGE_CONVERSATIONS)


class TurnsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Turns of a conversation behind the message `after`; with `place`, of that one session alone."""

    lineage: int
    after: int = 0
    place: str | None = None

    def read(self, db: Connection) -> Page:
        session = find_place(db, self.place).session if self.place is not None else None
        if self.place is not None and session is None:
            raise CommandError(f"“{self.place}” is no session.")
        session_id = session.id if session is not None else None
        rows = load_messages_behind(db, LineageId(self.lineage), MessageId(self.after), PAGE_ROWS, session_id)
        room, count = MAX_PAGE_CHARS, 0
        for row in rows:
            room -= len(row.text or "")
            if room < 0 and count:
                break
            count += 1
        return list(rows[:count])


TrajectoryRequest: TypeAlias = ConversationsRequest | TurnsRequest

EXPORTS: Mapping[str, type[TrajectoryRequest]] = {
    "trajectories.conversations": ConversationsRequest,
    "trajectories.turns": TurnsRequest,
}
"""Requests by the name under which the command line asks."""


async def export(
    store: Store, name: str, args: Mapping[str, Any], redact: Redact, tools: Mapping[str, Tool] = MappingProxyType({})
) -> list[Row]:
    """Answer from the running daemon's store. Raises `CommandError`, and `StoreUnavailable` when it takes too long."""
    page = await store.read_within(LOOKUP_SECONDS, _parsed(name, args).read)
    return await asyncio.to_thread(_rows, page, redact, tools)


def export_at_rest(db: Connection, name: str, args: Mapping[str, Any], redact: Redact) -> list[Row]:
    """Answer from a file that no daemon has open. Raises `CommandError`."""
    return _rows(_parsed(name, args).read(db), redact, {})


def _parsed(name: str, args: Mapping[str, Any]) -> TrajectoryRequest:
    try:
        return msgspec.convert(args, EXPORTS[name])
    except msgspec.ValidationError as error:
        raise CommandError(f"{name}: {error}") from None


def _rows(page: Page, redact: Callable[[str], str], tools: Mapping[str, Tool]) -> list[Row]:
    """Rows as they may be shown; takes long for long texts. A message that says nothing is a row without `value`."""
    from agent.trajectories.export import (
        system_turn,
        turn_of,
    )  # with the compressor, which a daemon need not keep in memory

    rows: list[Row] = []
    for one in page:
        if isinstance(one, StoredConversation):
            prompt = system_turn(one.system_prompt, orjson.loads(one.tools), tools, redact)
            rows.append({**msgspec.structs.asdict(one), "system_prompt": prompt})
        else:
            role, text = turn_of(one, redact) or (None, None)
            is_answer = one.role is MessageRole.ASSISTANT and not one.body.calls
            rows.append({"message": one.id, "from": role, "value": text, "at": one.created_at, "is_answer": is_answer})
    return rows
