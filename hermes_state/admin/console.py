"""Queries for the owner's pages of the web console: running turns, chats, compressions and recent failures."""

import msgspec

from hermes_state.models.ledger import OF_TURN
from hermes_state.sessions import chat_label
from hermes_state.store.sql import Connection, columns, containing, scalar, scalars, select
from hermes_state.turns import OPEN_TURNS
from hermes_state.values import ChatId, ChatKey, ChatKind, MicroUsd, Millis, TurnId, UserRef

# Purpose: name a chat for people. Groups have a title; a direct chat has the name of the person who wrote last.
_LABEL = f"coalesce(nullif({chat_label('a.lineage_id')}, ''), a.title, '')"
_SPENT = "CASE WHEN count(*) = 0 THEN 0 ELSE sum(m.cost_microusd) END"
_ACTIVE = "LEFT JOIN sessions a ON a.id = c.active_session_id"


class LiveTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that is running or waiting for an approval."""

    id: TurnId
    chat: ChatKey
    kind: ChatKind
    label: str
    started_by: UserRef
    agent: str
    started_at: Millis
    is_waiting: bool
    tool: str | None
    """Tool that is running, or None while the model is called."""
    calls: int
    cost: MicroUsd | None
    """Cost so far, or None if no price is known."""
    is_subagent: bool


def load_live_turns(db: Connection) -> list[LiveTurn]:
    """Load the open turns of all chats, oldest first."""
    query = f"""SELECT t.id, {columns(ChatKey, "c", "chat")}, c.kind, {_LABEL} AS label, t.started_by, t.started_at,
      c.agent, t.state = 'waiting' AS is_waiting, t.parent_turn_id IS NOT NULL AS is_subagent,
      (SELECT r.tool_name FROM tool_runs r WHERE r.turn_id = t.id AND r.state = 'started' ORDER BY r.id DESC LIMIT 1)
        AS tool,
      (SELECT count(*) FROM model_calls m WHERE {OF_TURN}) AS calls,
      (SELECT {_SPENT} FROM model_calls m WHERE {OF_TURN}) AS cost
    FROM turns t JOIN chats c ON c.id = t.chat_id {_ACTIVE}
    WHERE t.id IN ({OPEN_TURNS}) ORDER BY t.started_at, t.id"""
    return select(db, LiveTurn, query)


class ChatRow(msgspec.Struct, frozen=True, kw_only=True):
    """A chat in the list of all chats."""

    id: ChatId
    key: ChatKey
    kind: ChatKind
    label: str
    model: str | None
    """Model chosen for the conversation, or None for the configured model."""
    agent: str
    used_at: Millis
    cost: MicroUsd | None
    """Cost of all calls with a known price, or None if no price is known."""
    is_unreachable: bool


def load_chats(
    db: Connection, words: str, platform: str, before: int, limit: int, agent: str | None = None
) -> list[ChatRow]:
    """Load chats, most recently used first. Skip the first `before` chats. `words` must be in the label or chat id."""
    query = f"""SELECT * FROM (
      SELECT c.id, {columns(ChatKey, "c", "key")}, c.kind, {_LABEL} AS label, a.chosen_model AS model, c.agent,
        coalesce(a.last_human_at, c.updated_at) AS used_at, c.unreachable_since IS NOT NULL AS is_unreachable,
        (SELECT {_SPENT} FROM model_calls m WHERE m.chat_id = c.id) AS cost
      FROM chats c {_ACTIVE}
      WHERE c.deleted_at IS NULL AND (:platform = '' OR :platform IN (c.platform, c.account))
        AND (CAST(:agent AS TEXT) IS NULL OR c.agent = :agent
          OR EXISTS (SELECT 1 FROM sessions s WHERE s.chat_id = c.id AND s.agent = :agent))) found
    WHERE :words = '' OR lower(label) LIKE :pattern ESCAPE '!' OR lower("key.chat_ref") LIKE :pattern ESCAPE '!'
    ORDER BY used_at DESC, id DESC LIMIT :limit OFFSET :before"""
    values = {"words": words, "pattern": containing(words), "platform": platform, "before": before, "limit": limit}
    return select(db, ChatRow, query, {**values, "agent": agent})


def load_platforms(db: Connection) -> list[str]:
    """Load the names of all platforms and accounts with chats."""
    return scalars(db, str, "SELECT platform AS name FROM chats UNION SELECT account FROM chats ORDER BY name")


class CompressionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a compression. If there was no compression, `cost` is 0 and all other fields are None."""

    layer: str | None
    focus: str | None
    tokens_before: int | None
    tokens_after: int | None
    took_ms: int | None
    summary_kind: str | None
    model: str | None
    cost: MicroUsd
    """Cost of the summary calls of the session that was compressed."""

    @property
    def saved_percent(self) -> int | None:
        """Percentage of the tokens that the compression removed."""
        if not self.tokens_before or self.tokens_after is None:
            return None
        return round(100 * (1 - self.tokens_after / self.tokens_before))


# Purpose: select the figures of the compression `k`.
FIGURES = """k.layer, k.focus, k.tokens_before, k.tokens_after, k.took_ms, k.summary_kind, k.model,
  (SELECT coalesce(sum(m.cost_microusd), 0) FROM model_calls m WHERE m.session_id = k.parent_id
    AND m.purpose = 'summary') AS cost"""


class ListedCompression(CompressionFigures, frozen=True, kw_only=True):
    """An attempt to compress a conversation."""

    chat: ChatKey
    label: str
    agent: str
    at: Millis
    outcome: str
    reason: str | None
    verdict: str | None
    was_undone: bool

    @property
    def is_bad(self) -> bool:
        return self.outcome == "aborted" or self.summary_kind == "deterministic" or self.verdict == "ineffective"


_WORST = "(k.outcome = 'aborted') DESC, (k.summary_kind = 'deterministic') DESC, (k.verdict = 'ineffective') DESC,"


def load_compressions(db: Connection, since: Millis, limit: int, worst_first: bool) -> list[ListedCompression]:
    """Load the compressions of all chats from `since` on, newest first or least successful first."""
    query = f"""SELECT {columns(ChatKey, "c", "chat")}, {_LABEL} AS label, s.agent, k.created_at AS at, k.outcome,
      k.reason, k.verdict, k.undone_by IS NOT NULL AS was_undone, {FIGURES}
    FROM compressions k JOIN sessions s ON s.id = k.parent_id JOIN chats c ON c.id = s.chat_id {_ACTIVE}
    WHERE k.created_at >= ? AND k.outcome <> 'not_needed'
    ORDER BY {_WORST if worst_first else ""} k.id DESC LIMIT ?"""
    return select(db, ListedCompression, query, (since, limit))


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that failed for the same reason."""

    reason: str
    count: int
    last_at: Millis


def load_failures(db: Connection, since: Millis) -> list[FailureRow]:
    """Load the reasons why turns have failed since the time `since`, most frequent first."""
    query = """SELECT coalesce(t.error, '') AS reason, count(DISTINCT t.id) AS count, max(o.created_at) AS last_at
    FROM outbox o JOIN turns t ON t.id = o.turn_id
    WHERE o.kind = 'error' AND (o.settled_at >= ? OR o.settled_at IS NULL) AND t.state = 'failed'
    GROUP BY coalesce(t.error, '') ORDER BY count DESC, reason LIMIT 20"""
    return select(db, FailureRow, query, (since,))


def count_waiting(db: Connection) -> int:
    """Count the messages, in all chats, that do not belong to a turn yet."""
    query = "SELECT count(*) FROM inbox WHERE state = 'new' AND kind = 'message'"
    return scalar(db, int, query)
