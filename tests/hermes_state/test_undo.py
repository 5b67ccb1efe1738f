"""Undo of a compression: the restored view, unchanged rows, and that nothing is lost."""

import asyncio
import sqlite3
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    choose_model,
    load_session,
    load_tip,
    reset,
    set_context_state,
    set_system_prompt,
    set_title,
)
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append_view_row, hide, load_messages, load_view
from hermes_state.values import ChatId, ChatKind, EndReason, LineageId, MessageRole, Millis, Origin, SessionId
from tests.databases import IS_POSTGRES
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


def talk(db: sqlite3.Connection, chat: ChatId, *questions: str) -> LineageId:
    for question in questions:
        turn = exchange(db, chat, question, question.replace("q", "a"))
    return turn.lineage_id


def compress(db: sqlite3.Connection, lineage: LineageId, name: str = "handoff", head: int = 0, keep: int = 0) -> None:
    """Keep `head` rows and the last `keep`, with a handoff between them."""
    split(db, compression(db, lineage, name, head, keep), START)


def compression(db: sqlite3.Connection, lineage: LineageId, name: str, head: int = 0, keep: int = 0) -> SplitPlan:
    view = load_view(db, lineage)
    ids = [row.id for row in view.transcript]
    handoff = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=name)
    return SplitPlan(
        parent=view.session,
        context=(*ids[:head], handoff, *(ids[-keep:] if keep else [])),
        row=CompressionRow(layer="manual"),
    )


def planned(db: sqlite3.Connection, lineage: LineageId) -> UndoPlan:
    plan = plan_undo(db, lineage)
    assert plan is not None
    return plan


def undo(db: sqlite3.Connection, lineage: LineageId) -> SessionId:
    return undo_compression(db, planned(db, lineage), START)


# ---- the restored view


def test_undo_restores_the_earlier_view_and_keeps_later_messages(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2", "q3")
    compress(db, lineage, keep=2)
    talk(db, chat, "q4")
    assert seen(db, lineage) == ["handoff", "q3", "a3", "q4", "a4"]
    plan = planned(db, lineage)
    undo(db, lineage)
    assert seen(db, lineage) == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]
    assert load_view(db, lineage).transcript == plan.transcript


def test_the_tip_ends_with_undo_and_its_child_continues_the_same_conversation(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    set_title(db, load_tip(db, lineage).id, "Plans")
    set_system_prompt(db, load_tip(db, lineage).id, "persona")
    set_context_state(db, load_tip(db, lineage).id, "{}")
    compress(db, lineage)
    tip = load_tip(db, lineage)
    child = load_session(db, undo_compression(db, planned(db, lineage), Millis(START - 5), context_state='{"held":1}'))
    ended = load_session(db, tip.id)
    assert ended.end_reason is EndReason.UNDO
    assert ended.ended_at is not None
    assert ended.started_at <= ended.ended_at <= child.started_at
    assert (child.parent_session_id, child.lineage_id, child.depth) == (tip.id, lineage, 2)
    assert (child.title, child.system_prompt, child.context_state) == ("Plans", "persona", '{"held":1}')
    assert child.reported_prompt_tokens is None
    assert load_chat(db, chat).active_session_id == child.id
    assert db.execute("SELECT undone_by FROM compressions").fetchall() == [(child.id,)]
    assert count_compressions(db, lineage) == 0


def test_state_and_prompt_of_the_tip_are_kept(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    compress(db, lineage)
    set_context_state(db, load_tip(db, lineage).id, "{}")
    set_system_prompt(db, load_tip(db, lineage).id, "persona")
    undo(db, lineage)
    assert (load_tip(db, lineage).context_state, load_tip(db, lineage).system_prompt) == ("{}", "persona")


def test_the_chosen_model_follows_a_compression_and_its_undo(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1", "q2")
    choose_model(db, load_tip(db, lineage).id, "fast")
    compress(db, lineage)
    assert load_tip(db, lineage).chosen_model == "fast"
    undo(db, lineage)
    assert load_tip(db, lineage).chosen_model == "fast"


def test_a_second_undo_undoes_the_previous_compression(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    compress(db, lineage, "first", keep=2)
    talk(db, chat, "q3")
    compress(db, lineage, "second", keep=2)
    talk(db, chat, "q4")
    undo(db, lineage)
    assert seen(db, lineage) == ["first", "q2", "a2", "q3", "a3", "q4", "a4"]
    assert count_compressions(db, lineage) == 1
    talk(db, chat, "q5")
    undo(db, lineage)
    assert seen(db, lineage) == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4", "q5", "a5"]
    assert plan_undo(db, lineage) is None


def test_a_compression_after_an_undo_is_undone_next(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    compress(db, lineage, "first")
    compress(db, lineage, "second")
    undo(db, lineage)
    talk(db, chat, "q2")
    compress(db, lineage, "third")
    assert seen(db, lineage) == ["third"]
    undo(db, lineage)
    assert seen(db, lineage) == ["first", "q2", "a2"]
    undo(db, lineage)
    assert seen(db, lineage) == ["q1", "a1", "q2", "a2"]


def test_there_is_nothing_to_undo_without_a_compression(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    compress(db, talk(db, make_chat(db, "7"), "elsewhere"))
    assert plan_undo(db, talk(db, chat, "q1")) is None


def test_undone_messages_stay_undone_when_a_compression_is_undone(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2", "q3")
    rows = load_view(db, lineage).transcript
    hide(db, load_tip(db, lineage).id, [row.id for row in rows[:2]], "undo", START)
    compress(db, lineage, keep=2)
    talk(db, chat, "q4", "q5")
    taken = [row.id for row in load_view(db, lineage).transcript if row.text in ("q3", "a3", "q4", "a4")]
    hide(db, load_tip(db, lineage).id, taken, "undo", START)
    compress(db, lineage, "again", keep=1)
    undo(db, lineage)
    undo(db, lineage)
    assert seen(db, lineage) == ["q2", "a2", "q5", "a5"]


def test_a_replacement_made_after_the_compression_is_kept(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    for text in ("edited once", "edited twice"):
        compress(db, lineage, f"before {text}", keep=2)
        session, row = load_tip(db, lineage).id, load_view(db, lineage).transcript[1]
        new = append_view_row(
            db, session, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), row.id, START
        )
        replace_row(db, session, row.id, new, "edit", START)
    undo(db, lineage)
    undo(db, lineage)
    assert seen(db, lineage) == ["q1", "a1", "edited twice", "a2"]


def test_a_turn_that_crossed_the_split_is_restored(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    talk(db, chat, "q1")
    turn = start(db, chat, "q2")
    asked = call_tools(db, turn, "a")
    compress(db, turn.lineage_id, keep=2)
    answer_call(db, turn, asked, "a")
    finish(db, turn, "a2")
    undo(db, turn.lineage_id)
    assert [row.text for row in load_view(db, turn.lineage_id).transcript] == ["q1", "a1", "q2", None, "found", "a2"]


# ---- guards


def test_messages_between_plan_and_undo_follow(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1")
    compress(db, lineage)
    plan = planned(db, lineage)
    talk(db, chat, "q2")
    undo_compression(db, plan, START)
    assert seen(db, lineage) == ["q1", "a1", "q2", "a2"]


def test_a_plan_is_refused_once_the_view_or_the_tip_has_changed(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    lineage = talk(db, chat, "q1", "q2")
    compress(db, lineage, keep=2)
    plan = planned(db, lineage)
    hide(db, plan.tip.id, [load_view(db, lineage).transcript[-1].id], "undo", START)
    with pytest.raises(LineageMoved):
        undo_compression(db, plan, START)
    plan = planned(db, lineage)
    compress(db, lineage, "second")
    with pytest.raises(LineageMoved):
        undo_compression(db, plan, START)
    plan = planned(db, lineage)
    reset(db, chat, START)
    with pytest.raises(LineageMoved):
        undo_compression(db, plan, START)
    forged = replace(plan, tip=load_tip(db, lineage))
    with pytest.raises(LineageMoved):
        undo_compression(db, forged, START)


async def test_one_of_a_concurrent_undo_and_compression_wins(store: Store) -> None:
    def prepare(db: sqlite3.Connection) -> tuple[UndoPlan, SplitPlan]:
        chat = ensure_chat(db, key_of(), ChatKind.DIRECT, None, START)
        lineage = talk(db, chat, "q1", "q2")
        compress(db, lineage, keep=1)
        return planned(db, lineage), compression(db, lineage, "second")

    undo_plan, split_plan = await store.write(prepare)
    outcomes = await asyncio.gather(
        *(store.write(undo_compression, undo_plan, START) for _ in range(4)),
        *(store.write(split, split_plan, START) for _ in range(4)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LineageMoved"] * 7 + ["int"]
    assert await store.read(lambda db: db.execute("SELECT count(*) FROM sessions").fetchone()[0]) == 3


# ---- random sequences


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


OPERATIONS = st.lists(
    st.one_of(
        st.just(("say", 0, 0)),
        st.tuples(st.just("hide"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("replace"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("compress"), st.integers(0, 2), st.integers(0, 4)),
        st.just(("undo", 0, 0)),
        st.just(("late undo", 0, 0)),
        st.just(("stale undo", 0, 0)),
    ),
    max_size=30,
)


@examples(40)
@given(operations=OPERATIONS)
def test_the_view_equals_a_list_model_after_undo_and_nothing_is_lost(operations: list[tuple[str, int, int]]) -> None:
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
    if name == "say":
        _say(db, chat, model)
    elif name == "hide":
        _hide(db, lineage, model, first, second)
    elif name == "replace":
        _replace(db, lineage, model, first)
    elif name == "compress":
        _compress(db, lineage, model, head=first, keep=second)
    else:
        _undo(db, chat, lineage, model, name)


def _hide(db: sqlite3.Connection, lineage: LineageId, model: Model, at: int, count: int) -> None:
    rows = load_view(db, lineage).transcript
    hide(db, load_tip(db, lineage).id, [row.id for row in rows[at : at + count]], "undo", START)
    for name in model.visible()[at : at + count]:
        model.shown[name] = None


def _replace(db: sqlite3.Connection, lineage: LineageId, model: Model, at: int) -> None:
    rows, names, session = load_view(db, lineage).transcript, model.visible(), load_tip(db, lineage).id
    if at >= len(rows):
        return
    text = f"{rows[at].text}'"
    stub = append_view_row(
        db, session, NewMessage(role=MessageRole.USER, origin=Origin.SYSTEM, text=text), rows[at].id, START
    )
    replace_row(db, session, rows[at].id, stub, "prune", START)
    model.shown[names[at]] = text


def _compress(db: sqlite3.Connection, lineage: LineageId, model: Model, head: int, keep: int) -> None:
    names = model.visible()
    head = min(head, len(names))
    keep = min(keep, len(names) - head)
    model.handoffs += 1
    handoff = f"handoff {model.handoffs}"
    compress(db, lineage, handoff, head, keep)
    model.before.append((model.view, len(model.said)))
    model.view = [*names[:head], handoff, *(names[-keep:] if keep else [])]


def _undo(db: sqlite3.Connection, chat: ChatId, lineage: LineageId, model: Model, name: str) -> None:
    plan = plan_undo(db, lineage)
    assert (plan is None) == (not model.before)
    if plan is None:
        return
    if name == "late undo":
        _say(db, chat, model)
    if name == "stale undo" and model.visible():
        _hide(db, lineage, model, 0, 1)
        with pytest.raises(LineageMoved):
            undo_compression(db, plan, START)
        return
    undo_compression(db, plan, START)
    view, count = model.before.pop()
    model.view = [*view, *model.said[count:]]


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
