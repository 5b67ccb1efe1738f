"""The split: its result, its guards, and that nothing is lost in between."""

import asyncio
import sqlite3
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hermes_state import journal
from hermes_state.chats import ensure_chat, load_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.errors import LineageMoved
from hermes_state.sessions import get_compression_tip, load_active, load_session, load_tip, reset, set_system_prompt
from hermes_state.store.writer import Store
from hermes_state.tool_runs import load_tool_runs
from hermes_state.transcripts import NewMessage, append_view_row, hide, load_messages, load_view
from hermes_state.turns import find_open_turn
from hermes_state.values import (
    ChatId,
    ChatKind,
    EndReason,
    LineageId,
    MessageRole,
    Millis,
    Origin,
)
from tests.hermes_state.rows import (
    START,
    answer_call,
    call_tools,
    exchange,
    finish,
    key_of,
    make_chat,
    migrated,
    replace_row,
    seen,
    start,
)
from tests.sampling import examples

HANDOFF = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="handoff")


def plan(db: sqlite3.Connection, lineage_id: LineageId, keep: int = 0, head: int = 0) -> SplitPlan:
    """Plan a compression of the current view: `head` rows, the handoff, the last `keep` rows."""
    view = load_view(db, lineage_id)
    ids = [row.id for row in view.transcript]
    return SplitPlan(
        parent=view.session,
        context=(*ids[:head], HANDOFF, *(ids[-keep:] if keep else [])),
        row=CompressionRow(layer="manual"),
    )


def talk(db: sqlite3.Connection, chat: ChatId, *questions: str) -> LineageId:
    for question in questions:
        turn = exchange(db, chat, question, question.replace("q", "a"))
    return turn.lineage_id


# ---- results of a split


def test_the_child_continues_the_same_conversation(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    parent = load_tip(db, lineage)
    child = load_session(db, split(db, plan(db, lineage, keep=2), Millis(START + 5)))
    assert (child.parent_session_id, child.lineage_id, child.depth) == (parent.id, lineage, 1)
    assert load_tip(db, lineage).id == child.id
    assert load_chat(db, chat).active_session_id == child.id
    assert load_session(db, parent.id).end_reason is EndReason.COMPRESSION
    assert seen(db, lineage) == ["handoff", "q2", "a2"]
    assert [row.text for row in load_messages(db, lineage, 10)] == ["q1", "a1", "q2", "a2"]


@pytest.mark.parametrize("now", [START - 10_000, START, START + 10_000])
def test_the_child_never_starts_before_the_parents_end(db: sqlite3.Connection, now: int) -> None:
    lineage = talk(db, make_chat(db), "q1")
    child = load_session(db, split(db, plan(db, lineage), Millis(now)))
    assert child.parent_session_id is not None
    parent = load_session(db, child.parent_session_id)
    assert parent.ended_at is not None
    assert parent.started_at <= parent.ended_at <= child.started_at


def test_any_session_of_the_chain_leads_to_the_tip(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    chain = [load_tip(db, lineage).id]
    for _ in range(4):
        chain.append(split(db, plan(db, lineage), START))
    assert {get_compression_tip(db, one) for one in chain} == {chain[-1]}
    other = reset(db, chat, START)
    assert {get_compression_tip(db, one) for one in chain} == {chain[-1]}
    assert get_compression_tip(db, other.id) == other.id


def test_rows_added_during_the_summary_follow_the_handoff(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    planned = plan(db, lineage, keep=1)
    talk(db, chat, "q3")
    split(db, planned, START)
    assert seen(db, lineage) == ["handoff", "a2", "q3", "a3"]


def test_the_child_applies_the_parents_view_edits(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2", "q3")
    session = load_tip(db, lineage)
    rows = [row.id for row in load_view(db, lineage).transcript]
    hide(db, session.id, rows[2:4], "undo", START)
    stub = append_view_row(
        db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.SYSTEM, text="stub"), None, START
    )
    replace_row(db, session.id, rows[5], stub, "prune", START)
    planned = plan(db, lineage)
    split(db, replace(planned, parent=replace(planned.parent, next_seq=3), context=(HANDOFF,)), START)
    assert seen(db, lineage) == ["handoff", "q3", "stub"]
    assert db.execute("SELECT count(*) FROM view_edits WHERE session_id <> ?", (session.id,)).fetchone() == (0,)


def test_undone_messages_stay_undone_after_a_split(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    split(db, plan(db, lineage, keep=2), START)
    talk(db, chat, "q3")
    inherited = [row.id for row in load_view(db, lineage).transcript if row.text in ("q2", "a2")]
    hide(db, load_tip(db, lineage).id, inherited, "undo", START)
    assert seen(db, lineage) == ["handoff", "q3", "a3"]
    split(db, plan(db, lineage, keep=2), START)
    assert seen(db, lineage) == ["handoff", "q3", "a3"]


def test_the_child_gets_the_new_system_prompt_or_the_parents(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    set_system_prompt(db, load_tip(db, lineage).id, "old")
    split(db, plan(db, lineage), START)
    assert load_tip(db, lineage).system_prompt == "old"
    split(db, replace(plan(db, lineage), system_prompt="new"), START)
    assert load_tip(db, lineage).system_prompt == "new"


def test_a_split_forgets_the_reported_tokens_and_reports_figures(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1", "q2", "q3")
    session = load_tip(db, lineage)
    assert session.reported_prompt_tokens == 100
    hide(db, session.id, [load_view(db, lineage).transcript[0].id], "undo", START)
    row = CompressionRow(layer="manual", tokens_before=900, tokens_after=90, focus="schema")
    child = split(db, replace(plan(db, lineage, keep=2), row=row), START)
    assert load_tip(db, lineage).reported_prompt_tokens is None
    query = """SELECT parent_id, child_id, layer, focus, outcome, tokens_before, tokens_after,
    messages_before, messages_after FROM compressions"""
    assert db.execute(query).fetchall() == [
        (session.id, child, "manual", "schema", "compressed", 900, 90, 5, 3),
    ]


def test_a_turn_that_crosses_a_split_continues_in_the_child(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    talk(db, chat, "q1")
    turn = start(db, chat, "q2")
    asked = call_tools(db, turn, "a")
    answer_call(db, turn, asked, "a")
    child = split(db, plan(db, turn.lineage_id, keep=3), START)
    again = call_tools(db, turn, "b", text="more")
    answer_call(db, turn, again, "b", "found more")
    finish(db, turn, "a2")
    view = load_view(db, turn.lineage_id)
    assert view.session.id == child
    assert [row.text for row in view.transcript] == ["handoff", "q2", None, "found", "more", "found more", "a2"]
    assert [row.session_id for row in view.transcript[4:]] == [child] * 3
    assert find_open_turn(db, chat) is None


def test_a_stop_after_a_split_answers_the_calls_in_the_child(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = start(db, chat, "q1")
    asked = call_tools(db, turn, "a")
    split(db, plan(db, turn.lineage_id, keep=2), START)
    assert journal.stop_turn(db, turn, "", "stopped", START, notice="(stopped)")
    assert [row.text for row in load_view(db, turn.lineage_id).transcript] == ["handoff", "q1", None, "stopped"]
    assert load_tool_runs(db, asked.id) == {"a": "stopped"}


# ---- guards


def test_a_second_split_of_the_same_parent_is_refused(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    planned = plan(db, lineage)
    child = split(db, planned, START)
    with pytest.raises(LineageMoved):
        split(db, planned, START)
    assert load_tip(db, lineage).id == child


def test_a_plan_made_before_an_undo_is_refused(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    planned = plan(db, lineage)
    hide(db, planned.parent.id, [load_view(db, lineage).transcript[0].id], "undo", START)
    with pytest.raises(LineageMoved):
        split(db, planned, START)


def test_a_conversation_that_is_no_longer_active_is_not_split(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    planned = plan(db, talk(db, chat, "q1"))
    fresh = reset(db, chat, START)
    with pytest.raises(LineageMoved):
        split(db, planned, START)
    active = load_active(db, chat)
    assert active is not None
    assert active.id == fresh.id


async def test_one_of_two_concurrent_splits_wins_and_the_other_writes_nothing(store: Store) -> None:
    def prepare(db: sqlite3.Connection) -> SplitPlan:
        chat = ensure_chat(db, key_of(), ChatKind.DIRECT, None, START)
        return plan(db, talk(db, chat, "q1", "q2"), keep=1)

    planned = await store.write(prepare)
    outcomes = await asyncio.gather(
        *(store.write(split, planned, Millis(START + number)) for number in range(8)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LineageMoved"] * 7 + ["int"]

    def counts(db: sqlite3.Connection) -> list[int]:
        tables = ("sessions", "session_context", "compressions")
        return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    assert await store.read(counts) == [2, 2, 1]


# ---- random sequences


@dataclass
class Model:
    """Expected content of the database, as plain lists."""

    said: list[str] = field(default_factory=list)
    view: list[str] = field(default_factory=list)


OPERATIONS = st.lists(
    st.one_of(
        st.just(("say", 0, 0)),
        st.tuples(st.just("undo"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("prune"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("split"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("late split"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("stale split"), st.integers(0, 3), st.integers(0, 3)),
    ),
    max_size=25,
)


@examples(40)
@given(operations=OPERATIONS)
def test_the_view_equals_a_list_model_and_nothing_is_lost(operations: list[tuple[str, int, int]]) -> None:
    with migrated() as db:
        chat = make_chat(db)
        model = Model()
        lineage = _say(db, chat, model)
        for name, first, second in operations:
            _apply(db, chat, lineage, model, name, first, second)
            _check(db, lineage, model)


def _say(db: sqlite3.Connection, chat: ChatId, model: Model) -> LineageId:
    number = len(model.said)
    new = [f"q{number}", f"a{number}"]
    model.said += new
    model.view += new
    return exchange(db, chat, *new).lineage_id


def _apply(
    db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str, first: int, second: int
) -> None:
    rows = load_view(db, lineage).transcript
    session = load_tip(db, lineage).id
    if name == "say":
        _say(db, chat, model)
    elif name == "undo":
        hide(db, session, [row.id for row in rows[-first:]], "undo", START)
        del model.view[-first:]
    elif name == "prune" and first < len(rows):
        text = f"stub of {model.view[first]}"
        stub = append_view_row(
            db, session, NewMessage(role=MessageRole.USER, origin=Origin.SYSTEM, text=text), None, START
        )
        replace_row(db, session, rows[first].id, stub, "prune", START)
        model.view[first] = text
    elif "split" in name:
        _split(db, chat, lineage, model, name, head=first, keep=second)


def _split(
    db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str, *, head: int, keep: int
) -> None:
    head = min(head, len(model.view))
    keep = min(keep, len(model.view) - head)
    planned = plan(db, lineage, keep=keep, head=head)
    kept = [*model.view[:head], "handoff", *(model.view[-keep:] if keep else [])]
    if name == "late split":
        before = len(model.view)
        _say(db, chat, model)
        kept += model.view[before:]
    if name == "stale split" and model.view:
        hide(db, planned.parent.id, [load_view(db, lineage).transcript[0].id], "undo", START)
        del model.view[0]
        with pytest.raises(LineageMoved):
            split(db, planned, START)
        return
    split(db, planned, START)
    model.view = kept


def _check(db: sqlite3.Connection, lineage: LineageId, model: Model) -> None:
    assert seen(db, lineage) == model.view
    assert [row.text for row in load_messages(db, lineage, 1_000)] == model.said
    open_sessions = db.execute(
        "SELECT id FROM sessions WHERE lineage_id = ? AND ended_at IS NULL", (lineage,)
    ).fetchall()
    tip = load_tip(db, lineage)
    assert open_sessions == [(tip.id,)]
    depths = db.execute("SELECT depth FROM sessions WHERE lineage_id = ? ORDER BY id", (lineage,)).fetchall()
    assert [depth for (depth,) in depths] == list(range(tip.depth + 1))
    assert db.execute("SELECT active_session_id FROM chats").fetchall() == [(tip.id,)]
