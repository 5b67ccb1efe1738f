"""`/todo`: the agent's list of what is to be done in a conversation."""

from agent.tools.planning import shown
from gateway.commands.registry import CommandRequest
from hermes_state import sessions
from hermes_state.errors import CommandError
from hermes_state.store.sql import Connection
from hermes_state.tools.todos import clear_todos, load_todos
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.values import MessageRole, Millis, Origin

_CLEARED = "The todo list of this conversation was emptied by a person: nothing of it is to be done any more."


def todo(request: CommandRequest, db: Connection, now: Millis) -> str:
    """Show the list, or `clear` it, of which the model is told."""
    if request.argument.lower() not in ("", "list", "clear"):
        raise CommandError("Write `/todo`, or `/todo clear` to empty the list.")
    session = sessions.load_active(db, request.chat.id)
    items = [] if session is None else load_todos(db, session.lineage_id)
    if session is None or not items or request.argument.lower() != "clear":
        return shown(items)
    clear_todos(db, session.lineage_id)
    notice = NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=_CLEARED)
    append_to_tip(db, session.lineage_id, notice, now)
    return "The list is empty now."
