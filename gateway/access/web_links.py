"""Links that sign a person in to the web chat. An admin chooses the name that identifies a person there."""

from gateway.access.permissions import AccessControl
from hermes_state.admin import pairings
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import LOCAL_OWNER, Clock, Millis, UserRef
from platforms.base import PlatformAdapter


def page_address(adapter: PlatformAdapter | None) -> str | None:
    """Return the address of the web chat without a token, or None if this process serves no web chat."""
    from platforms.local import LocalAdapter  # only a gateway with a web chat imports it

    return adapter.url if isinstance(adapter, LocalAdapter) else None


async def make_link(
    store: Store,
    access: AccessControl,
    adapter: PlatformAdapter | None,
    clock: Clock,
    *,
    name: str = "",
    role: UserRole | None = None,
    decided_by: str = "",
) -> str | None:
    """Return a new link for the owner or the person called `name`, or None if this process serves no web chat.

    A new person gets the role `user` unless `role` says otherwise. A known person keeps their role unless `role` is
    given. Raises `CommandError` if the name is not valid, or if it stands for the owner or for a person whose name
    differs.
    """
    from platforms.local import LocalAdapter  # only a gateway with a web chat imports it
    from platforms.local.pages import named_after

    if not isinstance(adapter, LocalAdapter) or adapter.url is None:
        return None
    if not name:
        return await adapter.mint_url()
    person, shown = UserRef(f"local:{named_after(name)}"), " ".join(name.split())[:80]
    if person == "local:" or not shown.isprintable():
        raise CommandError("A name must have at least one letter or digit, and no control characters.")
    if person == LOCAL_OWNER:
        raise CommandError("“owner” is reserved for the owner of this gateway. Choose another name.")
    known = await store.read(pairings.find_name, person)
    if known is not None and known.casefold() != shown.casefold():
        raise CommandError(
            f"“{shown}” would get the id {person}, which belongs to “{known}”. Choose another name. To sign in another "
            f"browser of the same person, enter “{known}”."
        )
    if role is not None or access.role_of(person) is None:
        await store.write(_admit, person, shown, role or UserRole.USER, decided_by, clock.now())
        await access.load()
    return await adapter.mint_url(person, shown)


@locks(EVERYTHING)
def _admit(db: Connection, person: UserRef, name: str, role: UserRole, decided_by: str, now: Millis) -> None:
    pairings.admit(db, person, name, role, decided_by, now)
