"""The terminal in the daemon: what a chat is told of background commands."""

from collections.abc import Callable

from agent.tools.terminal.terminal_tool import BackgroundCommand
from hermes_state import inbox, outbox
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.sessions import load_active
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import shortened
from hermes_state.values import ChatId, Clock, Millis


async def tell_background_end(
    store: Store, clock: Clock, deliver: Callable[[ChatId], None], ended: BackgroundCommand
) -> None:
    """Tell a conversation that a background command has ended: its people now, the model with its next call."""
    if await store.write_with_retry(_write_background_end, ended, clock.now()):
        deliver(ended.context.chat_id)


@locks(chat="ended.context.chat_id")
def _write_background_end(db: Connection, ended: BackgroundCommand, now: Millis) -> bool:
    """Returns False where the conversation is not open any more: the next one has never heard of the command.

    The model reads none of the output here: that is a tool's result, and this the gateway's own words.
    """
    context = ended.context
    active = load_active(db, context.chat_id)
    if active is None or active.lineage_id != context.lineage_id:
        return False
    key, sentence = f"terminal:{ended.id}", f"Background command {ended.id} has ended: {ended.running.outcome}."
    notice = NewInboxRow(
        platform=context.chat.platform,
        account=context.chat.account,
        event_ref=key,
        chat_id=context.chat_id,
        kind=InboxKind.NOTICE,
        mode=InboxMode.STEER,
        sender_ref=context.started_by,
        sender_name="",
        message_ref="",
        payload=InboxPayload(text=f"{sentence} Its output waits for poll."),
        expects_more=False,
        sent_at=now,
    )
    inbox.insert(db, notice, now)
    command = shortened(ended.command).replace("`", "'")
    markdown = f"{sentence} It was `{command}`."
    reply = Reply(chat_id=context.chat_id, kind=OutboxKind.STATUS, markdown=markdown, dedupe_key=key)
    outbox.enqueue(db, reply, now)
    return True
