"""Intake: authorises and stores every event of every platform before it is acknowledged.

This is the only place that authorises messages, commands and buttons. The intake also decides how a message joins a
busy chat, and wakes the chat's lane.
"""

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

import structlog
from msgspec.structs import replace

from gateway.access.pairing import HINT_CLOSED, HINT_PAIRING, STILL_WAITING, offer_pairing, refuse
from gateway.access.permissions import MINUTE_MS, AccessControl, AccessResult, RateLimiter
from gateway.commands.groups import NOW_HEARS
from gateway.commands.registry import Command, CommandKind, CommandRegistry, ParsedCommand
from gateway.commands.runner import CommandRunner
from gateway.inbound.admission import (
    AcceptedEvent,
    OfflineCommandRunner,
    StoredEvent,
    WaitNoticeSender,
    admit,
    admit_all,
    apply_deletion,
    apply_edit,
    dated,
    is_busy,
    talk_event,
)
from gateway.models.selection import Runtime
from gateway.outbound.delivery import Delivery
from gateway.turns.lanes import LaneRegistry
from hermes_state import inbox, talk, values
from hermes_state.admin import pairings
from hermes_state.admin.pairings import UserRole
from hermes_state.chats import find_chat, move_chat
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.inbox import InboxKind, InboxMode, InboxState
from hermes_state.store.writer import Store
from hermes_state.tools import schedules
from hermes_state.values import ChatKey, ChatKind, Cursor, InboundEvent, InboundMessage, Millis
from platforms.base import ReceivedEvent
from platforms.console import Console

log = structlog.get_logger()

MAX_WAITING = 100
"""Maximum number of queued messages per sender and chat. Messages above this limit are refused."""

COMMANDS_PER_MINUTE = 30
"""Maximum number of immediate commands per person and minute. The database and flood control can handle this rate."""

TOO_FAST = (
    f"You are sending commands too fast (limit: {COMMANDS_PER_MINUTE} per minute), so I ignored this one. Please wait "
    "a moment. /stop still cancels a running answer."
)
TOO_MANY = (
    "You are sending messages too fast (limit: {limit} per minute). I ignored this one and will ignore any others for "
    "{seconds} seconds. Please send them again after that."
)

NO_ACCESS = "You do not have access to this bot. Please ask the person who runs it."
AFTER_THIS_ANSWER = "Queued until the current answer is finished. /stop ends that answer now."
STEERED = "Noted. I will use this in the answer I am working on."


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class GatewayIntake:
    """Intake for all adapters. Implements `platforms.base.Intake`."""

    store: Store
    runtime: Runtime
    access: AccessControl
    registry: CommandRegistry
    lanes: LaneRegistry
    commands: CommandRunner
    delivery: Delivery
    console: Console
    clock: values.Clock
    _command_limiter: RateLimiter = field(default_factory=RateLimiter, init=False)
    _message_limiter: RateLimiter = field(default_factory=RateLimiter, init=False)
    _stranger_limiter: RateLimiter = field(default_factory=partial(RateLimiter, 300_000), init=False)
    _hint_limiter: RateLimiter = field(default_factory=partial(RateLimiter, 86_400_000), init=False)
    _told: set[ChatKey] = field(default_factory=set, init=False)
    """Groups that were told, since the start, that their talk is stored."""
    _offline: OfflineCommandRunner = field(init=False)
    waiting: WaitNoticeSender = field(init=False)

    def __post_init__(self) -> None:
        self._offline = OfflineCommandRunner(access=self.access, lanes=self.lanes, commands=self.commands)
        self.waiting = WaitNoticeSender(commands=self.commands)

    async def accept(self, event: InboundEvent, cursor: Cursor | None = None) -> None:
        await self.accept_batch([ReceivedEvent(event, cursor)])

    async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        count = min(len(received), 100)  # this is a usual batch size of platforms, and small enough for one transaction
        while count:
            try:
                return await self._accept_batch(received[:count])
            except StoreUnavailable:
                raise
            except Exception:  # smaller batches narrow down the event that cannot be stored
                if count == 1:
                    raise
                count //= 2
        return 0

    async def overhear(self, event: InboundEvent) -> None:
        if not isinstance(event, InboundMessage) or self.access.assess(event) is not AccessResult.ADMITTED:
            return
        _, command = self.registry.resolve(event.text, event.is_literal)
        if command is None:
            if not event.is_bare_command:
                self.waiting.note_waiting(event)
            return
        key = self._key_of(event)
        if command.name == "stop":
            if self.lanes.running_in(key) is None:
                return  # the message to be stopped may not be stored yet, and the adapter reports `/stop` again
        elif self._command_limiter.full_since(event, COMMANDS_PER_MINUTE) is not None:
            return
        self._offline.run(event, key, command)

    def refusal(self, event: InboundMessage) -> str | None:
        parsed, command = self.registry.resolve(event.text, event.is_literal)
        if self.access.role_of(event.sender.ref) is None:
            has_pairing = self.runtime.config.pairing.enabled and not event.chat_kind.is_shared
            if has_pairing and self._stranger_limiter.full_since(event, 3) is None:
                return None  # the pairing code is sent later
            self.access.judge(event)
            return STILL_WAITING if has_pairing else NO_ACCESS
        if command is None or parsed is None or command.name == "stop":
            return None  # a turn to stop may run on another node, so `/stop` must be stored first
        if self._command_limiter.full_since(event, COMMANDS_PER_MINUTE) is not None:
            return TOO_FAST
        return command.refusal(parsed.argument, self.access, event.sender.ref, self._key_of(event), event.chat_kind)

    def suggestions(self, event: InboundMessage) -> Sequence[str]:
        parsed, command = self.registry.resolve(event.text, event.is_literal)
        if command is None or parsed is None or self.access.role_of(event.sender.ref) is None:
            return ()
        key = self._key_of(event)
        is_refused = command.refusal(parsed.argument, self.access, event.sender.ref, key, event.chat_kind) is not None
        return () if is_refused else command.suggest(self.runtime)

    async def next_admins(self, platform: str, known: frozenset[str] | None) -> frozenset[str]:
        return await self.access.next_admins(platform, known)

    async def load_cursors(self, platform: str, account: str) -> Mapping[str, str]:
        return await self.store.read(inbox.load_cursors, platform, account)

    async def move_chat(self, platform: str, account: str, old_ref: str, new_ref: str) -> None:
        moved = await self.store.write(move_chat, platform, account, old_ref, new_ref, self.clock.now())
        await self.access.load()  # the keys of the groups that have the group context changed
        log.info("chat.moved", platform=platform, old_ref=old_ref, new_ref=new_ref)
        for chat_id in moved:
            self.lanes.wake(chat_id)
            self.delivery.wake(chat_id)

    async def note_reach(self, platform: str, account: str, chat_ref: str, is_reachable: bool) -> None:
        place = platform, account, chat_ref, self.clock.now()
        told = await self.store.write(schedules.note_reach_of, *place, is_reachable=is_reachable)
        log.info("chat.reachable" if is_reachable else "chat.unreachable", platform=platform, chat_ref=chat_ref)
        self.lanes.turns.on_question()  # the set of admins who can approve requests may have changed
        for chat_id in told:
            self.lanes.wake(chat_id)
            self.delivery.wake(chat_id)

    # Batches

    async def _accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        now = self.clock.now()
        admissions: list[AcceptedEvent] = []
        hints: list[InboundMessage] = []
        together = [*takewhile(lambda one: self._joins_batch(admissions, hints, dated(one.event, now)), received)]
        if not together:
            cursor = received[0].cursor
            match dated(received[0].event, now):
                case InboundMessage() as message:
                    await self._accept_message(message, cursor)
                case values.EditEvent() as edit:
                    await self._accept_edit(edit, cursor)
                case values.ReactionEvent() as reaction:
                    await self.delivery.reactions.accept(reaction, cursor)
                case values.DeletionEvent() as deletion:
                    if await self.store.write(apply_deletion, deletion, cursor, now):
                        log.info("inbox.withdrawn", chat=deletion.chat.name)
            return 1
        for message in hints:  # before the cursors move, so that a crash loses no hint
            await self._hint(message, now)
        newest = {one.cursor.channel_ref: one.cursor for one in together if one.cursor is not None}
        if admissions or newest:
            stored = await self._store_messages(admissions, newest.values())
            for admission, admitted in zip(admissions, stored, strict=True):
                self._set_going(admission, admitted)
        return len(together)

    def _joins_batch(self, batch: list[AcceptedEvent], hints: list[InboundMessage], event: InboundEvent | None) -> bool:
        """Add an event to a batch. Return False if the event must be accepted on its own, such as a command."""
        if not isinstance(event, InboundMessage):
            return event is None
        parsed, command = self.registry.resolve(event.text, event.is_literal)
        if event.is_bare_command and command is None:
            event = replace(event, is_addressed=False)  # the command is meant for another bot in the group
        result = self.access.assess(event)
        is_ignored = result in (AccessResult.BOT, AccessResult.UNADDRESSED)
        if is_ignored or (result is AccessResult.DENIED and event.ticket is None):
            if result is not AccessResult.BOT and self.access.hears(event.chat):
                notice = None if event.chat in self._told else NOW_HEARS
                batch.append(talk_event(event, self.access.has_access(event.sender.ref), notice))
            if result is AccessResult.DENIED and self._owes_hint(event):
                hints.append(event)
            self.access.judge(event)
            return True
        key, sessions = self._key_of(event), self.runtime.config.sessions
        # Except in busy mode `queue`, an earlier message of the batch can start a turn that this message joins or ends.
        is_apart = sessions.busy_mode == "queue" or all(one.is_talk or one.key != key for one in batch)
        is_plain = parsed is None and result is AccessResult.ADMITTED and is_apart
        if not is_plain or self._message_limiter.full_since(event, sessions.messages_per_minute) is not None:
            return False
        batch.append(self._admission(event, key, None, None, None, ahead=sum(not one.is_talk for one in batch)))
        self.access.judge(event)
        return True

    # Messages

    async def _accept_message(self, message: InboundMessage, cursor: Cursor | None) -> None:
        parsed, command = self.registry.resolve(message.text, message.is_literal)
        result = self.access.judge(message)
        if result is not AccessResult.ADMITTED:
            await self._answer_denied(message, result, cursor)
            return
        key = self._key_of(message)
        admission = self._admission(message, key, parsed, command, cursor)
        is_stop = command is not None and command.name == "stop"
        if not (is_stop and admission.running_here is not None) and await self._is_refused(admission, is_stop):
            return
        if command is not None:
            admitted = await self._store_command(admission, command)
        else:
            [admitted] = await self._store_messages([admission], ())
        self._set_going(admission, admitted)

    def _set_going(self, admission: AcceptedEvent, admitted: StoredEvent) -> None:
        """Start the processing of a stored event: wake the chat's lane, run the command, or deliver a reply."""
        if admitted.has_reply:
            self.delivery.wake(admitted.chat_id)
        if admission.is_talk:
            self._told.add(admission.key)
            return
        if admitted.inbox_id is None:
            self.lanes.wake(admitted.chat_id)  # the first attempt to store it may have been cancelled before this
            return
        if admitted.signed is not None:
            self.delivery.reactions.show_soon(admitted.chat_id, admission.message.chat, admitted.signed)
        log.debug("inbox.accepted", chat=admission.key.name, inbox_id=admitted.inbox_id, kind=admission.kind.value)
        if admission.runs_at_once:
            self.commands.run_soon(admitted.inbox_id)
            return
        self.lanes.wake(admitted.chat_id, admitted.started, admission.asked_at, is_new=True)
        if admitted.interrupts is not None:
            self.lanes.interrupt(admitted.chat_id, admitted.interrupts)

    async def _is_refused(self, admission: AcceptedEvent, is_stop: bool) -> bool:
        """Refuse a message above the rate limit and return True.

        Explain the refusal at most once per minute, but reply to every slash command.
        """
        message, who, now = admission.message, admission.message.sender.ref, self.clock.now()
        is_command, limit = admission.runs_at_once, self.runtime.config.sessions.messages_per_minute
        limiter = self._command_limiter if is_command else self._message_limiter
        since = limiter.full_since(message, COMMANDS_PER_MINUTE if is_command else limit)
        if since is None or (is_stop and await self.store.read(is_busy, admission.key)):
            return False
        log.info("command.refused" if is_command else "message.refused", chat=admission.key.name, sender=who)
        if message.via is values.InputKind.CLIENT:  # the program is told, because its message is not stored
            return True
        once = since if message.ticket is None else message.event_ref
        reason = f"{'too-fast' if is_command else 'too-many'}:{admission.key.name}:{who}:{once}"
        seconds = math.ceil((since + MINUTE_MS - message.sent_at) / 1_000)
        text = TOO_FAST if is_command else TOO_MANY.format(limit=limit, seconds=seconds)
        chat_id = await self.store.write(refuse, message, admission.key, reason, text, admission.cursor, now)
        if chat_id is not None:
            self.delivery.wake(chat_id)
        return True

    def _admission(
        self,
        message: InboundMessage,
        key: ChatKey,
        parsed: ParsedCommand | None,
        command: Command | None,
        cursor: Cursor | None,
        *,
        ahead: int = 0,
    ) -> AcceptedEvent:
        """Decide how to process an event. `ahead` is the number of events stored before it in the same transaction."""
        sessions, running = self.runtime.config.sessions, self.lanes.running_in(key)
        is_from_chat = message.sender.platform == key.platform  # for others, the lane finds the agent in the database
        admission = AcceptedEvent(
            message=message,
            key=key,
            kind=InboxKind.MESSAGE,
            mode=InboxMode.QUEUE,
            text=message.text,
            max_waiting=MAX_WAITING,
            cursor=cursor,
            may_join_any=not message.chat_kind.is_shared or self.access.role_of(message.sender.ref) is UserRole.ADMIN,
            may_start=is_from_chat and self.lanes.has_room(ahead) and not (message.attachments or message.expects_more),
            running_here=running.id if running is not None else None,
            shows_talk=message.chat_kind.is_shared and self.access.hears(message.chat),
            routed=self.lanes.routed_agent(key, message.chat_kind, message.scope, message.sender.ref),
        )
        if message.via is values.InputKind.CLIENT:  # each request of a program gets its own answer
            return replace(admission, mode=InboxMode.ALONE)
        if parsed is None:
            waits = message.words_by is not None or (sessions.busy_mode == "steer" and message.attachments)
            mode = "queue" if waits else sessions.busy_mode  # a forwarded message never steers or ends a turn
            return replace(admission, busy_mode=mode)
        is_press = message.via in (values.InputKind.BUTTON, values.InputKind.PAGE)  # a button shows a page of the queue
        if command is not None and command.kind is CommandKind.MESSAGE and parsed.argument and not is_press:
            joins_running = command.name == "steer" and not message.attachments
            return replace(
                admission,
                mode=InboxMode.ALONE,
                text=parsed.argument,
                busy_mode="steer" if joins_running else None,
                steered_notice=STEERED,
                queued_notice=AFTER_THIS_ANSWER,
            )
        if command is not None and command.kind is CommandKind.CHANGE:
            refusal = command.refusal(parsed.argument, self.access, message.sender.ref, key, message.chat_kind)
            if refusal is None:  # a refusal is sent immediately
                return replace(admission, kind=InboxKind.COMMAND, queued_notice=AFTER_THIS_ANSWER)
        return replace(admission, kind=InboxKind.COMMAND, mode=InboxMode.ALONE, max_waiting=None)

    async def _store_messages(
        self, admissions: Sequence[AcceptedEvent], cursors: Collection[Cursor]
    ) -> Sequence[StoredEvent]:
        """Store messages in one commit.

        If the database cannot be written, tell their chats that the messages are waiting.
        """
        now = self.clock.now()
        asking = [admission.message for admission in admissions if not admission.is_talk]
        for message in asking:
            self.waiting.note_waiting(message)
        try:
            try:
                stored = await self.store.write(admit_all, admissions, cursors, now)
            except StoreBroken:  # perhaps only the transcript is damaged, so store the messages without a turn
                waiting = [replace(admission, may_start=False) for admission in admissions]
                stored = await self.store.write(admit_all, waiting, cursors, now)
        except StoreUnavailable:
            for admission in admissions:
                if admission.message.chat_kind is ChatKind.LOCAL:  # the web page keeps the text
                    self.waiting.forget(admission.message.chat)
            raise
        for message in asking:
            self.waiting.note_stored(message)
        return stored

    async def _store_command(self, admission: AcceptedEvent, command: Command) -> StoredEvent:
        """Store a command. If the database is slow or locked, first run the command without storing it."""
        message, now = admission.message, self.clock.now()
        offline = self._offline.find(message.event_ref)
        write = asyncio.ensure_future(self.store.write(admit, admission, now))
        try:
            await asyncio.wait({write}, timeout=0.7)  # every command is answered within a second
            if not write.done() or isinstance(write.exception(), StoreUnavailable):
                offline = self._offline.run(message, admission.key, command)
            admitted = await write
        except BaseException:
            write.cancel()
            if offline is not None:
                offline.settle_stop()  # the command is not stored, so it cannot settle the stop
            raise
        if admitted.inbox_id is None:
            if offline is not None:
                offline.settle_stop()
        elif offline is not None and offline.stopping is not None:
            self.lanes.stopped_for[admitted.inbox_id] = offline.stopping.turn.id
        elif offline is not None and await offline.is_answered():
            await self.store.write(inbox.settle, admitted.inbox_id, InboxState.DONE, self.clock.now())
            return replace(admitted, inbox_id=None)
        return admitted

    def _key_of(self, event: InboundMessage) -> ChatKey:
        is_per_user = event.chat_kind.is_shared and self.runtime.config.sessions.groups == "per_user"
        names_group = event.sender.platform == event.chat.platform  # the console names the exact chat
        return replace(event.chat, user_ref=event.sender.id) if is_per_user and names_group else event.chat

    # Strangers and edits

    async def _answer_denied(self, message: InboundMessage, result: AccessResult, cursor: Cursor | None) -> None:
        now = self.clock.now()
        if result is AccessResult.STRANGER and self.runtime.config.pairing.enabled:
            given = message, pairings.new_code(), cursor, now
            chat_id = await self.store.write(offer_pairing, *given, hooks=self.lanes.turns.hooks)
        else:
            # Reply once a day, but to every slash command, because Discord shows an unanswered command as hanging.
            which = message.event_ref if message.ticket is not None else f"{message.sender.ref}:{now // 86_400_000}"
            reason = f"no-access:{message.chat.account}:{which}"
            chat_id = await self.store.write(refuse, message, message.chat, reason, NO_ACCESS, cursor, now)
        log.info("access.denied", platform=message.chat.platform, sender=message.sender.ref)
        if chat_id is not None:
            self.delivery.wake(chat_id)

    def _owes_hint(self, message: InboundMessage) -> bool:
        """Return True if a stranger in a group must be told in private how to get access: once a day."""
        if message.direct_ref is None or message.is_bare_command:
            return False
        full_since, everybody = self._hint_limiter.full_since, replace(message, sender=replace(message.sender, id="*"))
        # A crowd of strangers must not fill the database.
        return full_since(message, 1) is None and full_since(everybody, 100) is None

    async def _hint(self, message: InboundMessage, now: Millis) -> None:
        assert message.direct_ref is not None
        key = replace(message.chat, chat_ref=message.direct_ref, thread_ref="")
        private = replace(message, chat=key, chat_kind=ChatKind.DIRECT, chat_title=None)
        once = f"hint:{message.sender.ref}:{now // 86_400_000}"
        text = HINT_PAIRING if self.runtime.config.pairing.enabled else HINT_CLOSED
        chat_id = await self.store.write(refuse, private, key, once, text, None, now)
        if chat_id is not None:
            self.delivery.wake(chat_id)

    async def _accept_edit(self, edit: values.EditEvent, cursor: Cursor | None) -> None:
        if self.access.hears(edit.chat) and await self.store.write(talk.apply_edit, edit, cursor):
            return
        if self.access.role_of(edit.sender.ref) is None:
            if cursor is not None:
                await self.store.write(inbox.advance_cursor, cursor)
            return
        per_user = replace(edit.chat, user_ref=edit.sender.id)
        key = per_user if await self.store.read(find_chat, per_user) is not None else edit.chat
        parsed, command = self.registry.resolve(edit.text, edit.is_literal)
        is_message = command is not None and command.kind is CommandKind.MESSAGE
        if parsed is not None and is_message and parsed.argument:
            edit = replace(edit, text=parsed.argument)  # for `/queue <message>`, only the message was stored
        chat_id = await self.store.write(apply_edit, edit, key, cursor, self.clock.now())
        if chat_id is not None:
            log.info("inbox.edited", chat=key.name)
            self.lanes.wake(chat_id)
            self.delivery.wake(chat_id)
