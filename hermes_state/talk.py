"""The talk between mentions: messages of a group that do not address the bot, if the group has `hears` switched on.

The rows belong to the chat without a person (`user_ref`), because all conversations of a group read the same messages.
They never start a turn. The next turn copies the newest ones into its transcript, as rows of origin `talk`, and moves
its chat's `talk_seen_id` past them in the same transaction.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import astuple, replace

from hermes_state import inbox
from hermes_state.chats import ensure_chat
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, columns, scalar, select, select_one
from hermes_state.text import both_ends
from hermes_state.transcripts import EMPTY_BODY, OUTSIDER_BODY, NewMessage, append_to_tip
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    Cursor,
    EditEvent,
    InboundMessage,
    LineageId,
    MessageRole,
    Millis,
    Origin,
    TurnId,
    UserRef,
)

MAX_SHOWN = 100
"""Maximum number of messages that a turn sees."""
MAX_SHOWN_CHARACTERS = 8_000
"""Maximum length of all messages that a turn sees together."""
MAX_CHARACTERS = 1_000
"""Maximum length of a message. The middle of a longer message is left out."""
MAX_AGE_MS = 86_400_000
"""Milliseconds after which a message is neither shown nor kept."""
MAX_KEPT = 200
"""Maximum number of stored messages per chat: more than a platform delivers again after a crash."""


class _StoredTalk(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    chat_id: ChatId
    sender_ref: UserRef
    sender_name: str
    has_access: bool
    text: str
    sent_at: Millis


_MARKS = re.compile(
    r"((?:\((?:in reply to|forwarded from) .*\)(?:\n|\Z))*)(?s:.*?)((?:^\(file: .*\)\n?)*)\Z", re.MULTILINE
)
"""The lines that intake adds before and after the words of a message."""
_COLUMNS = columns(_StoredTalk, "t")
_OF_GROUP = """JOIN chats g ON g.platform = c.platform AND g.account = c.account AND g.chat_ref = c.chat_ref
  AND g.thread_ref = c.thread_ref AND g.user_ref = ''"""


def keep(db: Connection, chat_id: ChatId, message: InboundMessage | EditEvent, text: str, *, has_access: bool) -> None:
    """Store a message once, unless people have switched this off. Remove the oldest messages above `MAX_KEPT`."""
    values = (message.message_ref, message.sender.ref, message.sender.name, int(has_access))
    query = """INSERT INTO talk (chat_id, message_ref, sender_ref, sender_name, has_access, text, sent_at)
    SELECT id, ?, ?, ?, ?, ?, ? FROM chats WHERE id = ? AND coalesce(hears, 1) = 1
    ON CONFLICT (chat_id, message_ref) DO NOTHING"""
    db.execute(query, (*values, both_ends(text, MAX_CHARACTERS), message.sent_at, chat_id))
    # Asking whether the row is new would cost a round trip to a database server.
    surplus = "SELECT id FROM talk WHERE chat_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
    db.execute(f"DELETE FROM talk WHERE chat_id = ? AND id <= ({surplus})", (chat_id, chat_id, MAX_KEPT))


def show(db: Connection, chat_id: ChatId, lineage_id: LineageId, turn_id: TurnId, now: Millis) -> None:
    """Copy the messages that the chat's turns have not seen into the transcript, as far as the limits allow."""
    query = f"""SELECT {_COLUMNS} FROM chats c {_OF_GROUP}
    JOIN talk t ON t.chat_id = g.id AND t.id > c.talk_seen_id AND t.sent_at > ?
    WHERE c.id = ? ORDER BY t.id DESC LIMIT ?"""
    rows = select(db, _StoredTalk, query, (now - MAX_AGE_MS, chat_id, MAX_SHOWN))
    room, kept = MAX_SHOWN_CHARACTERS, list[_StoredTalk]()
    for row in rows:
        room -= len(row.text)
        if room < 0:
            break
        kept.append(row)
    for row in reversed(kept):
        said = NewMessage(
            role=MessageRole.USER,
            origin=Origin.TALK,
            text=row.text,
            body=EMPTY_BODY if row.has_access else OUTSIDER_BODY,
            sender_ref=row.sender_ref,
            sender_name=row.sender_name,
            turn_id=turn_id,
        )
        append_to_tip(db, lineage_id, said, row.sent_at)
    if rows:
        db.execute("UPDATE chats SET talk_seen_id = ? WHERE id = ?", (rows[0].id, chat_id))


@locks(chat="edit.chat cursor")
def apply_edit(db: Connection, edit: EditEvent, cursor: Cursor | None) -> bool:
    """Replace the text of an edited message. If a turn has seen it, the next turn sees the new text as a change.

    Return False if the message is not stored here. Then the cursor stays too.
    """
    query = f"""SELECT {_COLUMNS} FROM talk t JOIN chats g ON g.id = t.chat_id WHERE g.platform = ?
    AND g.account = ? AND g.chat_ref = ? AND g.thread_ref = ? AND g.user_ref = ? AND t.message_ref = ?
    AND t.sender_ref = ?"""
    row = select_one(db, _StoredTalk, query, (*astuple(edit.chat), edit.message_ref, edit.sender.ref))
    if row is None:
        return False
    inbox.advance_cursor(db, cursor)
    seen = f"SELECT max(c.talk_seen_id) FROM chats c {_OF_GROUP} WHERE g.id = ?"
    was_seen = scalar(db, int, seen, (row.chat_id,)) >= row.id
    is_change = was_seen or row.text.startswith(inbox.EDIT_PREFIX)
    head, files = _MARKS.findall(row.text.removeprefix(inbox.EDIT_PREFIX))[0]
    words = edit.text.removeprefix(head).removesuffix(files)
    said = "\n".join(filter(None, (head.strip("\n"), words.strip("\n"), files)))
    text = both_ends(inbox.EDIT_PREFIX * is_change + said, MAX_CHARACTERS)
    if was_seen and row.text not in (text, both_ends(said, MAX_CHARACTERS)):  # as a new row, it is not seen yet
        remove(db, row.chat_id, edit.message_ref)
        keep(db, row.chat_id, edit, text, has_access=row.has_access)
    elif not was_seen:
        db.execute("UPDATE talk SET text = ? WHERE id = ?", (text, row.id))
    return True


def remove(db: Connection, chat_id: ChatId, message_ref: str) -> int:
    """Remove a deleted message. Return the number of removed rows."""
    return db.execute("DELETE FROM talk WHERE chat_id = ? AND message_ref = ?", (chat_id, message_ref)).rowcount


def load_hearing(db: Connection) -> Mapping[ChatKey, bool]:
    """Load the groups in which people have switched the storing of talk on or off."""
    query = "SELECT platform, account, chat_ref, thread_ref, user_ref, hears FROM chats WHERE hears IS NOT NULL"
    names = ("platform", "account", "chat_ref", "thread_ref", "user_ref")
    return {ChatKey(**dict(zip(names, row, strict=False))): bool(row[5]) for row in db.execute(query).fetchall()}


def switch(db: Connection, key: ChatKey, kind: ChatKind, now: Millis, *, is_on: bool) -> None:
    """Switch the storing of talk in a group on or off. Off also removes what is stored."""
    chat_id = ensure_chat(db, replace(key, user_ref=""), kind, None, now)
    told_at = now if is_on else None
    db.execute("UPDATE chats SET hears = ?, hears_told_at = ? WHERE id = ?", (int(is_on), told_at, chat_id))
    if not is_on:
        db.execute("DELETE FROM talk WHERE chat_id = ?", (chat_id,))


def must_tell(db: Connection, chat_id: ChatId, now: Millis) -> bool:
    """Return True if the group has not been told yet that its talk is stored, and store that it is told now."""
    query = "UPDATE chats SET hears_told_at = ? WHERE id = ? AND hears_told_at IS NULL"
    return db.execute(query, (now, chat_id)).rowcount > 0
