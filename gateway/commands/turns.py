"""Commands about the turns of a chat: /retry /undo, and /queue and /steer, whose words go into a turn."""

from gateway.commands.registry import CommandRequest, CommandResult, say, transaction
from hermes_state import inbox, journal
from hermes_state.errors import CommandError
from hermes_state.sessions import load_active
from hermes_state.store.sql import Connection
from hermes_state.text import counted, shortened
from hermes_state.transcripts import View, hide, load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, Message, Millis, Origin

BEFORE_IS_COMPRESSED = "What came before is compressed; `/compress undo` brings it back first."


@transaction
def retry(request: CommandRequest, db: Connection, now: Millis) -> RunningTurn:
    view = _active_view(db, request.chat.id)
    exchanges = _exchanges(view)
    if not exchanges:
        raise CommandError("There is no message to try again.")
    newest = exchanges[-1]
    answers = [message.id for message in newest if message.origin in (Origin.ASSISTANT, Origin.TOOL)]
    hide(db, view.session.id, answers, "retry", now)
    row = request.row
    return journal.start_retry(db, row.id, request.chat.id, row.sender_ref, now)


@transaction
def undo(request: CommandRequest, db: Connection, now: Millis) -> str:
    count = request.number(1)
    if count is None:
        raise CommandError("Write `/undo`, or `/undo 3` to take back three exchanges.")
    view = _active_view(db, request.chat.id)
    exchanges = _since_summary(_exchanges(view))
    is_compressed = any(message.origin is Origin.SUMMARY for message in view.transcript)
    if not exchanges:
        raise CommandError(BEFORE_IS_COMPRESSED if is_compressed else "There is nothing to take back.")
    taken = exchanges[-count:]
    hide(db, view.session.id, [message.id for exchange in taken for message in exchange], "undo", now)
    words = shortened(taken[0][0].text or "")
    text = f"Took back {counted(len(taken), 'exchange')}, from “{words}” on. "
    text += "The model does not see it any more; /history does."
    return f"{text} {BEFORE_IS_COMPRESSED}" if len(taken) < count and is_compressed else text


def _active_view(db: Connection, chat_id: ChatId) -> View:
    session = load_active(db, chat_id)
    if session is None or session.ended_at is not None:
        raise CommandError("There is no conversation yet.")
    return load_view(db, session.lineage_id)


def _exchanges(view: View) -> list[list[Message]]:
    """View of the model, cut before each human message that opens a turn; what precedes the first is left out."""
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
    """Exchanges behind the handoff of a compression: what precedes it in the view is the beginning."""
    compressed = (at for at, rows in enumerate(exchanges, start=1) if any(row.origin is Origin.SUMMARY for row in rows))
    return exchanges[max(compressed, default=0) :]


async def queue(request: CommandRequest) -> CommandResult:
    """List what waits. With words behind it the command is a message and never comes here."""
    rows = await request.context.store.read(inbox.load_waiting, request.chat.id)
    waiting = [row for row in rows if row.kind is inbox.InboxKind.MESSAGE]
    if not waiting:
        return say("Nothing is waiting. `/queue <message>` makes a message wait for the next turn.")
    lines = []
    for number, row in enumerate(waiting[:20], start=1):
        who = f"{row.sender_name}: " if request.chat.kind.is_shared else ""
        lines.append(f"{number}. {who}{shortened(row.payload.text) or '(a file)'}")
    more = f"\n… and {len(waiting) - 20} more" if len(waiting) > 20 else ""
    return say("Waiting for the next turn:\n" + "\n".join(lines) + more)


async def steer(_request: CommandRequest) -> CommandResult:
    raise CommandError("Write `/steer <message>`: it joins the answer that is being worked on.")
