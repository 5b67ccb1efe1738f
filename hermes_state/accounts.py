"""Accounts of platforms, and who serves them: whose adapter listens there and sends what is owed.

Each time that an account is taken it has another epoch, which everything that is sent for it states: where several
nodes share a database, an owner that was stopped or cut off can begin nothing more.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from hermes_state.errors import StateError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar


class AccountMoved(StateError):
    """The account may be another node's by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountClaim:
    """An account as its owner has taken it."""

    account: str
    epoch: int
    """Fencing token: moves each time that the account is taken."""


IS_HELD = "EXISTS (SELECT 1 FROM accounts a WHERE a.account = :account AND a.epoch = :epoch)"
"""Condition for a claim while nobody has taken the account since."""


def require_held(db: Connection, claim: AccountClaim) -> None:
    """Raise `AccountMoved` where somebody has taken the account since."""
    if not scalar(db, bool, f"SELECT {IS_HELD}", asdict(claim)):
        raise AccountMoved(f"the account {claim.account} was taken by another node")


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
def take_account(
    db: Connection, account: str, is_certain: Callable[[], bool] = lambda: True
) -> tuple[AccountClaim, int]:
    """Become the owner of an account; returns how many sends of the last one were interrupted, too.

    `is_certain` tells whether it is still the caller's to take. It is asked inside the transaction: a node that was
    stopped since must not get a newer epoch than the one that took over. Raises `AccountMoved`.
    """
    if not is_certain():
        raise AccountMoved(f"the account {account} may be another node's by now")
    epoch = scalar(db, int, _TAKE, (account,))
    return AccountClaim(account=account, epoch=epoch), db.execute(_INTERRUPT, (account,)).rowcount
