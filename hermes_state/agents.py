"""Agents of chats: which agent answers next, and what happens to the conversation when another agent takes over.

`chats.agent` is the agent of the active session, and `sessions.agent` the agent of a conversation. Both change only
between turns. The agent that the top level of the configuration describes has the name "".
"""

import msgspec

from hermes_state import inbox, outbox
from hermes_state.errors import CommandError
from hermes_state.outbox import Reply
from hermes_state.sessions import EndReason, count_messages, end_session, load_active, start_session
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar, scalar_or_none, select
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatId, LineageId, MessageRole, Millis, Origin, OutboxId, SessionId

UNNAMED = "default"
"""Name under which people see the agent with the name ""."""


class RoutedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """Agent that the routes select for a message, and the agents that a chat can choose instead."""

    name: str = ""
    known: str = "||"
    """Names of all configured agents, each between two bars, as in `||ops|`."""
    keeps: bool = False
    """True if the chat keeps its agent as long as that agent is configured."""

    @property
    def values(self) -> dict[str, str | int]:
        return {"routed": self.name, "known": self.known, "keeps": int(self.keeps)}


UNROUTED = RoutedAgent()

NEXT_AGENT = """CASE WHEN :known LIKE '%|' || c.chosen_agent || '|%' THEN c.chosen_agent
  WHEN :keeps = 1 AND :known LIKE '%|' || c.agent || '|%' THEN c.agent
  ELSE CAST(:routed AS TEXT) END"""
"""SQL for the agent of the next turn of chat `c`: the chosen, the last or the routed agent. It must be configured."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """Agents of a chat: now, chosen with `/agent` (None: not chosen), and from the next turn on."""

    agent: str
    chosen_agent: str | None
    next_agent: str


def shown_name(agent: str) -> str:
    return agent or UNNAMED


def stored_name(shown: str | None) -> str | None:
    """Return the name in the database for a name that a person wrote. Without a name, return None: all agents."""
    return None if not shown else "" if shown.lower() == UNNAMED else shown.lower()


def find_agent(db: Connection, shown: str | None) -> str | None:
    """Like `stored_name`, but raises `CommandError` if the agent has no conversations."""
    if (agent := stored_name(shown)) is None:
        return None
    if scalar_or_none(db, int, "SELECT 1 FROM sessions WHERE agent = ? LIMIT 1", (agent,)) is None:
        raise CommandError(f"There are no conversations with an agent called “{shown_name(agent)[:32]}”.")
    return agent


def load_state(db: Connection, chat_id: ChatId, routed: RoutedAgent) -> AgentState:
    query = f"SELECT c.agent, c.chosen_agent, {NEXT_AGENT} AS next_agent FROM chats c WHERE c.id = :chat_id"
    return select(db, AgentState, query, {"chat_id": chat_id, **routed.values})[0]


def load_agent(db: Connection, chat_id: ChatId) -> str:
    """Load the agent that answered in the chat last."""
    return scalar(db, str, "SELECT agent FROM chats WHERE id = ?", (chat_id,))


def load_author(db: Connection, row_id: OutboxId) -> str:
    """Load the agent that wrote the answer of an outbox row. The chat can have another agent by now."""
    query = """SELECT s.agent FROM outbox o
    JOIN messages m ON m.id = o.message_id JOIN sessions s ON s.id = m.session_id WHERE o.id = ?"""
    return scalar(db, str, query, (row_id,))


def agent_of(db: Connection, session_id: SessionId | LineageId) -> str:
    """Load the agent of a session. The id of a conversation is the id of its first session."""
    return scalar(db, str, "SELECT agent FROM sessions WHERE id = ?", (session_id,))


@locks(chat="chat_id")
def choose(db: Connection, chat_id: ChatId, agent: str | None) -> None:
    """Store the agent that an admin has chosen for a chat. None: the routes decide again."""
    db.execute("UPDATE chats SET chosen_agent = ? WHERE id = ?", (agent, chat_id))


class EndedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Session that ended because another agent took over."""

    agent: str
    session_id: SessionId


@locks(chat="chat_id")
def settle(db: Connection, chat_id: ChatId, routed: RoutedAgent, now: Millis) -> EndedConversation | None:
    """Let the agent of the next turn take over. If another agent had a conversation, end it and start a new one."""
    state = load_state(db, chat_id, routed)
    if state.next_agent == state.agent:
        return None
    active = load_active(db, chat_id)
    db.execute("UPDATE chats SET agent = ? WHERE id = ?", (state.next_agent, chat_id))
    drop_notices(db, chat_id, now)
    if active is None:
        return None
    if active.ended_at is None:
        end_session(db, active.id, EndReason.RESET, now)
    start_session(db, chat_id, now)
    outbox.end_offer(db, chat_id, "retry", now)
    outbox.end_offer(db, chat_id, "undo", now)
    if count_messages(db, active.lineage_id):
        text = (
            f"The agent {shown_name(state.next_agent)} answers here from now on, in a new conversation. Admins can go "
            f"back to the conversation with {shown_name(state.agent)}: `/resume {active.short_key}`."
        )
        key = f"agent:{active.id}:{active.version}"
        outbox.enqueue(db, Reply(chat_id=chat_id, markdown=text, dedupe_key=key), now)
    return EndedConversation(agent=state.agent, session_id=active.id)


def drop_notices(db: Connection, chat_id: ChatId, now: Millis) -> None:
    """Drop edits of messages to the last agent. Its conversation keeps other notices, such as a script's text."""
    active = load_active(db, chat_id)
    for row in inbox.load_waiting(db, chat_id):
        if active is not None and row.kind is inbox.InboxKind.NOTICE and not row.message_ref:
            notice = NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=row.payload.text, inbox_id=row.id)
            append(db, active.id, notice, row.sent_at)
            inbox.settle(db, row.id, inbox.InboxState.DONE, now)
    where = f"chat_id = ? AND {inbox.WAITS} AND kind = 'notice'"
    inbox.settle_where(db, inbox.InboxState.DROPPED, now, where, chat_id)


class RemovedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """Agent that is no longer configured, with the work that waits for it."""

    agent: str
    schedules: int
    turns: int
    chats: int
    """Number of chats that chose it with `/agent`."""


def load_removed(db: Connection, known: str) -> list[RemovedAgent]:
    """Load the agents that are not in `known` (see `RoutedAgent`) and still have work or chats."""
    query = """SELECT agent, sum(schedule) AS schedules, sum(turn) AS turns, sum(chat) AS chats FROM (
      SELECT agent, 1 AS schedule, 0 AS turn, 0 AS chat FROM schedules WHERE state = 'active'
      UNION ALL SELECT s.agent, 0, 1, 0 FROM turns t JOIN sessions s ON s.id = t.lineage_id
        WHERE t.state IN ('running','waiting') AND t.parent_turn_id IS NULL
      UNION ALL SELECT chosen_agent, 0, 0, 1 FROM chats WHERE chosen_agent IS NOT NULL) found
    WHERE :known NOT LIKE '%|' || agent || '|%' GROUP BY agent ORDER BY agent"""
    return select(db, RemovedAgent, query, {"known": known})
