"""Base of look-up requests, and the names by which people refer to chats, sessions and messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent.context.excerpt import Redact
from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.errors import CommandError, LookupReason, LookupRejected
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, Transcript

MAX_PAGE_CHARS = 1_000_000
"""Most text of one answer, in characters, after its first message. The rest is asked for with another request."""


class Lookup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of requests. The fields are the arguments of the command line."""

    def read(self, db: Connection) -> Sequence[Any]:
        """Return the values that are asked for. Raises `CommandError`."""
        raise NotImplementedError

    def redacted(self, value: Any, redact: Redact) -> Any:
        """Return a value as it may be shown. Slow for long texts."""
        return value


def fitting(rows: Transcript) -> Transcript:
    """Return the first messages that fit into one answer, at least one."""
    room = MAX_PAGE_CHARS
    for count, row in enumerate(rows):
        room -= len(row.text or "")
        if room < 0 and count:
            return rows[:count]
    return rows


_NOT_FOUND = "No chat, session or message{scope} has the id “{name}”."
_REFUSALS = {
    LookupReason.MALFORMED: "That is too long to be an id.",
    LookupReason.NOT_FOUND: _NOT_FOUND,
    LookupReason.OTHER_CHAT: "Here only this chat can be looked at; ask me in a direct chat for another one.",
    LookupReason.MESSAGE_NOT_FOUND: "There is no message {name}{scope}.",
    LookupReason.AMBIGUOUS_CHAT: "More than one chat is called “{name}”: {candidates}.",
    LookupReason.AMBIGUOUS_SESSION: "More than one session's id starts with “{name}”: {candidates}.",
}


def find_place(db: Connection, name: str, within: ChatId | None = None) -> LookupResult:
    """Return what `lineage_queries.find_place` finds. Raises `CommandError` with a sentence for people."""
    try:
        return lineage_queries.find_place(db, name, within)
    except LookupRejected as error:
        candidates = ", ".join(f"`{candidate}`" for candidate in error.candidates)
        scope = " of this chat" if within is not None else ""
        text = _REFUSALS.get(error.reason, _NOT_FOUND).format(name=error.name, candidates=candidates, scope=scope)
        raise CommandError(text) from error


def find_chat(db: Connection, name: str, within: ChatId | None = None) -> ChatId:
    """Return the chat that people mean by a name. Raises `CommandError`."""
    place = find_place(db, name, within)
    if place.session is not None:
        raise CommandError(f"“{name}” is no chat; a chat is called like `telegram:42`.")
    return place.chat_id
