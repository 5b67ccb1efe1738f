import sqlite3

import pytest

from hermes_state.admin.pairings import (
    CODE_LENGTH,
    MIN_CODE_AGE_MS,
    PairingState,
    UserRole,
    approve,
    hash_code,
    list_pairings,
    load_admin_chats,
    load_roles,
    new_code,
    offer,
    revoke,
)
from hermes_state.errors import PairingNotFound
from hermes_state.values import LOCAL_OWNER, ChatKey, ChatKind, Millis, Sender, UserRef
from tests.hermes_state.rows import ANN, START, add_chat, exchange, receive

HOUR = 3_600_000
EVE = Sender(platform="telegram", id="7", name="Eve")


def ask(db: sqlite3.Connection, code: str, sender: Sender = EVE, *, at: int = START, max_pending: int = 10) -> bool:
    return offer(db, sender, code, HOUR, max_pending, Millis(at))


def let_in(db: sqlite3.Connection, code: str, role: UserRole = UserRole.USER, *, at: int = START) -> UserRef:
    return approve(db, hash_code(code), role, "admin", Millis(at)).user_ref


def test_an_approved_code_gives_access_with_its_role_once(db: sqlite3.Connection) -> None:
    assert ask(db, "ABCDEFGH")
    assert load_roles(db) == {}
    assert let_in(db, " abcd-efgh ", UserRole.ADMIN) == "telegram:7", "case and separators do not matter"
    assert load_roles(db) == {"telegram:7": UserRole.ADMIN}
    with pytest.raises(PairingNotFound):
        let_in(db, "ABCDEFGH")
    assert load_roles(db) == {"telegram:7": UserRole.ADMIN}


@pytest.mark.parametrize("at", [START + HOUR, START - 24 * HOUR], ids=["later", "clock set back"])
def test_a_code_expires_and_stands_in_nobodys_way(db: sqlite3.Connection, at: int) -> None:
    assert ask(db, "ABCDEFGH", max_pending=1)
    with pytest.raises(PairingNotFound):
        let_in(db, "ABCDEFGH", at=at)
    assert list_pairings(db, Millis(at)) == []
    assert load_roles(db) == {}
    assert ask(db, "HGFEDCBA", at=at, max_pending=1)
    assert let_in(db, "HGFEDCBA", at=at - 1_000) == EVE.ref, "a second is no jump of the clock"


@pytest.mark.parametrize("code", ["", "WRONG234", "--------", "0000"])
def test_a_wrong_code_gives_no_access(db: sqlite3.Connection, code: str) -> None:
    ask(db, "ABCDEFGH")
    with pytest.raises(PairingNotFound):
        let_in(db, code)


def test_a_person_has_one_code_at_a_time(db: sqlite3.Connection) -> None:
    assert ask(db, "ABCDEFGH")
    assert not ask(db, "HGFEDCBA", at=START + HOUR - 1)
    assert ask(db, "HGFEDCBA", at=START + HOUR)
    with pytest.raises(PairingNotFound):
        let_in(db, "ABCDEFGH", at=START + HOUR)


def test_a_new_code_replaces_the_oldest_of_a_crowd(db: sqlite3.Connection) -> None:
    crowd = [Sender(platform="telegram", id=str(number), name="x") for number in range(5)]
    given = [ask(db, new_code(), one, at=START + number, max_pending=3) for number, one in enumerate(crowd)]
    assert given == [True, True, True, False, False]
    assert not ask(db, "ABCDEFGH", at=START + MIN_CODE_AGE_MS - 1, max_pending=3), "a fresh code is safe"
    assert ask(db, "ABCDEFGH", at=START + MIN_CODE_AGE_MS, max_pending=3)
    waiting = {pairing.user_ref for pairing in list_pairings(db, Millis(START + MIN_CODE_AGE_MS))}
    assert waiting == {crowd[1].ref, crowd[2].ref, EVE.ref}
    assert not ask(db, new_code(), crowd[0], at=START + MIN_CODE_AGE_MS, max_pending=3), "one at a time"
    assert let_in(db, "ABCDEFGH", at=START + MIN_CODE_AGE_MS) == EVE.ref
    assert ask(db, new_code(), crowd[4], at=START + HOUR, max_pending=3)


def test_a_crowd_of_strangers_does_not_affect_existing_access(db: sqlite3.Connection) -> None:
    ask(db, "ABCDEFGH", max_pending=1)
    let_in(db, "ABCDEFGH")
    crowd = [Sender(platform="telegram", id=f"9{number}", name="x") for number in range(3)]
    given = [
        ask(db, new_code(), one, at=START + number * MIN_CODE_AGE_MS, max_pending=1) for number, one in enumerate(crowd)
    ]
    assert given == [True] * 3
    assert load_roles(db) == {EVE.ref: UserRole.USER}


def test_revoked_access_can_be_restored_with_a_new_code(db: sqlite3.Connection) -> None:
    ask(db, "ABCDEFGH")
    let_in(db, "ABCDEFGH", UserRole.ADMIN)
    assert revoke(db, EVE.ref, "admin", START).role is UserRole.ADMIN
    assert load_roles(db) == {}
    with pytest.raises(PairingNotFound, match=EVE.ref):
        revoke(db, EVE.ref, "admin", START)
    ask(db, "HGFEDCBA")
    revoke(db, EVE.ref, "admin", START)
    with pytest.raises(PairingNotFound):
        let_in(db, "HGFEDCBA")
    ask(db, "HGFEDCBB")
    let_in(db, "HGFEDCBB")
    assert load_roles(db) == {EVE.ref: UserRole.USER}
    assert [pairing.state for pairing in list_pairings(db, START)] == [PairingState.APPROVED]


def test_codes_are_never_stored_in_plain_text(db: sqlite3.Connection) -> None:
    code = new_code()
    ask(db, code)
    assert len(code) == CODE_LENGTH
    assert code not in str(db.execute("SELECT * FROM pairings").fetchall())
    assert hash_code(code) in str(db.execute("SELECT * FROM pairings").fetchall())


def test_a_strangers_name_cannot_control_the_operators_terminal(db: sqlite3.Connection) -> None:
    assert ask(db, "K7QM4XPA", Sender(platform="telegram", id="7", name="\x1b[2JEve\r\nadmin\u202e" + "x" * 200))
    [waiting] = list_pairings(db, Millis(START))
    assert waiting.display_name.isprintable()
    assert "Eve" in waiting.display_name
    assert len(waiting.display_name) == 80


def test_an_admin_is_asked_in_the_newest_direct_chat_with_a_configured_account(db: sqlite3.Connection) -> None:
    accounts = ("telegram", "telegram/operations", "telegram/removed")
    keys = [ChatKey(platform="telegram", account=account, chat_ref="42") for account in accounts]
    chats = [add_chat(db, key, ChatKind.DIRECT) for key in keys]
    for number, chat_id in enumerate(chats):
        exchange(db, chat_id, "hello", "hi", at=START + number)
    assert load_admin_chats(db, {ANN}, accounts[:2]) == [chats[1]]
    assert load_admin_chats(db, {ANN}, ["telegram", "local"]) == [chats[0]]
    assert load_admin_chats(db, {ANN}, []) == []
    assert load_admin_chats(db, {ANN}, accounts[:2], failed=accounts[1:]) == [chats[0]]
    program = UserRef("local:api-ci")
    own = add_chat(db, ChatKey(platform="local", account="local", chat_ref="main", user_ref="api-ci"), ChatKind.LOCAL)
    exchange(db, own, "hello", "hi")
    assert load_admin_chats(db, {program}, ["local"]) == [], "a program cannot answer"
    assert load_admin_chats(db, {ANN}, accounts[:1], failed=accounts[:1]) == [chats[0]], "better than nobody"


def test_a_button_of_the_console_does_not_make_a_persons_chat_the_owners(db: sqlite3.Connection) -> None:
    own = add_chat(db, ChatKey(platform="local", account="local", chat_ref="main"), ChatKind.LOCAL)
    other = add_chat(db, ChatKey(platform="telegram", account="telegram", chat_ref="42"), ChatKind.DIRECT)
    for chat_id in (own, other):
        receive(db, chat_id, "/stop", sender=LOCAL_OWNER)
    assert load_admin_chats(db, {LOCAL_OWNER}, ["telegram", "local"]) == [own]
