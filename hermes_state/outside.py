"""Requests of programs that use the API, from their inbox rows to their answers."""

import msgspec

from hermes_state.inbox import InboxState
from hermes_state.models.ledger import OF_TURN
from hermes_state.store.sql import Connection, scalar_or_none, select_one
from hermes_state.values import MessageId, Millis, OutboxId, TurnId, TurnState


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """State of a request. When its turn has ended, it contains the answer or the kind of error."""

    conversation: str
    is_command: bool
    inbox_state: InboxState
    turn_id: TurnId | None
    turn_state: TurnState | None
    error: str | None
    answer: str
    """Newest text of the model in the turn."""
    answer_id: MessageId | None
    reply_id: OutboxId | None
    """Outbox row with the reply of a command, or with the sentence about an error."""
    prompt_tokens: int
    output_tokens: int

    def is_answered(self, reply: str) -> bool:
        """Return True if the turn has finished, or a command has the reply `reply`."""
        return self.turn_state is TurnState.FINISHED or (self.is_command and bool(reply))

    @property
    def is_over(self) -> bool:
        if self.turn_state is None:
            return not self.is_command and self.inbox_state not in (InboxState.NEW, InboxState.CLAIMED)
        return self.turn_state not in (TurnState.RUNNING, TurnState.WAITING)


_TOKENS = f"(SELECT CAST(coalesce(sum({{}}), 0) AS BIGINT) FROM model_calls m WHERE {OF_TURN})"
_REQUESTS = """FROM inbox i JOIN chats h ON h.id = i.chat_id LEFT JOIN turns t ON t.id = i.turn_id
LEFT JOIN messages a ON a.id = coalesce((SELECT o.message_id FROM outbox o
    WHERE o.dedupe_key = 'turn:' || t.id AND o.part = 0),
  (SELECT m.id FROM messages m WHERE m.turn_id = t.id AND m.role = 'assistant' AND m.body IS NOT NULL AND m.seq > 0
    ORDER BY m.id DESC LIMIT 1))"""
# Purpose: load the state of a request by its event key.
_OUTCOME = f"""
SELECT h.chat_ref AS conversation, i.kind = 'command' AS is_command, i.state AS inbox_state, t.id AS turn_id,
  t.state AS turn_state, t.error, coalesce(a.text, '') AS answer, a.id AS answer_id,
  (SELECT o.id FROM outbox o WHERE o.part = 0 AND o.dedupe_key IN ('turn:' || t.id, 'inbox:' || i.id)
    ORDER BY o.id DESC LIMIT 1) AS reply_id,
  {_TOKENS.format("coalesce(input_tokens, 0) + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0)")}
    AS prompt_tokens, {_TOKENS.format("output_tokens")} AS output_tokens
{_REQUESTS}
WHERE i.platform = 'local' AND i.account = 'local' AND i.event_ref = ?
"""


def find_outcome(db: Connection, event_ref: str) -> Outcome | None:
    """Load the state of a request, or return None if its message was not accepted."""
    return select_one(db, Outcome, _OUTCOME, (event_ref,))


def find_repeated(db: Connection, prefix: str, since: Millis) -> str | None:
    """Return the event key of the newest request whose key begins with `prefix` and whose client has no answer yet.

    The request is unfinished, or its turn has ended since `since` and the client has not read the answer.
    """
    query = f"""SELECT i.event_ref {_REQUESTS} WHERE i.platform = 'local' AND i.account = 'local'
      AND i.event_ref > ? AND i.event_ref < ? AND (i.state IN ('new','claimed')
        OR t.state IN ('running','waiting') OR (t.state = 'finished' AND t.ended_at >= ?
          AND a.created_at > coalesce((SELECT r.created_at FROM messages r WHERE r.id = h.read_id), 0)))
    ORDER BY i.id DESC LIMIT 1"""
    return scalar_or_none(db, str, query, (prefix, f"{prefix}~", since))
