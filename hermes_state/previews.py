"""Previews of turns that one node works on and another shows, which serves the chat's account.

There is a row at most while a turn runs: who takes the turn up, pauses or ends it removes it.
"""

from collections.abc import Iterable, Mapping

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.turns import RunningTurn, TurnClaim, find_turn
from hermes_state.values import Millis, TurnId


class StoredText(msgspec.Struct, frozen=True, kw_only=True):
    """Text so far of a turn that runs."""

    turn_id: TurnId
    text: str
    moved: RunningTurn | None
    """The turn, unless its epoch is known."""


# Purpose: the text so far of a turn, while its owner has it.
_STORE = """
INSERT INTO previews (turn_id, text, shown_at)
SELECT id, CAST(:text AS TEXT), CAST(:now AS BIGINT) FROM turns
WHERE id = :turn_id AND epoch = :epoch AND state = 'running'
ON CONFLICT (turn_id) DO UPDATE SET text = excluded.text, shown_at = excluded.shown_at
"""


@locks(turn="claim.id")
def store(db: Connection, claim: TurnClaim, text: str, now: Millis) -> None:
    """Store the text so far, which also says that the turn is worked on; nothing once it is not the caller's."""
    db.execute(_STORE, {"text": text, "now": now, "turn_id": claim.id, "epoch": claim.epoch})


_LOAD = """
SELECT t.epoch, p.text FROM previews p JOIN turns t ON t.id = p.turn_id WHERE p.turn_id = ? AND t.state = 'running'
"""


def load(db: Connection, turn_ids: Iterable[TurnId], known: Mapping[TurnId, int]) -> list[StoredText]:
    """Stored previews of those turns that run; `known`: epochs of turns."""
    found = []
    for turn_id in turn_ids:
        if (row := db.execute(_LOAD, (turn_id,)).fetchone()) is not None:
            epoch, text = row
            moved = None if known.get(turn_id) == epoch else find_turn(db, turn_id)
            found.append(StoredText(turn_id=turn_id, text=text, moved=moved))
    return found


def remove(db: Connection, turn_id: TurnId) -> None:
    """Remove what is stored of a turn."""
    db.execute("DELETE FROM previews WHERE turn_id = ?", (turn_id,))
