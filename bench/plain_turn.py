"""A plain turn (message, start, answer) through the store's functions, and its number of statements per engine."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.inbound.admission import AcceptedEvent, admit
from hermes_state import journal
from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.store import RULES as ON_POSTGRES
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.engines.sqlite.store import RULES as ON_SQLITE
from hermes_state.inbox import InboxKind, InboxMode
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, TransactionRules, WriteRequest, run_batch
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ChatKey,
    ChatKind,
    InboundMessage,
    InboxId,
    MicroUsd,
    Millis,
    Sender,
)
from tests.postgres import count_trips

NOW = Millis(1_767_225_600_000)  # 2026-01-01
_numbers = itertools.count(1)


async def plain_turn(write: Callable[..., Awaitable[Any]], chat: int, *, is_idle: bool = False) -> None:
    """Store a message, its turn and its answer.

    If the chat `is_idle`, the turn starts in the same transaction that stores the message.
    """
    stored = await write(admit, _event(chat, may_start=is_idle), NOW)
    turn = stored.started or await write(_start, stored.chat_id, [stored.inbox_id], NOW)
    await write(journal.finish_turn, turn, _ANSWER, NOW)


@locks(inbox="inbox_ids", chat="chat_id")
def _start(db: Connection, chat_id: ChatId, inbox_ids: Sequence[InboxId], now: Millis) -> RunningTurn:
    return journal.start_turn(db, chat_id, inbox_ids, {}, now)


_ANSWER = ModelAnswer(
    text="It is on its way, and will be there by noon.",
    call=ModelCall(
        purpose="turn",
        route="bench",
        model="instant",
        outcome="ok",
        usage=CanonicalUsage(input=900, output=20),
        took_ms=900,
        cost=MicroUsd(120),
    ),
    reported_prompt_tokens=900,
)


def _event(chat: int, *, may_start: bool) -> AcceptedEvent:
    """Return a message in the form in which the gateway accepts it."""
    number = next(_numbers)
    key = ChatKey(platform="telegram", account="bot", chat_ref=str(chat))
    message = InboundMessage(
        event_ref=f"bot:{number}",
        chat=key,
        chat_kind=ChatKind.DIRECT,
        sender=Sender(platform="telegram", id=str(chat), name="Ann"),
        text="Where is my parcel? It was to be here yesterday.",
        message_ref=str(number),
        sent_at=NOW,
        is_addressed=True,
    )
    return AcceptedEvent(
        message=message,
        key=key,
        kind=InboxKind.MESSAGE,
        mode=InboxMode.QUEUE,
        text=message.text,
        max_waiting=20,
        cursor=None,
        busy_mode="queue",
        may_start=may_start,
    )


def count_on_postgres(url: str) -> int:
    """Return the number of round trips to the server in a plain turn."""
    with contextlib.closing(PostgresConnection.open(url)) as db:
        _run_turn(db, ON_POSTGRES)
        return count_trips(db.raw, lambda: _run_turn(db, ON_POSTGRES))


def count_on_sqlite() -> int:
    """Return the number of SQLite statements in a plain turn."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None, factory=_Counting)) as db:
        register_functions(db)
        migrate(db, Path("memory.db"))
        _run_turn(db, ON_SQLITE)
        db.count = 0
        _run_turn(db, ON_SQLITE)
        return db.count


class _Counting(sqlite3.Connection):
    """Counts the statements that are sent. Statements in triggers do not count."""

    count = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.count += 1
        return super().execute(*arguments)


def _run_turn(db: Connection, rules: TransactionRules) -> None:
    async def write(fn: Callable[..., Any], *args: object) -> Any:
        request = WriteRequest(asyncio.get_running_loop().create_future(), fn, args, {})
        run_batch(db, [request], rules)
        assert request.error is None, request.error
        return request.result

    asyncio.run(plain_turn(write, 0, is_idle=True))
