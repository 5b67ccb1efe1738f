"""A conversation's to-do list, which continues across compressions."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from hermes_state.store.sql import Connection, columns, select
from hermes_state.values import LineageId, Millis


class TodoState(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    CANCELLED = "cancelled"


OPEN_STATES = frozenset({TodoState.PENDING, TodoState.IN_PROGRESS})


class TodoRow(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    text: str
    state: TodoState

    @property
    def line(self) -> str:
        """The item as a line of text that the model reads."""
        return f"{self.id}. [{self.state.value}] {self.text}"


def load_todos(db: Connection, lineage_id: LineageId) -> list[TodoRow]:
    query = f"SELECT {columns(TodoRow, 'todos')} FROM todos WHERE lineage_id = ? ORDER BY id"
    return select(db, TodoRow, query, (lineage_id,))


def put_todos(
    db: Connection, lineage_id: LineageId, items: Sequence[TodoRow], now: Millis, *, is_whole: bool
) -> list[TodoRow]:
    """Store new or changed items and return the whole list. If `is_whole` is True, all other items are removed."""
    if is_whole:
        clear_todos(db, lineage_id)
    query = """INSERT INTO todos (lineage_id, id, text, state, updated_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (lineage_id, id)
    DO UPDATE SET text = excluded.text, state = excluded.state, updated_at = excluded.updated_at"""
    db.executemany(query, [(lineage_id, item.id, item.text, item.state, now) for item in items])
    return load_todos(db, lineage_id)


def clear_todos(db: Connection, lineage_id: LineageId) -> int:
    """Delete a conversation's list. Return the number of deleted items."""
    return db.execute("DELETE FROM todos WHERE lineage_id = ?", (lineage_id,)).rowcount
