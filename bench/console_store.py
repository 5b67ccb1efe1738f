"""Databases for the measurements of the web console: years of conversations, with the rows that their turns leave."""

from dataclasses import dataclass
from pathlib import Path

from bench.corpus import Corpus
from bench.searches import batched, raw_connection
from hermes_state.chats import ensure_chat
from hermes_state.compressions import CompressionRow, SplitPlan, split
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.sessions import Session, set_title, start_session
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append, load_view
from hermes_state.values import ChatId, ChatKey, ChatKind, MessageRole, Millis, Origin, SystemClock
from platforms.local.pages import chat_key

LONG, LINEAGE = "long", "lineage"
"""Names of the owner's chats with many messages in one session, and with many sessions."""
STEP_MS = 60_000
"""Time between two messages. A million messages cover 23 months."""
DAY_MS = 86_400_000

_USED = """UPDATE sessions SET last_human_at = (
  SELECT m.created_at FROM messages m WHERE m.session_id = sessions.id ORDER BY m.seq DESC LIMIT 1)"""
# Purpose: add the rows of a finished turn for each message of a person. One turn in 500 failed.
_TURNS = """INSERT INTO turns (id, chat_id, lineage_id, state, started_by, started_at, ended_at, error)
  SELECT id, chat_id, lineage_id, CASE WHEN id % 1000 = 1 THEN 'failed' ELSE 'finished' END, 'local:owner', created_at,
    created_at + 2000, CASE WHEN id % 1000 = 1 THEN 'The model did not answer.' END
  FROM messages WHERE origin = 'human' ORDER BY id"""
# Purpose: add the calls of these turns. In the chat with many sessions, each turn has 50 calls, one for a summary.
_CALLS = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
  INSERT INTO model_calls (lineage_id, session_id, turn_id, chat_id, purpose, route, model, outcome, input_tokens,
    output_tokens, cache_read_tokens, cost_microusd, took_ms, created_at)
  SELECT m.lineage_id, m.session_id, m.id, m.chat_id, CASE WHEN n.i = 2 THEN 'summary' ELSE 'turn' END, 'primary',
    'lab-128k', 'ok', 2000 + m.id % 9000, 200, 1000, 900, 2000, m.created_at
  FROM messages m JOIN n ON n.i = 1 OR m.chat_id = :lineage WHERE m.origin = 'human' ORDER BY m.id"""
# The gateway removes these rows after 30 days.
_INBOX = """INSERT INTO inbox (platform, account, event_ref, chat_id, kind, sender_ref, sender_name, message_ref,
    payload, state, turn_id, sent_at, received_at, settled_at)
  SELECT 'local', 'local', 'e' || id, chat_id, 'message', started_by, 'Owner', 'r' || id, '', 'done', id, started_at,
    started_at, ended_at FROM turns WHERE started_at >= ?"""
_OUTBOX = """INSERT INTO outbox (chat_id, turn_id, dedupe_key, kind, payload, rendered, state, next_at, created_at,
    settled_at)
  SELECT chat_id, id, 'o' || id, CASE state WHEN 'failed' THEN 'error' ELSE 'final' END, '', 1, 'sent', ended_at,
    ended_at, ended_at FROM turns WHERE started_at >= ?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Number of messages, half of them the owner's, of the owner's chats, and of Telegram chats.

    `long` is the number of messages in the chat `LONG`, and `sessions` the number of sessions in the chat `LINEAGE`.
    """

    messages: int
    chats: int
    others: int
    long: int
    sessions: int


async def fill(path: Path, size: Size) -> None:
    """Create a database like months of use, but faster. Rows, triggers and search index are the same."""
    await (await SqliteStore.open(path)).close()
    now = SystemClock().now()
    first = now - size.messages * STEP_MS
    with raw_connection(path) as db:
        db.execute("PRAGMA synchronous = OFF")  # an interrupted benchmark needs no database
        db.execute("BEGIN")
        own = [_start(db, chat_key(f"topic-{number}"), Millis(first)) for number in range(size.chats - 2)]
        others = [_start(db, _telegram(number), Millis(first)) for number in range(size.others)]
        long = _start(db, chat_key(LONG), Millis(first))
        lineage = _live(db, size.sessions, Millis(first))
        texts = enumerate(Corpus(6).messages(size.messages))
        for batch in batched(texts, 20_000):
            for number, text in batch:
                pair = number // 2
                side = own if pair % 2 and own else others or own
                session = long if number < size.long else side[pair // 2 % len(side)]
                append(db, session.id, _message(text, is_answer=number % 2 == 1), Millis(first + number * STEP_MS))
            db.execute("COMMIT")
            db.execute("BEGIN")
        db.execute(_USED)
        db.execute(_TURNS)
        db.execute(_CALLS, {"lineage": lineage})
        db.execute(_INBOX, (now - 30 * DAY_MS,))
        db.execute(_OUTBOX, (now - 30 * DAY_MS,))
        db.execute("COMMIT")


def _telegram(number: int) -> ChatKey:
    return ChatKey(platform="telegram", account="telegram", chat_ref=str(1_000 + number))


def _start(db: Connection, key: ChatKey, at: Millis) -> Session:
    kind = ChatKind.LOCAL if key.platform == "local" else ChatKind.DIRECT
    session = start_session(db, ensure_chat(db, key, kind, None, at), at)
    set_title(db, session.id, f"Plans for {key.chat_ref}")
    return session


def _message(text: str, *, is_answer: bool) -> NewMessage:
    role, origin = (MessageRole.ASSISTANT, Origin.ASSISTANT) if is_answer else (MessageRole.USER, Origin.HUMAN)
    return NewMessage(role=role, origin=origin, text=text, sender_name=None if is_answer else "Owner")


def _live(db: Connection, sessions: int, first: Millis) -> ChatId:
    """Create a conversation that was compressed so often that it has this many sessions."""
    root = _start(db, chat_key(LINEAGE), first)
    row = CompressionRow(layer="hygiene", summary_kind="model", model="lab-8k", took_ms=2_500, tokens_before=16_471)
    summary = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="They plan a trip to the coast.")
    for number in range(sessions - 1):
        view = load_view(db, root.lineage_id)
        at = Millis(first + number * STEP_MS)
        for is_answer in (False, True):
            kept = append(db, view.session.id, _message(f"about the coast, part {number}", is_answer=is_answer), at)
        split(db, SplitPlan(parent=view.session, context=(summary, kept), row=row), at)
    return root.chat_id
