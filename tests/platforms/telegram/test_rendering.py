"""Markdown becomes text and entities that Telegram accepts, without losing words."""

import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state.values import OutboundPart
from platforms.telegram.rendering import PART_ENTITIES, PART_UNITS, marked_as_repeat, render
from platforms.text import utf16_units
from tests.fakes import tg_markup
from tests.sampling import sample

SEED = 20261121
ANSWERS = sample(80, 2_000)


def entities_of(part: OutboundPart) -> list[dict[str, Any]]:
    return orjson.loads(part.markup) if part.markup else []


def covered(part: OutboundPart, entity: Mapping[str, Any]) -> str:
    units = part.text.encode("utf-16-le")[entity["offset"] * 2 : (entity["offset"] + entity["length"]) * 2]
    return units.decode("utf-16-le")


@given(st.from_regex(r"[^\W\d_]([^\W_]|[ ,.;:?!'()-])*(?<! )", fullmatch=True))
def test_a_line_without_markup_stays_the_same_alone_and_in_a_longer_text(line: str) -> None:
    assert render(line) == [OutboundPart(text=line, plain=line)]
    assert render(f"{line}\n\n`code`")[0].text == f"{line}\n\ncode"


@pytest.mark.parametrize(
    "mark", ["*", "_", "`", "~~", "||", "\\", "&amp;", "<b>", "[a](https://b.c)", "https://a.b/c_d"]
)
def test_a_short_line_with_markup_is_rendered_as_in_a_longer_text(mark: str) -> None:
    """Lines without markup skip the parser. No line with markup may."""
    for line in (f"a {mark}b{mark} c", f"a {mark}", f"a{mark}b", f"a {mark}(b.{mark}"):
        [alone], [longer] = render(line), render(f"{line}\n\nd")
        assert longer == msgspec.structs.replace(alone, text=f"{alone.text}\n\nd", plain=f"{alone.plain}\n\nd")


def test_a_cut_keeps_letters_with_their_accents() -> None:
    text = "x" + "e\u0301" * PART_UNITS
    parts = [part.text for part in render(text)]
    assert ("".join(parts), [part for part in parts if part.startswith("\u0301")]) == (text, [])


def styles(text: str) -> dict[str, str]:
    """Return the covered text by type, for a text that fits one part."""
    [part] = render(text)
    return {entity["type"]: covered(part, entity) for entity in entities_of(part)}


def check(part: OutboundPart) -> None:
    """Check a part like the fake Bot API does."""
    assert 0 < utf16_units(part.text) <= PART_UNITS
    assert part.text.strip()
    tg_markup.check_entities(part.text, entities_of(part))
    assert len(entities_of(part)) <= PART_ENTITIES


LITERAL = [
    *("Use <div class='x'> and </div> here", "if a || b || c then stop", "it costs $5 and then $10 more"),
    *("Vec<String> || <T>", "2 < 3 and 5 > 4", "a\ue000b < c"),
    "It is 5$ and $5 not 10$, in $HOME/$USER or ${a}${b}, $x:$y",
]
"""Texts that look like markup and stay as they are."""


class TestStyles:
    def test_common_markup_becomes_entities(self) -> None:
        assert styles("**bold** _slanted_ ~~gone~~ `code` [name](https://example.org/a)") == {
            "bold": "bold",
            "italic": "slanted",
            "strikethrough": "gone",
            "code": "code",
            "text_link": "name",
        }

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            *((text, text) for text in LITERAL),
            ("# One\n\n## Two\n\n### Three\n\ntext", "One\n\nTwo\n\nThree\n\ntext"),
            ("- [ ] open\n- [x] done", "☐ open\n☑ done"),
            ("look: ![](https://example.org/a.png)", "look: https://example.org/a.png"),
            ("[](https://example.org/b) first", "https://example.org/b first"),
            ("3. three\n5. five", "3. three\n5. five"),
            ("1) one\n2) two", "1) one\n2) two"),
            ("1. one\n1. two", "1. one\n2. two"),
            ("100\n\n+ 50", "100\n+ 50"),
            ("$n = 5$ and $O(n)$ and $5 \\times 3$", "n = 5 and O(n) and 5 × 3"),
            ("> " * 8 + "so", "so"),
        ],
    )
    def test_text_of_one_part(self, text: str, shown: str) -> None:
        [part] = render(text)
        assert part.text.strip() == shown

    def test_a_code_block_keeps_its_language_and_its_bytes(self) -> None:
        [part] = render("Look:\n\n```python\nif a < b || c:\n    print('**x**')\n```\n")
        [entity] = entities_of(part)
        assert (entity["type"], entity["language"]) == ("pre", "python")
        assert covered(part, entity) == "if a < b || c:\n    print('**x**')"

    def test_a_link_that_telegram_refuses_shows_its_target(self) -> None:
        [part] = render("see [the readme](docs/README.md), [a.py](a.py) and [site](https://example.org)")
        assert part.text == "see the readme (docs/README.md), a.py and site"
        assert [entity["url"] for entity in entities_of(part)] == ["https://example.org"]

    def test_offsets_count_utf16_units(self) -> None:
        [part] = render("👋👋 **bold** 世界 `code`")
        assert [covered(part, entity) for entity in entities_of(part)] == ["bold", "code"]

    @pytest.mark.parametrize("text", ["", "   \n", "\u200b", "[](https://example.org)", "\ud800"])
    def test_an_invisible_answer_still_makes_a_valid_part(self, text: str) -> None:
        [part] = render(text)
        check(part)


class TestSplitting:
    def test_a_short_answer_is_one_part(self) -> None:
        assert len(render("a" * PART_UNITS)) == 1

    def test_parts_end_between_paragraphs(self) -> None:
        paragraph = "Some words that fill a line. " * 20
        parts = render("\n\n".join([paragraph.strip()] * 20))
        assert len(parts) > 1
        assert all(part.text.startswith("Some words") and part.text.endswith("a line.") for part in parts)

    def test_a_cut_code_block_is_a_code_block_on_both_sides(self) -> None:
        lines = [f"line_{number} = '👋' * {number}" for number in range(600)]
        parts = render("Before\n\n```python\n" + "\n".join(lines) + "\n```\n\nAfter")
        assert len(parts) > 2
        shown = []
        for part in parts:
            check(part)
            [entity] = entities_of(part)
            assert (entity["type"], entity["language"]) == ("pre", "python")
            shown.append(covered(part, entity))
        assert "\n".join(shown).split("\n") == lines

    def test_no_part_has_more_entities_than_telegram_shows(self) -> None:
        parts = render("\n".join(f"- **item {number}** with `code`" for number in range(200)))
        assert sum(len(entities_of(part)) for part in parts) == 400
        for part in parts:
            check(part)

    def test_a_text_without_any_break_is_cut_between_characters(self) -> None:
        parts = render("👋" * 5000)
        assert "".join(part.text for part in parts) == "👋" * 5000
        for part in parts:
            check(part)

    @given(st.text(st.characters(codec="utf-8"), max_size=12_000))
    def test_every_part_is_valid_for_telegram(self, text: str) -> None:
        for part in render(text):
            check(part)


class TestRepeats:
    def test_the_repeat_mark_shifts_the_entities(self) -> None:
        [part] = render("👋 **bold**")
        marked = marked_as_repeat(part)
        [entity] = entities_of(marked)
        assert covered(marked, entity) == "bold"
        assert marked.text != part.text
        assert marked.text.endswith(part.text)

    def test_the_longest_part_fits_with_the_repeat_mark(self) -> None:
        [part] = render("a" * PART_UNITS)
        assert utf16_units(marked_as_repeat(part).text) <= 4096


# Two thousand answers


class AnswerMaker:
    """Generator of random answers as models write them. Every word is numbered, so that a lost one is noticed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.words: list[str] = []

    def answer(self) -> str:
        blocks = [self._random.choice(self._blocks)(self) for _ in range(self._random.choice((1, 2, 3, 5, 8, 40)))]
        return self._random.choice(("\n\n", "\n\n\n")).join(blocks)

    @staticmethod
    def words_in(text: str) -> list[str]:
        return re.findall(r"(?:word|größe|世界|слово|👋x|naïve)\d+", text)

    def _word(self) -> str:
        stem = self._random.choice(("word", "größe", "世界", "слово", "👋x", "naïve"))
        self.words.append(f"{stem}{len(self.words)}")
        return self.words[-1]

    def _inline(self) -> str:
        word = self._word
        return self._random.choice(
            (
                lambda: word(),
                lambda: f"**{word()} {word()}**",
                lambda: f"*{word()}*",
                lambda: f"`{word()}`",
                lambda: f"~~{word()}~~",
                lambda: f"[{word()}](https://example.org/{self._random.randrange(99)})",
                lambda: f"[{word()}](./relative.md)",
                lambda: f"***{word()}*** {word()}",
                lambda: f"{word()} < {word()} || {word()}",
                lambda: f"<b>{word()}</b>",
                lambda: f"${self._random.randrange(99)} {word()} ${self._random.randrange(99)}",
                lambda: f"({word()}) * {word()} _ {word()}",
            )
        )()

    def _sentence(self) -> str:
        return " ".join(self._inline() for _ in range(self._random.randrange(1, 25))) + "."

    def _heading(self) -> str:
        return "#" * self._random.randrange(1, 7) + " " + self._word()

    def _list(self) -> str:
        mark = self._random.choice(("-", "*", "1."))
        return "\n".join(f"{mark} {self._sentence()}" for _ in range(self._random.randrange(1, 12)))

    def _quote(self) -> str:
        return "\n".join(f"> {self._sentence()}" for _ in range(self._random.randrange(1, 4)))

    def _code(self) -> str:
        language = self._random.choice(("", "python", "bash", "c++"))
        lines = [
            f"{'    ' * self._random.randrange(3)}{self._word()} = '<|>'"
            for _ in range(self._random.choice((1, 9, 300)))
        ]
        return f"```{language}\n" + "\n".join(lines) + "\n```"

    def _table(self) -> str:
        rows = [f"| {self._word()} | {self._word()} |" for _ in range(self._random.randrange(1, 8))]
        return "\n".join([rows[0], "|---|---|", *rows[1:]])

    def _broken(self) -> str:
        return self._random.choice(("**", "`", "[", "](", "~~", "||", "<", "$$", "\\", "_")) + self._word()

    _blocks = (_sentence, _sentence, _heading, _list, _quote, _code, _table, _broken)


def code_lines(answer: str) -> list[str]:
    """Return the lines of the generated fenced blocks."""
    blocks = re.findall(r"```[^\n]*\n(.*?)\n```", answer, re.DOTALL)
    return [line.strip() for block in blocks for line in block.split("\n")]


def shown_code(parts: Sequence[OutboundPart]) -> list[str]:
    """Return the generated code lines that are shown as code."""
    code = [covered(part, entity) for part in parts for entity in entities_of(part) if entity["type"] == "pre"]
    return [line.strip() for block in code for line in block.split("\n") if " = '<|>'" in line]


@pytest.mark.fuzz
def test_random_answers_are_valid_and_lose_no_word_and_no_code() -> None:
    for number in range(ANSWERS):
        maker = AnswerMaker(SEED + number)
        answer = maker.answer()
        parts = render(answer)
        for part in parts:
            check(part)
        found = AnswerMaker.words_in("\n".join(part.text for part in parts))
        assert found == maker.words, f"answer {number} (seed {SEED + number}) lost or moved a word"
        assert shown_code(parts) == code_lines(answer), f"answer {number} (seed {SEED + number}) lost code"


_HOSTILE = {
    "deep quotes and lists": "> > - 1. " * 4_000,
    "empty formulas": "$" * 40_000,
    "formulas without an end": "\\(" * 20_000,
    "ends first, then formulas without one": "\\)" * 50 + "\\[" * 20_000,
    "links everywhere": "*a*" * 20_000,
    "code everywhere": "`a` " * 20_000,
}


@pytest.mark.parametrize("text", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_long_texts_render_quickly(text: str) -> None:
    before = time.process_time()
    for part in render(text):
        check(part)
    assert time.process_time() - before < 2


class TooMuchWork(Exception):
    """More lines of Python ran than allowed."""


@contextmanager
def lines_at_most(most: int) -> Iterator[None]:
    """Count work instead of time. Raises `TooMuchWork` once more than `most` lines of Python ran."""
    left = most

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal left
        left -= event == "line"
        if left < 0:
            raise TooMuchWork
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("fence", ["```\n", "~~~\n", "- ```\n"])
@pytest.mark.parametrize("length", [4_000, 20_000])
def test_empty_code_blocks_render_in_linear_time(fence: str, length: int) -> None:
    text = fence * (length // len(fence))
    with lines_at_most(100 * length):
        parts = render(text)
    for part in parts:
        check(part)


def test_a_thousand_code_blocks_are_all_shown_as_code() -> None:
    blocks = [f"```\nx = {number}\n```" for number in range(1_000)]
    parts = render("\n".join(blocks))
    code = [covered(part, entity) for part in parts for entity in entities_of(part) if entity["type"] == "pre"]
    assert code == [f"x = {number}" for number in range(1_000)]


@pytest.mark.parametrize(
    "formula",
    [
        "\\(" + "\\sqrt{" * 40 + "x" + "}" * 40 + "\\)",
        "\\(" + "\\sqrt" * 40 + "x\\)",
        "$" + "\\underline{" * 40 + "x" + "}" * 40 + "$",
        "\\[" + "\\overline{$" * 40 + "x" + "}" * 40 + "\\]",
    ],
)
def test_a_formula_that_would_double_with_each_nesting_is_unchanged(formula: str) -> None:
    [part] = render(formula)
    assert len(part.text) <= len(formula)


def test_ordinary_formulas_are_converted() -> None:
    [part] = render("\n".join(r"- \(\sqrt{x} + \sqrt{y}\) and $\sqrt{z}$" for _ in range(10)))
    assert "√" in part.text
    assert "sqrt" not in part.text
