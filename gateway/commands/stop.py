"""`/stop`: ends the running turn, what a command is busy with, the delivery of answers, and on request what waits."""

from functools import partial

from gateway.commands import compression
from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, parse, reply_to
from gateway.turns.runner import STOPPED_NOTICE, ActiveTurn
from hermes_state import inbox, journal, outbox
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.turns import RunningTurn, find_open_turn, find_turn, was_stopped
from hermes_state.values import InboxId, Millis, UserRef

STOPPED = "stopped by the person"


async def stop(request: CommandRequest) -> CommandResult:
    """Cancel a turn at once, where this node works on it; then one transaction stores the stop, for all, and answers.

    A command is cancelled behind that transaction: before it the chat would go on with what waits, which would be
    stopped in the command's place.
    """
    lanes, store, chat_id = request.context.lanes, request.context.store, request.chat.id
    argument = request.argument.lower()
    if argument not in ("", "all"):
        raise CommandError("Say /stop to end the running turn, or /stop all to drop what waits as well.")
    running = lanes.running_turn(chat_id)
    stopping = None
    if running is not None and _is_meant(request, running):
        _check_may_stop(request, running.started_by, "started", "turn")
        stopping = lanes.begin_stop(chat_id, STOPPED)

    async def settle() -> None:
        lanes.stopped_for.pop(request.row.id, None)
        lanes.turns.on_question()
        if stopping is not None:
            stopping.settle_stop()
            return
        # The turn may have begun between our look and our transaction: its work must not go on for nothing.
        begun = lanes.running_turn(chat_id)
        if begun is not None and await store.read(find_turn, begun.id) is None:
            late = lanes.begin_stop(chat_id, STOPPED)
            if late is not None:
                late.settle_stop()
        lanes.wake(chat_id)  # a turn that waited had no lane to go on with what waits behind it

    return CommandResult(apply=partial(_stop, request, stopping, argument == "all"), after=settle)


def _check_may_stop(request: CommandRequest, started_by: UserRef | None, did: str, what: str) -> None:
    """Raises `CommandError` in a shared chat, unless the sender started the work or is an admin."""
    if not request.is_in_charge and started_by != request.row.sender_ref:
        raise CommandError(f"Only whoever {did} this {what}, or an admin, can stop it.")


def _stop(
    request: CommandRequest, stopping: ActiveTurn | None, is_all: bool, db: Connection, now: Millis
) -> CommandReply:
    chat_id, sender = request.chat.id, None if request.is_in_charge else request.row.sender_ref
    # Before the turn ends: its partial answer is new, and kept.
    has_stopped_delivery = outbox.stop_delivery(db, chat_id, sender, request.row.id, now)
    turn, command = find_open_turn(db, chat_id), None
    if turn is not None and _is_meant(request, turn):
        _check_may_stop(request, turn.started_by, "started", "turn")
        partial_text = stopping.partial_text if stopping is not None and stopping.turn.id == turn.id else None
        has_stopped = journal.stop_turn(db, turn, partial_text, STOPPED, now, notice=STOPPED_NOTICE)
    else:
        earlier = request.context.lanes.stopped_for.get(request.row.id)  # its lane has stored the end already
        has_stored_end = earlier is not None and was_stopped(db, earlier)
        has_stopped = stopping is not None or has_stored_end
        if turn is None and not has_stopped:
            command = _drop_command(request, db, now)
            has_stopped = command is not None
    dropped = 0
    if is_all:
        dropped = inbox.drop_waiting(db, chat_id, sender, now)
    waiting = sum(row.kind is inbox.InboxKind.MESSAGE for row in inbox.load_waiting(db, chat_id))
    text = "Stopped." if has_stopped or has_stopped_delivery else "Nothing was running."
    if has_stopped_delivery:
        text += " What I had not sent yet of my answer is not sent any more; /history has it."
    if dropped:
        text += f" Dropped {counted(dropped, 'waiting message')}."
    elif waiting:
        text += f" {counted(waiting, 'message')} still waiting: /stop all drops what waits."
    end_task = partial(request.context.tasks.stop, command) if command is not None else None
    return CommandReply(markdown=text, is_urgent=True, on_commit=end_task)


def _drop_command(request: CommandRequest, db: Connection, now: Millis) -> InboxId | None:
    """Settle the `/compress` that comes first in the queue: it is what a node is busy with, or is about to be."""
    waiting = [row for row in inbox.load_waiting(db, request.chat.id) if not row.runs_at_once]
    first = next((row for row in waiting if row.kind is not inbox.InboxKind.NOTICE), None)
    if first is None or first.kind is not inbox.InboxKind.COMMAND or first.id > request.row.id:
        return None
    parsed = parse(first.payload.text)
    if parsed is None or parsed.name != "compress":
        return None
    _check_may_stop(request, first.sender_ref, "gave", "command")
    inbox.settle(db, first.id, inbox.InboxState.DROPPED, now)
    reply = CommandReply(markdown=compression.STOPPED)
    outbox.enqueue(db, reply_to(first, request.chat, reply, f"inbox:{first.id}"), now)
    return first.id


def _is_meant(request: CommandRequest, turn: RunningTurn) -> bool:
    """A `/stop` is not about what was asked after it, nor about a turn behind the one that it has ended from memory."""
    earlier = request.context.lanes.stopped_for.get(request.row.id)
    return turn.first_inbox_id < request.row.id and (earlier is None or turn.id <= earlier)
