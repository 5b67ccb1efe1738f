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


def test_no_file_is_surplus_below_the_limit(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 60, 1)
    keep(db, "bbb", 40, 2)
    assert attachments.load_surplus(db, 100) == []


def test_the_least_recently_used_files_are_surplus_first(db: sqlite3.Connection) -> None:
    for number, sha in enumerate(("aaa", "bbb", "ccc", "ddd")):
        keep(db, sha, 30, number)
    assert attachments.load_surplus(db, 70) == ["aa/aaa", "bb/bbb"]


def test_identical_files_count_once_with_their_last_use(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 1)
    keep(db, "bbb", 50, 2)
    keep(db, "aaa", 50, 3)
    assert attachments.load_surplus(db, 100) == []
    assert attachments.load_surplus(db, 50) == ["bb/bbb"]


def test_setting_the_clock_back_does_not_age_the_newest_file(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 86_400_000)
    keep(db, "bbb", 50, 0)
    assert attachments.load_surplus(db, 50) == ["aa/aaa"]


def test_forgetting_a_file_removes_all_its_rows(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 1)
    keep(db, "aaa", 50, 3)
    keep(db, "bbb", 50, 4)
    attachments.forget(db, ["aa/aaa"])
    assert db.execute("SELECT path FROM attachments").fetchall() == [("bb/bbb",)]


def test_no_messages_means_no_sent_files(db: sqlite3.Connection) -> None:
    assert attachments.load_files(db, []) == []
