"""Conversations in the order in which they began, page by page, for exports."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.store.sql import Connection, select
from hermes_state.values import LineageId, MessageId, MessageRole, Millis


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """One lineage, by its first session that is left."""

    lineage_id: LineageId
    key: str
    parent: str | None
    """Key of the session that has called it, for a sub-agent."""
    kind: str
    """`root`, `branch` or `subagent`."""
    model: str | None
    """Model of its newest answer."""
    system_prompt: str | None
    started_at: Millis
    tools: str
    """Names of the tools that it was offered first, as JSON."""


class FullMessage(msgspec.Struct, frozen=True, kw_only=True):
    """All that one message says, without secrets."""

    id: MessageId
    role: MessageRole
    at: Millis
    content: Any
    """Text; the JSON value of a tool's result that is an object or a list."""
    thought: str = ""
    """Readable thoughts of the model; they are stored only where calls follow."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """`name` and `arguments` of each call; the arguments are text where they are no JSON."""
    tool_call_id: str | None = None
    tool_name: str | None = None


# Purpose: lineages that were used since a moment and in which something was said; of all chats, or of one place.
_BEGUN = """
SELECT s.lineage_id, s.key, p.key AS parent, s.kind, s.system_prompt, s.started_at,
  coalesce((SELECT c.model FROM model_calls c WHERE c.lineage_id = s.lineage_id AND c.outcome = 'ok'
    AND c.purpose IN ('turn', 'schedule', 'subagent') ORDER BY c.created_at DESC LIMIT 1), s.model) AS model,
  coalesce((SELECT o.names FROM tool_offers o JOIN sessions f ON f.id = o.session_id
    WHERE f.lineage_id = s.lineage_id ORDER BY f.id LIMIT 1), '[]') AS tools
FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id AND p.lineage_id <> s.lineage_id
WHERE s.lineage_id > ? AND s.depth = (SELECT min(f.depth) FROM sessions f WHERE f.lineage_id = s.lineage_id)
  AND (CAST(? AS INTEGER) IS NULL OR s.chat_id = ?)
  AND (CAST(? AS INTEGER) IS NULL OR ? IN (s.lineage_id, p.lineage_id))
  AND EXISTS (SELECT 1 FROM messages m WHERE m.lineage_id = s.lineage_id AND m.seq > 0 AND m.created_at >= ?)
ORDER BY s.lineage_id LIMIT ?
"""


def load_conversations(
    db: Connection, place: LookupResult | None, since: Millis, after: LineageId, limit: int
) -> list[StoredConversation]:
    """The first `limit` conversations behind `after`, sub-agents' too: of a chat, a session or message, or of all."""
    chat_id = place.chat_id if place is not None else None
    lineage_id = place.session.lineage_id if place is not None and place.session is not None else None
    return select(db, StoredConversation, _BEGUN, (after, chat_id, chat_id, lineage_id, lineage_id, since, limit))
