"""Messages of scripts: a text from the bot to a chat, or a question that the agent answers there."""

import secrets
from collections.abc import Collection

from hermes_state import inbox, outbox
from hermes_state.chats import find_chats_named, is_unreachable
from hermes_state.errors import CommandError
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.outbox import Reply
from hermes_state.sessions import ensure_active
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.turns import find_open_turn
from hermes_state.values import LOCAL_OWNER, ChatId, InputKind, MessageRole, Millis, Origin

SENT_NOTE = "A script sent this message to the chat in your name:\n"
"""Beginning of the stored message, from which the model learns about the text."""


@locks(EVERYTHING)
def send_to_chat(
    db: Connection, name: str, text: str, asks: bool, now: Millis, accounts: Collection[str] = ()
) -> ChatId:
    """Send `text` to the chat called `name` as the bot. If `asks` is set, let the agent answer it there instead.

    Raises `CommandError` if there is no such chat or no text, or if the bot cannot write to the chat. `accounts` are
    the configured accounts, if they are known.
    """
    chats = find_chats_named(db, name)
    if not text.strip():
        raise CommandError("There is no text to send.")
    if len(chats) != 1:
        how = "`hermes-gateway sessions` lists the chats."
        known = ", ".join(chat.key.name for chat in chats)
        raise CommandError(f"{name} can be {known}: write one of them." if chats else f"There is no chat {name}. {how}")
    [chat] = chats
    if accounts and chat.key.account not in accounts:
        raise CommandError(f"No bot is configured for {name}. Add the account {chat.key.account} to the settings.")
    if is_unreachable(db, chat.id):
        raise CommandError(f"The bot can no longer write to {name}. A person must write to the bot there first.")
    once = f"script:{secrets.token_hex(16)}"
    row = NewInboxRow(
        platform=chat.key.platform,
        account=chat.key.account,
        event_ref=once,
        chat_id=chat.id,
        kind=InboxKind.MESSAGE if asks else InboxKind.NOTICE,
        mode=InboxMode.ALONE if asks else InboxMode.STEER,
        sender_ref=LOCAL_OWNER,
        sender_name="Owner",
        message_ref="",
        payload=InboxPayload(text=text if asks else SENT_NOTE + text, via=InputKind.CLIENT),
        expects_more=False,
        sent_at=now,
    )
    waits = any(waiting.kind is not InboxKind.NOTICE for waiting in inbox.load_waiting(db, chat.id))
    if asks or waits or find_open_turn(db, chat.id) is not None:  # never store it between a tool call and its result
        inbox.insert(db, row, now)
    else:
        lineage_id = ensure_active(db, chat.id, now).lineage_id
        notice = NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=row.payload.text)
        append_to_tip(db, lineage_id, notice, now, ", last_human_at = ?", now)  # or the text could expire unanswered
    if not asks:
        outbox.enqueue(db, Reply(chat_id=chat.id, markdown=text, dedupe_key=once), now)
    return chat.id
