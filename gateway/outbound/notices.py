"""Notices to a chat about its context window and about background commands. The model sees only notices about commands.

A notice is stored in the same transaction as its event, so that a crash neither loses nor repeats the notice. The only
exception is the notice about a slow compression, which has its own transaction.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.context.job import Aborted, BlockedEvent, Compressed, ContextEvent, MessageLimitEvent, PressureEvent
from agent.tools.terminal.terminal_tool import BackgroundCommand
from gateway.config.context_settings import NoticeConfig
from gateway.outbound.webhooks import HookWriter
from hermes_state import inbox, outbox
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.sessions import EndReason, load_active
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import shortened
from hermes_state.transcripts import View
from hermes_state.values import Button, ChatId, Clock, ConversationRef, Millis, UserRef

ACCURACY_FROM = 2
"""Number of compressions after which the first accuracy notice is sent. A summary of a summary loses details."""
ACCURACY_EVERY = 10
"""Number of compressions between later notices about accuracy. People would ignore a notice after every compression."""

_DEDUPE_WORDS: Final[Mapping[type[ContextEvent], str]] = {
    Compressed: "compressed",
    Aborted: "aborted",
    BlockedEvent: "blocked",
    MessageLimitEvent: "hardlimit",
}
"""Words used in dedupe keys. The stored keys make sure that each notice is sent only once."""


class NoticeWriter(msgspec.Struct, frozen=True, kw_only=True):
    """Writes notices to the outbox, according to the current settings."""

    store: Store
    settings: Callable[[], NoticeConfig]
    deliver: Callable[[ChatId], None]
    clock: Clock
    is_admin: Callable[[UserRef], bool] = lambda _: False
    hooks: HookWriter = msgspec.field(default_factory=HookWriter)

    def write(self, db: Connection, conversation: ConversationRef, event: ContextEvent, now: Millis) -> None:
        """Store a notice that tells the chat about a context event."""
        if isinstance(event, Compressed) and event.prepared.passed_over is not None:
            self._tell_admin(db, conversation, event, event.prepared.passed_over, now)
        if isinstance(event, Compressed):
            outbox.end_offer(db, conversation.chat_id, "undo", now)
            data = {"chat": conversation.chat.name, "session": event.child.short_key, "layer": event.job.layer}
            counts = {"tokens_before": event.job.tokens_before, "compressions": event.compressions}
            self.hooks.write(db, "compression", conversation.chat_id, str(event.child.id), {**data, **counts}, now)
        if (sentence := self._sentence(event)) is not None:
            # Send one notice per compression, but only one per turn if several layers failed to compress.
            part = str(event.child.id) if isinstance(event, Compressed) else str(now)
            if isinstance(event, Aborted) and conversation.turn_id is not None:
                part = f"turn:{conversation.turn_id}"
            reply = _reply(conversation, sentence, _DEDUPE_WORDS[type(event)], part)
            if isinstance(event, Compressed) and conversation.paid_by is None:
                outbox.offer(db, replace(reply, buttons=undo_buttons(event)), "undo", now)
            else:
                outbox.enqueue(db, reply, now)

    def _tell_admin(
        self, db: Connection, conversation: ConversationRef, event: Compressed, model: str, now: Millis
    ) -> None:
        """Tell an admin once, in their direct chat, that the configured summary model failed."""
        writers = [row.sender_ref for row in event.job.view.transcript if row.sender_ref is not None]
        if conversation.chat_kind.is_shared or not writers or not self.is_admin(UserRef(writers[-1])):
            return
        sentence = (
            f"The summary model {model} failed, so {event.prepared.model} wrote this summary. The log gives the reason "
            "(`compression.summary_failed`). I will not mention this again."
        )
        chat_id, key = conversation.chat_id, f"summary-route:{conversation.chat_id}:{model}"
        outbox.enqueue(db, Reply(chat_id=chat_id, markdown=sentence, dedupe_key=key), now)

    async def write_waiting(self, conversation: ConversationRef, view: View) -> None:
        """Tell a chat that its answer is waiting for a compression. The notice is not repeated after a restart."""
        if self.settings().pressure:
            text = "This conversation has grown long. I am compressing it before I continue, which takes a moment."
            reply = _reply(conversation, text, "waiting", f"{conversation.turn_id}:{view.transcript[-1].id}")
            await self.store.write(outbox.enqueue, reply, self.clock.now())
            self.deliver(conversation.chat_id)

    def _sentence(self, event: ContextEvent) -> str | None:
        match event:
            case Compressed() if event.job.layer == "manual":
                return None  # `/compress` sends its own reply
            case Compressed():
                sentences, prepared = [], event.prepared
                if prepared.failure is not None:
                    sentences.append(
                        f"I could not summarise this conversation ({prepared.failure.rstrip('.')}). Instead, I kept a "
                        f"list of key points from {prepared.summarised:,} messages. All of these messages are still "
                        "stored, and I can look them up."
                    )
                if (accuracy := accuracy_sentence(event.compressions, self.settings())) is not None:
                    sentences.append(accuracy)
                return " ".join(sentences) or None
            case Aborted():
                return (
                    f"I could not compress this conversation: {event.reason} Nothing was changed. The context "
                    "window still has room, so I will try again later. To try now, send /compress."
                )
            case BlockedEvent():
                return (
                    f"Compressing hardly shortens this conversation any more ({event.tokens:,} tokens; compression "
                    f"starts at {event.threshold:,}). I will compress it again only when it no longer fits the model's "
                    "window. You can start fresh with /new, or keep one topic and shorten the rest with "
                    "`/compress <topic>`."
                )
            case MessageLimitEvent():
                return (
                    f"This conversation had {event.messages:,} messages (the limit is {event.limit:,}), so I "
                    "compressed it although the model had room for more."
                )


def undo_buttons(outcome: Compressed) -> tuple[Button, ...]:
    """Return the button that undoes a compression, unless the restored conversation would leave hardly any room."""
    if outcome.job.tokens_before * 100 > outcome.job.limits.input_window * 96:
        return ()
    return (Button(label="Undo", command=f"/compress undo #{outcome.child.short_key}"),)


def accuracy_sentence(count: int, settings: NoticeConfig) -> str | None:
    """Return the notice about lost details after the second and every tenth compression, otherwise None."""
    if not settings.pressure or count == 0 or (count != ACCURACY_FROM and count % ACCURACY_EVERY):
        return None
    return (
        f"This conversation has been compressed {count} times, so I may miss details. "
        "You can ask me to look things up, or start fresh with /new."
    )


def pressure_sentence(pressure: PressureEvent) -> str:
    """Return a line to show below an answer. It says how full the context window is."""
    figures = f"({pressure.tokens:,} of {pressure.threshold:,} tokens)"
    if pressure.tokens >= pressure.threshold:
        return f"_This conversation will be compressed soon {figures}._"
    return f"_{pressure.percent} % of the way to the next compression {figures}._"


def _reply(conversation: ConversationRef, sentence: str, what: str, which: str) -> Reply:
    key = f"context:{conversation.lineage_id}:{what}:{which}"
    return Reply(chat_id=conversation.chat_id, markdown=sentence, dedupe_key=key)


# ---- background commands


@locks(chat="chat_id")
def tell_expired(db: Connection, chat_id: ChatId, now: Millis) -> None:
    """If the chat's last conversation has expired, tell the chat once why it gets a new one."""
    last = load_active(db, chat_id)
    if last is not None and last.end_reason is EndReason.EXPIRED:
        text = "Your last conversation was idle for a long time, so this is a new one. "
        text, key = text + f"To go back, send `/resume {last.short_key}`.", f"expired:{last.id}:{last.version}"
        outbox.enqueue(db, Reply(chat_id=chat_id, markdown=text, dedupe_key=key), now)


async def tell_background_end(
    store: Store, clock: Clock, deliver: Callable[[ChatId], None], ended: BackgroundCommand
) -> None:
    """Tell a conversation that a background command has ended. The model sees the notice in its next call."""
    if await store.write_with_retry(_write_background_end, ended, clock.now()):
        deliver(ended.context.chat_id)


@locks(chat="ended.context.chat_id")
def _write_background_end(db: Connection, ended: BackgroundCommand, now: Millis) -> bool:
    """Store the notice, without the command's untrusted output. Return False if the conversation has ended."""
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
        payload=InboxPayload(text=f"{sentence} Use poll to read its output."),
        expects_more=False,
        sent_at=now,
    )
    inbox.insert(db, notice, now)
    command = shortened(ended.command).replace("`", "'")
    markdown = f"{sentence} Command: `{command}`."
    reply = Reply(chat_id=context.chat_id, kind=OutboxKind.STATUS, markdown=markdown, dedupe_key=key)
    outbox.enqueue(db, reply, now)
    return True
