from pathlib import Path

import pytest

from hermes_state.admin.browsers import (
    LIFETIME_MS,
    LINK_LIFETIME_MS,
    MAX_LINKS,
    SignedInBrowser,
    SignInLink,
    add,
    add_link,
    find,
    find_link,
    load,
    remove,
    use_link,
)
from hermes_state.engines.postgres import migrate as postgresql
from hermes_state.engines.sqlite import migrate as sqlite
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.values import LOCAL_OWNER, Millis, UserRef
from tests.hermes_state.helpers import opened
from tests.hermes_state.rows import START
from tests.postgres import connect

NOW = Millis(START)
ANN = UserRef("local:ann")
NOTE = "local.cookies"
NOTED = """[{"digest": "a1", "since": 5}, {"digest": "f2", "since": 1800000000001, "agent": "Füchse \\"9\\""},
  {"digest": "b3", "since": 1800000000000, "agent": ""}]"""
"""Note of the versions before the table. The oldest browser predates the keys."""
KEPT = [
    SignedInBrowser(digest="f2", agent='Füchse "9"', created_at=Millis(1_800_000_000_001)),
    SignedInBrowser(digest="b3", agent="", created_at=Millis(1_800_000_000_000)),
]


def sign_in(db: Connection, name: str, *, at: int = START, most: int = 3, person: UserRef = LOCAL_OWNER) -> list[str]:
    browser = SignedInBrowser(digest=name * 16, agent=name, created_at=Millis(at), person=person)
    add(db, browser, most)
    return [one.agent for one in load(db, Millis(at))]


def test_browsers_are_listed_in_sign_in_order(db: Connection) -> None:
    assert sign_in(db, "beta") == ["beta"]
    assert sign_in(db, "alfa", at=START - 7) == ["beta", "alfa"], "the clock was set back"
    assert [one.id for one in load(db, NOW)] == ["betabeta", "alfaalfa"]


def test_the_oldest_browsers_are_signed_out_above_the_limit(db: Connection) -> None:
    for name in ("alfa", "beta", "coda"):
        sign_in(db, name)
    assert sign_in(db, "delt") == ["beta", "coda", "delt"]


def test_browsers_of_another_person_stay_signed_in(db: Connection) -> None:
    sign_in(db, "alfa")
    for name in ("beta", "coda", "delt", "echo"):
        sign_in(db, name, person=ANN)
    assert [one.agent for one in load(db, NOW)] == ["alfa", "coda", "delt", "echo"]


def keep_link(db: Connection, name: str, *, at: int = START, person: UserRef = ANN) -> None:
    add_link(db, name, SignInLink(created_at=Millis(at), person=person, person_name="Ann"))


def valid_links(db: Connection, names: str, at: int = START) -> str:
    return "".join(name for name in names if find_link(db, name, Millis(at)) is not None)


def test_a_link_signs_in_one_browser(db: Connection) -> None:
    keep_link(db, "a")
    assert valid_links(db, "ab") == "a"
    browsers = [SignedInBrowser(digest=name * 64, agent=name, created_at=NOW, person=ANN) for name in "xy"]
    assert [use_link(db, "a", browser) for browser in browsers] == [True, False]
    assert load(db, NOW) == browsers[:1]
    assert valid_links(db, "a") == ""


def test_the_oldest_links_of_a_person_end_above_the_limit(db: Connection) -> None:
    keep_link(db, "z", person=LOCAL_OWNER)
    for number, name in enumerate("abcdefg"):
        keep_link(db, name, at=START + number)
    assert valid_links(db, "zabcdefg") == "z" + "abcdefg"[-MAX_LINKS:]
    keep_link(db, "h", at=START - 7)
    assert valid_links(db, "h") == "h", "the clock was set back"


def test_links_end_when_all_browsers_are_signed_out(db: Connection) -> None:
    keep_link(db, "a")
    sign_in(db, "alfa")
    save_note(db, "linked", "kept")
    assert (remove(db, "alfaalfa", NOW), valid_links(db, "a")) == (1, "a")
    assert (remove(db, None, NOW), valid_links(db, "a")) == (0, "")
    assert load_note(db, "linked") == "kept"


def test_expired_links_are_removed_with_the_next_link(db: Connection) -> None:
    keep_link(db, "a")
    later = START + 1 + LINK_LIFETIME_MS
    assert valid_links(db, "a", later) == ""
    keep_link(db, "b", at=later, person=LOCAL_OWNER)
    assert db.execute("SELECT key FROM meta WHERE key LIKE 'link.%'").fetchall() == [("link.b",)]


def test_expired_browsers_are_removed(db: Connection) -> None:
    sign_in(db, "alfa")
    sign_in(db, "beta", at=START + 1)
    later = Millis(START + 1 + LIFETIME_MS)
    assert [one.agent for one in load(db, later)] == ["beta"]
    assert [find(db, name * 16, later) is not None for name in ("alfa", "beta", "coda")] == [False, True, False]
    assert sign_in(db, "coda", at=later) == ["beta", "coda"]
    assert remove(db, "alfaalfa", later) == 0


def test_one_browser_or_all_are_signed_out(db: Connection) -> None:
    for name in ("alfa", "beta", "coda"):
        sign_in(db, name)
    assert remove(db, "betabeta", NOW) == 1
    assert remove(db, "nobody", NOW) == 0
    assert [one.agent for one in load(db, NOW)] == ["alfa", "coda"]
    assert remove(db, None, NOW) == 2
    assert load(db, NOW) == []


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.cluster)])
def test_a_migration_turns_the_note_into_browser_rows(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The note is of the versions before migration 16."""
    if engine == "sqlite":
        path = tmp_path / "state.db"
        with opened(path) as db:
            sqlite.migrate(db, path, [one for one in sqlite.shipped_migrations() if one.number < 16])
            save_note(db, NOTE, NOTED)
            sqlite.migrate(db, path)
            assert (load(db, NOW), load_note(db, NOTE)) == (KEPT, None)
        return
    with request.getfixturevalue("postgres").database() as url, connect(url) as there:
        postgresql.migrate(there, [one for one in postgresql.shipped_migrations() if one.number < 16])
        save_note(there, NOTE, NOTED)
        postgresql.migrate(there)
        assert (load(there, NOW), load_note(there, NOTE)) == (KEPT, None)
