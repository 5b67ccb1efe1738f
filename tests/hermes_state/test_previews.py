"""Stored previews: only the owner of a turn stores them, and only while it runs."""

from collections.abc import Callable

import pytest

from hermes_state import journal
from hermes_state.store.sql import Connection
from hermes_state.turns import RunningTurn, load_previews, remove_preview, store_preview
from hermes_state.values import TurnId
from tests.hermes_state.rows import START, finish, make_chat, start


def texts(db: Connection, turn: RunningTurn) -> list[str]:
    return [one.text for one in load_previews(db, [turn.id], {})]


def test_a_preview_comes_with_its_turn_unless_known(db: Connection) -> None:
    turn = start(db, make_chat(db), "q")
    assert texts(db, turn) == []
    store_preview(db, turn, "", START)
    store_preview(db, turn, "so far", START)
    [stored] = load_previews(db, [turn.id, TurnId(turn.id + 1)], {turn.id: turn.epoch - 1})
    assert (stored.text, stored.moved) == ("so far", turn)
    [stored] = load_previews(db, [turn.id], {turn.id: turn.epoch})
    assert stored.moved is None


def test_a_former_owner_stores_no_preview(db: Connection) -> None:
    old = start(db, make_chat(db), "q")
    store_preview(db, old, "of the old", START)
    new = journal.take_up(db, old)
    assert texts(db, new) == [], "nobody says yet that it is worked on"
    store_preview(db, old, "of the old", START)
    assert texts(db, new) == []
    store_preview(db, new, "of the new", START)
    assert texts(db, new) == ["of the new"]


@pytest.mark.parametrize(
    "end",
    [
        lambda db, turn: journal.pause_turn(db, turn),
        lambda db, turn: journal.stop_turn(db, turn, "so far", "stopped", START, notice="(stopped)"),
        lambda db, turn: journal.fail_turn(db, turn, "ModelTimeout", "It failed.", START),
    ],
)
def test_a_turn_that_does_not_run_stores_no_preview(
    db: Connection, end: Callable[[Connection, RunningTurn], object]
) -> None:
    turn = start(db, make_chat(db), "q")
    store_preview(db, turn, "so far", START)
    end(db, turn)
    store_preview(db, turn, "too late", START)
    assert db.execute("SELECT * FROM previews").fetchall() == []


def test_the_preview_of_a_finished_turn_is_not_read(db: Connection) -> None:
    turn = start(db, make_chat(db), "q")
    store_preview(db, turn, "so far", START)
    finish(db, turn, "a")
    assert texts(db, turn) == []
    remove_preview(db, turn.id)
    assert db.execute("SELECT * FROM previews").fetchall() == []
