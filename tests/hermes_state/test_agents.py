from hermes_state import agents, inbox
from hermes_state.agents import RoutedAgent
from hermes_state.models import ledger
from hermes_state.models.ledger import ModelCall
from hermes_state.sessions import EndReason, ensure_active, list_conversations, load_active, load_other_lineages, resume
from hermes_state.store.sql import Connection
from hermes_state.tools import approvals
from hermes_state.tools.approvals import AnswererRole, GrantKind, PendingApproval
from hermes_state.values import CanonicalUsage, ChatId, MicroUsd, OutboxId, TurnId, UserRef
from tests.hermes_state.rows import START, compress, exchange, make_chat

OPS = RoutedAgent(name="ops", known="||ops|desk|")
NOBODY = RoutedAgent(known="||ops|desk|")


def grant(db: Connection, chat_id: ChatId, shape: str, scope: GrantKind) -> None:
    lineage_id = ensure_active(db, chat_id, START).lineage_id
    call = PendingApproval(
        id=1,
        turn_id=TurnId(1),
        chat_id=chat_id,
        lineage_id=lineage_id,
        tool_name="terminal",
        shape=shape,
        answerer=AnswererRole.STARTER,
        started_by=UserRef("telegram:42"),
    )
    approvals.grant(db, call, scope, "telegram:42", START)


def test_another_agent_ends_the_conversation_once_and_starts_its_own(db: Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "one", "two")
    first = load_active(db, chat)
    ended = agents.settle(db, chat, OPS, START)
    assert first is not None
    assert ended is not None
    assert (ended.agent, ended.session_id) == ("", first.id)
    assert agents.settle(db, chat, OPS, START) is None
    second = load_active(db, chat)
    assert second is not None
    assert (agents.agent_of(db, second.id), agents.agent_of(db, first.id)) == ("ops", "")
    [(row,)] = db.execute("SELECT id FROM outbox WHERE message_id IS NOT NULL").fetchall()
    assert agents.load_author(db, OutboxId(row)) == "", "another agent answers now, but this answer stays with its own"
    assert db.execute("SELECT end_reason FROM sessions WHERE id = ?", (first.id,)).fetchone() == (EndReason.RESET,)
    told = "SELECT count(*) FROM outbox WHERE payload LIKE '%The agent ops answers here%'"
    assert db.execute(told).fetchone() == (1,)
    resume(db, chat, first.key, START)
    assert agents.load_agent(db, chat) == ""


def test_a_choice_counts_only_while_its_agent_is_configured(db: Connection) -> None:
    chat = make_chat(db)
    agents.choose(db, chat, "desk")
    assert agents.load_state(db, chat, OPS).next_agent == "desk"
    assert agents.load_state(db, chat, RoutedAgent(name="ops", known="||ops|")).next_agent == "ops"
    agents.choose(db, chat, "")
    assert agents.load_state(db, chat, OPS).next_agent == "", "the unnamed agent can be chosen"
    assert [one.agent for one in agents.load_removed(db, "||ops|")] == []
    agents.choose(db, chat, "desk")
    assert [(one.agent, one.chats) for one in agents.load_removed(db, "||ops|")] == [("desk", 1)]


def test_continuations_keep_the_agent_and_lists_show_only_its_conversations(db: Connection) -> None:
    chat = make_chat(db)
    exchange(db, chat, "one", "two")
    agents.settle(db, chat, OPS, START)
    exchange(db, chat, "three", "four")
    session = ensure_active(db, chat, START)
    compress(db, session.lineage_id)
    tip = load_active(db, chat)
    assert tip is not None
    assert tip.depth == 1
    assert agents.agent_of(db, tip.id) == "ops"
    assert [one.tip.lineage_id for one in list_conversations(db, chat, 9, "ops")] == [session.lineage_id]
    assert len(list_conversations(db, chat, 9)) == 2
    assert load_other_lineages(db, chat, session.lineage_id, 9) == []


def test_a_grant_for_the_whole_chat_counts_only_for_its_agent(db: Connection) -> None:
    chat = make_chat(db)
    grant(db, chat, "ls", GrantKind.ALWAYS)
    grant(db, chat, "pwd", GrantKind.SESSION)
    first = ensure_active(db, chat, START).lineage_id
    agents.settle(db, chat, OPS, START)
    second = ensure_active(db, chat, START).lineage_id
    assert approvals.load_grants(db, chat, second) == set()
    grant(db, chat, "df", GrantKind.ALWAYS)
    assert {shape for _, shape, _ in approvals.load_grants(db, chat, second)} == {"df"}
    assert approvals.list_grants(db, chat) == ["terminal: df"]
    assert approvals.revoke_grants(db, chat) == 1
    agents.settle(db, chat, NOBODY, START)
    assert {shape for _, shape, _ in approvals.load_grants(db, chat, first)} == {"ls", "pwd"}
    assert approvals.list_grants(db, chat) == ["terminal: ls", "terminal: pwd"]


def test_costs_count_for_the_agent_of_the_conversation_or_of_the_chat(db: Connection) -> None:
    chat = make_chat(db)
    lineage_id = ensure_active(db, chat, START).lineage_id
    agents.settle(db, chat, OPS, START)
    usage = CanonicalUsage(input=1)
    call = ModelCall(purpose="turn", route="r", model="m", outcome="ok", usage=usage, took_ms=1, cost=MicroUsd(5))
    ledger.record(db, None, lineage_id, call, START)
    ledger.record(db, None, None, call, START, chat_id=chat)
    assert [(one.agent, one.spent.cost) for one in ledger.load_slices(db, START)] == [("", 5), ("ops", 5)]
    assert ledger.cost_of_chat(db, chat, START) == 10
    assert ledger.cost_of_chat(db, chat, START, "ops") == 5
    assert ledger.cost_around(db, START, START, "ops") == (0, 5)


def test_a_notice_for_the_last_agent_is_dropped(db: Connection) -> None:
    chat = make_chat(db)
    ensure_active(db, chat, START)
    query = """INSERT INTO inbox (platform, account, event_ref, chat_id, kind, mode, sender_ref, sender_name,
      message_ref, payload, expects_more, sent_at, received_at, state)
    VALUES ('telegram', 'telegram', 'e', ?, 'notice', 'queue', 'a', 'A', 'm', '{"text": "edited"}', 0, 1, 1, 'new')"""
    db.execute(query, (chat,))
    agents.settle(db, chat, OPS, START)
    assert inbox.load_waiting(db, chat) == []
