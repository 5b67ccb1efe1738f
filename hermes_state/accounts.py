"""Accounts of platforms, and who serves them: whose adapter listens there and sends what is owed.

Each time that an account is taken it has another epoch, which everything that is sent for it states: where several
nodes share a database, an owner that was stopped or cut off can begin nothing more.
"""

from dataclasses import dataclass

from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountClaim:
    """An account as its owner has taken it."""

    account: str
    epoch: int
    """Fencing token: moves each time that the account is taken."""


IS_HELD = "EXISTS (SELECT 1 FROM accounts a WHERE a.account = :account AND a.epoch = :epoch)"
"""Condition for a claim while nobody has taken the account since."""

# Purpose: the next epoch of an account.
_TAKE = """
INSERT INTO accounts (account, epoch) VALUES (?, 1)
ON CONFLICT (account) DO UPDATE SET epoch = accounts.epoch + 1 RETURNING epoch
"""
# Purpose: mark what its last owner was sending: the outcome is unknown.
_INTERRUPT = """
UPDATE outbox SET state = 'ambiguous'
WHERE state = 'sending' AND chat_id IN (SELECT id FROM chats WHERE account = ?)
"""


@locks(EVERYTHING)
def take_account(db: Connection, account: str) -> tuple[AccountClaim, int]:
    """Become the owner of an account; returns how many sends of the last one were interrupted, too."""
    epoch = scalar(db, int, _TAKE, (account,))
    return AccountClaim(account=account, epoch=epoch), db.execute(_INTERRUPT, (account,)).rowcount
