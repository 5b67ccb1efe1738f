"""Databases that the benchmarks fill with repeated messages."""

from pathlib import Path

import pytest

from bench import searches
from bench.corpus import CHINESE
from hermes_state.engines.sqlite.index import load_mark
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.search.full_text import search


async def test_a_large_database_repeats_messages_and_finds_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "DIFFERENT_MESSAGES", 40)
    monkeypatch.setattr(searches, "SLICE", 25)
    path = tmp_path / "state.db"
    await (await SqliteStore.open(path)).close()
    searches.fill(path, 90)
    with searches.raw_connection(path) as db:
        texts = [text for (text,) in db.execute("SELECT text FROM messages ORDER BY id")]
        assert texts == (texts[:40] * 3)[:90]
        assert load_mark(db) == 90
        assert {hit.message_id for hit in search(db, CHINESE)} == {40, 80}
