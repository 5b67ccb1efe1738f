"""The text of an answer that is spoken."""

import pytest

from gateway.turns.voice import MAX_SPOKEN, spoken_text

SENTENCE = "It is 3.5 km, e.g. by bike. "


@pytest.mark.parametrize(
    ("markdown", "spoken"),
    [
        ("**Bold** and `code`, _then_\nmore", "Bold and code, then more."),
        ("See [the plan](https://a.example/b) at https://a.example/c or <https://a.example>.", "See the plan at or."),
        ("> “Quoted.”\n\n![a picture](https://a.example/p.png)\n\n---", "“Quoted.”"),
        ("- one\n- two!\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx = 1\n```", "one.\ntwo!"),
        ("```\nonly code\n```", ""),
        ("答えです。", "答えです。"),
    ],
)
def test_marks_code_tables_and_addresses_are_not_spoken(markdown: str, spoken: str) -> None:
    assert spoken_text(markdown) == (spoken, True)


@pytest.mark.parametrize(
    ("markdown", "end"), [(SENTENCE * 100, "by bike."), ("word " * 500, "word"), ("x" * 2_000, "x")]
)
def test_a_long_answer_is_cut_at_the_best_place(markdown: str, end: str) -> None:
    spoken, is_whole = spoken_text(markdown)
    assert not is_whole
    assert MAX_SPOKEN - len(SENTENCE) <= len(spoken) <= MAX_SPOKEN
    assert spoken.endswith(end)
