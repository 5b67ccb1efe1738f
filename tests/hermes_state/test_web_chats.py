import sqlite3

import pytest

from hermes_state import sessions, web_chats
from hermes_state.chats import ensure_chat, find_chat
from hermes_state.errors import CommandError
from hermes_state.values import ChatKey, ChatKind, Millis
from hermes_state.web_chats import find_listed, load_listed, load_read_until, mark_read
from tests.hermes_state.rows import START, exchange, make_chat, start


def key_of(name: str, person: str = "") -> ChatKey:
    return ChatKey(platform="local", account="local", chat_ref=name, user_ref=person)


def make(db: sqlite3.Connection, name: str, hours: int, title: str | None = None, person: str = "") -> ChatKey:
    key, at = key_of(name, person), Millis(START + hours * 3_600_000)
    session = sessions.start_session(db, ensure_chat(db, key, ChatKind.LOCAL, None, at), at)
    db.execute("UPDATE sessions SET last_human_at = ? WHERE id = ?", (at, session.id))
    if title is not None:
        sessions.set_title(db, session.id, title)
    return key


def names(db: sqlite3.Connection, person: str = "", *, is_archived: bool = False) -> list[str]:
    return [chat.name for chat in load_listed(db, key_of("", person), 50, is_archived=is_archived)]


def test_the_list_has_pinned_chats_first_then_the_newest_of_one_person(db: sqlite3.Connection) -> None:
    old, new = make(db, "old", 1, "A trip"), make(db, "new", 3)
    make(db, "other", 5, person="ann")
    assert names(db) == ["new", "old"]
    web_chats.pin(db, old, START)
    web_chats.archive(db, new, START)
    assert (names(db), names(db, is_archived=True), names(db, "ann")) == (["old"], ["new"], ["other"])
    web_chats.archive(db, new, None)
    assert names(db) == ["old", "new"]
    assert load_listed(db, old, 1)[0].title == "A trip"


def test_every_chat_is_in_one_part_of_the_list(db: sqlite3.Connection) -> None:
    for number in range(7):
        make(db, f"chat{number}", number // 2)  # some were last used at the same time
    web_chats.pin(db, key_of("chat3"), START)
    found, position = list[str](), web_chats.START
    while part := load_listed(db, key_of(""), 2, after=position):
        found += [chat.name for chat in part]
        position = part[-1].position
    assert found == names(db)
    assert len(set(found)) == 7


def test_a_name_can_be_given_and_taken_back(db: sqlite3.Connection) -> None:
    key = make(db, "main", 1, "A trip")
    web_chats.rename(db, key, "  The   plan ")
    ensure_chat(db, key, ChatKind.LOCAL, None, START)  # the next message has no title
    found = find_listed(db, key)
    assert found is not None
    assert (found.given_name, found.title) == ("The plan", "A trip")
    web_chats.rename(db, key, " ")
    chat = find_chat(db, key)
    assert chat is not None
    assert chat.title is None


@pytest.mark.parametrize(
    ("name", "sentence"), [("x" * 10_000, "at most 100 characters. Yours has 10,000"), ("a\0b", "control characters")]
)
def test_a_bad_name_or_a_chat_that_does_not_exist_is_refused(db: sqlite3.Connection, name: str, sentence: str) -> None:
    key = make(db, "main", 1)
    with pytest.raises(CommandError, match=sentence):
        web_chats.rename(db, key, name)
    found = find_listed(db, key)
    assert found is not None
    assert found.given_name is None
    with pytest.raises(CommandError, match="no longer exists"):
        web_chats.pin(db, key_of("main", "ann"), START)


def ids(db: sqlite3.Connection) -> list[int]:
    return [row[0] for row in db.execute("SELECT id FROM messages ORDER BY id")]


def unread(db: sqlite3.Connection, key: ChatKey) -> list[str]:
    return [chat.name for chat in load_listed(db, key, 10) if chat.is_unread]


KEY = ChatKey(platform="telegram", account="telegram", chat_ref="42")


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
