"""Pairings: a stranger receives a code, and gets access when the code is approved. Only hashes of codes are stored."""

import hashlib
import secrets
from collections.abc import Collection
from enum import StrEnum

import msgspec

from hermes_state.errors import PairingNotFound
from hermes_state.store.sql import Connection, columns, insertion, scalar_or_none, scalars, select, select_one
from hermes_state.values import ChatId, Millis, Sender, UserRef


class UserRole(StrEnum):
    USER = "user"
    ADMIN = "admin"


class PairingState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


CODE_LENGTH = 8
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Characters allowed in a code. I, O, 0 and 1 are left out, because people confuse them."""

MIN_CODE_AGE_MS = 300_000
"""Milliseconds during which a new code cannot be replaced, so that there is time to approve it."""


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    code_hash: str
    user_ref: UserRef
    display_name: str
    state: PairingState
    role: UserRole
    expires_at: Millis
    created_at: Millis
    decided_by: str | None


_COLUMNS = columns(Pairing, "pairings")
_IS_VALID = "(state = 'pending' AND expires_at > :now AND created_at <= :now + 60000)"
"""SQL condition for valid codes. If the clock was set back, codes that appear to be from the future are not valid."""

# Purpose: delete the oldest pending code, if it is old enough, to make room for a new code.
_DROP_OLDEST = """DELETE FROM pairings WHERE code_hash = (
  SELECT code_hash FROM pairings WHERE state = 'pending' AND created_at <= ? ORDER BY created_at LIMIT 1)"""


def new_code() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(CODE_LENGTH))


def hash_code(code: str) -> str:
    """Hash a code for storage, ignoring case and separators."""
    letters = "".join(letter for letter in code.upper() if letter in _LETTERS)
    return hashlib.sha256(letters.encode()).hexdigest()


def offer(db: Connection, sender: Sender, code: str, lifetime_ms: int, max_pending: int, now: Millis) -> bool:
    """Store a new code for a stranger. Return False if they already have a valid code.

    If `max_pending` codes are pending, the new code replaces the oldest one. But if the oldest code is younger than
    `MIN_CODE_AGE_MS`, store nothing and return False. Therefore, strangers who request many codes can block new ones
    only for a short time.
    """
    db.execute(f"DELETE FROM pairings WHERE state = 'pending' AND NOT {_IS_VALID}", {"now": now})
    waiting = scalars(db, UserRef, "SELECT user_ref FROM pairings WHERE state = 'pending'")
    if sender.ref in waiting:
        return False
    if len(waiting) >= max_pending and db.execute(_DROP_OLDEST, (now - MIN_CODE_AGE_MS,)).rowcount == 0:
        return False
    # The name is shown in an operator's terminal. It can contain escape sequences, line breaks and reversed text.
    shown_name = "".join(character if character.isprintable() else " " for character in sender.name)[:80]
    db.execute(
        """INSERT INTO pairings (code_hash, platform, user_ref, display_name, state, expires_at, created_at)
        VALUES (?, ?, ?, ?, 'pending', ?, ?)""",
        (hash_code(code), sender.platform, sender.ref, shown_name, now + lifetime_ms, now),
    )
    return True


def is_waiting(db: Connection, user_ref: UserRef, now: Millis) -> bool:
    """Return True if a person's code can still be approved."""
    query = f"SELECT 1 FROM pairings WHERE user_ref = :user_ref AND {_IS_VALID}"
    return db.execute(query, {"user_ref": user_ref, "now": now}).fetchone() is not None


def approve(db: Connection, code_hash: str, role: UserRole, decided_by: str, now: Millis) -> Pairing:
    """Grant access to the person whose code has this hash. Raises `PairingNotFound` if no valid code has this hash."""
    query = f"SELECT {_COLUMNS} FROM pairings WHERE code_hash = :code_hash AND {_IS_VALID}"
    pairing = select_one(db, Pairing, query, {"code_hash": code_hash, "now": now})
    if pairing is None:
        raise PairingNotFound("no pending request has this code")
    db.execute("DELETE FROM pairings WHERE user_ref = ? AND state <> 'pending'", (pairing.user_ref,))
    db.execute(
        "UPDATE pairings SET state = 'approved', role = ?, decided_by = ?, decided_at = ? WHERE code_hash = ?",
        (role, decided_by, now, code_hash),
    )
    return msgspec.structs.replace(pairing, state=PairingState.APPROVED, role=role, decided_by=decided_by)


def admit(
    db: Connection, person: UserRef, name: str, role: UserRole, decided_by: str, now: Millis, token_hash: str = ""
) -> None:
    """Grant access to a person who needs no code, or change their name and role.

    `token_hash`: SHA-256 of the token of a program, which replaces the hash of a code. A token is kept until it is
    revoked.
    """
    query = "SELECT code_hash FROM pairings WHERE user_ref = ? AND state = 'approved'"
    kept = scalar_or_none(db, str, query, (person,))
    db.execute("DELETE FROM pairings WHERE user_ref = ?", (person,))
    values = {
        "code_hash": token_hash or kept or hash_code(new_code()),
        "platform": person.partition(":")[0],
        "user_ref": person,
        "display_name": name,
        "state": PairingState.APPROVED,
        "role": role,
        "expires_at": now,
        "decided_by": decided_by,
        "decided_at": now,
        "created_at": now,
    }
    db.execute(insertion("pairings", values), values)


def find_client(db: Connection, token_hash: str) -> tuple[UserRef, str] | None:
    """Load the id and the name of the program whose token has this hash. None if it is unknown or was revoked."""
    query = (
        "SELECT user_ref, display_name FROM pairings WHERE code_hash = ? AND platform = 'local' AND state = 'approved'"
    )
    row = db.execute(query, (token_hash,)).fetchone()
    return None if row is None else (UserRef(row[0]), row[1])


def find_name(db: Connection, user_ref: UserRef) -> str | None:
    """Load the name of a person who was given access, even if it was revoked. None if there is no such person."""
    query = (
        "SELECT display_name FROM pairings WHERE user_ref = ? AND state <> 'pending' ORDER BY decided_at DESC LIMIT 1"
    )
    return scalar_or_none(db, str, query, (user_ref,))


def deny(db: Connection, code_hash: str) -> bool:
    """Delete a pending request, so that its code is no longer valid. Return False if there is none."""
    return db.execute("DELETE FROM pairings WHERE code_hash = ? AND state = 'pending'", (code_hash,)).rowcount > 0


def revoke(db: Connection, user_ref: UserRef, decided_by: str, now: Millis) -> Pairing:
    """Revoke access. Raises `PairingNotFound` if the person is not paired."""
    query = f"SELECT {_COLUMNS} FROM pairings WHERE user_ref = ? AND state IN ('approved','pending')"
    pairing = select_one(db, Pairing, query, (user_ref,))
    if pairing is None:
        raise PairingNotFound(f"{user_ref} is not paired")
    db.execute(
        """UPDATE pairings SET state = 'revoked', decided_by = ?, decided_at = ?
        WHERE user_ref = ? AND state <> 'revoked'""",
        (decided_by, now, user_ref),
    )
    return msgspec.structs.replace(pairing, state=PairingState.REVOKED, decided_by=decided_by)


def list_pairings(db: Connection, now: Millis) -> list[Pairing]:
    """Load the people who are waiting for approval or have access, newest first."""
    query = f"SELECT {_COLUMNS} FROM pairings WHERE state = 'approved' OR {_IS_VALID} ORDER BY created_at DESC"
    return select(db, Pairing, query, {"now": now})


# Purpose: find a person's most recently used direct chat with one of the accounts. The platform is compared because
# a button of the console can act in the direct chat of another person.
_DIRECT_CHAT = """
SELECT c.id FROM chats c LEFT JOIN sessions s ON s.id = c.active_session_id
WHERE c.kind IN ('direct','local') AND c.unreachable_since IS NULL AND c.platform = ?
  AND c.account IN ({}) AND c.id IN
  (SELECT chat_id FROM turns WHERE started_by = ? UNION SELECT chat_id FROM inbox WHERE sender_ref = ?)
ORDER BY CASE WHEN c.account IN ({}) THEN 1 ELSE 0 END, coalesce(s.last_human_at, c.updated_at) DESC, c.id DESC LIMIT 1
"""


def is_client(person: UserRef) -> bool:
    """Return True for a program that uses the API, which cannot answer a question."""
    return person.startswith("local:api-")


def load_admin_chats(
    db: Connection, named: Collection[UserRef], accounts: Collection[str], failed: Collection[str] = ()
) -> list[ChatId]:
    """Load the last used direct chat with these accounts, if possible not `failed`, of `named` and paired admins."""
    admins = {*named, *(ref for ref, role in load_roles(db).items() if role is UserRole.ADMIN)}
    query = _DIRECT_CHAT.format(*(", ".join("?" for _ in some) or "NULL" for some in (accounts, failed)))
    people = [(ref.partition(":")[0], *accounts, ref, ref, *failed) for ref in sorted(admins) if not is_client(ref)]
    found = [scalar_or_none(db, ChatId, query, person) for person in people]
    return [chat_id for chat_id in found if chat_id is not None]


def load_roles(db: Connection) -> dict[UserRef, UserRole]:
    rows = db.execute("SELECT user_ref, role FROM pairings WHERE state = 'approved'").fetchall()
    return {UserRef(user_ref): UserRole(role) for user_ref, role in rows}
