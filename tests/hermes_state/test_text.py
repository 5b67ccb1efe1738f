import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.text import closest, ends_in_half, well_formed


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("plain", "plain"),
        ("日本 🎉", "日本 🎉"),
        ("\ud83d\ude00!", "😀!"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00a", "\ufffda"),
        ("a\0b", "ab"),
        ("", ""),
    ],
)
def test_surrogate_pairs_are_joined_and_invalid_characters_removed(given_text: str, kept: str) -> None:
    assert well_formed(given_text) == kept


@given(st.text(st.characters(), max_size=30))
def test_any_text_can_be_stored(text: str) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        assert db.execute("SELECT ?", (well_formed(text),)).fetchone() == (well_formed(text),)


def test_only_a_leading_surrogate_is_half_a_pair() -> None:
    assert ends_in_half("a\ud83d")
    assert not any(map(ends_in_half, ("", "a", "\ude00", "😀")))


@pytest.mark.parametrize(("name", "meant"), [("telegarm", "telegram"), ("DISCORT", "Discord"), ("quite else", None)])
def test_a_misspelt_name_finds_the_closest_ignoring_case(name: str, meant: str | None) -> None:
    assert closest(name, ("telegram", "Discord", "local")) == meant


def test_a_higher_cutoff_requires_more_similarity() -> None:
    assert closest("telegarm", ["telegram"], cutoff=0.8) == "telegram"
    assert closest("telegarm", ["telegram"], cutoff=0.9) is None
