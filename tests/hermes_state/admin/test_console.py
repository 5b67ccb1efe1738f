"""Queries of the owner's pages: open turns, and no query that reads all turns, messages or answers."""

import sqlite3

from hermes_state.admin.console import count_waiting, load_failures, load_live_turns
from tests.databases import sqlite_only
from tests.hermes_state.rows import START, exchange, make_chat, migrated
from tests.hermes_state.test_subagents import delegated


def test_open_turns_of_people_and_of_subagents_are_listed(db: sqlite3.Connection) -> None:
    exchange(db, make_chat(db, "7"), "one", "two")
    turn, _, [child] = delegated(db, make_chat(db), "a")
    assert [(one.id, one.is_subagent) for one in load_live_turns(db)] == [(turn.id, False), (child.id, True)]


UNSETTLED = ("turns_open", "inbox_waiting", "outbox_errors")
"""Indexes that contain no rows of ordinary messages which were answered."""


@sqlite_only
def test_the_overview_reads_only_open_and_recent_rows(db: sqlite3.Connection) -> None:
    plans: list[str] = []

    def explained(query: str) -> None:
        plans.extend(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {query}").fetchall())

    with migrated() as other:
        db.set_trace_callback(explained)
        load_live_turns(db)
        count_waiting(db)
        load_failures(db, START)
        db.set_trace_callback(None)
    found = " ".join(plans)
    for index in ("turns_open", "turns_parent", "inbox_waiting", "outbox_errors", "model_calls_chat"):
        assert index in found, plans
    scans = [plan for plan in plans if plan.startswith("SCAN") and not plan.endswith(UNSETTLED)]
    assert scans == []
