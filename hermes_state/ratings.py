"""Reactions: signs, which the bot sets, and ratings, which are people's newest thumbs-up or thumbs-down on answers.

The model is told about each rating once, together with the next message in the chat.
"""

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from hermes_state import inbox
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.text import shortened
from hermes_state.values import THUMBS, ChatId, Cursor, LineageId, MessageId, Millis, ReactionEvent, recall_id

MAX_TOLD = 5
"""Maximum number of ratings in one note to the model, which has the newest ones."""
WORD = r"[\w'.,-]+"


class Sign(StrEnum):
    """Meaning of a reaction that the bot sets on a person's message. Each platform has its own emoji for it."""

    SEEN = "seen"
    """The message waits until the current answer is finished."""
    DONE = "done"
    FAILED = "failed"
    EDITED = "edited"
    """The person edited the message, and the gateway noticed it only after the answer."""


class SignedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to set on a message."""

    ref: str
    sign: Sign


def find_answer(db: Connection, reaction: ReactionEvent) -> tuple[ChatId, MessageId] | None:
    """Return the chat and the answer that a reaction is about. Message ids are unique, so threads are ignored."""
    query = """SELECT p.chat_id, p.message_id FROM chats c JOIN platform_messages p ON p.chat_id = c.id AND p.ref = ?
    JOIN messages m ON m.id = p.message_id WHERE c.platform = ? AND c.account = ? AND c.chat_ref = ?
    AND m.role = 'assistant'"""
    chat = reaction.chat
    found = db.execute(query, (reaction.message_ref, chat.platform, chat.account, chat.chat_ref)).fetchone()
    return None if found is None else (found[0], found[1])


def load_rating(db: Connection, reaction: ReactionEvent) -> int:
    """Load the person's rating of the answer that a reaction is about, or 0 if there is none."""
    found, person = find_answer(db, reaction), reaction.sender.ref
    query = "SELECT value FROM ratings WHERE message_id = ? AND person = ?"
    return (scalar_or_none(db, int, query, (found[1], person)) if found is not None else None) or 0


@locks(chat="chat_id cursor")
def rate(
    db: Connection, chat_id: ChatId, message_id: MessageId, reaction: ReactionEvent, cursor: Cursor | None
) -> bool:
    """Store or remove a person's rating of an answer. Return False if nothing changed, as for a repeated event."""
    inbox.advance_cursor(db, cursor)
    person, value, at = reaction.sender.ref, reaction.value, reaction.sent_at
    if reaction.is_removed:
        query = "DELETE FROM ratings WHERE message_id = ? AND person = ? AND value = ? AND at <= ?"
        return db.execute(query, (message_id, person, value, at)).rowcount > 0
    query = """INSERT INTO ratings (message_id, person, chat_id, value, at)
    SELECT id, CAST(? AS TEXT), chat_id, CAST(? AS BIGINT), CAST(? AS BIGINT) FROM messages
    WHERE id = ? AND chat_id = ?
    ON CONFLICT (message_id, person) DO UPDATE SET value = excluded.value, at = excluded.at, was_told = 0
    WHERE ratings.value <> excluded.value AND ratings.at <= excluded.at"""
    return db.execute(query, (person, value, at, message_id, chat_id)).rowcount > 0


def tell(db: Connection, chat_id: ChatId, lineage_id: LineageId) -> tuple[str, ...]:
    """Return a note for the model about new ratings of the conversation's answers, if any. Each is returned once."""
    # With `IN`, SQLite would load the ids of all messages of the conversation.
    query = """UPDATE ratings SET was_told = 1 WHERE chat_id = ? AND was_told = 0
    AND EXISTS (SELECT 1 FROM messages a WHERE a.id = ratings.message_id AND a.lineage_id = ?)
    RETURNING at, message_id, value, (SELECT m.text FROM messages m WHERE m.id = message_id)"""
    told = Counter(tuple(row[1:]) for row in sorted(db.execute(query, (chat_id, lineage_id)).fetchall()))
    emoji = {value: one for one, value in THUMBS.items()}
    about = [
        # Only the words are quoted, without brackets, so that an answer cannot imitate a notice.
        f"{number} {emoji[value]} to “{shortened(' '.join(re.findall(WORD, text or '')))}” ({recall_id(message_id)})"
        for (message_id, value, text), number in list(told.items())[-MAX_TOLD:]
    ]
    return (f"people reacted to your answers: {'; '.join(about)}",) if about else ()


_BY_AGENT = """AND EXISTS (SELECT 1 FROM messages m JOIN sessions s ON s.id = m.session_id
  WHERE m.id = ratings.message_id AND s.agent = :agent)"""


def count(db: Connection, since: Millis, within: ChatId | None, agent: str | None = None) -> tuple[int, int]:
    """Return the number of thumbs-up and of thumbs-down ratings since a time, of a chat and an agent or of all."""
    query = f"""SELECT coalesce(sum(CASE value WHEN 1 THEN 1 ELSE 0 END), 0), count(*) FROM ratings
    WHERE at >= :since AND chat_id = coalesce(:within, chat_id) {_BY_AGENT if agent is not None else ""}"""
    up, total = db.execute(query, {"since": since, "within": within, "agent": agent}).fetchone()
    return int(up), int(total - up)


def load_values(db: Connection, ids: Sequence[MessageId]) -> dict[MessageId, list[int]]:
    """Load the values of all ratings of these messages."""
    found: dict[MessageId, list[int]] = {}
    query = f"SELECT message_id, value FROM ratings WHERE message_id IN ({', '.join('?' * len(ids))}) ORDER BY at"
    for message_id, value in db.execute(query, tuple(ids)).fetchall() if ids else ():
        found.setdefault(message_id, []).append(value)
    return found
