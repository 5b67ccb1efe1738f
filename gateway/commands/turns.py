"""Commands about the turn that runs and what waits behind it: /stop /status /queue /steer /retry /undo."""

from collections.abc import Iterator
from functools import partial
from sqlite3 import Connection

from agent.context.events import ConversationRef
from agent.engines.loader import BUILT_IN
from agent.model.caching import cache_state
from agent.model.protocols.offline import MODEL_SETUP_HINT
from gateway.commands.registry import (
    Command,
    CommandContext,
    CommandKind,
    CommandResult,
    Invocation,
    say,
)
from gateway.models.capacity import WINDOW_FROM
from gateway.models.selection import name_of, route_of
from gateway.turns.lanes import ActiveTurn
from hermes_state import inbox, journal
from hermes_state.admin.pairings import UserRole
from hermes_state.chats import Chat
from hermes_state.errors import CommandError
from hermes_state.inbox import InboxKind, InboxRow
from hermes_state.journal import RunningTurn
from hermes_state.sessions import Session, count_messages, load_active, load_title
from hermes_state.transcripts import View, hide, load_view
from hermes_state.values import ChatId, ChatKey, Message, Millis, Origin
from platforms.base import AdapterState

STOPPED = "stopped by the person"
SHOWN_CHARS = 60
BEFORE_IS_COMPRESSED = "What came before is compressed; `/compress undo` brings it back first."


# ---- /stop ------------------------------------------------------------------------------------------------------


async def stop(invocation: Invocation) -> CommandResult:
    """Cancel the work at once; then one transaction stores the stop and answers."""
    desk, chat = invocation.desk, invocation.chat
    argument = invocation.argument.lower()
    if argument not in ("", "all"):
        raise CommandError("Say /stop to end the running turn, or /stop all to drop what waits as well.")
    running = desk.lanes.running_turn(chat.id)
    stopping = None
    if running is not None and _is_meant(invocation, running):
        if not may_steer(invocation, running):
            raise CommandError("Only whoever started this turn, or an admin, can stop it.")
        stopping = desk.lanes.begin_stop(chat.id, STOPPED)
    has_given_up = running is None and _stop_work(invocation)

    async def settle() -> None:
        if stopping is not None:
            stopping.settle_stop()
            return
        # The turn may have begun between our look and our transaction: its work must not go on for nothing.
        begun = desk.lanes.running_turn(chat.id)
        if begun is not None and await desk.store.read(journal.find_turn, begun.id) is None:
            late = desk.lanes.begin_stop(chat.id, STOPPED)
            if late is not None:
                late.settle_stop()
        desk.lanes.wake(chat.id)  # a turn that waited had no lane to go on with what waits behind it

    return CommandResult(apply=partial(_stop, invocation, stopping, argument == "all", has_given_up), after=settle)


def _stop_work(invocation: Invocation) -> bool:
    """End what a command such as /compress is busy with; whether there was anything."""
    started_by = invocation.desk.work.started_by(invocation.chat.id)
    if started_by is None:
        return False
    if (
        invocation.chat.kind.is_shared
        and invocation.role is not UserRole.ADMIN
        and started_by != invocation.row.sender_ref
    ):
        raise CommandError("Only whoever gave this command, or an admin, can stop it.")
    return invocation.desk.work.stop(invocation.chat.id)


def _stop(
    invocation: Invocation,
    stopping: ActiveTurn | None,
    is_all: bool,
    has_given_up: bool,
    db: Connection,
    now: Millis,
) -> str:
    chat_id = invocation.chat.id
    turn = journal.find_open_turn(db, chat_id)
    if turn is not None and not _is_meant(invocation, turn):
        turn = None
    if turn is not None and not may_steer(invocation, turn):
        raise CommandError("Only whoever started this turn, or an admin, can stop it.")
    has_stopped = False
    if turn is not None:
        partial_text = stopping.partial_text if stopping is not None and stopping.turn.id == turn.id else ""
        has_stopped = journal.stop_turn(db, turn.id, partial_text, STOPPED, now)
    else:
        has_stopped = has_given_up or stopping is not None or _was_stopped(db, invocation)
    dropped = 0
    if is_all:
        whose = (
            None
            if not invocation.chat.kind.is_shared or invocation.role is UserRole.ADMIN
            else invocation.row.sender_ref
        )
        dropped = inbox.drop_waiting(db, chat_id, whose, now)
    waiting = len([row for row in inbox.load_waiting(db, chat_id) if row.kind is InboxKind.MESSAGE])
    return _stop_sentence(has_stopped, dropped, waiting)


# Purpose: a turn of a conversation that ran when a `/stop` was heard, and was stopped.
_STOPPED_SINCE = """SELECT EXISTS (SELECT 1 FROM turns
  WHERE lineage_id = ? AND state = 'stopped' AND started_at <= ? AND ended_at >= ?)"""


def _was_stopped(db: Connection, invocation: Invocation) -> bool:
    """Whether this `/stop` acted before it could be stored, so that its lane has stored the end of the turn already."""
    session = load_active(db, invocation.chat.id)
    heard_at = invocation.row.received_at
    return session is not None and bool(
        db.execute(_STOPPED_SINCE, (session.lineage_id, heard_at, heard_at)).fetchone()[0]
    )


def _is_meant(invocation: Invocation, turn: RunningTurn) -> bool:
    """A `/stop` that could not be stored at once must not hit a turn that began after it was sent."""
    return turn.started_at <= invocation.row.received_at


def _stop_sentence(has_stopped: bool, dropped: int, waiting: int) -> str:
    said = "Stopped." if has_stopped else "Nothing was running."
    if dropped:
        said += f" Dropped {counted(dropped, 'waiting message')}."
    elif waiting:
        said += f" {counted(waiting, 'message')} still waiting: /stop all drops what waits."
    return said


def may_steer(invocation: Invocation, turn: RunningTurn) -> bool:
    """In a shared chat a turn belongs to whoever started it, and to admins."""
    is_own = turn.started_by == invocation.row.sender_ref
    return is_own or invocation.role is UserRole.ADMIN or not invocation.chat.kind.is_shared


# ---- /status ----------------------------------------------------------------------------------------------------


async def status(invocation: Invocation) -> CommandResult:
    desk, chat = invocation.desk, invocation.chat
    session, title, messages, waiting = await desk.store.read(_load_status, chat.id)
    running = desk.lanes.running_turn(chat.id)
    lines = list(_model_lines(desk, session.chosen_model if session is not None else None))
    if session is None:
        lines.append("- Conversation: none yet; write to me to begin one")
    else:
        name = f"“{title}”, " if title else ""
        lines.append(f"- Conversation: {name}`{session.short_key}`, {counted(messages, 'message')}")
        lines += _stand_in_lines(desk, session)
        lines += await _context_lines(invocation, session)
    if running is not None:
        lines.append(_running_line(desk, running))
    if waiting:
        lines.append(f"- Waiting: {counted(waiting, 'message')}")
    return say("\n".join([*lines, *_connection_lines(desk)]))


def status_unstored(desk: CommandContext, key: ChatKey) -> str:
    """What can be said while the database takes nothing."""
    running = desk.lanes.running_in(key)
    lines = [
        "- Database: it takes nothing right now; until it does, messages wait and answers cannot be finished",
        *_model_lines(desk, running.chosen_model if running is not None else None),
        *([_running_line(desk, running)] if running is not None else []),
    ]
    return "\n".join([*lines, *_connection_lines(desk)])


def _model_lines(desk: CommandContext, choice: str | None) -> Iterator[str]:
    """The model of a conversation, and what is known against it."""
    settings = desk.live.config.model
    known = route_of(settings, choice)
    choice, route = (None, settings.route) if known is None else (choice, known)
    if route.protocol == "offline":
        yield f"- Model: the built-in offline model, which does not think; for a real one, {MODEL_SETUP_HINT}"
        return
    line = desk.live.agent_for(choice).line
    name = name_of(settings, choice)
    called = f"{name} ({route.label})" if name != route.label else name
    cache = cache_state(line.name, line.route, settings.cache_ttl)
    chosen = ", chosen here" if choice is not None else ""
    yield f"- Model: {called}, route {line.route}{chosen}; marks for prompt caching {cache.text}"
    rest = line.breaker.open
    if rest is not None:
        yield f"- {route.label} {rest.why}; it is left alone for {_seconds(rest.seconds)}"


def _stand_in_lines(desk: CommandContext, session: Session) -> Iterator[str]:
    """Who answers in place of the conversation's model."""
    settings = desk.live.config.model
    chosen = route_of(settings, session.chosen_model) or settings.route
    by = desk.live.stand_ins.of(session.lineage_id, chosen)
    if by is not None:
        yield f"- The last answer came from {by.label}, in place of {chosen.label}"


def _seconds(seconds: float) -> str:
    return f"{max(1, round(seconds))} s"


def _running_line(desk: CommandContext, running: RunningTurn) -> str:
    seconds = (desk.clock.now() - running.started_at) // 1000
    return f"- Working on an answer for {seconds} s; /stop ends it"


def _connection_lines(desk: CommandContext) -> Iterator[str]:
    for name, health in sorted(desk.health().items()):
        is_good = health.state is AdapterState.RUNNING
        detail = f" ({health.detail})" if health.detail and not is_good else ""
        yield f"- {name}: {'connected' if is_good else health.state.value.replace('_', ' ')}{detail}"


async def _context_lines(invocation: Invocation, session: Session) -> list[str]:
    chat = invocation.chat
    scene = ConversationRef(chat_id=chat.id, lineage_id=session.lineage_id, chat=chat.key, chat_kind=chat.kind)
    context = invocation.desk.live.agent_for(session.chosen_model).context
    standing = await context.standing(scene)
    limits = standing.limits
    percent = standing.prompt * 100 // limits.input_window
    acts = f"compressed from {standing.threshold:,} on"
    if context.engine != BUILT_IN:  # it may have other reasons, too
        acts = f"compressed by `{context.engine}`, from {standing.threshold:,} on at the latest"
    if not context.is_automatic:
        acts = "compressed only by /compress"
    done = f"; compressed {counted(standing.compressions, 'time')} so far" if standing.compressions else ""
    lines = [
        f"- Context: about {standing.prompt:,} of {limits.input_window:,} tokens ({percent} %, estimate), {acts}{done}",
        f"- Window: {limits.context_length:,} tokens, {WINDOW_FROM[standing.window_from]}",
    ]
    if standing.is_crowded:
        lines.append(
            f"- The system prompt and the tools alone take {standing.fixed:,} tokens, half of the "
            f"{standing.threshold:,} at which conversations are compressed: a larger `model.context_length` would help"
        )
    return lines


def _load_status(db: Connection, chat_id: ChatId) -> tuple[Session | None, str | None, int, int]:
    """The chat's session with its title, its conversation's messages, and how many more wait."""
    session = load_active(db, chat_id)
    title = load_title(db, session.lineage_id) if session is not None else None
    messages = count_messages(db, session.lineage_id) if session is not None else 0
    waiting = sum(row.kind is InboxKind.MESSAGE for row in inbox.load_waiting(db, chat_id))
    return session, title, messages, waiting


# ---- /queue, /steer ---------------------------------------------------------------------------------------------


async def queue(invocation: Invocation) -> CommandResult:
    """Without words: what waits. With words it never comes here: it is a message."""
    rows = await invocation.desk.store.read(inbox.load_waiting, invocation.chat.id)
    waiting = [row for row in rows if row.kind is InboxKind.MESSAGE]
    if not waiting:
        return say("Nothing is waiting. `/queue <message>` makes a message wait for the next turn.")
    lines = [f"{number}. {_waiting_line(row, invocation.chat)}" for number, row in enumerate(waiting[:20], start=1)]
    more = f"\n… and {len(waiting) - 20} more" if len(waiting) > 20 else ""
    return say("Waiting for the next turn:\n" + "\n".join(lines) + more)


def _waiting_line(row: InboxRow, chat: Chat) -> str:
    who = f"{row.sender_name}: " if chat.kind.is_shared else ""
    return who + (shortened(row.payload.text) or "(a file)")


async def steer(_invocation: Invocation) -> CommandResult:
    raise CommandError("Write `/steer <message>`: it joins the answer that is being worked on.")


# ---- /retry, /undo ----------------------------------------------------------------------------------------------


async def retry(invocation: Invocation) -> CommandResult:
    return CommandResult(apply=partial(_retry, invocation))


def _retry(invocation: Invocation, db: Connection, now: Millis) -> RunningTurn:
    view = _active_view(db, invocation.chat.id)
    exchanges = _exchanges(view)
    if not exchanges:
        raise CommandError("There is no message to try again.")
    newest = exchanges[-1]
    answers = [message.id for message in newest if message.origin in (Origin.ASSISTANT, Origin.TOOL)]
    hide(db, view.session.id, answers, "retry", now)
    row = invocation.row
    return journal.start_retry(db, row.id, invocation.chat.id, row.sender_ref, now)


async def undo(invocation: Invocation) -> CommandResult:
    count = count_in(invocation.argument, 1)
    if count is None:
        raise CommandError("Write `/undo`, or `/undo 3` to take back three exchanges.")
    return CommandResult(apply=partial(_undo, invocation, count))


def _undo(invocation: Invocation, count: int, db: Connection, now: Millis) -> str:
    view = _active_view(db, invocation.chat.id)
    exchanges = _since_summary(_exchanges(view))
    is_compressed = any(message.origin is Origin.SUMMARY for message in view.transcript)
    if not exchanges:
        raise CommandError(BEFORE_IS_COMPRESSED if is_compressed else "There is nothing to take back.")
    taken = exchanges[-count:]
    hide(db, view.session.id, [message.id for exchange in taken for message in exchange], "undo", now)
    words = shortened(taken[0][0].text or "")
    said = f"Took back {counted(len(taken), 'exchange')}, from “{words}” on. "
    said += "The model does not see it any more; /history does."
    return f"{said} {BEFORE_IS_COMPRESSED}" if len(taken) < count and is_compressed else said


def _active_view(db: Connection, chat_id: ChatId) -> View:
    session = load_active(db, chat_id)
    if session is None or session.ended_at is not None:
        raise CommandError("There is no conversation yet.")
    return load_view(db, session.lineage_id)


def _exchanges(view: View) -> list[list[Message]]:
    """What the model sees, cut before each human message that opens a turn; what precedes the first is left out."""
    exchanges: list[list[Message]] = []
    turn = None
    for message in view.transcript:
        if message.origin is Origin.HUMAN and (message.turn_id is None or message.turn_id != turn):
            exchanges.append([])
            turn = message.turn_id
        if exchanges:
            exchanges[-1].append(message)
    return exchanges


def _since_summary(exchanges: list[list[Message]]) -> list[list[Message]]:
    """Those behind the record of a compression: what precedes it in the view is the beginning."""
    compressed = (at for at, rows in enumerate(exchanges, start=1) if any(row.origin is Origin.SUMMARY for row in rows))
    return exchanges[max(compressed, default=0) :]


def count_in(argument: str, default: int) -> int | None:
    """The positive number that an argument is, `default` when it is empty; None when it is something else."""
    if not argument:
        return default
    # Nine digits are more than there is of anything, and no number too long to be read.
    return (int(argument[:9]) or None) if argument.isdecimal() else None


def shortened(text: str, limit: int = SHOWN_CHARS) -> str:
    """One line of `text`, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


COMMANDS = (
    Command(
        name="stop",
        kind=CommandKind.CONTROL,
        description="end the running turn; `all` also drops what waits",
        argument="[all]",
        handler=stop,
    ),
    Command(
        name="status",
        kind=CommandKind.CONTROL,
        description="model, conversation, context and connections",
        handler=status,
        unstored=status_unstored,
    ),
    Command(name="retry", kind=CommandKind.CHANGE, description="answer the last message again", handler=retry),
    Command(
        name="undo",
        kind=CommandKind.CHANGE,
        description="take back the last exchange, or the last n",
        argument="[n]",
        handler=undo,
    ),
    Command(
        name="queue",
        kind=CommandKind.MESSAGE,
        description="let a message wait for the next turn; alone: what waits",
        argument="[message]",
        handler=queue,
    ),
    Command(
        name="steer",
        kind=CommandKind.MESSAGE,
        description="add a message to the running turn",
        argument="<message>",
        handler=steer,
    ),
)
