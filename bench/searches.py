"""Databases filled with messages, and searches in them."""

import atexit
import contextlib
import functools
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.corpus import CHINESE, COMMON, EMOJI, PHRASE, RARE, Corpus
from bench.measure import Measure, in_turns
from hermes_state.chats import ensure_chat
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import add_words
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.search.full_text import search
from hermes_state.sessions import Session, start_session
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatId, ChatKey, ChatKind, MessageRole, Millis, Origin

T = TypeVar("T")

CHATS = 200
DIFFERENT_MESSAGES = 100_000
"""Maximum number of different messages. A larger database repeats them."""
SLICE = 5_000
NOW = Millis(0)
# Purpose: copy the messages that were added `different` rows earlier. Ids begin with 1 and have no gaps.
_REPEAT = """INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, sender_ref, sender_name,
    indexed, created_at)
  SELECT session_id, chat_id, lineage_id, seq + :different, role, origin, text, sender_ref, sender_name, 1, created_at
  FROM messages WHERE id > :first - :different AND id <= :first - :different + :count ORDER BY id"""
_RAW_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY", "cache_size = -65536")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search query, and its maximum duration in milliseconds."""

    name: str
    query: str
    bar: float
    is_in_one_chat: bool = False


def usual_searches(*, rare: float, phrase: float, common: float, chinese: float) -> list[Search]:
    """Return the searches that every engine runs, each with its bar."""
    return [
        Search(name="a rare word", query=RARE, bar=rare),
        Search(name="a phrase", query=f'"{PHRASE}"', bar=phrase),
        Search(name="a common word in one chat", query=COMMON, bar=common, is_in_one_chat=True),
        Search(name="two Chinese characters", query=CHINESE, bar=chinese),
    ]


def emoji_search(bar: float) -> Search:
    """Return a search for something that is not a word."""
    return Search(name="an emoji", query=EMOJI, bar=bar)


async def timed_searches(store: Store, where: str, searches: Sequence[Search]) -> list[Measure]:
    """Measure the duration of each search. `where` names the database in the figures."""
    chat_id = await store.read(lambda db: ChatId(db.execute("SELECT min(id) FROM chats").fetchone()[0]))

    async def milliseconds(one: Search, _: int) -> float:
        times = []
        for _ in range(10):
            began = time.perf_counter()
            hits = await store.read(search, one.query, chat_id=chat_id if one.is_in_one_chat else None)
            times.append(time.perf_counter() - began)
            assert hits, f"{one.query} must be found"
        return statistics.median(times) * 1e3

    found = await in_turns(5, *(functools.partial(milliseconds, one) for one in searches))
    return [
        Measure(name=f"search {where}: {one.name}, p50", ours=times, unit="ms", bar=one.bar)
        for one, times in zip(searches, found, strict=True)
    ]


def stored_messages(quick: bool) -> int:
    """Return the number of messages in the large database."""
    return 100_000 if quick else 5_000_000


async def full_home(messages: int) -> Path:
    """Return a state directory whose database has many messages. All groups of a run use the same one.

    Five million messages take 2.9 GB of disk, and about four minutes when they are first needed.
    """
    home = _temporary_home(messages)
    if not (path := home / "state.db").exists():
        await (await SqliteStore.open(path)).close()
        fill(path, messages)
    return home


@functools.cache
def _temporary_home(messages: int) -> Path:
    folder = tempfile.TemporaryDirectory(prefix=f"bench-{messages}-messages-")
    atexit.register(folder.cleanup)
    home = Path(folder.name) / "home"
    home.mkdir(mode=0o700)
    return home


def fill(path: Path, messages: int) -> None:
    """Fill the database at `path` like years of use, but faster. Rows and triggers are the same."""
    with raw_connection(path) as db:
        sessions = [start(db, f"chat-{number}") for number in range(CHATS)]
        for batch in batched(enumerate(Corpus(4).messages(min(messages, DIFFERENT_MESSAGES))), SLICE):
            with _indexed(db):
                for number, text in batch:
                    append(db, sessions[number % CHATS].id, message(text), NOW)
        for first in range(DIFFERENT_MESSAGES, messages, SLICE):
            with _indexed(db):
                db.execute(
                    _REPEAT, {"first": first, "different": DIFFERENT_MESSAGES, "count": min(SLICE, messages - first)}
                )


@contextlib.contextmanager
def _indexed(db: sqlite3.Connection) -> Iterator[None]:
    """Commit new messages together with their words."""
    db.execute("BEGIN")
    yield
    while add_words(db):
        pass
    db.execute("COMMIT")


def start(db: Connection, chat_ref: str) -> Session:
    """Create a chat and its session."""
    key = ChatKey(platform="local", account="local", chat_ref=chat_ref)
    return start_session(db, ensure_chat(db, key, ChatKind.LOCAL, None, NOW), NOW)


def message(text: str) -> NewMessage:
    """Return a person's message."""
    return NewMessage(
        role=MessageRole.USER, origin=Origin.HUMAN, text=text, sender_ref="local:bench", sender_name="Bench"
    )


@contextlib.contextmanager
def raw_connection(path: Path, *, check_same_thread: bool = True) -> Iterator[sqlite3.Connection]:
    """Open sqlite3 as a careful program would: one thread, one connection, and every commit synced."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=check_same_thread)) as db:
        for pragma in _RAW_PRAGMAS:
            db.execute(f"PRAGMA {pragma}")
        register_functions(db)
        yield db


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
