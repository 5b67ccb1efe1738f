import sqlite3
from pathlib import Path

import msgspec
import pytest

from hermes_state import inbox, journal, sessions
from hermes_state.admin.lineage_queries import find_place, load_lineage_sessions
from hermes_state.admin.overview import load_overview
from hermes_state.admin.repair import repair_database
from hermes_state.chats import load_history
from hermes_state.engines.sqlite.migrate import migrate, shipped_migrations
from hermes_state.errors import LookupRejected
from hermes_state.inbox import InboxKind, InboxMode
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall, cost_of_conversation
from hermes_state.outside import find_outcome
from hermes_state.sessions import EndReason, SessionKind, load_active, load_session, load_tip
from hermes_state.tool_runs import ToolRunState, load_tool_runs
from hermes_state.tools.subagents import SubagentReport, open_subagent
from hermes_state.transcripts import load_messages
from hermes_state.turns import RunningTurn, TurnMoved, find_open_turn, require_running
from hermes_state.values import ChatId, Message, MessageRole, MicroUsd, Millis, TurnState
from tests.databases import REJECTED, sqlite_only
from tests.hermes_state.helpers import opened_as_ours
from tests.hermes_state.rows import (
    CALL,
    LONG_CALL_ID,
    START,
    answer_call,
    call_tools,
    compress,
    exchange,
    finish,
    make_chat,
    query_plans,
    receive,
    received,
    replies,
    seen,
    start,
)

COSTLY = ModelCall(
    purpose="subagent", route="r", model="m", outcome="ok", usage=CALL.usage, took_ms=1, cost=MicroUsd(7)
)


def open_child(db: sqlite3.Connection, turn: RunningTurn, asked: Message, call_id: str = "a") -> RunningTurn:
    journal.start_tools(db, turn, asked.id, asked.body.calls, START)
    child = open_subagent(db, turn, asked.id, call_id, f"task {call_id}", START)
    assert isinstance(child, RunningTurn)
    return child


def delegated(db: sqlite3.Connection, chat: ChatId, *call_ids: str) -> tuple[RunningTurn, Message, list[RunningTurn]]:
    """Start a turn with a sub-agent for each of its calls."""
    turn = start(db, chat, "hand it on")
    asked = call_tools(db, turn, *call_ids)
    return turn, asked, [open_child(db, turn, asked, one) for one in call_ids]


def states_of(db: sqlite3.Connection, *turns: RunningTurn) -> list[str]:
    return [db.execute("SELECT state FROM turns WHERE id = ?", (turn.id,)).fetchone()[0] for turn in turns]


def report(db: sqlite3.Connection, child: RunningTurn, text: str) -> None:
    journal.finish_turn(db, child, ModelAnswer(text=text, call=COSTLY, reported_prompt_tokens=20), START)


@pytest.mark.parametrize("call_id", ["a", LONG_CALL_ID])
def test_a_repeated_call_has_one_subagent_and_one_report(db: sqlite3.Connection, call_id: str) -> None:
    turn, asked, [child] = delegated(db, make_chat(db), call_id)
    again = open_subagent(db, turn, asked.id, call_id, "task", START)
    assert again == msgspec.structs.replace(child, epoch=2)
    assert [row.role for row in load_messages(db, child.lineage_id, 9)] == [MessageRole.USER]
    with pytest.raises(TurnMoved):
        report(db, child, "counted by one that nobody asks any more")
    report(db, again, "all counted")
    known = open_subagent(db, turn, asked.id, call_id, "task", START)
    assert known == SubagentReport(id=child.id, state=TurnState.FINISHED, text="all counted")


def test_a_failed_subagent_informs_its_call_but_not_the_chat(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn, asked, [child] = delegated(db, chat, "a")
    inner = call_tools(db, child, "x")
    journal.start_tools(db, child, inner.id, inner.body.calls, START)
    late = receive(db, chat, "and blue", mode=InboxMode.STEER)
    assert journal.fail_turn(db, child, "ModelTimeout", "its model has failed", START)
    known = open_subagent(db, turn, asked.id, "a", "task a", START)
    assert known == SubagentReport(id=child.id, state=TurnState.FAILED, text="its model has failed")
    assert load_tool_runs(db, inner.id) == {"x": ToolRunState.UNKNOWN}
    assert replies(db, chat) == []
    assert require_running(db, turn) == turn
    assert journal.join_steers(db, turn, START) == 1, "the steer is still the parent's"
    assert inbox.load_rows(db, [late]) == []


def test_the_chats_turn_is_the_parent_and_excludes_others(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn, _, children = delegated(db, chat, "a", "b")
    assert [child.parent is not None and child.parent.id for child in children] == [turn.id] * 2
    assert find_open_turn(db, chat) == turn
    assert inbox.load_chats_with_waiting(db) == [chat]
    assert load_overview(db).open_turns == 1
    with pytest.raises(REJECTED):
        start(db, chat, "at the same time")
    receive(db, chat, "and blue", mode=InboxMode.STEER)
    receive(db, chat, "Background command 3 has ended.", mode=InboxMode.STEER, kind=InboxKind.NOTICE)
    assert [journal.join_steers(db, children[0], START) for _ in range(2)] == [1, 0], "a sub-agent gets one copy"
    assert seen(db, children[0].lineage_id)[-1] == "Message from a person, sent while you work: and blue"
    assert journal.join_steers(db, turn, START) == 2, "both still belong to the turn of the chat"


@pytest.mark.parametrize("end", ["stop", "fail", "finish"])
def test_ending_the_parent_ends_its_subagents_in_the_same_transaction(db: sqlite3.Connection, end: str) -> None:
    chat = make_chat(db)
    turn, asked, [child, other] = delegated(db, chat, "a", "b")
    report(db, other, "ready")
    inner = call_tools(db, child, "x")
    journal.start_tools(db, child, inner.id, inner.body.calls, START)
    if end == "stop":
        assert journal.stop_turn(db, turn, "", "stopped with /stop", START, notice="(stopped)")
    elif end == "fail":
        assert journal.fail_turn(db, turn, "Error", "Something went wrong.", START)
    else:
        for call_id in ("a", "b"):
            answer_call(db, turn, asked, call_id)
        finish(db, turn, "done")
    assert states_of(db, child, other) == ["stopped", "finished"]
    assert load_tool_runs(db, inner.id) == {"x": ToolRunState.STOPPED}
    ended = [load_tip(db, one.lineage_id).end_reason for one in (child, other)]
    assert ended == [EndReason.FINISHED] * 2
    with pytest.raises(TurnMoved):
        call_tools(db, child, "y")
    with pytest.raises(TurnMoved):
        open_subagent(db, turn, asked.id, "a", "task a", START)
    assert len(replies(db, chat)) == (0 if end == "stop" else 1)
    start(db, chat, "next")


def test_subagents_are_not_conversations_even_after_a_compression(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn, _, [child] = delegated(db, chat, "a")
    call_tools(db, child, "x")
    compress(db, child.lineage_id)
    tip = load_tip(db, child.lineage_id)
    assert tip.depth == 1
    assert sessions.get_compression_tip(db, load_session(db, tip.parent_session_id or tip.id).id) == tip.id
    active = load_active(db, chat)
    assert active is not None
    assert (active.lineage_id, active.depth) == (turn.lineage_id, 0)
    assert sessions.get_compression_tip(db, active.id) == active.id
    call_tools(db, child, "y", text="behind the split")
    assert [one.tip.lineage_id for one in sessions.list_conversations(db, chat, 9)] == [turn.lineage_id]
    assert load_overview(db).conversations == 1
    assert {row.lineage_id for row in load_history(db, chat, 50)} == {turn.lineage_id}
    assert sessions.find_conversation(db, chat, active.key).id == active.id
    with pytest.raises(LookupRejected):
        sessions.find_conversation(db, chat, tip.key)
    assert find_place(db, tip.key).session == load_session(db, tip.id), "admins find it"


def test_subagents_continue_when_the_parent_is_compressed(db: sqlite3.Connection) -> None:
    turn, asked, [child] = delegated(db, make_chat(db), "a")
    root = load_tip(db, turn.lineage_id)
    compress(db, turn.lineage_id)
    rows = load_lineage_sessions(db, find_place(db, load_tip(db, turn.lineage_id).key), 9)
    assert [(row.kind, row.parent_key) for row in rows] == [
        (SessionKind.ROOT, None),
        (SessionKind.SUBAGENT, root.key),
        (SessionKind.CONTINUATION, root.key),
    ]
    assert [row.child_key for row in rows] == [rows[2].key, None, None]
    assert load_tip(db, child.lineage_id).key == rows[1].key
    child = open_subagent(db, turn, asked.id, "a", "task a", START)
    assert isinstance(child, RunningTurn)
    assert load_tip(db, child.lineage_id).parent_session_id == root.id
    report(db, child, "ready")
    answer_call(db, turn, asked, "a", "ready")
    assert [row.text for row in load_messages(db, turn.lineage_id, 1)] == ["ready"]
    assert load_tip(db, turn.lineage_id).depth == 1


def test_model_calls_and_idle_time_of_subagents_count_for_the_parent(db: sqlite3.Connection) -> None:
    turn, asked, [child] = delegated(db, make_chat(db), "a")
    assert sessions.expire_idle(db, Millis(START + 1), 9, START) == [], "its turn runs"
    report(db, child, "ready")
    row = db.execute("SELECT lineage_id, session_id, turn_id FROM model_calls WHERE purpose = 'subagent'").fetchall()
    tip = load_tip(db, turn.lineage_id).id
    assert row == [(turn.lineage_id, tip, turn.id)]
    assert (cost_of_conversation(db, turn.lineage_id), cost_of_conversation(db, child.lineage_id)) == (7, 0)
    assert load_tip(db, child.lineage_id).reported_prompt_tokens == 20
    answer_call(db, turn, asked, "a")
    finish(db, turn, "done")
    assert sessions.expire_idle(db, Millis(START + 1), 9, START) == [tip]


@sqlite_only
def test_answers_of_a_turn_are_found_without_reading_all_messages(db: sqlite3.Connection) -> None:
    turn = start(db, make_chat(db), "go")
    call_tools(db, turn, "a")
    with query_plans(db, lambda query: "messages" in query and "role = 'assistant'" in query) as plans:
        find_outcome(db, "1")
        journal.stop_turn(db, turn, "partial", "stopped", START, notice="stopped")
    assert len(plans) == 3
    assert all("messages_turn (turn_id=?)" in plan for plan in plans), plans


@sqlite_only
def test_queries_for_turns_use_their_indexes(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "one", "two")
    with query_plans(
        db, lambda query: not query.startswith("--") and "FROM turns" in query and "'waiting')" in query
    ) as plans:
        find_open_turn(db, chat)
        journal.start_at_once(db, received(chat, "three"), START)
        inbox.load_chats_with_waiting(db)
        sessions.expire_idle(db, START, 9, START)
    assert len(plans) == 4
    assert all("turns_open" in plan for plan in plans), plans
    for where, index in (
        ("parent_turn_id = 1 AND state = 'running'", "turns_parent"),
        ("call_message_id = 1 AND tool_call_id = 'a' AND parent_turn_id IS NOT NULL", "turns_call"),
    ):
        [plan] = db.execute(f"EXPLAIN QUERY PLAN SELECT 1 FROM turns WHERE {where}").fetchall()
        assert index in plan[3], plan


def test_open_turns_survive_the_migration_and_stay_unique_per_chat(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    migrations = shipped_migrations()
    [number] = [one.number for one in migrations if "subagents" in one.name]
    with opened_as_ours(path) as db:
        migrate(db, path, migrations[: number - 1])
        chat = make_chat(db)
        for state, ended in (("finished", 2), ("running", None)):
            values = (chat, state, ended)
            db.execute("INSERT INTO turns VALUES (NULL, ?, 1, ?, 'telegram:1', 0, NULL, NULL, 1, ?)", values)
        before = db.execute("SELECT * FROM turns").fetchall()
        migrate(db, path, migrations)
        after = db.execute("SELECT * FROM turns").fetchall()
        assert after == [(*row, None, None, None, 1) for row in before]
        with pytest.raises(REJECTED):
            start(db, chat, "another")


def test_a_repair_keeps_subagents_out_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with opened_as_ours(path) as db:
        migrate(db, path)
        turn, _, [child] = delegated(db, make_chat(db), "a")
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("DELETE FROM sessions WHERE lineage_id = ?", (child.lineage_id,))
    assert repair_database(path) is not None
    with opened_as_ours(path) as db:
        assert [one.tip.lineage_id for one in sessions.list_conversations(db, None, 9)] == [turn.lineage_id]
        assert [row.text for row in load_messages(db, child.lineage_id, 9)] == ["task a"]
