"""Small durable notes by key: what an adapter must remember, such as the hash of its published command menu."""

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none


def load_note(db: Connection, key: str) -> str | None:
    """The note kept under `key`, None if there is none."""
    return scalar_or_none(db, str, "SELECT value FROM meta WHERE key = ?", (key,))


@locks("notes")
def save_note(db: Connection, key: str, value: str) -> None:
    """Keep `value` under `key`, instead of what was there."""
    upsert = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    db.execute(upsert, (key, value))
