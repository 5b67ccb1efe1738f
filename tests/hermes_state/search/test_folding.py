import json
import unicodedata
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.operator.lookups import incompleteness
from hermes_state.engines.postgres.tsvector import RENEWED_ROWS, VERSION_NOTE, renew_words, tokens
from hermes_state.search.full_text import SNIPPET_CHARACTERS, search, snippet_of
from hermes_state.search.index import keep_index, load_progress
from hermes_state.store.segment import folded, segment_query
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import MessageRole, Millis, Origin
from tests.hermes_state.helpers import ROOT, closed_after, execute
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_engines import postgres_database
from tests.hermes_state.search.test_full_text import say, start
from tests.postgres import Postgres


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


SPELLINGS = [
    json.loads(line) for line in (ROOT / "tests" / "fixtures" / "spellings.jsonl").read_text("utf-8").splitlines()
]
"""Queries, each with a text that it must find or, if it is different, must not find."""
PAIRS = [(one["query"], one["text"]) for one in SPELLINGS if not one.get("is_different")]
DIFFERENT = [(one["query"], one["text"]) for one in SPELLINGS if one.get("is_different")]
NOISE = ("nothing of the kind", "完全不同", "ไม่มีอะไร", "كلمة أخرى")


def wrong(db: Connection) -> list[tuple[str, str]]:
    """Return pairs of a query and a text that it does not find, or not alone."""
    session = start(db, "folding")
    texts = dict.fromkeys(chain(NOISE, (text for _, text in (*PAIRS, *DIFFERENT))))
    for number, text in enumerate(texts):
        append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=text), Millis(number))
    found = {query: {hit.text for hit in search(db, f'"{query}"', limit=50)} for query, _ in (*PAIRS, *DIFFERENT)}
    missed = [(query, text) for query, text in PAIRS if text not in found[query] or found[query] & {*NOISE}]
    return missed + [(query, text) for query, text in DIFFERENT if text in found[query]]


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.cluster)])
def test_each_spelling_finds_the_others(engine: str, request: pytest.FixtureRequest) -> None:
    is_file = engine == "sqlite"
    with migrated() if is_file else postgres_database(request.getfixturevalue("postgres")) as db:
        db.execute("BEGIN")
        assert wrong(db) == []
        db.execute("ROLLBACK")


@pytest.mark.cluster
async def test_words_from_an_earlier_version_are_stored_again(postgres: Postgres) -> None:
    from hermes_state.engines.postgres.store import PostgresStore  # imported here, because most runs do not need it

    with postgres.fresh_database() as url:
        async with closed_after(PostgresStore.open(url)) as store:
            session = await store.write(start, "a")
            for number in range(RENEWED_ROWS + 20):
                await store.write(say, session, f"{decomposed('한국어')} {number}")
            await execute(store, "UPDATE message_words SET words = CAST('old' AS tsvector)")
            assert await store.read(load_progress) is None, "of a new database"
            await execute(store, "DELETE FROM meta WHERE key = ?", VERSION_NOTE)
            assert await store.read(search, "한국어") == []
            assert await store.read(load_progress) == 0
            assert not await store.write(renew_words)
            assert await store.read(load_progress) == 100 * RENEWED_ROWS // (RENEWED_ROWS + 20)
            assert await store.read(incompleteness) is not None
            await keep_index(store)  # like the next start
            assert len(await store.read(search, "한국어", limit=200)) == RENEWED_ROWS + 20
            assert await store.read(load_progress) is None


@pytest.mark.parametrize(("query", "text"), PAIRS)
def test_a_snippet_shows_the_original_where_it_matches(query: str, text: str) -> None:
    filler = "".join(f"{decomposed('été')} ﬃ ^{'q' * (number % 7)} " for number in range(300))
    shown = snippet_of(f"{filler}{text} {filler}", query)
    assert text in shown
    assert len(shown) <= SNIPPET_CHARACTERS + 2


@given(st.text(max_size=60))
def test_folding_twice_changes_nothing(text: str) -> None:
    assert folded(folded(text)) == folded(text)


@given(st.text(max_size=40))
def test_a_composed_and_a_decomposed_text_have_the_same_words(text: str) -> None:
    assert tokens(unicodedata.normalize("NFC", text)) == tokens(unicodedata.normalize("NFD", text))
    assert segment_query(text) == segment_query(unicodedata.normalize("NFC", text)) or text.isascii()
