"""The list of chats in the web chat: its order, and each chat's name, pin, archive state and read marker."""

import re
from typing import TypeAlias

import msgspec

from hermes_state.chats import Chat, find_chat
from hermes_state.errors import CommandError
from hermes_state.search.ranking import SearchFilter
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, containing, scalar_or_none, select, select_one
from hermes_state.text import whole_number
from hermes_state.values import ChatId, ChatKey, Millis

MAX_NAME_CHARACTERS = 100

Position: TypeAlias = tuple[int, int, int]
"""Position in the list: 1 for a pinned chat (otherwise 0), the time of the last activity, and the chat's id."""

START: Position = (2, 0, 0)


class ListedChat(msgspec.Struct, frozen=True, kw_only=True):
    id: ChatId
    name: str
    """Name in the chat's address."""
    given_name: str | None
    """Name that a person gave to the chat."""
    title: str | None
    """Title of the current conversation."""
    used_at: Millis
    is_pinned: bool
    is_archived: bool
    is_unread: bool
    """True if the newest answer has not been seen."""

    @property
    def shown_name(self) -> str:
        return self.given_name or shown_name(self.name, self.title)

    @property
    def position(self) -> Position:
        return (int(self.is_pinned), self.used_at, self.id)


def shown_name(name: str, title: str | None) -> str:
    """Return the display name of a chat: its `name`, or its conversation's `title` if no person chose the name.

    >>> shown_name("plans", "A week in Rome"), shown_name("chat-0123abcd", "A week in Rome")
    ('plans', 'A week in Rome')
    >>> shown_name("main", "A week in Rome"), shown_name("main", None), shown_name("chat-0123abcd", None)
    ('A week in Rome', 'main', 'New chat')
    """
    if re.fullmatch(r"chat-[0-9a-f]{8}", name):
        return title or "New chat"
    return title or name if name == "main" else name


# Purpose: load a person's chats, pinned chats first and then the most recently used. A chat is unread if its newest
# answer was not seen.
_LISTED = """
SELECT id, name, given_name, used_at, pinned = 1 AS is_pinned, archived = 1 AS is_archived, unread = 1 AS is_unread,
  (SELECT s.title FROM sessions s WHERE s.lineage_id = found.lineage_id AND s.title IS NOT NULL
    ORDER BY s.depth DESC LIMIT 1) AS title
FROM (
  SELECT c.id, c.chat_ref AS name, c.title AS given_name, a.lineage_id,
    coalesce(a.last_human_at, c.updated_at) AS used_at,
    CASE WHEN c.pinned_at IS NULL THEN 0 ELSE 1 END AS pinned,
    CASE WHEN c.archived_at IS NULL THEN 0 ELSE 1 END AS archived,
    CASE WHEN coalesce((SELECT m.id FROM messages m WHERE m.session_id = c.active_session_id AND m.seq > 0
      AND m.origin = 'assistant' ORDER BY m.seq DESC LIMIT 1), 0) > c.read_id THEN 1 ELSE 0 END AS unread
  FROM chats c LEFT JOIN sessions a ON a.id = c.active_session_id
  WHERE c.platform = :platform AND c.account = :account AND c.user_ref = :user_ref AND c.deleted_at IS NULL) found
WHERE {} ORDER BY pinned DESC, used_at DESC, id DESC LIMIT :limit
"""


def load_listed(
    db: Connection, like: ChatKey, limit: int, *, after: Position = START, is_archived: bool = False
) -> list[ListedChat]:
    """Load the chats with the account and person of `like` that come after position `after` in the list."""
    pinned, used_at, chat_id = after
    where = "archived = :archived AND (pinned, used_at, id) < (:pinned, :used_at, :id)"
    values = {"archived": int(is_archived), "pinned": pinned, "used_at": used_at, "id": chat_id, "limit": limit}
    return select(db, ListedChat, _LISTED.format(where), {**_owner(like), **values})


def find_listed(db: Connection, key: ChatKey) -> ListedChat | None:
    """Load one chat of the list, archived or not. Return None if the chat has no message yet, or was deleted."""
    values = {**_owner(key), "name": key.chat_ref, "limit": 1}
    return select_one(db, ListedChat, _LISTED.format("name = :name"), values)


def _owner(key: ChatKey) -> dict[str, str]:
    return {"platform": key.platform, "account": key.account, "user_ref": key.user_ref}


@locks(chat="key")
def rename(db: Connection, key: ChatKey, name: str) -> None:
    """Give a chat a name. If `name` is empty, the chat shows the title of its conversation again."""
    words = " ".join(name.split())
    if len(words) > MAX_NAME_CHARACTERS:
        raise CommandError(f"A name can have at most {MAX_NAME_CHARACTERS} characters. Yours has {len(words):,}.")
    if not words.isprintable():
        raise CommandError("A name cannot contain control characters. Remove them and try again.")
    db.execute("UPDATE chats SET title = ? WHERE id = ?", (words or None, existing(db, key).id))


@locks(chat="key")
def pin(db: Connection, key: ChatKey, at: Millis | None) -> None:
    """Pin a chat to the top of the list, or unpin it if `at` is None."""
    db.execute("UPDATE chats SET pinned_at = ? WHERE id = ?", (at, existing(db, key).id))


@locks(chat="key")
def archive(db: Connection, key: ChatKey, at: Millis | None) -> None:
    """Move a chat to the archived chats, or back to the list if `at` is None."""
    db.execute("UPDATE chats SET archived_at = ? WHERE id = ?", (at, existing(db, key).id))


@locks(chat="key")
def mark_read(db: Connection, key: ChatKey, ref: str) -> None:
    """Record that the person has seen the message with this platform id (or row id) and all earlier messages."""
    if (chat := find_chat(db, key)) is None:
        return
    query = "SELECT message_id FROM platform_messages WHERE chat_id = ? AND ref = ?"
    message_id = scalar_or_none(db, int, query, (chat.id, ref))
    if message_id is None and (row_id := whole_number(ref)) is not None:
        query = "SELECT id FROM messages WHERE chat_id = ? AND id = ?"
        message_id = scalar_or_none(db, int, query, (chat.id, row_id))
    if message_id is not None:
        db.execute("UPDATE chats SET read_id = ? WHERE id = ? AND read_id < ?", (message_id, chat.id, message_id))


def load_read_until(db: Connection, key: ChatKey) -> Millis | None:
    """Return the time of the newest message that the person has seen, or None if they have seen none."""
    chat = find_chat(db, key)
    query = "SELECT m.created_at FROM chats c JOIN messages m ON m.id = c.read_id WHERE c.id = ?"
    return None if chat is None else scalar_or_none(db, Millis, query, (chat.id,))


def existing(db: Connection, key: ChatKey) -> Chat:
    """Load a chat that a page shows. Raises `CommandError` if it was deleted."""
    if (chat := find_chat(db, key)) is None:
        raise CommandError("This chat no longer exists. Reload the page.")
    return chat


def search_scope(db: Connection, like: ChatKey | None, platform: str = "") -> SearchFilter | None:
    """Return the filter for all chats of a platform or account, or those of the account and person of `like`.

    Return None if there are no such chats. A search takes longer the more chats its filter names. So the filter names
    the wanted chats or the unwanted chats, whichever are fewer.
    """
    owner = _owner(like) if like is not None else dict.fromkeys(("platform", "account", "user_ref"), "")
    values = {"is_all": int(like is None), "kind": platform, **owner}
    query = """SELECT id, CASE WHEN deleted_at IS NULL AND (:kind = '' OR :kind IN (platform, account))
      AND (:is_all = 1 OR (platform = :platform AND account = :account AND user_ref = :user_ref)) THEN 1 ELSE 0 END
    FROM chats"""
    rows = db.execute(query, values).fetchall()
    wanted, others = ([ChatId(row[0]) for row in rows if row[1] == is_wanted] for is_wanted in (1, 0))
    if not wanted:
        return None
    return {"chat_ids": wanted} if len(wanted) < len(others) else {"other_than": others}


def find_titled(db: Connection, like: ChatKey, words: str, limit: int) -> list[ListedChat]:
    """Load the chats of a person whose name or title contains all words."""
    pieces = {f"word{number}": containing(piece) for number, piece in enumerate(words.split()[:8])}
    text = "lower(coalesce(given_name, '') || ' ' || coalesce(title, '') || ' ' || name)"
    where = " AND ".join(f"{text} LIKE :{name} ESCAPE '!'" for name in pieces)
    query = f"SELECT * FROM ({_LISTED.format('1 = 1')}) titled WHERE {where} ORDER BY used_at DESC LIMIT :shown"
    return select(db, ListedChat, query, {**_owner(like), **pieces, "limit": 10**9, "shown": limit}) if pieces else []
