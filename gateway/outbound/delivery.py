"""Delivery of outbox rows: in order within each chat, and retried with a backoff until the platform accepts them.

A row is rendered once, and every retry sends the same committed parts. The state `sending` is committed before the
request is sent, so that the attempt is known even after a crash.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import TypeAlias

import structlog
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from gateway.outbound.adapters import AdapterRegistry, GateRegistry, send_or_plain
from gateway.outbound.reactions import ReactionHandler
from hermes_state import outbox
from hermes_state.aio import Backoff, cancel_all, crash_logged, track, wait_until
from hermes_state.chats import load_chat, move_chat
from hermes_state.errors import (
    ChatMoved,
    ChatUnreachable,
    MessageRejected,
    PlatformError,
    PlatformUnavailable,
    RateLimited,
    SendAmbiguous,
    StateError,
)
from hermes_state.files.folder import AttachmentFolder
from hermes_state.outbox import AccountClaim, OutboxKind, OutboxRow, OutboxState, RenderedReply, WrittenReply
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, ChatKey, Clock, InboundMessage, Millis, OutboundPart, OutboxId, TurnId
from platforms.base import AdapterState, OutboundFile, PlatformAdapter, SendRequest, TextKind

log = structlog.get_logger()

RETRY_BACKOFF = Backoff(0.5, 30.0)
STORE_PAUSE_SECONDS = 2.0
LAST_REQUEST_SECONDS = 5.0
RENDERED_AT_ONCE = 500
"""Maximum length, in characters, of a reply that is rendered on the event loop. Rendering this much takes 10 ms."""
MAX_PARTS = 20
"""Maximum number of messages per reply. If a reply needs more, the last message contains the whole reply as a file."""
REST_LEFT_OUT = (
    "The rest is too long to send as messages, and I cannot attach a file here. It is saved, so I can send it to you "
    "in smaller pieces. The owner of this bot can read it with `hermes-gateway history`."
)
_Send: TypeAlias = Callable[[], Awaitable[float | None]]
"""Sends a row. Returns the seconds to wait before the next row, or None if the chat has no other unsent rows."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Delivery:
    """Runs a sender task for every chat with unsent rows."""

    store: Store
    adapters: AdapterRegistry
    gates: GateRegistry
    clock: Clock
    group: asyncio.TaskGroup
    files: AttachmentFolder
    reactions: ReactionHandler
    zone: Callable[[], tzinfo] = lambda: UTC
    close_remote: Callable[[ChatId], Awaitable[Mapping[TurnId, str]]] | None = None
    """Ends the previews of turns that other processes run in a chat. Returns their placeholder messages."""
    on_unreachable: Callable[[], None] = lambda: None
    record: Callable[[OutboxRow], None] = lambda _: None
    """Starts to record a voice message in the background, unless the recording has already started."""
    hook_chats: tuple[ChatId, ...] = ()
    """Chats of webhooks that got events since the start. Events of all chats go to them, so each wake includes them."""
    _wakes: dict[ChatId, asyncio.Event] = field(default_factory=dict, init=False)
    _due: dict[OutboxId, float] = field(default_factory=dict, init=False)
    """Time of the next attempt for each failed row, on the monotonic clock, because the system clock can be changed."""
    _left: set[OutboxId] = field(default_factory=set, init=False)
    """Rows whose request was sent and whose outcome is not stored yet."""
    _under_way: dict[OutboxId, asyncio.Event] = field(default_factory=dict, init=False)
    """Rows that a sender is sending now. The event of a row is set when the attempt has ended."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _unstored: set[asyncio.Task[bool]] = field(default_factory=set, init=False)
    _told_broken: set[ChatKey] = field(default_factory=set, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the last sender ends. Wait for it only while senders run."""
    _is_closed: bool = field(default=False, init=False)

    async def start(self, account: str) -> None:
        """Take ownership of an account and resume the deliveries to its chats.

        Raises `AccountMoved`, or `StoreUnavailable` if the unsent rows cannot be read. After an error, the account is
        not served.
        """
        one = self.adapters.supervised[account]
        ownership, count = await self.store.write_with_retry(outbox.take_account, account, self.adapters.is_certain)
        if count:
            log.warning("delivery.interrupted", account=account, count=count)
        one.ownership = ownership  # set before the read, so that rows stored during it wake senders
        try:
            owed = await self.store.read(outbox.load_chats_owed, account)
        except StateError:
            one.ownership = None
            raise
        for chat_id in owed:
            self.wake(chat_id)

    async def abandon(self) -> None:
        """Stop sending and leave the rows unchanged, because another process may now serve their accounts."""
        for one in self.adapters.supervised.values():
            one.ownership = None
        await cancel_all([*self._tasks, *self._unstored])
        self._left.clear()

    def wake(self, chat_id: ChatId) -> None:
        """Wake the sender of a chat with unsent rows. Only a process that serves accounts has senders."""
        for one in {chat_id, *self.hook_chats}:
            if (event := self._wakes.get(one)) is not None:
                event.set()
            elif not self._is_closed and (self.adapters.serves_any or not self.adapters.is_shared):
                self._open(one, None)

    def note_hook(self, chat_id: ChatId) -> None:
        """Note a chat of a webhook. The writer's thread calls this, so the tuple is replaced as a whole."""
        if chat_id not in self.hook_chats:
            self.hook_chats = (*self.hook_chats, chat_id)

    def _open(self, chat_id: ChatId, first: _Send | None) -> None:
        event = self._wakes[chat_id] = asyncio.Event()
        self._idle.clear()
        work = self._serve(chat_id, event, first)
        task = track(self._tasks, self.group.create_task(work, name=f"delivery-{chat_id}"))
        # If a task is cancelled before it begins, its clean-up code never runs, so clean up here.
        task.add_done_callback(lambda _: self._let_go(chat_id, event))

    def _let_go(self, chat_id: ChatId, event: asyncio.Event) -> None:
        if self._wakes.get(chat_id) is event:
            del self._wakes[chat_id]
            if not self._wakes.keys() - self.hook_chats:
                self._idle.set()

    async def store_and_send(
        self, turn: RunningTurn, markdown: str, store: Callable[[RenderedReply | None], Awaitable[OutboxRow | None]]
    ) -> None:
        """Store the reply to a turn with `store`, then deliver the reply.

        If the reply can be sent immediately, `store` receives the rendered parts. If `store` stores the row in state
        `sending`, it returns the row, and the chat's gate is held until the row is sent.
        """
        chat_id, chat, rendered = turn.chat_id, turn.chat, None
        adapter, gate, ownership = self.adapters.of(chat), self.gates.of(chat_id), self.adapters.ownership_of(chat)
        is_free = gate.is_free and chat_id not in self._wakes and not self.gates.flood_of(chat).penalty_seconds
        is_ready = adapter is not None and adapter.health().state is not AdapterState.STARTING
        async with AsyncExitStack() as held:
            is_short = len(markdown) <= RENDERED_AT_ONCE
            if adapter is not None and ownership is not None and is_free and is_ready and is_short:
                await held.enter_async_context(gate.passing())
                parts = await render_reply(adapter, WrittenReply(markdown=markdown), self.zone())
                rendered = RenderedReply(parts=parts, ownership=ownership)
            row = await store(rendered)
            if row is not None:
                await self.close_previews(chat_id)
            is_open = chat_id not in self._wakes and not self._is_closed
            if adapter is not None and ownership is not None and row is not None and is_open:
                self._open(chat_id, partial(self._send_held, chat, row, adapter, ownership, held.pop_all()))
                if self.hook_chats:
                    self.wake(self.hook_chats[0])
                return
        self.wake(chat_id)

    async def close_previews(self, chat_id: ChatId) -> Mapping[TurnId, str]:
        """End the previews of turns that other processes run in a chat. Return their placeholder messages.

        If one of these turns has finished, its unsent answer replaces the placeholder.
        """
        return {} if self.close_remote is None else await self.close_remote(chat_id)

    async def send_unstored(self, message: InboundMessage, chat: ChatKey, markdown: str) -> bool:
        """Answer a message that could not be stored, without retries. Return True if the whole answer was sent.

        The answer bypasses the chat's gate, because a task that holds the gate might be waiting for the database.
        """
        reply_to = message.message_ref if message.chat_kind.is_shared else None
        return await self._send_now(chat, markdown, message.event_ref, reply_to=reply_to, ticket=message.ticket)

    def tell_broken(self, chat: ChatKey) -> None:
        """Tell a chat once that its messages must wait until the database is repaired. Nothing is stored."""
        place = replace(chat, user_ref="")
        if place not in self._told_broken and not self._is_closed:
            self._told_broken.add(place)
            text = (
                "My database is damaged or missing, so I cannot continue here. New messages will be answered after "
                "the owner of this bot has repaired it."
            )
            work = self._send_now(place, text, f"broken:{place.name}:{self.clock.now()}")
            track(self._unstored, self.group.create_task(work, name=f"broken-{place.name}"))

    async def _send_now(
        self, chat: ChatKey, markdown: str, event_ref: str, *, reply_to: str | None = None, ticket: str | None = None
    ) -> bool:
        if (adapter := self.adapters.of(chat)) is None:
            return False
        digest = hashlib.sha256(event_ref.encode()).hexdigest()[:16]
        with crash_logged("delivery.crashed", chat=chat.name):  # a bug in an SDK must not end the daemon
            try:
                parts = await render_reply(adapter, WrittenReply(markdown=markdown), self.zone())
                for number, part in enumerate(parts):
                    request = SendRequest(
                        chat=chat,
                        part=part,
                        key=f"u{digest}.{number}",
                        reply_to=reply_to,
                        ticket=ticket,
                        text_kind=TextKind.NOTICE,
                    )
                    await send_or_plain(adapter, request, self.gates.flood_of(request.chat))
                return True
            except PlatformError as error:
                log.info("delivery.direct_failed", chat=chat.name, error=type(error).__name__)
        return False

    async def flush(self, seconds: float) -> None:
        """Send replies for at most `seconds`, then stop. Rows that are not sent by then are sent after the next start.

        A request that is in flight at that time gets `LAST_REQUEST_SECONDS` more. If it were cancelled, its outcome
        would be unknown.
        """
        if self._wakes.keys() - self.hook_chats and not await wait_until(self._idle, seconds):
            log.warning("delivery.flush_timed_out", chats=len(self._wakes))
        self._is_closed = True
        for event in self._wakes.values():
            event.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_REQUEST_SECONDS)
        await cancel_all([*self._tasks, *self._unstored])

    async def _serve(self, chat_id: ChatId, event: asyncio.Event, first: _Send | None) -> None:
        try:
            while not self._is_closed:
                event.clear()
                pause, first = await self._send_next(chat_id, first), None
                if pause is None and not event.is_set():
                    return
                if pause and not self._is_closed:
                    await wait_until(event, pause)
        finally:
            self._let_go(chat_id, event)

    async def _send_next(self, chat_id: ChatId, first: _Send | None) -> float | None:
        """Call `first` if it is given, otherwise send the next due row. Return the seconds to wait (see `_Send`)."""
        try:
            if first is not None:
                return await first()
            # The row is read while the gate is held, because a preview may just have stored its placeholder.
            async with self.gates.of(chat_id).passing():
                return await self._send_first(chat_id)
        except StateError as error:
            log.warning("delivery.delayed", error=str(error))
            return STORE_PAUSE_SECONDS
        except Exception:  # the rows are safe, and the error must not affect other chats
            log.exception("delivery.crashed", chat_id=chat_id)
            return 30.0

    async def _send_first(self, chat_id: ChatId) -> float | None:
        chat, row = await self.store.read_short(_load, chat_id, {*self.reactions.under_way})
        if row is not None and await self.close_previews(chat_id):  # it may have stored its placeholder
            chat, row = await self.store.read_short(_load, chat_id, {*self.reactions.under_way})
        if chat.platform == "webhook":
            self.note_hook(chat_id)
        if row is None:
            return None
        if (ended := self._under_way.get(row.id)) is not None:  # a sender of the chat's old id is sending this row
            await ended.wait()
            return 0.0
        adapter, ownership = self.adapters.of(chat), self.adapters.ownership_of(chat)
        if adapter is None or ownership is None:
            if adapter is None and not self.adapters.is_shared:
                log.warning("delivery.no_adapter", chat=chat.name)
            return None  # the process that serves the account was notified when the row was stored
        if row.kind is OutboxKind.VOICE and row.written is not None:
            self.record(row)
            return None
        if adapter.health().state is AdapterState.STARTING:
            return 0.2  # an attempt would fail, and the next attempt would count as a possible repeat
        if (pause := max(self._pause_before(row), self.gates.flood_of(chat).penalty_seconds)) > 0:
            return pause
        if self.reactions.replaces(chat, row, self.wake):
            return 0.0
        parts = None if row.written is None else await render_reply(adapter, row.written, self.zone())
        begun = await self.store.write(outbox.begin_send, row.id, parts, ownership, self.clock.now())
        self._due.pop(row.id, None)
        if begun is None:  # `/stop` cancelled the delivery in the meantime
            return 0.0
        # A row can be `sending` even if no request was sent, because its turn was cancelled before the request.
        is_repeat = begun.state is OutboxState.AMBIGUOUS or row.id in self._left
        return await self._request(chat, begun, adapter, ownership, is_repeat)

    async def _send_held(
        self, chat: ChatKey, row: OutboxRow, adapter: PlatformAdapter, ownership: AccountClaim, gate: AsyncExitStack
    ) -> float | None:
        """Send a row that is already in state `sending`, then release the chat's gate, which the caller holds."""
        async with gate:
            return await self._request(chat, row, adapter, ownership, is_repeat=False)

    def _pause_before(self, row: OutboxRow) -> float:
        """Return the seconds until a row is due. After a restart, the wait is at most the longest backoff."""
        if not row.attempts:
            return 0.0
        if row.id not in self._due:
            stored_seconds = (row.next_at - self.clock.now()) / 1000
            self._due[row.id] = time.monotonic() + min(stored_seconds, RETRY_BACKOFF.max_seconds)
        return self._due[row.id] - time.monotonic()

    async def _request(
        self, chat: ChatKey, row: OutboxRow, adapter: PlatformAdapter, ownership: AccountClaim, is_repeat: bool
    ) -> float | None:
        """Send a row in state `sending`, and store the outcome. Return the seconds to wait (see `_Send`)."""
        self._left.add(row.id)
        ended = self._under_way[row.id] = asyncio.Event()
        try:
            with bound_contextvars(account=chat.account, chat=chat.name, outbox_id=row.id):
                is_owed = await self._attempt(chat, row, adapter, ownership, is_repeat)
        finally:
            del self._under_way[row.id]
            ended.set()
        self._left.discard(row.id)
        return 0.0 if is_owed else None

    async def _attempt(
        self, chat: ChatKey, row: OutboxRow, adapter: PlatformAdapter, ownership: AccountClaim, is_repeat: bool
    ) -> bool:
        assert row.rendered is not None, "a row is rendered before it is sent"
        request = SendRequest(
            chat=chat,
            part=row.rendered,
            key=f"o{row.id}",
            replaces=row.replaces,
            only_edits=row.dedupe_key.endswith(outbox.ENDED),
            reply_to=row.reply_to,
            ticket=row.ticket,
            is_repeat=is_repeat,
            first_tried_at=row.first_tried_at or self.clock.now(),
            text_kind=_text_kind(row),
            file=file_of(row.rendered, self.files, is_voice=row.kind is OutboxKind.VOICE),
        )
        try:
            if not self.adapters.is_certain() or self.adapters.ownership_of(chat) != ownership:
                raise PlatformUnavailable("another node may serve the account by now")
            ref = await send_or_plain(adapter, request, self.gates.flood_of(request.chat))
        except (ChatUnreachable, MessageRejected) as error:
            log.warning("delivery.abandoned", error=type(error).__name__, detail=str(error))
            given_up = (row, str(error), ownership, self.clock.now())
            is_unreachable = isinstance(error, ChatUnreachable)
            if await self.store.write_with_retry(outbox.mark_dead, *given_up, is_unreachable=is_unreachable):
                self.on_unreachable()
                log.warning("chat.unreachable", hint="schedules of this chat wait until the bot can write to it again")
        except PlatformError as error:
            moved, name = list[ChatId](), type(error).__name__
            pause, is_ambiguous = RETRY_BACKOFF.after(row.attempts), is_repeat or isinstance(error, SendAmbiguous)
            if isinstance(error, RateLimited):
                pause = error.retry_after
                log.info("delivery.rate_limited", retry_after=pause)
            elif isinstance(error, ChatMoved):
                args = (chat.platform, chat.account, chat.chat_ref, error.new_chat_ref, self.clock.now())
                pause, moved = 0.0, await self.store.write_with_retry(move_chat, *args)
            else:
                log.info("delivery.failed", error=name, is_ambiguous=is_ambiguous, attempts=row.attempts)
            reason, next_at = f"{name}: {error}", Millis(self.clock.now() + int(1000 * pause))
            self._due[row.id] = time.monotonic() + pause
            await self.store.write_with_retry(outbox.mark_retry, row, is_ambiguous, reason, ownership, next_at)
            for chat_id in moved:
                self.wake(chat_id)
        else:
            return await self.store.write_with_retry(outbox.mark_sent, row.id, ref, self.clock.now())
        return True


def _load(db: Connection, chat_id: ChatId, skipped: set[OutboxId]) -> tuple[ChatKey, OutboxRow | None]:
    rows = outbox.load_open(db, chat_id, len(skipped) + 1)
    return load_chat(db, chat_id).key, next((row for row in rows if row.id not in skipped), None)


async def render_reply(adapter: PlatformAdapter, written: WrittenReply, zone: tzinfo) -> Sequence[OutboundPart]:
    """Render a reply into at least one part. The last part contains the footer. Times are shown in `zone`."""
    footer, edited_at = written.footer, written.edited_at
    if edited_at is not None:
        footer = f"{footer} at {datetime.fromtimestamp(edited_at / 1000, zone):%H:%M}."
    whole = replace(written, markdown="\n\n".join(filter(None, (written.markdown, footer))))
    parts = await _rendered(adapter, whole)
    if len(parts) == 1 or not footer:
        return parts
    last = await _rendered(adapter, replace(written, markdown=footer))
    if edited_at is not None:
        return last  # the other parts stay unchanged
    return [*await _rendered(adapter, replace(written, buttons=()), MAX_PARTS - 1), *last]


async def _rendered(adapter: PlatformAdapter, written: WrittenReply, most: int = MAX_PARTS) -> Sequence[OutboundPart]:
    """Render a reply into parts, at most `most` if files can be sent. The last part gets the buttons."""
    if (file := written.attached) is not None:
        lost = f"{written.markdown}\n(The file “{file.name}” could not be sent here.)".strip()
        return [OutboundPart(text=written.markdown, plain=lost, attached=file)]
    text = written.markdown
    try:
        # Rendering a long answer can take seconds, and other chats must not wait for it.
        is_long = len(text) > RENDERED_AT_ONCE
        parts = list(await asyncio.to_thread(adapter.render, text) if is_long else adapter.render(text))
    except Exception:  # a bug in the converter would fail every attempt and block all later replies
        log.exception("delivery.rendered_plain")
        size = adapter.capabilities.max_part_units // 2
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        parts = [OutboundPart(text=one, plain=one) for one in [piece for piece in pieces if piece.strip()] or ["…"]]
    if len(parts) > most and adapter.capabilities.has_files:
        rest_in_file = "This file contains the complete reply."
        parts[most - 1 :] = [OutboundPart(text=rest_in_file, plain=REST_LEFT_OUT, file=text)]
    if written.buttons and adapter.capabilities.has_buttons:
        parts[-1] = replace(parts[-1], buttons=written.buttons)
    return parts


def _text_kind(row: OutboxRow) -> TextKind:
    cause = row.dedupe_key.partition(":")[0]
    match row.kind:
        case OutboxKind.FINAL | OutboxKind.VOICE:
            return TextKind.ANSWER
        case OutboxKind.ERROR:
            return TextKind.FAILURE if cause == "turn" else TextKind.ERROR
        case OutboxKind.STATUS:
            return {"inbox": TextKind.REPLY, "approval": TextKind.QUESTION}.get(cause, TextKind.NOTICE)


def file_of(part: OutboundPart, files: AttachmentFolder, *, is_voice: bool = False) -> OutboundFile | None:
    """Return the file of a part, or None if it has no file."""
    if (kept := part.attached) is not None:
        return OutboundFile(
            name=kept.name,
            mime=kept.mime,
            size_bytes=kept.size_bytes,
            content=partial(files.read, kept.path),
            attachment_id=kept.attachment_id,
            is_voice=is_voice,
        )
    text = part.file.encode()
    return OutboundFile(name="reply.md", mime="text/markdown", size_bytes=len(text), content=text) if text else None
