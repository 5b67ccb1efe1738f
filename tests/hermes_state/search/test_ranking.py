"""Ranking of common words, compared with SQLite's own over the months of the end-to-end tests."""

import asyncio
import itertools
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import pytest

from agent.tools.registry import ToolContext
from hermes_state.search import fts5
from hermes_state.search.fts5 import match_text
from hermes_state.search.full_text import search
from hermes_state.search.query import Expression, parse_query
from hermes_state.store.sql import Connection
from hermes_state.values import LineageId, MessageRole
from tests.e2e.test_months import MONTHS, answer_of, calls_of, message_of
from tests.e2e.with_tools import REGISTER
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_full_text import say, start
from tests.sampling import every

ONE_WORD, WITH_A_RARE_ONE, COMMON_WORDS = 70, 65, 65

# The reference: SQLite's bm25 over the newest thousand matches.
_BM25 = """
WITH hit AS MATERIALIZED (
  SELECT rowid AS id, bm25(messages_fts, 1.0, 0.0) AS rank FROM messages_fts WHERE messages_fts MATCH ?
  ORDER BY rowid DESC LIMIT 1000)
SELECT id FROM hit ORDER BY rank, id DESC LIMIT 20
"""


@pytest.fixture(scope="module")
def db() -> Iterator[Connection]:
    """Three months, each in its own chat."""
    with migrated() as connection:
        connection.execute("BEGIN")
        for month in MONTHS:
            session = start(connection, month.model)
            for number in range(1, month.turns + 1):
                say(connection, session, message_of(month, number), at=number)
                for call in calls_of(month, number):
                    if call["name"] == REGISTER.name:
                        # Uses only its arguments.
                        result = asyncio.run(REGISTER.run(call["arguments"], cast("ToolContext", None)))
                        say(connection, session, str(result), at=number, role=MessageRole.ASSISTANT)
                say(connection, session, answer_of(number), at=number, role=MessageRole.ASSISTANT)
        connection.execute("COMMIT")
        yield connection


def queries(db: Connection) -> list[tuple[str, str]]:
    """Return queries of each kind, with words from messages across the months."""
    chosen = random.Random(1)
    rows = [text for (text,) in db.execute("SELECT text FROM messages ORDER BY id")]
    found: dict[str, dict[str, None]] = {"one": {}, "rare": {}, "common": {}}
    wanted = {"one": ONE_WORD, "rare": WITH_A_RARE_ONE, "common": COMMON_WORDS}
    for text in itertools.cycle(rows[::11]):
        mark, *rest = text.split()
        said = re.sub(r"[A-Z]+-\d+:?", " ", " ".join(rest))
        words = [word if word.isascii() else word[:4] for word in re.findall(r"[^\W_]+|[^\w\s]", said)]
        words = [word for word in words if _is_asked(word)]
        if len(words) > 5:
            at = chosen.randrange(len(words) - 3)
            near, far = words[at : at + chosen.randint(2, 3)], chosen.sample(words, 2)
            for kind, query in (("one", far[0]), ("rare", f"{mark.strip(':')} {far[1]}"), ("common", " ".join(near))):
                if len(found[kind]) < wanted[kind]:
                    found[kind][query] = None
            if len(found["common"]) < COMMON_WORDS:
                found["common"][" ".join(far)] = None
        if all(len(found[kind]) >= count for kind, count in wanted.items()):
            return [(kind, query) for kind, asked in found.items() for query in asked]
    raise AssertionError("the months have no end")


@cache
def _is_asked(word: str) -> bool:
    return parse_query(word) is not None


def ids_of_before(db: Connection, query: str, lineage_id: LineageId | None) -> list[int]:
    parsed = parse_query(query)
    assert parsed is not None
    found: dict[int, None] = {}
    asked: list[Expression | None] = [parsed.whole, parsed.expression]
    for expression in filter(None, asked):
        scope = f' AND scope:"l{lineage_id}"' if lineage_id is not None else ""
        found |= {row_id: None for (row_id,) in db.execute(_BM25, (f"text:({match_text(expression)}){scope}",))}
    return list(found)[:10]


@pytest.mark.fuzz
@pytest.mark.parametrize("narrow", [False, True])
def test_common_words_rank_almost_like_bm25(db: Connection, monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    asked = queries(db)
    monkeypatch.setattr(fts5, "COMMON_ROWS", 0)
    lineage_id = LineageId(1) if narrow else None
    worse = []
    for kind, query in every(3, asked):
        before = ids_of_before(db, query, lineage_id)
        now = [hit.message_id for hit in search(db, query, lineage_id=lineage_id)][:10]
        kept = len(set(before) & set(now))
        if now != before if kind == "one" else kept < len(before) - (1 if kind == "rare" else 2):
            worse.append((kind, query, kept, before, now))
    assert not worse
    assert len(asked) == 200


COMMON = ["the", "of", "and", "to", "a", "in", "is", "it", "you", "that", "he", "was"]


@pytest.mark.parametrize("kind", ["side by side", "anywhere"])
def test_several_common_words_keep_their_order_in_a_long_chat(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Most rows contain the words, and the best rows are not the newest."""
    chosen = random.Random(2)
    with migrated() as db:
        sessions = [start(db, chat) for chat in "ab"]
        db.execute("BEGIN")
        for number in range(3_000):
            said = chosen.choices([*COMMON, "boat", "harbour"], range(14, 0, -1), k=chosen.randint(20, 60))
            say(db, sessions[number % 2], " ".join(said))
        db.execute("COMMIT")
        monkeypatch.setattr(fts5, "COMMON_ROWS", 0)
        pairs = list(itertools.combinations(COMMON, 2))
        for words in every(6, pairs):
            query = " ".join(words) if kind == "side by side" else f"{words[0]} AND {words[1]} -xylophonist"
            before = ids_of_before(db, query, sessions[0].lineage_id)
            now = [hit.message_id for hit in search(db, query, lineage_id=sessions[0].lineage_id)][:10]
            assert len(set(before) & set(now)) >= len(before) - 2, query


NARROW = (
    {},
    {"chat_id": 2},
    {"lineage_id": 2},
    {"role": MessageRole.ASSISTANT},
    {"since": 390},
    {"chat_id": 1, "since": 30},
)


@pytest.mark.parametrize("narrow", NARROW, ids=str)
@pytest.mark.parametrize("query", ["costs", "costs OR 登记簿里", "costs -looked", "har*", "港"])
def test_filters_apply_to_common_words(
    db: Connection, monkeypatch: pytest.MonkeyPatch, query: str, narrow: dict[str, Any]
) -> None:
    before = search(db, query, **narrow)
    monkeypatch.setattr(fts5, "COMMON_ROWS", 0)
    now = search(db, query, **narrow)
    assert [hit.message_id for hit in now] == [hit.message_id for hit in before]
    assert all(hit.score > 0 for hit in now)


@pytest.mark.parametrize(
    ("query", "narrow"),
    [
        ("the", {}),
        ("TURN-0100 the", {}),
        ("TURN-0100 -the", {}),
        ("TURN-0100 OR the", {}),
        ("TURN-0100", {"role": MessageRole.ASSISTANT}),
        ("TURN-0100", {"chat_id": 1}),
        ("th*", {}),
    ],
)
def test_sqlite_does_not_count_common_words(
    db: Connection, monkeypatch: pytest.MonkeyPatch, query: str, narrow: dict[str, Any]
) -> None:
    """Counting would read every match in the whole index."""
    monkeypatch.setattr(fts5, "COMMON_ROWS", 300)
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    search(db, "TURN-0100")
    assert any('text:("TURN-0100")' in statement and "bm25(" in statement for statement in statements)
    statements.clear()
    search(db, query, **narrow)
    db.set_trace_callback(None)
    assert statements
    for statement in statements:
        assert "bm25(" not in statement or not re.search('"(the|th|c1|rassistant)"', statement)
