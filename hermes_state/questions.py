"""Messages that ask whether a call may be run: each is edited when its question is closed, whoever closed it and how.

The message is an outbox row `approval:<id>`, its copies in admins' chats are `approval:<id>:<chat id>`. Its edit is a
row `<key>:closed`, stored in the transaction that closes the question, and sent after the message.
"""

from dataclasses import replace

from hermes_state import outbox
from hermes_state.outbox import Reply
from hermes_state.store.sql import Connection, scalars
from hermes_state.values import Millis, TurnId

# Purpose: close one question; it is closed once.
_CLOSE = """
UPDATE approvals SET state = ?, decided_by = ?, decided_at = ?, reason = ?
WHERE id = ? AND state = 'pending' RETURNING question
"""
# Purpose: the messages that show a question, with the platform's id of the last part of each.
_SHOWN = """
SELECT o.chat_id, o.dedupe_key,
  (SELECT l.platform_ref FROM outbox l WHERE l.dedupe_key = o.dedupe_key ORDER BY l.part DESC LIMIT 1)
FROM outbox o WHERE o.part = 0 AND (o.dedupe_key = :key
  OR o.dedupe_key IN (SELECT :key || ':' || c.id FROM chats c WHERE c.kind IN ('direct','local')))
"""


def close(db: Connection, number: int, state: str, by: str, reason: str | None, outcome: str, now: Millis) -> None:
    """Store the answer to a question, and owe its messages an edit: no buttons, and `outcome` with the time below."""
    for (question,) in db.execute(_CLOSE, (state, by, now, reason, number)).fetchall():
        for chat_id, key, ref in db.execute(_SHOWN, {"key": f"approval:{number}"}).fetchall():
            edit = Reply(chat_id=chat_id, markdown=question, dedupe_key=f"{key}{outbox.CLOSED}", replaces=ref)
            outbox.enqueue(db, replace(edit, footer=outcome, edited_at=now), now)


def close_all(db: Connection, turn_id: TurnId, now: Millis) -> None:
    """Close the open questions of a turn that ends."""
    for number in scalars(db, int, "SELECT id FROM approvals WHERE turn_id = ? AND state = 'pending'", (turn_id,)):
        close(db, number, "expired", "", None, "Withdrawn, because the turn ended,", now)
