"""Schedules: messages that come back into a chat at a time. They belong to the chat, whatever its conversation is.

A schedule that is due becomes a row of the inbox, in the transaction that sets its next time: never lost, and answered
like any message. The row's key names the schedule and the local time that is meant, so that no such time comes twice,
neither in the hour that autumn repeats nor on a clock that was set back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from hermes_state import inbox, outbox
from hermes_state.chats import load_chat, note_reach
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, InboxState, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insert_row, scalar, scalars, select, select_one
from hermes_state.text import counted
from hermes_state.values import ChatId, InputKind, Millis, UserRef

MAX_FIRED = 20
"""Most schedules of one transaction: others write between two, and the next of many times takes 20 ms to find."""


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"  # it was for one time, and that has come


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, about to be stored."""

    chat_id: ChatId
    creator_ref: UserRef
    creator_name: str
    spec: str  # five fields of cron, or a local date and time such as `2026-11-24T08:00`
    zone: str
    text: str
    next_at: Millis | None  # next time; None unless it is active
    created_at: Millis


class ScheduleRow(NewSchedule, frozen=True, kw_only=True):
    """A stored schedule."""

    id: int
    state: ScheduleState
    fired_at: Millis | None  # time by the clock at which its message came last


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringPlan:
    """Fate of a schedule that is due."""

    key: str | None = None  # local time whose message comes now; None: none comes
    notes: tuple[str, ...] = ()  # facts for the model about that message
    next_at: Millis | None = None  # next time; None: it is done, or paused
    refusal: str | None = None  # sentence for the chat on why it is paused from now on


_COLUMNS = columns(ScheduleRow, "schedules")
_IS_REACHABLE = "NOT EXISTS (SELECT 1 FROM chats c WHERE c.id = chat_id AND c.unreachable_since IS NOT NULL)"
"""Condition for a schedule of a chat that the bot can write in; the others wait."""
# Purpose: schedules that are due, and those that came at a time which by the clock is still ahead: it was set back.
_DUE = f"""
SELECT {_COLUMNS} FROM schedules WHERE (state = 'active' AND next_at <= :now OR state = 'active' AND fired_at > :now)
AND {_IS_REACHABLE} LIMIT :limit
"""
# Purpose: the chats in which the bot cannot write, with the number of schedules that wait for that.
_STRANDED = f"""
SELECT chat_id, count(*) FROM schedules WHERE state = 'active' AND NOT {_IS_REACHABLE} GROUP BY chat_id ORDER BY chat_id
"""

CAN_WRITE_AGAIN = (
    "I can write here again, so {schedules} of this chat {verb}. A message that was missed comes once, now."
)


def insert_schedule(db: Connection, schedule: NewSchedule) -> int:
    """Store a schedule; returns its number."""
    query = """INSERT INTO schedules (chat_id, creator_ref, creator_name, spec, zone, text, next_at, created_at)
    VALUES (:chat_id, :creator_ref, :creator_name, :spec, :zone, :text, :next_at, :created_at)"""
    return insert_row(db, int, query, msgspec.structs.asdict(schedule))


def load_schedules(db: Connection, chat_id: ChatId) -> list[ScheduleRow]:
    """The schedules of a chat that are not done, oldest first."""
    query = f"SELECT {_COLUMNS} FROM schedules WHERE chat_id = ? AND state <> 'done' ORDER BY id"
    return select(db, ScheduleRow, query, (chat_id,))


def find_schedule(db: Connection, chat_id: ChatId, schedule_id: int) -> ScheduleRow | None:
    """A schedule of a chat that is not done."""
    query = f"SELECT {_COLUMNS} FROM schedules WHERE chat_id = ? AND id = ? AND state <> 'done'"
    return select_one(db, ScheduleRow, query, (chat_id, schedule_id))


def count_schedules(db: Connection, chat_id: ChatId) -> int:
    """Number of a chat's schedules that are not done."""
    return scalar(db, int, "SELECT count(*) FROM schedules WHERE chat_id = ? AND state <> 'done'", (chat_id,))


def set_state(db: Connection, schedule_id: int, state: ScheduleState, next_at: Millis | None) -> None:
    """Set what becomes of a schedule, and its next time if it is active."""
    db.execute("UPDATE schedules SET state = ?, next_at = ? WHERE id = ?", (state, next_at, schedule_id))


def remove_schedule(db: Connection, schedule_id: int) -> None:
    db.execute("DELETE FROM schedules WHERE id = ?", (schedule_id,))


def next_due(db: Connection, now: Millis) -> Millis | None:
    """Time at which `fire_due` has something to do next, 0 if it is behind the clock; None without active schedules."""
    query = f"""SELECT (SELECT min(next_at) FROM schedules WHERE state = 'active' AND {_IS_REACHABLE}),
      (SELECT max(fired_at) FROM schedules WHERE state = 'active' AND {_IS_REACHABLE})"""
    next_at, fired_at = db.execute(query).fetchone()
    return Millis(0) if fired_at is not None and fired_at > now else next_at


def load_stranded(db: Connection) -> list[tuple[str, int]]:
    """Names of the chats in which the bot cannot write, with the number of schedules that wait for that."""
    return [(load_chat(db, chat_id).key.name, number) for chat_id, number in db.execute(_STRANDED).fetchall()]


@locks(chat="chat_id")
def go_on(db: Connection, chat_id: ChatId, now: Millis) -> bool:
    """Note that the bot can write in a chat again; its schedules go on, and it is told so. False if it has none."""
    active = sum(row.state is ScheduleState.ACTIVE for row in load_schedules(db, chat_id))
    if not note_reach(db, chat_id, None) or not active:
        return False
    text = CAN_WRITE_AGAIN.format(
        schedules=counted(active, "schedule"), verb="continues" if active == 1 else "continue"
    )
    reply = Reply(chat_id=chat_id, markdown=text, dedupe_key=f"reach:{chat_id}:{now}")
    return outbox.enqueue(db, reply, now) is not None


@locks(EVERYTHING)
def note_reach_of(
    db: Connection, platform: str, account: str, chat_ref: str, now: Millis, *, is_reachable: bool
) -> list[ChatId]:
    """Note that the bot can write at a place of a platform, or no more, in all its threads; returns what goes on."""
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
    """Let what is due come, as `plan` says of each; returns the chats in which something was due, none twice."""
    chats: dict[ChatId, None] = {}
    for row in select(db, ScheduleRow, _DUE, {"now": now, "limit": MAX_FIRED}):
        decided, over = plan(row), ScheduleState.DONE
        chats[row.chat_id] = None
        if decided.refusal is not None:
            over, key = ScheduleState.PAUSED, f"schedule:{row.id}:paused:{now}"
            reply = Reply(chat_id=row.chat_id, kind=OutboxKind.ERROR, markdown=decided.refusal, dedupe_key=key)
            outbox.enqueue(db, reply, now)
        elif decided.key is not None and not waits(db, row):  # a chat that is busy must not be so for ever
            fire(db, row, decided.key, decided.notes, now)
        set_state(db, row.id, over if decided.next_at is None else ScheduleState.ACTIVE, decided.next_at)
        db.execute("UPDATE schedules SET fired_at = ? WHERE id = ?", (now, row.id))
    return list(chats)


def waits(db: Connection, row: ScheduleRow, key: str = "____-__-__T%") -> bool:
    """True while a message of a schedule waits for its turn; `key`: a pattern, without one that of its own times."""
    query = f"SELECT EXISTS (SELECT 1 FROM inbox WHERE chat_id = ? AND {inbox.WAITS} AND event_ref LIKE ?)"
    return scalar(db, bool, query, (row.chat_id, f"{inbox.SCHEDULE_PREFIX}{row.id}:{key}"))


def drop_waiting(db: Connection, row: ScheduleRow, now: Millis) -> None:
    """Settle what a schedule has brought and no turn has taken up."""
    where = f"chat_id = ? AND {inbox.WAITS} AND event_ref LIKE ?"
    inbox.settle_where(db, InboxState.DROPPED, now, where, row.chat_id, f"{inbox.SCHEDULE_PREFIX}{row.id}:%")


def fire(db: Connection, row: ScheduleRow, key: str, notes: tuple[str, ...], now: Millis) -> None:
    """Put the message of a schedule into its chat's inbox, unless it came for this key before."""
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
        payload=InboxPayload(text=row.text, via=InputKind.SCHEDULED, notes=notes),
        expects_more=False,
        sent_at=now,
    )
    inbox.insert(db, message, now)
