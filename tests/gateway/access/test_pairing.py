"""Pairing: database changes and replies of each step."""

import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gateway.access.pairing import (
    CODE_MINUTES,
    OFFER,
    STILL_WAITING,
    WELCOME,
    approve_pairing,
    offer_pairing,
    revoke_pairing,
)
from hermes_state.admin.pairings import Pairing, PairingState, UserRole
from hermes_state.errors import CommandError
from hermes_state.values import ChatId, Cursor, UserRef
from tests.gateway.helpers import BOSS, BOSS_CHAT, EVE, EVE_CHAT, TestGateway
from tests.gateway.inbound.test_admission import CURSOR, message, owed
from tests.gateway.operator.test_handlers import operator
from tests.hermes_state.rows import START, migrated


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        yield connection


def offer(db: sqlite3.Connection, number: int, code: str, cursor: Cursor | None = None) -> ChatId | None:
    return offer_pairing(db, message(number), code, cursor, START)


def test_a_stranger_gets_one_code_and_occasional_reminders(db: sqlite3.Connection) -> None:
    assert offer(db, 1, "ABCDEFGH", CURSOR) is not None
    assert offer(db, 2, "HGFEDCBA", replace(CURSOR, seen_ref="100")) is not None
    assert offer(db, 3, "HGFEDCBB", replace(CURSOR, seen_ref="101")) is None
    assert owed(db) == [OFFER.format(code="ABCDEFGH", minutes=CODE_MINUTES), STILL_WAITING]
    assert db.execute("SELECT seen_ref FROM cursors").fetchall() == [("101",)]
    assert db.execute("SELECT count(*) FROM inbox").fetchone() == (0,)


def approve(db: sqlite3.Connection, code: str, role: UserRole = UserRole.USER) -> tuple[Pairing, ChatId | None]:
    return approve_pairing(db, code, role, "x", START)


@pytest.mark.parametrize("role", list(UserRole))
def test_an_approved_person_is_welcomed_once_where_they_asked(db: sqlite3.Connection, role: UserRole) -> None:
    asked = offer(db, 1, "ABCDEFGH")
    pairing, notified_chat = approve(db, "abcd-efgh", role)
    assert (notified_chat, pairing.state, pairing.role) == (asked, PairingState.APPROVED, role)
    assert owed(db) == [OFFER.format(code="ABCDEFGH", minutes=CODE_MINUTES), WELCOME[role]]
    with pytest.raises(CommandError) as raised:
        approve(db, "ABCDEFGH", role)
    assert str(raised.value) == "That code is not valid. It was already used, has expired, or never existed."
    assert len(owed(db)) == 2


def test_an_unpaired_person_cannot_be_revoked(db: sqlite3.Connection) -> None:
    with pytest.raises(CommandError) as raised:
        revoke_pairing(db, UserRef("telegram:9"), "x", START)
    sentence = "telegram:9 is not paired. To revoke access given by the configuration file, edit `access` there."
    assert str(raised.value) == sentence


def test_a_code_from_a_deleted_chat_still_gives_access(db: sqlite3.Connection) -> None:
    offer(db, 1, "ABCDEFGH")
    db.execute("DELETE FROM outbox")
    assert approve(db, "ABCDEFGH")[1] is None
    assert owed(db) == []


async def test_an_approval_by_command_line_sends_a_welcome(gateway: TestGateway) -> None:
    offered = await gateway.ask("hello", chat=EVE_CHAT, sender=EVE)
    args = {"code": offered.split("`")[1], "role": "admin"}
    await operator(gateway).handlers()["pair.approve"](args)
    assert await gateway.replies(2, EVE_CHAT) == [offered, WELCOME[UserRole.ADMIN]]


async def test_a_strangers_name_cannot_add_a_link_to_an_admins_chat(gateway: TestGateway) -> None:
    await gateway.ask("hello", chat=EVE_CHAT, sender=replace(EVE, name="[`Approve me](https://evil.example)"))
    listed = await gateway.ask("/pair list", chat=BOSS_CHAT, sender=BOSS)
    assert listed.startswith("- `['Approve me](https://evil.example)` (`telegram:666`): pending")
