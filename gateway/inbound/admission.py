"""Storage of events: deduplicate and store an event, with its acknowledgement and the channel's cursor.

While the database is locked or its disk is full, `/stop` and `/status` run without the database, and chats get a notice
that their messages are waiting. A command does not run again when its event is stored later. See
docs/decisions/0008-commands-while-nothing-can-be-stored.md.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from gateway.access.permissions import AccessControl
from gateway.commands.registry import Command
from gateway.commands.runner import CommandRunner
from gateway.commands.turns import named_turn
from gateway.turns.lanes import INTERRUPTED, LaneRegistry
from gateway.turns.runner import STOPPED_NOTICE, ActiveTurn
from hermes_state import inbox, journal, outbox, talk, values
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import UNROUTED, RoutedAgent
from hermes_state.chats import find_chat, find_chats_at, meet_chat
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, InboxState, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.ratings import Sign, SignedMessage
from hermes_state.sessions import load_active
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import both_ends, shortened
from hermes_state.tools import schedules
from hermes_state.turns import RunningTurn, find_open_turn
from hermes_state.values import ChatId, ChatKey, Cursor, EditEvent, InboundMessage, InboxId, Millis, TurnId

BusyMode: TypeAlias = Literal["queue", "steer", "interrupt"]

QUESTION_IS_OPEN = (
    "I have your message. Before I continue, please answer my request above with /approve or /deny, or send /stop. "
    "If I asked the admins, only they can approve it."
)


class AcceptedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Authorised event, with the decision on how to process it."""

    message: InboundMessage
    key: ChatKey
    """Chat key of the session. With `sessions.groups: per_user`, the key includes the person."""
    kind: InboxKind
    mode: InboxMode
    text: str
    max_waiting: int | None
    """Maximum number of queued messages from this sender.

    None if the event is not queued, because then no limit applies.
    """
    cursor: Cursor | None
    steered_notice: str | None = None
    queued_notice: str | None = None
    """Acknowledgement that is stored in the same transaction if the event must wait."""
    busy_mode: BusyMode | None = None
    """Effect of the event on the chat's running turn, or None for no effect."""
    running_here: TurnId | None = None
    """Turn of this chat that runs on this node. Its lane stores the turn's end, with the newest text of the answer."""
    may_join_any: bool = False
    """True if the sender can join and end turns that other people started in this chat."""
    may_start: bool = False
    """True if the same transaction can start a turn in an idle chat, because no file must be fetched first."""
    is_talk: bool = False
    """True for a group message that does not address the bot. It is stored as talk and starts nothing."""
    has_access: bool = True
    """False if the sender of talk has no access."""
    shows_talk: bool = False
    """True if a turn that starts in the same transaction sees the talk before it."""
    routed: RoutedAgent = UNROUTED
    """Agent that the routes select for the message."""
    asked_at: float = msgspec.field(default_factory=time.monotonic)
    """Monotonic time in seconds when the attempt to store the event began."""

    @property
    def runs_at_once(self) -> bool:
        """True for a command that runs immediately, even during a turn."""
        return self.kind is InboxKind.COMMAND and self.max_waiting is None


def talk_event(message: InboundMessage, has_access: bool, notice: str | None) -> AcceptedEvent:
    """Return a group message that does not address the bot as an event that is stored and starts nothing."""
    files = (f"(file: {file.name})" for file in message.attachments if not file.is_quoted)
    answers = f"(in reply to {quote.author}: {shortened(quote.text, 100)})" if (quote := message.quote) else ""
    source = "" if message.words_by is None else f"(forwarded from {message.words_by or 'somebody'})"
    return AcceptedEvent(
        message=message,
        key=message.chat,
        kind=InboxKind.MESSAGE,
        mode=InboxMode.QUEUE,
        text="\n".join(filter(None, (answers, source, message.text, *files))),
        max_waiting=None,
        cursor=None,
        queued_notice=notice,
        is_talk=True,
        has_access=has_access,
    )


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    inbox_id: InboxId | None
    """Inbox row of the event, or None if it was already processed or the sender's queue is full."""
    has_reply: bool
    """True if the transaction stored a reply that must be delivered."""
    started: RunningTurn | None = None
    signed: SignedMessage | None = None
    """Reaction to a message that waits in a busy chat and gets no other acknowledgement."""
    interrupts: TurnId | None = None
    """Turn that this message interrupts. It can run on any node."""


@locks(chat="events.key events.cursor cursors")
def admit_all(
    db: Connection, events: Sequence[AcceptedEvent], cursors: Iterable[Cursor], now: Millis
) -> list[StoredEvent]:
    """Store events that arrived together, in order, and advance the cursors of their channels."""
    for cursor in cursors:
        inbox.advance_cursor(db, cursor)
    chats = Counter(event.key for event in events if not event.is_talk)
    # Messages that arrive together in a chat form a burst, which the lane turns into a single turn.
    return [admit(db, event if chats[event.key] == 1 else replace(event, may_start=False), now) for event in events]


@locks(chat="event.key event.cursor")
def admit(db: Connection, event: AcceptedEvent, now: Millis) -> StoredEvent:
    """Store an event once, with its acknowledgement or the turn that it starts, and advance its channel's cursor."""
    message = event.message
    inbox.advance_cursor(db, event.cursor)
    chat_id, unreachable_since = meet_chat(db, event.key, message.chat_kind, message.chat_title, now, message.scope)
    if event.is_talk:
        return _admit_talk(db, event, chat_id, now)
    is_back = unreachable_since is not None and schedules.go_on(db, chat_id, now)
    stored = _admit(db, event, chat_id, now)
    return replace(stored, has_reply=True) if is_back else stored


def _admit_talk(db: Connection, event: AcceptedEvent, chat_id: ChatId, now: Millis) -> StoredEvent:
    """Store talk. If the chat was not told yet that its talk is stored, tell it."""
    talk.keep(db, chat_id, event.message, event.text, has_access=event.has_access)
    tells = event.queued_notice is not None and talk.must_tell(db, chat_id, now)
    if tells and event.queued_notice is not None:
        key = f"hears:{chat_id}:{now}"
        outbox.enqueue(db, Reply(chat_id=chat_id, markdown=event.queued_notice, dedupe_key=key), now)
    return StoredEvent(chat_id=chat_id, inbox_id=None, has_reply=tells)


def _admit(db: Connection, event: AcceptedEvent, chat_id: ChatId, now: Millis) -> StoredEvent:
    message = _without_known(db, chat_id, event.message)
    payload = InboxPayload(
        text=event.text,
        attachments=message.attachments,
        quote=message.quote,
        words_by=message.words_by,
        via=message.via,
        ticket=message.ticket,
    )
    row = _row(message, chat_id, payload, kind=event.kind, mode=event.mode, expects_more=message.expects_more)
    may_start = event.may_start and event.kind is InboxKind.MESSAGE
    at_once = journal.start_at_once(db, row, now, event.routed, shows_talk=event.shows_talk) if may_start else None
    if at_once is not None:
        return StoredEvent(chat_id=chat_id, inbox_id=at_once[0], has_reply=False, started=at_once[1])
    arrived = inbox.insert_waiting(db, row, now)
    if arrived is None:
        # The first attempt may have been cancelled right after its commit, so the stored row may still need processing.
        waiting_id = inbox.find_new(db, message.chat.platform, message.chat.account, message.event_ref)
        return StoredEvent(chat_id=chat_id, inbox_id=waiting_id, has_reply=False)
    inbox_id, earlier, is_busy = arrived
    limit = event.max_waiting
    if limit is not None and earlier >= limit:
        if message.via is values.InputKind.CLIENT:  # the program is told, and can send the message again
            inbox.remove(db, inbox_id)
            return StoredEvent(chat_id=chat_id, inbox_id=None, has_reply=False)
        inbox.settle(db, inbox_id, InboxState.DROPPED, now)
        return StoredEvent(chat_id=chat_id, inbox_id=None, has_reply=_refuse_full(db, event, chat_id, limit, now))
    turn = find_open_turn(db, chat_id) if is_busy and event.busy_mode is not None else None
    mode = _meet_turn(db, event, turn, inbox_id, now) if turn is not None else None
    is_steer = mode == "steer"
    is_typed, seen = message.via is values.InputKind.TYPED, Sign.SEEN
    signed = SignedMessage(ref=message.message_ref, sign=seen) if is_typed else None
    notice = event.steered_notice if is_steer else event.queued_notice
    has_notice = notice is not None and (is_steer or inbox.is_behind_work(db, inbox_id))
    if notice is not None and has_notice:
        reply = _reply(event, chat_id, f"inbox:{inbox_id}:ack", notice)
        outbox.enqueue(db, replace(reply, signed=None if is_steer else signed), now)
    if notice is not None or turn is None or mode == "interrupt":
        signed = None
    interrupts = turn.id if turn is not None and mode == "interrupt" else None
    has_reply = has_notice or interrupts is not None or (turn is not None and turn.is_waiting)
    return StoredEvent(chat_id=chat_id, inbox_id=inbox_id, has_reply=has_reply, signed=signed, interrupts=interrupts)


def is_busy(db: Connection, key: ChatKey) -> bool:
    """Return True if the chat has an open turn on any node."""
    chat = find_chat(db, key)
    return chat is not None and find_open_turn(db, chat.id) is not None


def _meet_turn(
    db: Connection, event: AcceptedEvent, turn: RunningTurn, inbox_id: InboxId, now: Millis
) -> BusyMode | None:
    """Let a message join or end the chat's open turn. If the turn is waiting for an approval, remind the chat once.

    In a shared chat, only admins and the user who started the turn can join or end it. Returns the busy mode that
    applies to the message.
    """
    may_join = event.may_join_any or turn.started_by == event.message.sender.ref
    mode = event.busy_mode if may_join else "queue"
    if mode == "interrupt":
        if turn.id != event.running_here:
            journal.stop_turn(db, turn, None, INTERRUPTED, now, notice=STOPPED_NOTICE)
        return mode
    if mode == "steer":
        inbox.let_join(db, inbox_id)
    if turn.is_waiting and event.steered_notice is None:
        outbox.enqueue(db, _reply(event, turn.chat_id, f"turn:{turn.id}:question", QUESTION_IS_OPEN), now)
    return mode


def _without_known(db: Connection, chat_id: ChatId, message: InboundMessage) -> InboundMessage:
    """If the quoted message is stored, shorten the quote to its beginning and end, or to the names of its files."""
    quote = message.quote
    if quote is None or not inbox.is_known(db, chat_id, quote.message_ref):
        return message
    files = tuple(file for file in message.attachments if not file.is_quoted)
    text = both_ends(quote.text or ", ".join(file.name for file in message.attachments if file.is_quoted), 500)
    return replace(message, attachments=files, quote=msgspec.structs.replace(quote, text=text))


def _row(
    event: InboundMessage | EditEvent,
    chat_id: ChatId,
    payload: InboxPayload,
    *,
    kind: InboxKind,
    mode: InboxMode = InboxMode.QUEUE,
    expects_more: bool = False,
) -> NewInboxRow:
    return NewInboxRow(
        platform=event.chat.platform,
        account=event.chat.account,
        event_ref=event.event_ref,
        chat_id=chat_id,
        kind=kind,
        mode=mode,
        sender_ref=event.sender.ref,
        sender_name=event.sender.name,
        message_ref=event.message_ref,
        payload=payload,
        expects_more=expects_more,
        sent_at=event.sent_at,
    )


def _refuse_full(db: Connection, event: AcceptedEvent, chat_id: ChatId, limit: int, now: Millis) -> bool:
    """Reply that the queue is full, at most once until the sender's oldest message is done.

    Return True if the reply was stored.
    """
    sender = event.message.sender.ref
    oldest = min(row.id for row in inbox.load_waiting(db, chat_id) if row.sender_ref == sender)
    sentence = (
        f"You already have {limit} messages in the queue, so I ignored this one. "
        "Please send it again later, or clear the queue with /stop all."
    )
    reply = replace(_reply(event, chat_id, f"full:{chat_id}:{sender}:{oldest}", sentence), kind=OutboxKind.ERROR)
    # Every slash command needs its own reply, because Discord shows an unanswered command as hanging.
    if event.message.ticket is not None:
        reply = replace(reply, ticket=event.message.ticket, dedupe_key=f"full:{event.message.event_ref}")
    return outbox.enqueue(db, reply, now) is not None


def _reply(event: AcceptedEvent, chat_id: ChatId, dedupe_key: str, markdown: str) -> Reply:
    reply_to = event.message.message_ref if event.message.chat_kind.is_shared else None
    return Reply(chat_id=chat_id, markdown=markdown, dedupe_key=dedupe_key, reply_to=reply_to)


@locks(chat="key cursor")
def apply_edit(db: Connection, edit: EditEvent, key: ChatKey, cursor: Cursor | None, now: Millis) -> ChatId | None:
    """Apply an edit to the queued message, or store a notice for the next turn. Return None if the edit has no effect.

    The notice is stored only if the model has seen the message in the current conversation. It never starts a turn.
    """
    inbox.advance_cursor(db, cursor)
    chat = find_chat(db, key)
    edited = inbox.find_edited(db, chat.id, edit.message_ref) if chat is not None else None
    if chat is None or edited is None or edited.sender_ref != edit.sender.ref or edited.text == edit.text:
        return None
    if edited.kind is not InboxKind.MESSAGE:
        return None
    text = inbox.EDIT_PREFIX + edit.text
    if edited.state is InboxState.NEW:
        inbox.replace_text(db, edited.inbox_id, edit.text, edit.words_by)
    elif edited.waiting_notice is not None:
        inbox.replace_text(db, edited.waiting_notice, text, edit.words_by)
    elif (active := load_active(db, chat.id)) is None or active.lineage_id != edited.lineage_id:
        return None
    else:
        payload = InboxPayload(text=text, words_by=edit.words_by)
        inbox.insert(db, _row(edit, chat.id, payload, kind=InboxKind.NOTICE), now)
        signed = SignedMessage(ref=edit.message_ref, sign=Sign.EDITED)
        once = f"inbox:{edited.inbox_id}:edited"
        outbox.enqueue(db, Reply(chat_id=chat.id, markdown="", dedupe_key=once, signed=signed), now)
    return chat.id


@locks(chat="deletion.chat cursor")
def apply_deletion(db: Connection, deletion: values.DeletionEvent, cursor: Cursor | None, now: Millis) -> int:
    """Withdraw a deleted message that is queued or waits as talk. Return the number of withdrawn queued messages."""
    inbox.advance_cursor(db, cursor)
    chats = find_chats_at(db, deletion.chat)
    for chat in chats:
        talk.remove(db, chat.id, deletion.message_ref)
    return sum(inbox.withdraw(db, chat.id, deletion.message_ref, now) for chat in chats)


def dated(event: values.InboundEvent | None, now: Millis) -> values.InboundEvent | None:
    """Replace an event time before 1970 or over a day ahead with the current time, because people will see it."""
    return event if event is None or 0 <= event.sent_at <= now + 86_400_000 else replace(event, sent_at=now)


log = structlog.get_logger()

# ---- while nothing can be stored

NOT_TAKEN = (
    "I cannot save anything right now, so I have not run this command yet. /stop still cancels a running answer, and "
    "/status shows details."
)
STOPPED = "I have stopped this answer. I cannot save anything right now, so I will confirm the stop as soon as I can."
WAITS: Final = (
    "I cannot save anything right now, because my database is locked or its disk is full. Your message is not lost: "
    "I will answer it as soon as I can."
)
GOES_ON: Final = "I can save messages again and continue with yours."


class OfflineResult(msgspec.Struct, frozen=True, kw_only=True):
    stopping: ActiveTurn | None = None
    answering: asyncio.Task[bool] | None = None
    """Task that sends the reply and returns True if the whole reply was sent."""

    def settle_stop(self) -> None:
        """If this command stopped a turn, let the turn's lane continue."""
        if self.stopping is not None:
            self.stopping.settle_stop()

    async def is_answered(self) -> bool:
        """Return True if the whole reply was sent. The stored command then does not need to run."""
        if self.answering is None:
            return False
        await asyncio.wait({self.answering})
        return not self.answering.cancelled() and self.answering.result()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class OfflineCommandRunner:
    """Runs `/stop` and `/status` without the database. Asks people who send other commands to wait."""

    access: AccessControl
    lanes: LaneRegistry
    commands: CommandRunner
    _results: dict[str, OfflineResult] = field(default_factory=dict, init=False)
    """Results of the newest 256 commands, by event reference."""

    def find(self, event_ref: str) -> OfflineResult | None:
        return self._results.get(event_ref)

    def run(self, message: InboundMessage, key: ChatKey, command: Command) -> OfflineResult:
        """Run a command once per event, as far as possible without the database."""
        if (known := self._results.get(message.event_ref)) is not None:
            return known
        log.warning("command.answered_offline", command=command.name, chat=key.name)
        if len(self._results) >= 256:
            del self._results[next(iter(self._results))]
        stopping = answering = None
        if command.unstored is not None:
            answering = self.commands.send_unstored(message, key, command.unstored)
        else:
            if command.name == "stop":
                is_admin = self.access.role_of(message.sender.ref) is UserRole.ADMIN
                named = named_turn(message.text.strip().partition(" ")[2])
                stopping = self.lanes.stop_from_memory(key, message.sender.ref, is_admin, named)
            text = NOT_TAKEN if stopping is None else STOPPED
            self.commands.send_unstored(message, key, lambda _context, _key: text)
        result = self._results[message.event_ref] = OfflineResult(stopping=stopping, answering=answering)
        return result


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class WaitNoticeSender:
    """Tells each chat once that its messages are waiting, and later that they are stored. Does not use the outbox."""

    commands: CommandRunner
    seconds: float = 5.0
    """Seconds to wait before a chat gets the notice. Most database locks end earlier."""
    _chats: dict[ChatKey, asyncio.TimerHandle | asyncio.Task[bool]] = field(default_factory=dict, init=False)
    """Timer that starts the notice, or the task that sends it and returns True on success."""

    def note_waiting(self, message: InboundMessage) -> None:
        """Start the timer for the notice that this message is waiting."""
        if message.chat not in self._chats and len(self._chats) < 1_000:
            timer = asyncio.get_running_loop().call_later(self.seconds, self._tell_waiting, message)
            self._chats[message.chat] = timer

    def note_stored(self, message: InboundMessage) -> None:
        """If the chat got a notice that its message is waiting, tell it that the message is now stored."""
        if (telling := self.forget(message.chat)) is not None:
            telling.add_done_callback(
                lambda told: None if told.cancelled() or not told.result() else self._send(message, GOES_ON)
            )

    def forget(self, key: ChatKey) -> asyncio.Task[bool] | None:
        """Cancel the timer of a chat. Return the task that sends or has sent the notice, or None."""
        waiting = self._chats.pop(key, None)
        if waiting is None or isinstance(waiting, asyncio.Task):
            return waiting
        waiting.cancel()
        return None

    def _tell_waiting(self, message: InboundMessage) -> None:
        log.warning("inbox.delayed", chat=message.chat.name, seconds=self.seconds)
        self._chats[message.chat] = self._send(message, WAITS)

    def _send(self, message: InboundMessage, text: str) -> asyncio.Task[bool]:
        # Each notice needs its own reference, because a second message with the same reference is dropped.
        named = replace(message, event_ref=f"{message.event_ref}:{text}")
        return self.commands.send_unstored(named, message.chat, lambda _context, _key: text)
