"""Read marks: the newest message that a person has seen in a web chat."""

from hermes_state.chats import find_chat
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.values import ChatKey, Millis

IS_UNREAD = """coalesce((SELECT m.id FROM messages m WHERE m.session_id = c.active_session_id AND m.seq > 0
  AND m.origin = 'assistant' ORDER BY m.seq DESC LIMIT 1), 0) > c.read_id"""
"""SQL condition for a chat `c` whose newest answer was not seen."""


@locks(chat="key")
def mark_read(db: Connection, key: ChatKey, ref: str) -> None:
    """Record that the person has seen the message with this platform id (or row id) and all earlier messages."""
    chat = find_chat(db, key)
    if chat is None:
        return
    query = "SELECT message_id FROM platform_messages WHERE chat_id = ? AND ref = ?"
    message_id = scalar_or_none(db, int, query, (chat.id, ref))
    if message_id is None and ref.isdecimal() and len(ref) < 19:
        message_id = scalar_or_none(
            db, int, "SELECT id FROM messages WHERE id = ? AND chat_id = ?", (int(ref), chat.id)
        )
    if message_id is not None:
        db.execute("UPDATE chats SET read_id = ? WHERE id = ? AND read_id < ?", (message_id, chat.id, message_id))


def load_read_until(db: Connection, key: ChatKey) -> Millis | None:
    """Return the time of the newest message that the person has seen; None if they have seen none."""
    chat = find_chat(db, key)
    query = "SELECT m.created_at FROM chats c JOIN messages m ON m.id = c.read_id WHERE c.id = ?"
    return None if chat is None else scalar_or_none(db, Millis, query, (chat.id,))
