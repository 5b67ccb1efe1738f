"""Browsers that are signed in to the web chat, listed with or without a running daemon."""

from collections.abc import Mapping

from gateway.times import format_time
from hermes_state.admin import browsers
from hermes_state.engines.postgres.nodes import find_owner
from hermes_state.store.sql import Connection
from hermes_state.values import Millis


def browser_rows(db: Connection, now: Millis) -> list[Mapping[str, str]]:
    """Return the signed-in browsers, newest first."""
    found = reversed(browsers.load(db, now))
    return [
        {"id": one.id, "since": format_time(one.created_at), "agent": one.agent, "person": one.person_name}
        for one in found
    ]


def served_elsewhere(db: Connection, own_id: str = "") -> str | None:
    """Return a hint if a node other than `own_id` serves the web chat, otherwise None. `db` must be PostgreSQL."""
    owner = find_owner(db, "local")
    if owner is None or owner.id == own_id:
        return None
    return f"The node {owner.label} serves the web chat. Run `hermes-gateway url` on its machine."
