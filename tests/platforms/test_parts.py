"""Long answers are cut before headings, or between paragraphs and items. Code, rows, links and formulas stay whole."""

import random
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.discord import rendering as discord
from platforms.local.markdown import split_parts
from platforms.telegram import rendering as telegram
from platforms.text import utf16_units
from tests.sampling import examples

Render = Callable[[str], Sequence[str]]
RENDERERS: dict[str, tuple[Render, int]] = {
    "telegram": (lambda text: [part.text for part in telegram.render(text)], telegram.PART_UNITS),
    "telegram, tables": (lambda text: [part.text for part in telegram.render(text, "text")], telegram.PART_UNITS),
    "discord": (lambda text: [part.text for part in discord.render(text)], discord.LIMIT),
    "discord, tables": (lambda text: [part.text for part in discord.render(text, tables="text")], discord.LIMIT),
    "discord, short": (lambda text: [part.text for part in discord.render(text, 400)], 400),
    "web": (lambda text: split_parts(text, 500), 500),
}
_WORDS = ("word", "größe", "世界", "слово", "👋x", "שלום")
_ANY_WORD = "|".join(_WORDS)
_WHOLE = {
    "[a link with text](https://e.example/x)": ("a link with text", "a link with text"),
    "$Fx = a + b + c$": ("Fx = a + b + c", "Fx = a + b + c"),
    "\\(Fx = \\frac{a + b}{c}\\)": ("= (a + b)/c", "{a + b}"),
    "`F code x`": ("F code x", "F code x"),
}
"""Links, formulas and code, each with its text in messages and on the web. They are not cut."""


def answer(seed: int) -> str:
    """Return a random answer. Every word has its own number."""
    chosen = random.Random(seed)

    def sentence() -> str:
        return " ".join(chosen.choices(_WORDS, k=chosen.randint(2, 12))) + "."

    def prose() -> str:
        return " ".join(chosen.choice([sentence(), chosen.choice([*_WHOLE])]) for _ in range(chosen.randint(1, 25)))

    def table() -> str:
        rows = (f"| word | {chosen.choice([prose(), 'word'])} |" for _ in range(chosen.randint(1, 12)))
        return "\n".join(["| Head | Other |", "|---|--:|", *rows])

    makers: dict[str, Callable[[], str]] = {
        "heading": lambda: f"{'#' * chosen.randint(1, 4)} Heading word",
        "prose": prose,
        "list": lambda: "\n".join(f"- {prose()}" for _ in range(chosen.randint(1, 6))),
        "code": lambda: "```py\n" + chosen.choice([1, 8, 60]) * "code_word = 'x'  # and more text\n" + "```",
        "table": table,
    }
    blocks = [makers[chosen.choice([*makers, "heading"])]() for _ in range(chosen.randint(1, 25))]
    numbers = iter(range(100_000))
    return re.sub(_ANY_WORD, lambda found: f"{found[0]}{next(numbers)}", "\n\n".join([*blocks, "The end of it."]))


@pytest.mark.parametrize("name", RENDERERS)
@examples(40)
@given(seed=st.integers(0, 2**32))
def test_any_answer_arrives_whole_in_valid_parts(name: str, seed: int) -> None:
    (render, limit), source = RENDERERS[name], answer(seed)
    parts = render(source)
    shown = {*re.findall(rf"(?:{_ANY_WORD})\d+", "\n".join(parts))}
    assert [word for word in re.findall(rf"(?:{_ANY_WORD})\d+", source) if word not in shown] == []
    assert all(0 < utf16_units(part) <= limit for part in parts)
    assert [part for part in parts if part.count("```") % 2] == []
    assert [part for part in parts if re.match(r"(#+ )?Heading \S+$", part.rstrip().split("\n")[-1])] == []
    for written, (in_messages, on_the_web) in _WHOLE.items():
        whole = on_the_web if name == "web" else in_messages
        assert sum(part.count(whole) for part in parts) == source.count(written)


@pytest.mark.parametrize("name", ["telegram", "discord"])
def test_a_section_begins_a_new_part(name: str) -> None:
    render, limit = RENDERERS[name]
    section = "## Title\n\n" + "A sentence of some words. " * (limit // 45)
    parts = render("\n\n".join([section.strip()] * 4))
    assert len(parts) == 4
    assert all(part.removeprefix("## ").startswith("Title") and part.endswith("words.") for part in parts)


@pytest.mark.parametrize("name", ["telegram", "discord", "telegram, tables", "discord, tables"])
def test_each_part_of_a_table_has_the_header_and_whole_rows(name: str) -> None:
    render, limit = RENDERERS[name]
    rows = [f"| {number} | first {number} line<br>second {number} line |" for number in range(limit // 14)]
    parts = render("Look:\n\n| No | Text |\n|---|---|\n" + "\n".join(rows))
    assert len(parts) > 2
    for part in parts:
        assert re.search(r"^No +\| Text\n-+\+-+\n", part, re.MULTILINE)
        assert re.findall(r"first (\d+)", part) == re.findall(r"second (\d+)", part)
    assert "".join(parts).count("first ") == len(rows)


@pytest.mark.parametrize("name", ["telegram", "discord", "discord, short"])
def test_rows_of_a_list_stay_together(name: str) -> None:
    render, limit = RENDERERS[name]
    rows = [f"| row {number} | {'some text ' * 6} | last {number} |" for number in range(limit // 30)]
    parts = render("| Title of the row | Text of the row | End of it |\n|---|---|---|\n" + "\n".join(rows))
    assert len(parts) > 2
    for part in parts:
        assert re.findall(r"row (\d+)", part) == re.findall(r"last (\d+)", part)


def test_code_after_a_heading_stays_with_it() -> None:
    code = "```py\n" + "x = 1\n" * 150 + "```"
    first, second = RENDERERS["discord"][0](f"{'Some words here. ' * 80}\n\n### Code\n\n{code}")
    assert (first.endswith("here."), second) == (True, f"### Code\n\n{code}")


@pytest.mark.parametrize("name", ["telegram", "discord"])
def test_a_line_of_code_that_is_longer_than_a_part_is_cut_between_words(name: str) -> None:
    render, limit = RENDERERS[name]
    words = [f"word{number}" for number in range(1_500)]
    for shift in range(12):
        parts = render(f"```json\n{'x' * shift} {' '.join(words)}\n```")
        assert re.findall(r"word\d+", "\n".join(parts)) == words
        assert all(utf16_units(part) <= limit for part in parts)


@pytest.mark.parametrize("name", ["telegram", "discord"])
def test_an_empty_line_of_code_at_the_limit_makes_no_part_too_long(name: str) -> None:
    render, limit = RENDERERS[name]
    for length in range(limit - 40, limit + 4):
        parts = render(f"```\n{'y' * length}\n\n{'z' * 500}\n```")
        assert all(utf16_units(part) <= limit for part in parts)
