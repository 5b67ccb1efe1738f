"""Programs that use the API. Each is a person of the web chat whose id begins with `api-`, and who has a token."""

import re

from gateway.access.pairing import COMMAND_LINE
from hermes_state.admin import pairings
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.values import Millis, UserRef

CLIENT_PREFIX = "api-"


def client_ref(name: str) -> UserRef:
    return UserRef(f"local:{CLIENT_PREFIX}{name}")


@locks(EVERYTHING)
def add_client(db: Connection, name: str, role: UserRole, token_hash: str, now: Millis) -> None:
    """Give a program access. Raises `CommandError` if the name is invalid, or if the program has a token."""
    if re.fullmatch(r"[a-z0-9_-]{1,28}", name) is None:
        raise CommandError("Write a name of up to 28 of the characters a-z, 0-9, - and _.")
    if client_ref(name) in pairings.load_roles(db):
        raise CommandError(f"{name} has a token. To replace it, run `hermes-gateway client revoke {name}` first.")
    pairings.admit(db, client_ref(name), f"{CLIENT_PREFIX}{name}", role, COMMAND_LINE, now, token_hash)
