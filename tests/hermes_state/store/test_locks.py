from dataclasses import dataclass
from functools import partial

import pytest
from msgspec.structs import replace

from hermes_state.store.locks import EVERYTHING, LockKeys, locks, locks_of, place_of
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, ChatKey, Cursor, InboxId, TurnId

KEY = ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="7", user_ref="42")
TURN = TurnId(7)
ALL = LockKeys(names=frozenset({EVERYTHING}))
CURSOR = Cursor(platform="discord", account="discord", channel_ref="9", seen_ref="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    id: InboxId
    chat_id: ChatId
    key: ChatKey = KEY
    cursor: Cursor | None = None


ROWS = [Row(id=InboxId(1), chat_id=ChatId(5)), Row(id=InboxId(2), chat_id=ChatId(5), cursor=CURSOR)]


@locks(turn="turn_id")
def close(db: Connection, turn_id: TurnId | None = None, *, reason: str = "") -> None: ...


@locks(inbox="rows.id", chat="rows.chat_id rows.cursor key")
def refuse(db: Connection, rows: list[Row], key: ChatKey | None) -> None: ...


@locks("notes")
def note(db: Connection, key: str) -> None: ...


@locks(EVERYTHING)
def tidy(db: Connection) -> None: ...


@locks(chat="row.chat_id")
def change(row: Row, db: Connection, now: int) -> None: ...


@locks(turn="turn_id", calls="apply")
def carry_out(db: Connection, turn_id: TurnId, apply: object) -> None: ...


def undeclared(db: Connection, turn_id: TurnId) -> None: ...


class Owner:
    @locks(turn="turn_id")
    def settle(self, db: Connection, turn_id: TurnId) -> None: ...


def rows(*found: tuple[str, int]) -> LockKeys:
    return LockKeys(rows=frozenset(found))


def test_a_declared_parameter_is_found_by_position_and_name() -> None:
    assert locks_of(close, 7) == rows(("turn", 7))
    assert locks_of(close, reason="x", turn_id=7) == rows(("turn", 7))
    assert locks_of(close, 7) | locks_of(note, "a") == LockKeys(frozenset({("turn", 7)}), frozenset({"notes"}))


@pytest.mark.parametrize("keys", [locks_of(close), locks_of(close, None), locks_of(refuse, [], None)])
def test_none_and_empty_sequences_need_no_lock(keys: LockKeys) -> None:
    assert keys == LockKeys()


def test_paths_lead_through_sequences_to_ids_keys_and_cursors() -> None:
    keys = locks_of(refuse, ROWS, KEY)
    assert keys.rows == {("inbox", 1), ("inbox", 2), ("chat", 5)}
    assert keys.names == {"cursor/discord/discord/9", "chat/telegram/telegram/-100/7"}


def test_people_in_one_place_share_a_lock_but_threads_do_not() -> None:
    assert place_of(KEY) == place_of(replace(KEY, user_ref="")) != place_of(replace(KEY, thread_ref="8"))


def test_bound_and_partial_functions_lock_what_they_declare() -> None:
    assert locks_of(Owner().settle, 7) == rows(("turn", 7))
    assert locks_of(partial(Owner().settle, turn_id=TURN)) == rows(("turn", 7))
    assert locks_of(partial(close, turn_id=TURN)) == rows(("turn", 7))
    assert locks_of(partial(change, ROWS[0]), 0) == rows(("chat", 5))  # the connection follows the bound arguments


def test_an_inner_function_adds_only_its_declared_locks() -> None:
    assert locks_of(carry_out, 7, tidy) == rows(("turn", 7)) | ALL
    assert locks_of(carry_out, 7, partial(close, turn_id=TurnId(8))) == rows(("turn", 7), ("turn", 8))
    assert locks_of(carry_out, 7, undeclared) == rows(("turn", 7))


def test_a_function_without_a_declaration_locks_everything() -> None:
    assert locks_of(undeclared, 7) == locks_of(lambda db: None) == locks_of(tidy) == ALL


def test_an_unknown_parameter_and_a_value_that_leads_to_no_chat_are_refused() -> None:
    with pytest.raises(ValueError, match="tuple"):
        locks(turn="turn")(lambda db, turn_id: None)
    with pytest.raises(AssertionError, match="float leads to no chat"):
        locks_of(close, 7.5)
