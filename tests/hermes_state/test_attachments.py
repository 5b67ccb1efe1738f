import sqlite3
from collections.abc import Iterator

import pytest

from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.values import Millis
from tests.hermes_state.rows import START, make_chat, migrated


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        make_chat(connection)
        yield connection


def keep(db: sqlite3.Connection, sha: str, size: int, at: int) -> None:
    file = StoredFile(sha256=sha, path=f"{sha[:2]}/{sha}", name=f"{sha}.txt", mime="text/plain", size_bytes=size)
    chat = db.execute("SELECT id FROM chats").fetchone()[0]
    attachments.insert(db, chat, file, Millis(START + at))


def test_nothing_goes_while_there_is_room(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 60, 1)
    keep(db, "bbb", 40, 2)
    assert attachments.load_surplus(db, 100) == []


def test_the_longest_unused_files_go_first_and_no_more_than_needed(db: sqlite3.Connection) -> None:
    for number, sha in enumerate(("aaa", "bbb", "ccc", "ddd")):
        keep(db, sha, 30, number)
    assert attachments.load_surplus(db, 70) == ["aa/aaa", "bb/bbb"]


def test_the_same_bytes_count_once_and_are_as_young_as_their_last_use(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 1)
    keep(db, "bbb", 50, 2)
    keep(db, "aaa", 50, 3)
    assert attachments.load_surplus(db, 100) == []
    assert attachments.load_surplus(db, 50) == ["bb/bbb"]


def test_a_clock_that_is_set_back_makes_the_newest_file_no_older(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 86_400_000)
    keep(db, "bbb", 50, 0)
    assert attachments.load_surplus(db, 50) == ["aa/aaa"]


def test_forgetting_a_file_forgets_all_its_uses(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 1)
    keep(db, "aaa", 50, 3)
    keep(db, "bbb", 50, 4)
    attachments.forget(db, ["aa/aaa"])
    assert db.execute("SELECT path FROM attachments").fetchall() == [("bb/bbb",)]


def test_no_messages_have_sent_no_files(db: sqlite3.Connection) -> None:
    assert attachments.load_sent(db, []) == []
