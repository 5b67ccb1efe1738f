"""Queries for the lineage page: the sessions of a chat as a tree, and the prompt sizes of a conversation."""

from hermes_state.admin.console import FIGURES, CompressionFigures
from hermes_state.models.ledger import within_lineage
from hermes_state.sessions import IS_SUBAGENT, EndReason, SessionKind
from hermes_state.store.sql import Connection, scalar_or_none, select
from hermes_state.values import ChatId, LineageId, MessageId, Millis, SessionId


class LineageNode(CompressionFigures, frozen=True, kw_only=True):
    """A session of a chat, and the compression that created it."""

    id: SessionId
    key: str
    parent_id: SessionId | None
    lineage_id: LineageId
    depth: int
    kind: SessionKind
    title: str | None
    started_at: Millis
    end_reason: EndReason | None
    message_count: int
    agent: str
    undone_by: SessionId | None
    """Session that the undo of this compression created."""

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        return self.tokens_before, self.tokens_after


def load_nodes(db: Connection, chat_id: ChatId, limit: int) -> list[LineageNode]:
    """Load the newest `limit` sessions of a chat, oldest first. Sessions of sub-agents are left out."""
    query = f"""SELECT s.id, s.key, s.parent_session_id AS parent_id, s.lineage_id, s.depth, s.kind, s.title,
      s.started_at, s.end_reason, s.message_count, s.agent, k.undone_by, {FIGURES}
    FROM sessions s LEFT JOIN compressions k ON k.child_id = s.id
    WHERE s.chat_id = ? AND NOT {IS_SUBAGENT} ORDER BY s.id DESC LIMIT ?"""
    return select(db, LineageNode, query, (chat_id, limit))[::-1]


def find_session_of(db: Connection, chat_id: ChatId, message_id: MessageId) -> SessionId | None:
    """Return the session in which a message of this chat was written, or None if the chat has no such message."""
    query = "SELECT session_id FROM messages WHERE id = ? AND chat_id = ? AND (seq > 0 OR indexed = 1)"
    return scalar_or_none(db, SessionId, query, (message_id, chat_id))


def load_prompt_sizes(db: Connection, lineage_id: LineageId, calls: int, parts: int) -> list[tuple[int, int]]:
    """Load the time and the reported size in tokens of each prompt that the lineage page shows, oldest first.

    The newest `calls` calls are divided into `parts` periods. Each period has one entry, with the time of its last call
    and the size of its largest prompt.
    """
    where, values = within_lineage(db, lineage_id)
    query = f"""SELECT max(at) AS at, max(tokens) AS tokens FROM (
      SELECT at, tokens, ntile(CAST(? AS INTEGER)) OVER (ORDER BY at) AS part FROM (
        SELECT created_at AS at,
          input_tokens + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0) AS tokens
        FROM model_calls WHERE outcome = 'ok' AND input_tokens IS NOT NULL AND purpose IN ('turn', 'schedule') {where}
        ORDER BY created_at DESC LIMIT ?) newest) parted
    GROUP BY part ORDER BY 1"""
    return db.execute(query, (parts, *values, calls)).fetchall()
