"""Commands about the turns of a chat: /stop /steps /retry /undo, and /queue and /steer, which add text to a turn."""

import re
from functools import partial

from gateway.commands import compression
from gateway.commands.registry import (
    CommandReply,
    CommandRequest,
    CommandResult,
    page_buttons,
    parse,
    reply_to,
    say,
    transaction,
)
from gateway.turns.runner import STOPPED_NOTICE, ActiveTurn
from hermes_state import inbox, journal, outbox
from hermes_state.errors import CommandError
from hermes_state.outbox import OutboxKind
from hermes_state.sessions import load_active
from hermes_state.store.sql import Connection
from hermes_state.text import counted, plain, shortened
from hermes_state.transcripts import View, hide, load_view, split_exchanges, undoable_exchanges
from hermes_state.turns import RunningTurn, find_open_turn, find_turn, was_stopped
from hermes_state.values import ChatId, InboxId, Millis, Origin, TurnId, UserRef

STOPPED = "stopped with /stop"
QUEUED_PER_PAGE = 10

BEFORE_IS_COMPRESSED = "Earlier messages are compressed. To bring them back first, send `/compress undo`."


async def stop(request: CommandRequest) -> CommandResult:
    """Cancel the chat's turn immediately if this process runs it. A transaction then stores the stop for all nodes.

    A running command is cancelled only afterwards. Otherwise, the transaction might stop the next queued message.
    """
    lanes, store, chat_id = request.context.lanes, request.context.store, request.chat.id
    argument = request.argument.lower()
    if argument not in ("", "all") and named_turn(argument) is None:
        raise CommandError("Send /stop to stop the current answer, or /stop all to clear the queue as well.")
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
        # A turn may have started between the check and the transaction. If the transaction stopped it, end its work.
        begun = lanes.running_turn(chat_id)
        is_late = begun is not None and await store.read(find_turn, begun.id) is None
        if is_late and (late := lanes.begin_stop(chat_id, STOPPED)) is not None:
            late.settle_stop()
        lanes.wake(chat_id)  # a turn that waits for approval has no lane, so the queue needs a new lane

    return CommandResult(apply=partial(_stop, request, stopping, argument == "all"), after=settle)


def _check_may_stop(request: CommandRequest, started_by: UserRef | None, did: str, what: str) -> None:
    """Raise `CommandError` in a shared chat, unless the sender started the work or is an admin."""
    if not request.is_in_charge and started_by != request.row.sender_ref:
        raise CommandError(f"Only the person who {did} this {what}, or an admin, can stop it.")


def _stop(
    request: CommandRequest, stopping: ActiveTurn | None, is_all: bool, db: Connection, now: Millis
) -> CommandReply:
    chat_id, sender = request.chat.id, None if request.is_in_charge else request.row.sender_ref
    turn, command, named = find_open_turn(db, chat_id), None, named_turn(request.argument)
    if named is not None and stopping is None and (turn is None or turn.id != named):
        earlier = request.context.lanes.stopped_for.get(request.row.id)
        return CommandReply(markdown="Stopped." if earlier == named else "That answer has already ended.")
    # Do this before the turn ends. Afterwards, it would also stop the delivery of the turn's partial answer.
    unsent = outbox.stop_delivery(db, chat_id, sender, request.row.id, now) if named is None else set()
    if turn is not None and _is_meant(request, turn):
        _check_may_stop(request, turn.started_by, "started", "turn")
        partial_text = stopping.partial_text if stopping is not None and stopping.turn.id == turn.id else None
        has_stopped = journal.stop_turn(db, turn, partial_text, STOPPED, now, notice=STOPPED_NOTICE)
    else:
        earlier = request.context.lanes.stopped_for.get(request.row.id)  # stopped before this command was stored
        has_stopped = stopping is not None or (earlier is not None and was_stopped(db, earlier))
        if turn is None and not has_stopped:
            command = _drop_command(request, db, now)
            has_stopped = command is not None
    dropped = inbox.drop_waiting(db, chat_id, sender, now) if is_all else 0
    waiting = sum(row.kind is inbox.InboxKind.MESSAGE for row in inbox.load_waiting(db, chat_id))
    text = "Stopped." if has_stopped or unsent else "Nothing was running."
    if unsent == {OutboxKind.VOICE}:
        text += f" I will not send the voice message of {'the previous' if has_stopped else 'that'} answer."
    elif unsent:
        text += " I will not send the rest of that answer, but /history shows it."
    if dropped:
        text += f" Removed {counted(dropped, 'message')} from the queue."
    elif waiting:
        text += f" Still queued: {counted(waiting, 'message')}. /stop all clears the queue."
    end_task = partial(request.context.tasks.stop, command) if command is not None else None
    return CommandReply(markdown=text, is_urgent=True, on_commit=end_task)


def _drop_command(request: CommandRequest, db: Connection, now: Millis) -> InboxId | None:
    """Settle a running or waiting `/compress` at the front of the queue. Return its inbox id or None."""
    waiting = [row for row in inbox.load_waiting(db, request.chat.id) if not row.runs_at_once]
    first = next((row for row in waiting if row.kind is not inbox.InboxKind.NOTICE), None)
    if first is None or first.kind is not inbox.InboxKind.COMMAND or first.id > request.row.id:
        return None
    parsed = parse(first.payload.text)
    if parsed is None or parsed.name != "compress":
        return None
    _check_may_stop(request, first.sender_ref, "sent", "command")
    inbox.settle(db, first.id, inbox.InboxState.DROPPED, now)
    reply = CommandReply(markdown=compression.STOPPED)
    outbox.enqueue(db, reply_to(first, request.chat, reply, f"inbox:{first.id}"), now)
    return first.id


def _is_meant(request: CommandRequest, turn: RunningTurn) -> bool:
    """Return True if the turn's message arrived before this `/stop`. A late `/stop` must not stop a later turn."""
    earlier = request.context.lanes.stopped_for.get(request.row.id)
    is_named = named_turn(request.argument) in (None, turn.id)
    return is_named and turn.first_inbox_id < request.row.id and (earlier is None or turn.id <= earlier)


def named_turn(argument: str) -> TurnId | None:
    """Return the turn that a button names, such as `t12`. A button of an old message must not affect a later turn."""
    return TurnId(int(found[1])) if (found := re.fullmatch(r"t(\d{1,18})", argument)) is not None else None


@transaction
def retry(request: CommandRequest, db: Connection, now: Millis) -> RunningTurn:
    named = named_turn(request.argument)
    if named is not None and outbox.load_offer(db, request.chat.id, "retry") != f"turn:{named}":
        raise CommandError("That message was answered again or is no longer the newest. Send /retry for the newest.")
    view = _active_view(db, request.chat.id)
    exchanges = split_exchanges(view)
    if not exchanges:
        raise CommandError("There is no message to answer again.")
    answers = [message.id for message in exchanges[-1] if message.origin in (Origin.ASSISTANT, Origin.TOOL)]
    hide(db, view.session.id, answers, "retry", now)
    return journal.start_retry(db, request.row.id, request.chat.id, request.row.sender_ref, now)


@transaction
def undo(request: CommandRequest, db: Connection, now: Millis) -> str:
    count = request.number(1)
    if count is None:
        raise CommandError("Send `/undo`, or `/undo 3` to undo three exchanges.")
    view = _active_view(db, request.chat.id)
    exchanges = undoable_exchanges(view)
    is_compressed = any(message.origin is Origin.SUMMARY for message in view.transcript)
    if not exchanges:
        raise CommandError(BEFORE_IS_COMPRESSED if is_compressed else "There is nothing to undo.")
    taken = exchanges[-count:]
    hide(db, view.session.id, [message.id for exchange in taken for message in exchange], "undo", now)
    outbox.end_offer(db, request.chat.id, "retry", now)
    words = shortened(taken[0][0].text or "")
    text = f"Undid {counted(len(taken), 'exchange')}, starting with “{words}”. "
    text += "The model no longer sees this part, but /history still shows it."
    return f"{text} {BEFORE_IS_COMPRESSED}" if len(taken) < count and is_compressed else text


def _active_view(db: Connection, chat_id: ChatId) -> View:
    session = load_active(db, chat_id)
    if session is None or session.ended_at is not None:
        raise CommandError("There is no conversation yet.")
    return load_view(db, session.lineage_id)


async def queue(request: CommandRequest) -> CommandResult:
    """List the queued messages. `/queue` with text is stored as a message and never reaches this handler."""
    rows = await request.context.store.read(inbox.load_waiting, request.chat.id)
    waiting = [row for row in rows if row.kind is inbox.InboxKind.MESSAGE]
    page = min(request.number(1) or 1, max(1, -(-len(waiting) // QUEUED_PER_PAGE)))  # the queue may be shorter by now
    start = (page - 1) * QUEUED_PER_PAGE
    if not waiting:
        return say("The queue is empty. `/queue <message>` sends a message after the current answer.")
    lines = []
    for number, row in enumerate(waiting[start : start + QUEUED_PER_PAGE], start=start + 1):
        who = f"{plain(row.sender_name)}: " if request.chat.kind.is_shared else ""
        lines.append(f"{number}. {who}{shortened(row.payload.text) or '(a file)'}")
    buttons = page_buttons("/queue", page, len(waiting) > start + QUEUED_PER_PAGE)
    return say(f"Queued for the next turn ({len(waiting)}):\n" + "\n".join(lines), *buttons)


async def steer(_request: CommandRequest) -> CommandResult:
    raise CommandError("Send `/steer <message>` to add a message to the current answer.")
