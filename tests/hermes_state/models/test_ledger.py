import sqlite3

from msgspec.structs import replace

from hermes_state.admin.lineage_tree import load_prompt_sizes
from hermes_state.admin.why import load_why
from hermes_state.models import ledger
from hermes_state.models.ledger import (
    TotalUsage,
    cost_around,
    cost_of_chat,
    cost_of_conversation,
    load_by_purpose,
    load_since,
    load_slices,
)
from hermes_state.outside import find_outcome
from hermes_state.sessions import load_active, start_session
from hermes_state.values import ChatId, MicroUsd, Millis
from tests.databases import sqlite_only
from tests.hermes_state.rows import CALL, START, exchange, make_chat, query_plans

PRICED = replace(CALL, cost=MicroUsd(250))
TOTALS = (
    "SELECT input_tokens, output_tokens, reasoning_tokens, cost_microusd, unpriced_calls FROM sessions WHERE id = ?"
)


def test_a_call_belongs_to_its_chat_and_adds_to_the_sessions_totals(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    turn = exchange(db, chat, "q", "a")
    ledger.record(db, turn.id, turn.lineage_id, PRICED, START)
    ledger.record(db, None, None, replace(PRICED, purpose="transcription"), START, chat)
    rows = db.execute("SELECT chat_id, lineage_id, turn_id, cost_microusd FROM model_calls").fetchall()
    lineage = turn.lineage_id
    assert rows == [(chat, lineage, turn.id, None), (chat, lineage, turn.id, 250), (chat, None, None, 250)]
    session = load_active(db, chat)
    assert session is not None
    assert db.execute(TOTALS, (session.id,)).fetchone() == (20, 10, 2, 250, 1)
    assert cost_of_chat(db, chat, START) == 500


def test_a_failed_call_is_counted_with_its_known_usage_and_cost(db: sqlite3.Connection) -> None:
    turn, other = (exchange(db, make_chat(db, ref), "q", "a") for ref in ("1", "2"))
    for call in (
        replace(CALL, outcome="timeout", usage=None),
        replace(PRICED, outcome="malformed"),
        replace(PRICED, usage=None),
    ):
        ledger.record(db, turn.id, turn.lineage_id, call, START)
    ledger.record(db, None, turn.lineage_id, replace(PRICED, purpose="title"), START)
    spent = load_by_purpose(db, lineage_id=turn.lineage_id)["turn"]
    assert (spent.calls, spent.failed_calls, spent.unpriced_calls, spent.cost) == (4, 2, 1, 500)
    assert spent.input_tokens == 20
    assert cost_of_conversation(db, turn.lineage_id) == 750
    assert load_since(db, START).unpriced_calls == 2
    assert ledger.call_outcomes(db, turn.lineage_id, "turn") == ["ok", "timeout", "malformed", "ok"]
    assert ledger.call_outcomes(db, other.lineage_id, "turn") == ["ok"]
    assert ledger.call_outcomes(db, turn.lineage_id, "summary") == []


def test_a_chats_usage_is_the_sum_of_its_conversations(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    first = exchange(db, chat, "q", "a")
    ledger.record(db, None, first.lineage_id, PRICED, START)
    second = start_session(db, chat, START)
    ledger.record(db, None, second.lineage_id, replace(PRICED, purpose="summary", is_estimated=True), Millis(START + 5))
    assert cost_of_conversation(db, first.lineage_id) == cost_of_conversation(db, second.lineage_id) == 250
    assert cost_of_chat(db, chat, START) == 500
    assert cost_of_chat(db, chat, Millis(START + 5)) == 250
    assert cost_of_chat(db, ChatId(chat + 1), START) == 0
    assert load_by_purpose(db, lineage_id=second.lineage_id) == {
        "summary": TotalUsage(
            calls=1,
            estimated_calls=1,
            input_tokens=10,
            output_tokens=5,
            cache_read_tokens=3,
            cache_write_tokens=2,
            reasoning_tokens=1,
            cost=MicroUsd(250),
        )
    }


def test_costs_are_split_at_a_time(db: sqlite3.Connection) -> None:
    assert cost_around(db, START, START) == (0, 0)
    for at in (START - 1, START, START + 9, START + 10):
        ledger.record(db, None, None, PRICED, Millis(at))
    assert cost_around(db, START, Millis(START + 10)) == (500, 250)
    assert cost_around(db, Millis(START + 1), START) == (0, 500)


def test_the_cache_share_counts_all_prompt_tokens() -> None:
    assert TotalUsage(input_tokens=25, cache_read_tokens=70, cache_write_tokens=5).cache_percent == 70
    assert TotalUsage().cache_percent == 0


def test_slices_separate_quarter_hours_chats_models_and_purposes(db: sqlite3.Connection) -> None:
    chat, quarter = make_chat(db), 15 * 60_000
    for call, at, whose in (
        (PRICED, START, chat),
        (PRICED, START + quarter - 1, chat),
        (PRICED, START + quarter, chat),
        (replace(PRICED, model="other"), START + quarter, chat),
        (replace(PRICED, purpose="title"), START + quarter, None),
    ):
        ledger.record(db, None, None, call, Millis(at), whose)
    found = load_slices(db, START)
    assert [(one.at - START, one.chat_id, one.model, one.purpose, one.spent.calls) for one in found] == [
        (0, chat, "scripted", "turn", 2),
        (quarter, None, "scripted", "title", 1),
        (quarter, chat, "other", "turn", 1),
        (quarter, chat, "scripted", "turn", 1),
    ]
    assert sum(one.spent.calls for one in load_slices(db, START, chat)) == 4


@sqlite_only
def test_no_look_up_reads_the_whole_ledger(db: sqlite3.Connection) -> None:
    turn = exchange(db, chat := make_chat(db), "q", "a")
    with query_plans(db, lambda query: "FROM model_calls" in query or "JOIN model_calls" in query) as plans:
        assert load_by_purpose(db, lineage_id=turn.lineage_id)["turn"].calls == 1
        assert ledger.largest_answered_prompt(db, turn.lineage_id, CALL.route, CALL.model)
        assert ledger.call_outcomes(db, turn.lineage_id, "turn") == ["ok"]
        assert len(load_prompt_sizes(db, turn.lineage_id, 9, 9)) == 1
        assert load_why(db, "m2").steps[0].kind == "model"
        find_outcome(db, "1")
        cost_of_chat(db, chat, START)
    assert len(plans) == 7
    assert all("model_calls_chat (chat_id=? AND created_at>?" in plan for plan in plans), plans
