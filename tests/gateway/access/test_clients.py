"""Programs: one token each, which stays valid until it is revoked."""

import sqlite3
from collections.abc import Iterator

import pytest

from gateway.access.clients import add_client, client_ref
from gateway.access.pairing import revoke_pairing
from hermes_state.admin.pairings import UserRole, admit, find_client
from hermes_state.errors import CommandError
from hermes_state.values import Millis
from tests.hermes_state.rows import migrated

NOW = Millis(1_000)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        yield connection


def test_a_token_ends_only_when_it_is_revoked(db: sqlite3.Connection) -> None:
    add_client(db, "editor", UserRole.USER, "first", NOW)
    with pytest.raises(CommandError, match="client revoke editor"):
        add_client(db, "editor", UserRole.USER, "second", NOW)
    person = client_ref("editor")
    admit(db, person, "Editor", UserRole.ADMIN, "local:owner", NOW)  # an admin signs in a browser of this person
    assert find_client(db, "first") == (person, "Editor")
    revoke_pairing(db, person, "local:owner", NOW)
    assert find_client(db, "first") is None
    admit(db, person, "Editor", UserRole.USER, "local:owner", NOW)
    assert find_client(db, "first") is None, "access without a token does not bring back the token"
    revoke_pairing(db, person, "local:owner", NOW)
    add_client(db, "editor", UserRole.USER, "second", NOW)
    assert find_client(db, "second") == (person, "api-editor")


@pytest.mark.parametrize("name", ["", "Editor", "a b", "é", "x" * 29])
def test_an_invalid_name_gets_a_sentence(db: sqlite3.Connection, name: str) -> None:
    with pytest.raises(CommandError, match="up to 28"):
        add_client(db, name, UserRole.USER, "token", NOW)
