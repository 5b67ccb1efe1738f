"""Browsers of the web chat for the command line: listed and signed out at any node, and also while nobody serves it."""

from collections.abc import Mapping

from gateway.times import format_time
from hermes_state.admin import browsers
from hermes_state.engines.postgres.nodes import find_owner
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.values import Millis

WEB_CHAT = "local"
"""Account of the web chat."""


def browser_rows(db: Connection, now: Millis) -> list[Mapping[str, str]]:
    """Browsers that are signed in, the newest first."""
    found = reversed(browsers.load(db, now))
    return [{"id": one.id, "since": format_time(one.created_at), "agent": one.agent} for one in found]


@locks("browsers")
def sign_out(db: Connection, browser_id: str | None, now: Millis) -> Mapping[str, int]:
    """Sign out the browser with this id, or all without one; the row says how many."""
    return {"signed_out": browsers.remove(db, browser_id, now)}


def served_elsewhere(db: Connection, own_id: str = "") -> str | None:
    """Sentence about the node beside `own_id` that serves the web chat; None where none does. `db` is PostgreSQL's."""
    owner = find_owner(db, WEB_CHAT)
    if owner is None or owner.id == own_id:
        return None
    return f"the node {owner.label} serves the web chat: run `hermes-gateway url` on its machine"
