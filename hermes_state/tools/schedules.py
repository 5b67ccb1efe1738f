"""Schedules: messages that a chat receives at set times. They belong to the chat, not to a conversation.

The transaction that sets a due schedule's next time also stores its inbox row, so no message is lost. The row's key
contains the schedule's number and the local time. So a message is sent only once for each time, even in the hour that
repeats when daylight saving time ends, or after the clock was set back.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from hermes_state import inbox, outbox
from hermes_state.chats import load_chat, note_reach
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, InboxState, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insert_row, insertion, scalar, scalars, select, select_one
from hermes_state.text import counted
from hermes_state.values import ChatId, InputKind, Millis, UserRef

MAX_FIRED = 20
"""Maximum number of schedules fired per transaction. Finding a schedule's next time can block writes for 20 ms."""


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"  # the schedule has no further times


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    creator_ref: UserRef
    creator_name: str
    spec: str  # five cron fields, or a local date and time such as `2026-11-24T08:00`
    zone: str
    text: str
    next_at: Millis | None  # None unless the schedule is active
    created_at: Millis


class ScheduleRow(NewSchedule, frozen=True, kw_only=True):
    id: int
    agent: str  # agent that answered in the chat when the schedule was added
    state: ScheduleState
    fired_at: Millis | None  # when the schedule last fired, according to the clock at that time


class FiringPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Next step of a due schedule: the message to send, if any, and the time when it is due again."""

    key: str | None = None  # local time of the message to send; None: no message
    notes: tuple[str, ...] = ()  # facts about the message, for the model
    next_at: Millis | None = None  # None: the schedule is done or paused
    refusal: str | None = None  # sentence for the chat that says why the schedule is paused


_COLUMNS = columns(ScheduleRow, "schedules")
_HAS_AGENT = "agent = (SELECT c.agent FROM chats c WHERE c.id = chat_id)"
"""SQL condition for schedules of the agent that answers in their chat now. Others stay with their agent."""
_IS_REACHABLE = "NOT EXISTS (SELECT 1 FROM chats c WHERE c.id = chat_id AND c.unreachable_since IS NOT NULL)"
"""SQL condition for schedules of chats that the bot can write to. Other schedules wait until the bot can."""
IS_LATE = f"state = 'active' AND next_at < :due AND {_IS_REACHABLE}"
"""SQL condition for schedules that should have fired before the time `:due`."""


def insert_schedule(db: Connection, schedule: NewSchedule) -> int:
    """Store a schedule for the chat's agent. Return its number."""
    values = msgspec.structs.asdict(schedule)
    number = insert_row(db, int, insertion("schedules", values), values)
    db.execute("UPDATE schedules SET agent = (SELECT agent FROM chats WHERE id = chat_id) WHERE id = ?", (number,))
    return number


def load_schedules(db: Connection, chat_id: ChatId) -> list[ScheduleRow]:
    """Load the unfinished schedules of a chat and its agent, oldest first."""
    query = f"SELECT {_COLUMNS} FROM schedules WHERE chat_id = ? AND {_HAS_AGENT} AND state <> 'done' ORDER BY id"
    return select(db, ScheduleRow, query, (chat_id,))


def load_all_schedules(db: Connection, limit: int) -> list[ScheduleRow]:
    """Load the unfinished schedules of all chats, the next to fire first and paused ones last."""
    query = f"""SELECT {_COLUMNS} FROM schedules WHERE state <> 'done'
    ORDER BY next_at IS NULL, next_at, id LIMIT ?"""
    return select(db, ScheduleRow, query, (limit,))


def find_schedule(db: Connection, chat_id: ChatId, schedule_id: int) -> ScheduleRow | None:
    """Load a schedule of this chat and its agent, unless it is done."""
    query = f"SELECT {_COLUMNS} FROM schedules WHERE chat_id = ? AND id = ? AND {_HAS_AGENT} AND state <> 'done'"
    return select_one(db, ScheduleRow, query, (chat_id, schedule_id))


def count_schedules(db: Connection, chat_id: ChatId) -> int:
    return scalar(db, int, "SELECT count(*) FROM schedules WHERE chat_id = ? AND state <> 'done'", (chat_id,))


def set_state(db: Connection, schedule_id: int, state: ScheduleState, next_at: Millis | None) -> None:
    db.execute("UPDATE schedules SET state = ?, next_at = ? WHERE id = ?", (state, next_at, schedule_id))


def remove_schedule(db: Connection, schedule_id: int) -> None:
    db.execute("DELETE FROM schedules WHERE id = ?", (schedule_id,))


def next_due(db: Connection, now: Millis) -> Millis | None:
    """Return the time at which `fire_due` must run next (0: now), or None if there are no active schedules."""
    query = f"""SELECT (SELECT min(next_at) FROM schedules WHERE state = 'active' AND {_IS_REACHABLE}),
      (SELECT max(fired_at) FROM schedules WHERE state = 'active' AND {_IS_REACHABLE})"""
    next_at, fired_at = db.execute(query).fetchone()
    return Millis(0) if fired_at is not None and fired_at > now else next_at


def load_stranded(db: Connection) -> list[tuple[str, int]]:
    """Load the names of chats that the bot cannot write to, each with its number of active schedules."""
    query = f"""SELECT chat_id, count(*) FROM schedules WHERE state = 'active' AND NOT {_IS_REACHABLE}
    GROUP BY chat_id ORDER BY chat_id"""
    return [(load_chat(db, chat_id).key.name, number) for chat_id, number in db.execute(query).fetchall()]


def load_accounts(db: Connection) -> list[tuple[str, int]]:
    """Load the accounts whose chats have active schedules, each with their number."""
    query = """SELECT c.account, count(*) FROM schedules s JOIN chats c ON c.id = s.chat_id WHERE s.state = 'active'
    GROUP BY c.account ORDER BY c.account"""
    return db.execute(query).fetchall()


@locks(chat="chat_id")
def go_on(db: Connection, chat_id: ChatId, now: Millis) -> bool:
    """Record that the bot can write to a chat again. If it has active schedules, enqueue a notice and return True."""
    active = sum(row.state is ScheduleState.ACTIVE for row in load_schedules(db, chat_id))
    if not note_reach(db, chat_id, None) or not active:
        return False
    go_on = f"{counted(active, 'schedule')} in this chat {'continues' if active == 1 else 'continue'}"
    text = f"I can write here again, so {go_on}. A schedule that missed messages sends at most one of them now."
    reply = Reply(chat_id=chat_id, markdown=text, dedupe_key=f"reach:{chat_id}:{now}")
    return outbox.enqueue(db, reply, now) is not None


@locks(EVERYTHING)
def note_reach_of(
    db: Connection, platform: str, account: str, chat_ref: str, now: Millis, *, is_reachable: bool
) -> list[ChatId]:
    """Store whether the bot can write to a chat and its threads. Return the chats whose schedules can continue."""
    query = "SELECT id FROM chats WHERE platform = ? AND account = ? AND chat_ref = ?"
    chats = scalars(db, ChatId, query, (platform, account, chat_ref))
    for chat_id in chats:
        if is_reachable:
            go_on(db, chat_id, now)
        else:
            note_reach(db, chat_id, now)
    return chats if is_reachable else []


@locks(EVERYTHING)
def fire_due(db: Connection, plan: Callable[[ScheduleRow], FiringPlan], now: Millis) -> list[ChatId]:
    """Fire schedules that are due, or whose last firing is after `now` (the clock was set back). Return their chats."""
    query = f"""SELECT {_COLUMNS} FROM schedules
    WHERE (state = 'active' AND next_at <= :now OR state = 'active' AND fired_at > :now) AND {_IS_REACHABLE}
    LIMIT :limit"""
    chats: dict[ChatId, None] = {}
    for row in select(db, ScheduleRow, query, {"now": now, "limit": MAX_FIRED}):
        decided, over = plan(row), ScheduleState.DONE
        chats[row.chat_id] = None
        if decided.refusal is not None:
            over, key = ScheduleState.PAUSED, f"schedule:{row.id}:paused:{now}"
            reply = Reply(chat_id=row.chat_id, kind=OutboxKind.ERROR, markdown=decided.refusal, dedupe_key=key)
            outbox.enqueue(db, reply, now)
        elif decided.key is not None and not waits(db, row):  # a schedule's messages must not pile up in a busy chat
            fire(db, row, decided.key, decided.notes, now)
        set_state(db, row.id, over if decided.next_at is None else ScheduleState.ACTIVE, decided.next_at)
        db.execute("UPDATE schedules SET fired_at = ? WHERE id = ?", (now, row.id))
    return list(chats)


def waits(db: Connection, row: ScheduleRow, key: str = "____-__-__T%") -> bool:
    """Return True if a message of the schedule is waiting in the inbox.

    `key` is a LIKE pattern for the message's local time. The default matches any time.
    """
    query = f"SELECT EXISTS (SELECT 1 FROM inbox WHERE chat_id = ? AND {inbox.WAITS} AND event_ref LIKE ?)"
    return scalar(db, bool, query, (row.chat_id, f"{inbox.SCHEDULE_PREFIX}{row.id}:{key}"))


def drop_waiting(db: Connection, row: ScheduleRow, now: Millis) -> None:
    where = f"chat_id = ? AND {inbox.WAITS} AND event_ref LIKE ?"
    inbox.settle_where(db, InboxState.DROPPED, now, where, row.chat_id, f"{inbox.SCHEDULE_PREFIX}{row.id}:%")


def number_of(event_ref: str) -> int:
    """Return the number of the schedule that sent a message, from the message's event key."""
    return int(event_ref.split(":")[1])


def fire(db: Connection, row: ScheduleRow, key: str, notes: tuple[str, ...], now: Millis) -> None:
    """Store the schedule's message in the inbox. A message with the same `key` is stored only once."""
    chat = load_chat(db, row.chat_id).key
    message = NewInboxRow(
        platform=chat.platform,
        account=chat.account,
        event_ref=f"{inbox.SCHEDULE_PREFIX}{row.id}:{key}",
        chat_id=row.chat_id,
        kind=InboxKind.MESSAGE,
        mode=InboxMode.ALONE,
        sender_ref=row.creator_ref,
        sender_name=row.creator_name,
        message_ref="",
        payload=InboxPayload(text=row.text, via=InputKind.SCHEDULED, notes=notes, agent=row.agent),
        expects_more=False,
        sent_at=now,
    )
    inbox.insert(db, message, now)
