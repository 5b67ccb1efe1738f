"""Waiting messages that are settled without a turn, with a sentence for the chat."""

from collections.abc import Sequence

from msgspec.structs import replace

from hermes_state import inbox, outbox
from hermes_state.agents import shown_name
from hermes_state.inbox import InboxKind, InboxRow, InboxState
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import shortened
from hermes_state.tools import schedules
from hermes_state.tools.schedules import ScheduleState
from hermes_state.values import Millis


@locks(inbox="rows.id", chat="rows.chat_id")
def refuse(
    db: Connection, rows: Sequence[InboxRow], state: InboxState, sentence: str, dedupe_key: str, now: Millis
) -> None:
    """Settle rows of one sender without a turn. Store `sentence` as the reply to the first row that is not a notice."""
    for row in rows:
        if inbox.settle(db, row.id, state, now) and row.kind is not InboxKind.NOTICE:
            reply = Reply(chat_id=row.chat_id, kind=OutboxKind.ERROR, markdown=sentence, dedupe_key=dedupe_key)
            outbox.enqueue(db, replace(reply, reply_to=row.message_ref or None), now)


@locks(inbox="rows.id", chat="rows.chat_id")
def pause_schedules(db: Connection, rows: Sequence[InboxRow], now: Millis) -> None:
    """Pause the schedules of scheduled messages whose agent no longer answers in the chat, and tell the chat."""
    for row in rows:
        number, agent = schedules.number_of(row.event_ref), shown_name(row.payload.agent)
        schedules.set_state(db, number, ScheduleState.PAUSED, None)
        sentence = (
            f"Schedule {number} is paused because its agent {agent} no longer answers here. Its message was: "
            f"{shortened(row.payload.text, 200)} When {agent} answers here again, send `/schedule resume {number}`."
        )
        refuse(db, [row], InboxState.DROPPED, sentence, f"inbox:{row.id}:other-agent", now)
