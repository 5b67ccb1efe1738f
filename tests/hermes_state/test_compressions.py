import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hermes_state import journal
from hermes_state.chats import ensure_chat, load_chat
from hermes_state.compressions import (
    CompressionRow,
    SplitPlan,
    UndoPlan,
    count_compressions,
    plan_undo,
    split,
    undo_compression,
)
from hermes_state.errors import LineageMoved
from hermes_state.sessions import (
    EndReason,
    choose_model,
    get_compression_tip,
    load_session,
    load_tip,
    reset,
    set_context_state,
    set_system_prompt,
    set_title,
)
from hermes_state.store.writer import Store
from hermes_state.tool_runs import load_tool_runs
from hermes_state.transcripts import NewMessage, append_view_row, hide, load_messages, load_view
from hermes_state.turns import find_open_turn
from hermes_state.values import ChatId, ChatKind, LineageId, MessageId, MessageRole, Millis, Origin
from tests.databases import IS_POSTGRES
from tests.hermes_state.rows import (
    HANDOFF,
    START,
    answer_call,
    call_tools,
    compress,
    exchange,
    finish,
    key_of,
    make_chat,
    migrated,
    replace_row,
    seen,
    split_plan,
    start,
    talk,
)
from tests.sampling import examples


def replace_text(db: sqlite3.Connection, lineage: LineageId, replaced: MessageId, text: str) -> None:
    session, new = load_tip(db, lineage).id, NewMessage(role=MessageRole.USER, origin=Origin.SYSTEM, text=text)
    replace_row(db, session, replaced, append_view_row(db, session, new, replaced, START), "prune", START)


def planned_undo(db: sqlite3.Connection, lineage: LineageId) -> UndoPlan:
    plan = plan_undo(db, lineage)
    assert plan is not None
    return plan


def texts(db: sqlite3.Connection, lineage: LineageId) -> list[str | None]:
    return [row.text for row in load_view(db, lineage).transcript]


def test_the_child_continues_the_same_conversation(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    parent = load_tip(db, lineage)
    child = load_session(db, split(db, split_plan(db, lineage, keep=2), Millis(START + 5)))
    assert (child.parent_session_id, child.lineage_id, child.depth) == (parent.id, lineage, 1)
    assert load_tip(db, lineage).id == child.id
    assert load_chat(db, chat).active_session_id == child.id
    assert load_session(db, parent.id).end_reason is EndReason.COMPRESSION
    assert seen(db, lineage) == ["handoff", "q2", "a2"]
    assert [row.text for row in load_messages(db, lineage, 10)] == ["q1", "a1", "q2", "a2"]


@pytest.mark.parametrize("now", [START - 10_000, START, START + 10_000])
def test_the_child_never_starts_before_the_parents_end(db: sqlite3.Connection, now: int) -> None:
    lineage = talk(db, make_chat(db), "q1")
    child = load_session(db, split(db, split_plan(db, lineage), Millis(now)))
    assert child.parent_session_id is not None
    parent = load_session(db, child.parent_session_id)
    assert parent.ended_at is not None
    assert parent.started_at <= parent.ended_at <= child.started_at


def test_any_session_of_the_chain_leads_to_the_tip(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    chain = [load_tip(db, lineage).id, *(compress(db, lineage) for _ in range(4))]
    assert {get_compression_tip(db, one) for one in chain} == {chain[-1]}
    other = reset(db, chat, START)
    assert {get_compression_tip(db, one) for one in chain} == {chain[-1]}
    assert get_compression_tip(db, other.id) == other.id


def test_the_child_applies_the_parents_view_edits(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2", "q3")
    session = load_tip(db, lineage)
    rows = [row.id for row in load_view(db, lineage).transcript]
    hide(db, session.id, rows[2:4], "undo", START)
    replace_text(db, lineage, rows[5], "stub")
    plan = split_plan(db, lineage)
    split(db, replace(plan, parent=replace(plan.parent, next_seq=3), context=(HANDOFF,)), START)
    assert seen(db, lineage) == ["handoff", "q3", "stub"]
    assert db.execute("SELECT count(*) FROM view_edits WHERE session_id <> ?", (session.id,)).fetchone() == (0,)


def test_the_child_gets_the_new_system_prompt_or_the_parents(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    set_system_prompt(db, load_tip(db, lineage).id, "old")
    compress(db, lineage)
    assert load_tip(db, lineage).system_prompt == "old"
    split(db, replace(split_plan(db, lineage), system_prompt="new"), START)
    assert load_tip(db, lineage).system_prompt == "new"


def test_a_split_forgets_the_reported_tokens_and_reports_figures(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1", "q2", "q3")
    session = load_tip(db, lineage)
    assert session.reported_prompt_tokens == 100
    hide(db, session.id, [load_view(db, lineage).transcript[0].id], "undo", START)
    row = CompressionRow(layer="manual", tokens_before=900, tokens_after=90, focus="schema")
    child = split(db, replace(split_plan(db, lineage, keep=2), row=row), START)
    assert load_tip(db, lineage).reported_prompt_tokens is None
    query = """SELECT parent_id, child_id, layer, focus, outcome, tokens_before, tokens_after,
    messages_before, messages_after FROM compressions"""
    assert db.execute(query).fetchall() == [(session.id, child, "manual", "schema", "compressed", 900, 90, 5, 3)]


def test_a_turn_that_crosses_a_split_continues_in_the_child(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    talk(db, chat, "q1")
    turn = start(db, chat, "q2")
    answer_call(db, turn, call_tools(db, turn, "a"), "a")
    child = compress(db, turn.lineage_id, keep=3)
    answer_call(db, turn, call_tools(db, turn, "b", text="more"), "b", "found more")
    finish(db, turn, "a2")
    view = load_view(db, turn.lineage_id)
    assert view.session.id == child
    assert texts(db, turn.lineage_id) == ["handoff", "q2", None, "found", "more", "found more", "a2"]
    assert [row.session_id for row in view.transcript[4:]] == [child] * 3
    assert find_open_turn(db, chat) is None


def test_a_stop_after_a_split_answers_the_calls_in_the_child(db: sqlite3.Connection) -> None:
    turn = start(db, make_chat(db), "q1")
    asked = call_tools(db, turn, "a")
    compress(db, turn.lineage_id, keep=2)
    assert journal.stop_turn(db, turn, "", "stopped", START, notice="(stopped)")
    assert texts(db, turn.lineage_id) == ["handoff", "q1", None, "stopped"]
    assert load_tool_runs(db, asked.id) == {"a": "stopped"}


def test_undo_restores_the_earlier_view_and_keeps_later_messages(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2", "q3")
    compress(db, lineage, keep=2)
    talk(db, chat, "q4")
    assert seen(db, lineage) == ["handoff", "q3", "a3", "q4", "a4"]
    plan = planned_undo(db, lineage)
    undo_compression(db, plan, START)
    assert seen(db, lineage) == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
    assert load_view(db, lineage).transcript == plan.transcript


def test_the_tip_ends_with_undo_and_its_child_continues_the_same_conversation(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    set_title(db, load_tip(db, lineage).id, "Plans")
    set_system_prompt(db, load_tip(db, lineage).id, "persona")
    set_context_state(db, load_tip(db, lineage).id, "{}")
    compress(db, lineage)
    tip, plan = load_tip(db, lineage), planned_undo(db, lineage)
    child = load_session(db, undo_compression(db, plan, Millis(START - 5), context_state='{"held":1}'))
    ended = load_session(db, tip.id)
    assert ended.end_reason is EndReason.UNDO
    assert ended.ended_at is not None
    assert ended.started_at <= ended.ended_at <= child.started_at
    assert (child.parent_session_id, child.lineage_id, child.depth) == (tip.id, lineage, 2)
    assert (child.title, child.system_prompt, child.context_state) == ("Plans", "persona", '{"held":1}')
    assert child.reported_prompt_tokens is None
    assert load_chat(db, chat).active_session_id == child.id
    assert db.execute("SELECT undone_by FROM compressions").fetchall() == [(child.id,)]


def test_state_prompt_and_model_of_the_tip_are_kept(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    choose_model(db, load_tip(db, lineage).id, "fast")
    compress(db, lineage)
    set_context_state(db, load_tip(db, lineage).id, "{}")
    set_system_prompt(db, load_tip(db, lineage).id, "persona")
    assert load_tip(db, lineage).chosen_model == "fast"
    undo_compression(db, planned_undo(db, lineage), START)
    tip = load_tip(db, lineage)
    assert (tip.context_state, tip.system_prompt, tip.chosen_model) == ("{}", "persona", "fast")


def test_compressions_of_other_conversations_are_not_undone(db: sqlite3.Connection) -> None:
    compress(db, talk(db, make_chat(db, "7"), "elsewhere"))
    assert plan_undo(db, talk(db, make_chat(db), "q1")) is None


def test_a_turn_that_crossed_the_split_is_restored(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    talk(db, chat, "q1")
    turn = start(db, chat, "q2")
    asked = call_tools(db, turn, "a")
    compress(db, turn.lineage_id, keep=2)
    answer_call(db, turn, asked, "a")
    finish(db, turn, "a2")
    undo_compression(db, planned_undo(db, turn.lineage_id), START)
    assert texts(db, turn.lineage_id) == ["q1", "a1", "q2", None, "found", "a2"]


CHANGES: dict[str, Callable[[sqlite3.Connection, LineageId], object]] = {
    "hidden row": lambda db, lineage: hide(
        db, load_tip(db, lineage).id, [load_view(db, lineage).transcript[0].id], "undo", START
    ),
    "compression": compress,
    "new conversation": lambda db, lineage: reset(db, load_tip(db, lineage).chat_id, START),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_outdated_plans_are_refused(
    db: sqlite3.Connection, change: Callable[[sqlite3.Connection, LineageId], object]
) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    compress(db, lineage, keep=2)
    plan, undo_plan = split_plan(db, lineage), planned_undo(db, lineage)
    change(db, lineage)
    before = load_tip(db, lineage), load_chat(db, chat)
    with pytest.raises(LineageMoved):
        split(db, plan, START)
    with pytest.raises(LineageMoved):
        undo_compression(db, undo_plan, START)
    assert (load_tip(db, lineage), load_chat(db, chat)) == before


def test_an_ended_conversation_is_not_restored(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    compress(db, lineage)
    reset(db, chat, START)
    with pytest.raises(LineageMoved):
        undo_compression(db, planned_undo(db, lineage), START)


async def test_one_of_a_concurrent_undo_and_compression_wins(store: Store) -> None:
    def prepare(db: sqlite3.Connection) -> tuple[UndoPlan, SplitPlan]:
        lineage = talk(db, ensure_chat(db, key_of(), ChatKind.DIRECT, None, START), "q1", "q2")
        compress(db, lineage, keep=1)
        return planned_undo(db, lineage), split_plan(db, lineage, "second")

    undo_plan, plan = await store.write(prepare)
    outcomes = await asyncio.gather(
        *(store.write(undo_compression, undo_plan, START) for _ in range(4)),
        *(store.write(split, plan, Millis(START + number)) for number in range(4)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LineageMoved"] * 7 + ["int"]
    for stored in ("id) FROM sessions", "session_id) + 1 FROM session_context"):
        query = f"SELECT count(DISTINCT {stored}"
        assert await store.read(lambda db, query=query: db.execute(query).fetchone()[0]) == 3


@dataclass
class Model:
    """Expected content of the database: names of rows in plain lists, and how each is shown."""

    said: list[str] = field(default_factory=list)
    view: list[str] = field(default_factory=list)
    before: list[tuple[list[str], int]] = field(default_factory=list)
    """View and number of rows before each compression that is not undone."""
    shown: dict[str, str | None] = field(default_factory=dict)
    """Replacement of a row; None: undone."""
    handoffs: int = 0

    def texts(self) -> list[str]:
        return [text for text in (self.shown.get(name, name) for name in self.view) if text is not None]

    def visible(self) -> list[str]:
        return [name for name in self.view if self.shown.get(name, name) is not None]


Operation: TypeAlias = tuple[str, int, int]
"""`late` happens after one more exchange, and `stale` after a row was hidden, both since the plan was made."""
SAY: Operation = ("say", 0, 0)
UNDO: Operation = ("undo", 0, 0)
OPERATIONS = st.lists(
    st.one_of(
        st.just(SAY),
        st.tuples(st.just("hide"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("replace"), st.integers(0, 9), st.just(0)),
        st.tuples(
            st.sampled_from(["compress", "late compress", "stale compress"]), st.integers(0, 3), st.integers(0, 4)
        ),
        st.tuples(st.sampled_from(["undo", "late undo", "stale undo"]), st.just(0), st.just(0)),
    ),
    max_size=30,
)
SEQUENCES: dict[str, list[Operation]] = {
    "messages during a summary follow the handoff": [SAY, ("late compress", 0, 1)],
    "hidden messages stay hidden": [SAY, ("compress", 0, 2), SAY, ("hide", 1, 2), ("compress", 0, 2)],
    "hidden messages stay hidden after an undo": [
        *(SAY, SAY, ("hide", 0, 2), ("compress", 0, 2), SAY, SAY, ("hide", 1, 4), ("compress", 0, 1), UNDO, UNDO)
    ],
    "replacements made after a compression are kept": [
        *(SAY, ("compress", 0, 2), ("replace", 1, 0), ("compress", 0, 2), ("replace", 1, 0), UNDO, UNDO)
    ],
    "a second undo undoes the previous compression": [
        *(SAY, ("compress", 0, 2), SAY, ("compress", 0, 2), SAY, UNDO, SAY, UNDO, UNDO)
    ],
    "a compression after an undo is undone next": [
        *(("compress", 0, 0), ("compress", 0, 0), UNDO, SAY, ("compress", 0, 0), UNDO, UNDO)
    ],
    "messages between plan and undo follow": [("compress", 0, 0), ("late undo", 0, 0)],
}


@pytest.mark.parametrize("operations", SEQUENCES.values(), ids=SEQUENCES)
def test_the_view_equals_a_list_model(operations: list[Operation]) -> None:
    _run(operations)


@examples(60)
@given(operations=OPERATIONS)
def test_no_sequence_of_compressions_and_undos_loses_a_message(operations: list[Operation]) -> None:
    _run(operations)


def _run(operations: list[Operation]) -> None:
    with migrated() as db:
        chat = make_chat(db)
        model = Model()
        lineage = _say(db, chat, model)
        for name, first, second in operations:
            _apply(db, chat, lineage, model, name, first, second)
            _check(db, chat, lineage, model)


def _say(db: sqlite3.Connection, chat: ChatId, model: Model) -> LineageId:
    new = [f"q{len(model.said)}", f"a{len(model.said)}"]
    model.said += new
    model.view += new
    return exchange(db, chat, *new).lineage_id


def _apply(
    db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str, first: int, second: int
) -> None:
    rows = load_view(db, lineage).transcript
    if name == "say":
        _say(db, chat, model)
    elif name == "hide":
        _hide(db, lineage, model, first, second)
    elif name == "replace" and first < len(rows):
        model.shown[model.visible()[first]] = text = f"{rows[first].text}'"
        replace_text(db, lineage, rows[first].id, text)
    elif "compress" in name:
        _compress(db, chat, lineage, model, name, head=first, keep=second)
    elif "undo" in name:
        _undo(db, chat, lineage, model, name)


def _hide(db: sqlite3.Connection, lineage: LineageId, model: Model, at: int, count: int) -> None:
    rows = load_view(db, lineage).transcript
    hide(db, load_tip(db, lineage).id, [row.id for row in rows[at : at + count]], "undo", START)
    for name in model.visible()[at : at + count]:
        model.shown[name] = None


def _compress(
    db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str, *, head: int, keep: int
) -> None:
    names, before = model.visible(), ([*model.view], len(model.said))
    head = min(head, len(names))
    keep = min(keep, len(names) - head)
    model.handoffs += 1
    handoff = f"handoff {model.handoffs}"
    plan = split_plan(db, lineage, handoff, head, keep)
    if _is_outdated(db, chat, lineage, model, name):
        with pytest.raises(LineageMoved):
            split(db, plan, START)
        return
    split(db, plan, START)
    model.before.append(before)
    model.view = [*names[:head], handoff, *(names[-keep:] if keep else []), *model.said[before[1] :]]


def _undo(db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str) -> None:
    plan = plan_undo(db, lineage)
    assert (plan is None) == (not model.before)
    if plan is None:
        return
    if _is_outdated(db, chat, lineage, model, name):
        with pytest.raises(LineageMoved):
            undo_compression(db, plan, START)
        return
    undo_compression(db, plan, START)
    view, count = model.before.pop()
    model.view = [*view, *model.said[count:]]


def _is_outdated(db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str) -> bool:
    """Change the conversation after a plan, and return True if the plan must be refused."""
    if "late" in name:
        _say(db, chat, model)
    if "stale" in name and model.visible():
        _hide(db, lineage, model, 0, 1)
        return True
    return False


def _check(db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model) -> None:
    assert seen(db, lineage) == model.texts()
    assert [row.text for row in load_messages(db, lineage, 1_000)] == model.said
    assert count_compressions(db, lineage) == len(model.before)
    tip = load_tip(db, lineage)
    open_sessions = db.execute("SELECT id FROM sessions WHERE lineage_id = ? AND ended_at IS NULL", (lineage,))
    assert open_sessions.fetchall() == [(tip.id,)]
    assert load_chat(db, chat).active_session_id == tip.id
    depths = db.execute("SELECT depth FROM sessions WHERE lineage_id = ? ORDER BY id", (lineage,)).fetchall()
    assert [depth for (depth,) in depths] == list(range(tip.depth + 1))
    assert IS_POSTGRES or db.execute("PRAGMA foreign_key_check").fetchall() == []
