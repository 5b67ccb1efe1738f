"""Command runner: stores a command's effect and reply and settles its inbox row in one transaction, exactly once."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from gateway.commands.registry import (
    Apply,
    CommandContext,
    CommandKind,
    CommandReply,
    CommandRequest,
    CommandResult,
    parse,
    reply_to,
    say,
)
from gateway.outbound.delivery import Delivery
from hermes_state import inbox, outbox
from hermes_state.agents import load_agent
from hermes_state.aio import Backoff, cancel_all, crash_logged, retried, track
from hermes_state.chats import Chat, load_chat
from hermes_state.errors import CommandError, StateError, StoreUnavailable
from hermes_state.inbox import InboxRow, InboxState
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, nested
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatKey, InboundMessage, InboxId, InputKind, Millis

log = structlog.get_logger()

LAST_SECONDS = 2.0
"""Maximum seconds for the `after` step of a cancelled command."""
CRASH_SENTENCE = "That command failed because of an internal error. The gateway's log has the details."


class CommandRunner:
    """Runs stored commands, either immediately or in the order of the queue."""

    def __init__(self, context: CommandContext, delivery: Delivery, group: asyncio.TaskGroup) -> None:
        self._context = context
        self._delivery = delivery
        self._group = group
        self._tasks: set[asyncio.Task[Any]] = set()  # Any: results have different types and are not read here
        self._in_hand: dict[InboxId, asyncio.Event] = {}

    async def start(self, account: str) -> None:
        """Run commands that the account's last owner left unfinished, before any turn resumes."""
        for inbox_id in await self._context.store.read(inbox.load_waiting_commands, account):
            row = await self._context.store.read(inbox.load, inbox_id)
            if row is None:
                continue
            _, command = self._context.registry.resolve(row.payload.text, is_literal=False)
            if command is None or command.kind is not CommandKind.CHANGE:
                await self.run_queued(row)

    def run_soon(self, inbox_id: InboxId) -> None:
        """Run a stored `control` or `read` command now, even during a turn of its chat."""
        track(self._tasks, self._group.create_task(self._run_stored(inbox_id), name=f"command-{inbox_id}"))

    def send_unstored(
        self, message: InboundMessage, key: ChatKey, text: Callable[[CommandContext, ChatKey], str]
    ) -> asyncio.Task[bool]:
        """Reply to a command that cannot be stored now. The returned task returns True if the whole reply was sent."""
        work = self._delivery.send_unstored(message, key, text(self._context, key))
        return track(self._tasks, self._group.create_task(work, name=f"unstored-{message.event_ref}"))

    def note_dropped(self, inbox_id: InboxId) -> None:
        """Cancel the work of a command whose inbox row another process has settled."""
        self._context.tasks.stop(inbox_id)

    async def close(self) -> None:
        """Cancel the commands that run outside the lanes. These commands run again after the next start."""
        await cancel_all(self._tasks)

    async def run_queued(self, row: InboxRow) -> RunningTurn | None:
        """Run a command. If the command opened a turn, return that turn, otherwise None."""
        if (elsewhere := self._in_hand.get(row.id)) is not None:
            await elsewhere.wait()  # side effects must not happen twice, so the caller must check the row again
            return None
        done = self._in_hand[row.id] = asyncio.Event()
        try:
            return await self._run(row)
        finally:
            del self._in_hand[row.id]
            done.set()

    async def _run(self, row: InboxRow) -> RunningTurn | None:
        chat = await self._context.store.read(load_chat, row.chat_id)
        agent, key = await self._context.store.read(load_agent, row.chat_id), chat.key
        named = {"agent": agent} if agent else {}
        with bound_contextvars(platform=key.platform, account=key.account, chat=key.name, inbox_id=row.id, **named):
            effect = say(CRASH_SENTENCE)
            try:
                try:
                    effect = await self._decide(row, chat, agent)
                    outcome = await self._store(row, chat, effect)
                except StoreUnavailable:  # the caller will try again
                    raise
                except Exception:  # the user gets a reply, and the chat continues
                    log.exception("command.crashed", command=_name_of(row))
                    outcome = await self._store(row, chat, say(CRASH_SENTENCE))
                self._delivery.wake(row.chat_id)
            finally:
                # A cancelled command does not wait long for an unavailable database.
                task = asyncio.current_task()
                seconds = LAST_SECONDS if task is not None and task.cancelling() else None
                if effect.after is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await effect.after()
            if isinstance(outcome, CommandReply):
                if outcome.other_chat is not None:
                    # After the effect, so that a new user who reads the reply already has access.
                    self._delivery.wake(outcome.other_chat)
                if outcome.on_commit is not None:
                    outcome.on_commit()
            log.info("command.done", command=_name_of(row))
        return outcome if isinstance(outcome, RunningTurn) else None

    async def _store(self, row: InboxRow, chat: Chat, effect: CommandResult) -> CommandReply | RunningTurn | None:
        given = (row, chat, effect.apply, self._context.clock.now(), effect.turns_page)
        return await self._context.store.write_with_retry(_carry_out, *given)

    async def _run_stored(self, inbox_id: InboxId) -> None:
        """Run a stored command outside the queue. In the queue, `/stop` would wait for the turn that it stops."""

        async def run() -> None:
            row = await self._context.store.read(inbox.load, inbox_id)
            if row is not None:
                await self.run_queued(row)

        with crash_logged("command.crashed", inbox_id=inbox_id):  # an error in a command must not end the daemon
            await retried(run, StateError, "command.delayed", backoff=Backoff(0.5), inbox_id=inbox_id)

    async def _decide(self, row: InboxRow, chat: Chat, agent: str) -> CommandResult:
        """Return the effect of the command. A refusal is an effect that only replies."""
        parsed, command = self._context.registry.resolve(row.payload.text, is_literal=False)
        assert parsed is not None, "a row of this kind contains a command line"
        role = await self._context.access.load_role(row.sender_ref)
        if role is None:
            return say("You no longer have access to this bot.")
        if command is None:
            return say(self._context.registry.unknown(parsed.name))
        place = (self._context.access, row.sender_ref, chat.key, chat.kind)
        if (refusal := command.refusal(parsed.argument, *place)) is not None:
            return say(refusal)
        context = replace(self._context, runtime=self._context.runtime.of(agent))
        request = CommandRequest(context=context, row=row, chat=chat, role=role, argument=parsed.argument)
        try:
            result = await command.handler(request)
            # In a `per_user` group, everybody sees the same buttons, but each person has separate lists.
            is_same_list = not chat.key.user_ref or row.payload.ticket is not None
            return replace(result, turns_page=row.payload.via is InputKind.PAGE and is_same_list)
        except CommandError as error:
            return say(str(error))
        except StoreUnavailable:
            return say("I cannot reach my database right now. Please try again in a moment.")


@locks(inbox="row.id", chat="row.chat_id", calls="apply")
def _carry_out(
    db: Connection, row: InboxRow, chat: Chat, apply: Apply, now: Millis, turns_page: bool
) -> CommandReply | RunningTurn | None:
    """Store the effect of a command, unless its inbox row is settled or already belongs to a turn."""
    stored = inbox.load(db, row.id)
    if stored is None or stored.state is not InboxState.NEW:
        return None
    try:
        with nested(db):
            result = apply(db, now)
    except CommandError as error:
        result, turns_page = str(error), False
    if isinstance(result, RunningTurn):
        return result
    reply = result if isinstance(result, CommandReply) else CommandReply(markdown=result)
    inbox.settle(db, row.id, InboxState.DONE, now)
    stored_reply = reply_to(row, chat, reply, f"inbox:{row.id}")
    if turns_page:
        stored_reply = replace(stored_reply, replaces=row.message_ref)
        outbox.forget_offer(db, chat.id, row.message_ref)
    if reply.offer is not None:
        outbox.offer(db, stored_reply, reply.offer, now)
    else:
        outbox.enqueue(db, stored_reply, now)
    return reply


def _name_of(row: InboxRow) -> str:
    parsed = parse(row.payload.text)
    return parsed.name if parsed else ""
