import sqlite3

from hermes_state.chats import ensure_chat
from hermes_state.values import ChatKey, ChatKind, Millis
from hermes_state.web_chats import load_listed, load_read_until, mark_read
from tests.hermes_state.rows import START, exchange, make_chat, start

KEY = ChatKey(platform="telegram", account="telegram", chat_ref="42")


def ids(db: sqlite3.Connection) -> list[int]:
    return [row[0] for row in db.execute("SELECT id FROM messages ORDER BY id")]


def unread(db: sqlite3.Connection, key: ChatKey) -> list[str]:
    return [chat.name for chat in load_listed(db, key, 10) if chat.is_unread]


def test_a_chat_is_unread_until_its_newest_answer_was_shown(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "one", "first")
    assert unread(db, KEY) == ["42"]
    assert load_read_until(db, KEY) is None
    mark_read(db, KEY, str(ids(db)[-1]))
    assert unread(db, KEY) == []
    assert load_read_until(db, KEY) == START
    start(db, chat, "a message of the person")
    assert unread(db, KEY) == []


def test_a_message_is_found_by_its_platform_id_and_reading_never_goes_back(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "one", "first", at=START)
    exchange(db, chat, "two", "second", at=Millis(START + 5))
    db.execute("INSERT INTO platform_messages VALUES (?, 'k-7', ?, 0)", (chat, ids(db)[-1]))
    for ref in ("k-7", str(ids(db)[0]), "unknown", "9" * 40, ""):
        mark_read(db, KEY, ref)
    assert load_read_until(db, KEY) == START + 5


def test_messages_of_other_chats_and_people_do_not_count(db: sqlite3.Connection) -> None:
    exchange(db, make_chat(db), "one", "first")
    other = ChatKey(platform="telegram", account="telegram", chat_ref="42", user_ref="7")
    ensure_chat(db, other, ChatKind.GROUP, None, START)
    mark_read(db, other, str(ids(db)[-1]))
    assert load_read_until(db, other) is None
    assert unread(db, other) == []
    mark_read(db, ChatKey(platform="telegram", account="telegram", chat_ref="none"), "1")
