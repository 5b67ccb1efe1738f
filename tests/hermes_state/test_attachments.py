import sqlite3

from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.values import Millis
from tests.hermes_state.rows import START, finish, make_chat, start


def keep(db: sqlite3.Connection, sha: str, size: int, at: int) -> None:
    file = StoredFile(sha256=sha, path=f"{sha[:2]}/{sha}", name=f"{sha}.txt", mime="text/plain", size_bytes=size)
    attachments.insert(db, make_chat(db), file, Millis(START + at))


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
    keep(db, "ccc", 50, 0)  # the clock was set back, which does not age the newest file
    assert attachments.load_surplus(db, 50) == ["bb/bbb", "aa/aaa"]


def test_pictures_of_pages_are_not_files_of_a_message(db: sqlite3.Connection) -> None:
    message = finish(db, start(db, make_chat(db), "draw it"), "See the files.")
    for name in ("scan.pdf", "scan.pdf page 1.jpg", "other.pdf page 1.jpg"):
        file = StoredFile(sha256=name, path=name, name=name, mime=None, size_bytes=1)
        attachments.insert(db, make_chat(db), file, Millis(START), message)
    assert [file.name for file in attachments.load_files(db, [message])] == ["scan.pdf", "other.pdf page 1.jpg"]


def test_forgetting_a_file_removes_all_its_rows(db: sqlite3.Connection) -> None:
    keep(db, "aaa", 50, 1)
    keep(db, "aaa", 50, 3)
    keep(db, "bbb", 50, 4)
    attachments.forget(db, ["aa/aaa"])
    assert db.execute("SELECT path FROM attachments").fetchall() == [("bb/bbb",)]
    assert attachments.load_files(db, []) == [], "of no messages"
