"""Full-text search on both engines: the same words find the same rows, newest first."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from typing import Unpack

import pytest

from hermes_state.engines.postgres.tsvector import MAX_POSITION, store_words, tokens
from hermes_state.search import tsquery
from hermes_state.search.full_text import search
from hermes_state.search.ranking import SearchFilter
from hermes_state.sessions import Session
from hermes_state.store.segment import segment
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append, append_view_row
from hermes_state.values import ChatId, LineageId, MessageBody, MessageId, MessageRole, Millis, Origin, ToolCall, TurnId
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_full_text import start
from tests.postgres import Postgres

QUERIES, ROWS = 300, 600
WORDS = ["door", "Doors", "dorian", "red", "Café", "CAFE", "naïve", "foo_bar", "don't", "Straße", "Ωμέγα", "ёлка", "x1"]
HAN = "数据库据数坏了"
OTHERS = [
    *("🎉", "👩‍👩‍👧", "☕", "😀😀", "e\u0301te\u0301", "½", "\0", "'", "\\", "한국어", "カタカナ", "𞤀", "\u200b"),
    *("ﬁ", "İ", "ǆ"),
]


@pytest.fixture(scope="module")
def chosen() -> random.Random:
    return random.Random(16)


def test_tokens_equal_those_of_fts5(chosen: random.Random) -> None:
    characters = [chr(code) for code in range(1, 0x30000) if not 0xD800 <= code <= 0xDFFF]
    texts = ["".join(chosen.choices(characters[:limit], k=30)) for limit in (0x250, 0x3000, 0x30000) for _ in range(20)]
    texts += [" ".join(f"{one}a{one}b" for one in characters[at : at + 256]) for at in range(0, 0x3000, 256)]
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize='unicode61 remove_diacritics 2')")
        db.execute("CREATE VIRTUAL TABLE word USING fts5vocab(said, instance)")
        for number, text in enumerate([*texts, *(said(chosen) for _ in range(100))]):
            db.execute("INSERT INTO said (rowid, text) VALUES (?, ?)", (number, segment(text)))
            words = db.execute("SELECT term FROM word WHERE doc = ? ORDER BY offset", (number,)).fetchall()
            assert tokens(text) == [word for (word,) in words]


def said(chosen: random.Random) -> str:
    """Return a text of words that occur in queries."""
    pieces = chosen.choices([WORDS, [*HAN], OTHERS], (6, 3, 1), k=chosen.randint(1, 12))
    any_character = chr(chosen.choice([chosen.randint(1, 0xD7FF), chosen.randint(0xE000, 0x1FFFF)]))
    return chosen.choice([" ", "", "-", ". "]).join([*map(chosen.choice, pieces), any_character])


def asked(chosen: random.Random) -> str:
    """Return a query: words, phrases, prefixes, exclusions, alternatives, brackets, or random text."""
    word = said(chosen)[: chosen.randint(1, 9)]
    kind = chosen.randrange(8)
    if kind < 3:
        return chosen.choice([chosen.choice(WORDS), "".join(chosen.choices(HAN, k=chosen.randint(1, 4)))])
    if kind == 3:
        return f'"{word}"' + chosen.choice(["", "*"])
    if kind == 4:
        return f"{asked(chosen)} -{asked(chosen)}"
    if kind == 5:
        return f"({asked(chosen)} OR {asked(chosen)}) {asked(chosen)}"
    return word if kind == 6 else f"{chosen.choice(WORDS)[:3]}*"


def fill(db: Connection, chosen: random.Random) -> list[Session]:
    sessions = [start(db, chat) for chat in "ab"]
    long = " ".join([*(f"w{number}" for number in range(MAX_POSITION)), "beyond", "door"])
    for number in range(ROWS):
        tool = "history_search" if number % 7 == 0 else "look"
        text = long if number == ROWS // 2 else said(chosen)
        body = MessageBody(calls=(ToolCall(id="c", name=tool, arguments='{"path": "dorian"}'),))
        result = NewMessage(role=MessageRole.TOOL, origin=Origin.TOOL, text=text, tool_call_id="c", tool_name=tool)
        call = NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=text, body=body)
        plain = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text)
        append(db, sessions[number % 2].id, [plain, plain, call, result][number % 4], Millis(number))
    append_view_row(
        db, sessions[0].id, NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text="door"), None, Millis(0)
    )
    return sessions


@pytest.fixture(scope="module")
def databases(postgres: Postgres, chosen: random.Random) -> Iterator[list[Connection]]:
    """The same rows in SQLite and PostgreSQL."""
    seed = chosen.random()
    with migrated() as sqlite, postgres_database(postgres) as other:
        for db in (sqlite, other):
            db.execute("BEGIN")
            fill(db, random.Random(seed))
            db.execute("COMMIT")
        yield [sqlite, other]


@contextlib.contextmanager
def postgres_database(postgres: Postgres) -> Iterator[Connection]:
    # imported here, because most runs do not need it
    from hermes_state.engines.postgres.connection import PostgresConnection

    with postgres.fresh_database() as url, contextlib.closing(PostgresConnection.open(url)) as db:
        yield db


@pytest.mark.cluster
@pytest.mark.parametrize("recent", [1, 20, tsquery.RECENT_ROWS])
def test_engines_find_the_same_rows(databases: list[Connection], monkeypatch: pytest.MonkeyPatch, recent: int) -> None:
    monkeypatch.setattr(tsquery, "RECENT_ROWS", recent)
    chosen, found = random.Random(recent), 0
    narrowings: list[SearchFilter] = [
        {},
        {"chat_id": ChatId(1), "role": MessageRole.USER},
        {"lineage_id": LineageId(2), "turn_id": TurnId(99)},
        {"since": Millis(ROWS // 2)},
    ]
    for query in [asked(chosen) for _ in range(QUERIES)]:
        narrow, limit = chosen.choice(narrowings), chosen.choice([1, 20, ROWS])
        ours, theirs = [ids(db, query, limit, **narrow) for db in databases]
        assert theirs == ours, query
        found += len(ours)
    assert found > 10 * QUERIES


@pytest.mark.cluster
def test_engines_rank_the_same_hits_in_the_same_order(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        f"{__name__}.OTHERS", [one for one in OTHERS if one != "\0"]
    )  # SQLite counts no letter after it
    chosen, found = random.Random(4), 0
    narrowings: list[SearchFilter] = [
        {},
        {"chat_id": ChatId(1)},
        {"agent": ""},
        {"lineage_id": LineageId(2), "turn_id": TurnId(99)},
    ]
    with migrated() as sqlite, postgres_database(postgres) as other:
        for db in (sqlite, other):
            db.execute("BEGIN")
            fill(db, random.Random(5))
            db.execute("COMMIT")
        for number in range(QUERIES):
            words = [chosen.choice([*WORDS, HAN[:2], HAN, "dors", "doors", "colour"]) for _ in range(1 + number % 4)]
            query, narrow = asked(chosen) if number % 5 == 0 else " ".join(words), chosen.choice(narrowings)
            ours, theirs = [
                [(hit.message_id, hit.score, hit.snippet) for hit in search(db, query, **narrow)]
                for db in (sqlite, other)
            ]
            assert theirs == ours, query
            found += len(ours)
    assert found > 5 * QUERIES


@pytest.mark.cluster
def test_a_long_row_is_found_by_every_word_and_by_early_phrases(databases: list[Connection]) -> None:
    sqlite, postgres = databases
    last = f"w{MAX_POSITION - 1}"
    for query in (last, "beyond", f"w0 {last} beyond door", f'"w{MAX_POSITION - 2} {last}"'):
        assert len(ids(sqlite, query)) == 1
        assert ids(postgres, query) == ids(sqlite, query), query
    for behind in (f'"{last} beyond"', '"beyond door"'):
        assert (len(ids(sqlite, behind)), ids(postgres, behind)) == (1, [])


_HAN = (chr(0x4E00 + number * 7 % 20_000) + chr(0x4E00 + number // 20_000) for number in range(120_000))
LONG_TEXTS = {
    "rare Han": ("".join(map(chr, range(0x20000, 0x2A000))) * 5, "𠀀𠀁"),
    "Han": ("".join(_HAN), "一一"),
    "words": (" ".join(f"é{number}" for number in range(40_000)), "é1"),
    "one word": ("ж" * 200_000, "ж*"),
    "the same word": ("again " * 30_000, "again"),
    "quotes": ("'\\:& |!()<->*'\0\n" * 10_000 + "quoted", "quoted"),
}


@pytest.mark.cluster
@pytest.mark.parametrize(("text", "first"), LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_any_text_can_be_indexed(databases: list[Connection], text: str, first: str) -> None:
    *_, postgres = databases
    postgres.execute("BEGIN")
    session = start(postgres, "long")
    own = append(postgres, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), Millis(0))
    assert ids(postgres, first, chat_id=session.chat_id) == [own]
    postgres.execute("ROLLBACK")


@pytest.mark.cluster
def test_lost_words_are_stored_again(databases: list[Connection]) -> None:
    *_, postgres = databases
    before = ids(postgres, "door")
    postgres.execute("BEGIN")
    postgres.execute("DELETE FROM message_words")
    assert ids(postgres, "door") == []
    last: int | None = 0
    while last is not None:
        last = store_words(postgres, last, 250)
    assert ids(postgres, "door") == before
    postgres.execute("ROLLBACK")


def ids(db: Connection, query: str, limit: int = ROWS, **narrow: Unpack[SearchFilter]) -> list[MessageId]:
    return [hit.message_id for hit in search(db, query, order="newest", limit=limit, **narrow)]
