import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.text import closest, ends_in_half, well_formed


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        *(("plain", "plain"), ("日本 🎉", "日本 🎉"), ("\ud83d\ude00!", "😀!"), ("a\ud83d", "a\ufffd"), ("", "")),
        *(("\ude00a", "\ufffda"), ("a\0b", "ab")),
    ],
)
def test_surrogate_pairs_are_joined_and_invalid_characters_removed(given_text: str, kept: str) -> None:
    assert well_formed(given_text) == kept
    assert ends_in_half(given_text) == given_text.endswith("\ud83d"), "only a leading one is half a pair"


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_stored(text: str) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        assert db.execute("SELECT ?", (well_formed(text),)).fetchone() == (well_formed(text),)


@pytest.mark.parametrize(("name", "meant"), [("telegarm", "telegram"), ("DISCORT", "Discord"), ("quite else", None)])
def test_a_misspelt_name_finds_the_closest_ignoring_case(name: str, meant: str | None) -> None:
    assert closest(name, ("telegram", "Discord", "local")) == meant
    assert [closest("telegarm", ["telegram"], cutoff=cutoff) for cutoff in (0.8, 0.9)] == ["telegram", None]
