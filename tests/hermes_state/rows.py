"""A migrated database in memory and helpers to fill it, for tests of the table modules."""

import contextlib
import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hermes_state import inbox, journal
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, NewInboxRow
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.store.sql import Connection, scalar
from hermes_state.tool_runs import ToolResult, ToolRunState
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ChatKey,
    ChatKind,
    InboxId,
    LineageId,
    Message,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    Quote,
    SessionId,
    ToolCall,
    UserRef,
)
from tests.databases import IS_POSTGRES, fresh_connection

START = Millis(1_767_225_600_000)  # 2026-01-01 00:00 UTC
ANN = UserRef("telegram:1")
BOB = UserRef("telegram:2")
CALL = ModelCall(
    purpose="turn",
    route="test",
    model="scripted",
    outcome="ok",
    usage=CanonicalUsage(input=10, output=5, cache_read=3, cache_write=2, reasoning=1),
    took_ms=7,
)
HANDOFF = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="handoff")
LONG_CALL_ID = "call_" + random.Random(5).randbytes(3_000).hex()
"""Call id like some providers create: longer than an index allows, even compressed."""
_numbers = itertools.count(1)


@contextlib.contextmanager
def migrated() -> Iterator[Connection]:
    """A new database with the shipped schema and enforced references. SQLite's is in memory."""
    if IS_POSTGRES:
        with fresh_connection() as db:
            yield db
        return
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        register_functions(db)
        db.deserialize(_migrated())
        db.execute("PRAGMA foreign_keys = ON")
        yield db


@cache
def _migrated() -> bytes:
    """Return a copy of a migrated database, because the migrations take longer than most tests."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        register_functions(db)
        migrate(db, Path("memory.db"))
        return db.serialize()


@contextlib.contextmanager
def query_plans(db: sqlite3.Connection, is_meant: Callable[[str], bool]) -> Iterator[list[str]]:
    """Collect SQLite's plans for the statements of the block that are meant."""
    plans: list[str] = []

    def explain(query: str) -> None:
        if is_meant(query):
            plans.append("; ".join(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()))

    with migrated() as other:
        db.set_trace_callback(explain)
        yield plans
        db.set_trace_callback(None)


def key_of(chat_ref: str = "42", **changes: str) -> ChatKey:
    return ChatKey(platform="telegram", account="telegram", chat_ref=chat_ref, **changes)


def make_chat(db: Connection, chat_ref: str = "42", kind: ChatKind = ChatKind.DIRECT) -> ChatId:
    return add_chat(db, key_of(chat_ref), kind)


# Purpose: insert a chat into a database of any version.
_ADD_CHAT = """
INSERT INTO chats (platform, account, chat_ref, kind, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (platform, account, chat_ref, thread_ref, user_ref) DO UPDATE SET kind = excluded.kind RETURNING id
"""


def add_chat(db: Connection, key: ChatKey, kind: ChatKind) -> ChatId:
    """Return the chat with this key, adding it if needed."""
    return scalar(db, ChatId, _ADD_CHAT, (key.platform, key.account, key.chat_ref, kind, START, START))


def received(
    chat_id: ChatId,
    text: str,
    *,
    kind: InboxKind = InboxKind.MESSAGE,
    mode: InboxMode = InboxMode.QUEUE,
    sender: UserRef = ANN,
    ref: str | None = None,
    at: int = START,
    quote: Quote | None = None,
    ticket: str | None = None,
) -> NewInboxRow:
    """An inbound message that is not stored yet."""
    number = next(_numbers)
    return NewInboxRow(
        platform="telegram",
        account="telegram",
        event_ref=f"9:{number}",
        chat_id=chat_id,
        kind=kind,
        mode=mode,
        sender_ref=sender,
        sender_name=str(sender),
        message_ref=ref or f"r{number}",
        payload=InboxPayload(text=text, quote=quote, ticket=ticket),
        expects_more=False,
        sent_at=Millis(at),
    )


def receive(db: Connection, chat_id: ChatId, text: str, *, at: int = START, **changes: Any) -> InboxId:
    """Store an inbound message; `changes` as in `received`."""
    stored = inbox.insert(db, received(chat_id, text, at=at, **changes), Millis(at))
    assert stored is not None
    return stored


def start(db: Connection, chat_id: ChatId, *texts: str, sender: UserRef = ANN, at: int = START) -> RunningTurn:
    """Receive `texts` and start their turn."""
    ids = [receive(db, chat_id, text, sender=sender, at=at) for text in texts]
    return journal.start_turn(db, chat_id, ids, {}, Millis(at))


def finish(db: Connection, turn: RunningTurn, text: str, *, at: int = START, tokens: int = 100) -> MessageId:
    answer = ModelAnswer(text=text, call=CALL, reported_prompt_tokens=tokens)
    return journal.finish_turn(db, turn, answer, Millis(at))[0]


def exchange(db: Connection, chat_id: ChatId, question: str, answer: str, *, at: int = START) -> RunningTurn:
    """Run a whole turn."""
    turn = start(db, chat_id, question, at=at)
    finish(db, turn, answer, at=at)
    return turn


def talk(db: Connection, chat_id: ChatId, *questions: str) -> LineageId:
    """Run a turn for each of `questions`: q1 is answered with a1."""
    return [exchange(db, chat_id, question, question.replace("q", "a")) for question in questions][-1].lineage_id


def split_plan(
    db: Connection, lineage_id: LineageId, handoff: str = "handoff", head: int = 0, keep: int = 0
) -> SplitPlan:
    """Plan a compression of the current view: `head` rows, the handoff, the last `keep` rows."""
    view = load_view(db, lineage_id)
    ids = [row.id for row in view.transcript]
    new = replace(HANDOFF, text=handoff)
    context = (*ids[:head], new, *(ids[-keep:] if keep else []))
    return SplitPlan(parent=view.session, context=context, row=CompressionRow(layer="manual"))


def compress(
    db: Connection, lineage_id: LineageId, handoff: str = "handoff", head: int = 0, keep: int = 0
) -> SessionId:
    """Compress a conversation as in `split_plan`, and return the child."""
    return split(db, split_plan(db, lineage_id, handoff, head, keep), START)


def call_tools(db: Connection, turn: RunningTurn, *ids: str, text: str = "") -> Message:
    """Let the model answer with one call per id. No call begins."""
    calls = tuple(ToolCall(id=one, name="look", arguments="{}") for one in ids)
    step = ModelAnswer(text=text, calls=calls, call=CALL, reported_prompt_tokens=50)
    return journal.append_calls(db, turn, step, START)


def answer_call(db: Connection, turn: RunningTurn, asked: Message, call_id: str, text: str = "found") -> Message:
    """Store a tool result."""
    call = next(call for call in asked.body.calls if call.id == call_id)
    result = ToolResult(call_message_id=asked.id, call=call, text=text, state=ToolRunState.DONE)
    return journal.finish_tool(db, turn, result, START)


def seen(db: Connection, lineage_id: LineageId) -> list[str]:
    """Return the texts that the model sees."""
    return [row.text or "" for row in load_view(db, lineage_id).transcript]


def replies(db: Connection, chat_id: ChatId) -> list[tuple[str, str]]:
    """Return kind and payload of every reply to the chat."""
    query = "SELECT kind, payload FROM outbox WHERE chat_id = ? ORDER BY id"
    return db.execute(query, (chat_id,)).fetchall()


def states(db: Connection, chat_id: ChatId) -> list[str]:
    """Return the states of a chat's inbox rows, in order."""
    return [row[0] for row in db.execute("SELECT state FROM inbox WHERE chat_id = ? ORDER BY id", (chat_id,))]


def replace_row(
    db: Connection, session_id: SessionId, message_id: MessageId, replacement_id: MessageId, reason: str, now: Millis
) -> None:
    """Replace `message_id` with `replacement_id` in the view, as in databases of every version."""
    db.execute(
        """INSERT INTO view_edits SELECT :session, coalesce((SELECT message_id FROM view_edits
        WHERE session_id = :session AND replacement_id = :old), :old), :new, :reason, :now WHERE true
        ON CONFLICT (session_id, message_id) DO UPDATE SET replacement_id = excluded.replacement_id,
          reason = excluded.reason, created_at = excluded.created_at""",
        {"session": session_id, "old": message_id, "new": replacement_id, "reason": reason, "now": now},
    )
