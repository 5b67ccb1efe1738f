"""Rendering for Discord: nothing is lost or refused, and every fence is closed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.base import SendRequest
from platforms.discord.rendering import LIMIT, render
from platforms.text import utf16_units
from tests.platforms.contract import RecordingIntake, running
from tests.platforms.discord.harness import DiscordHarness, chat
from tests.platforms.telegram.test_rendering import ANSWERS, AnswerMaker
from tests.sampling import examples


def texts(markdown: str) -> list[str]:
    return [part.text for part in render(markdown)]


def is_balanced(text: str) -> bool:
    """Return True if all code is closed. Discord starts and ends code at any three backticks."""
    return text.count("```") % 2 == 0


PLAN = "# Plan\n\nUse **two** steps:\n\n1. `make`\n2. *wait*\n\n```python\nprint(1)\n```\n\n> said [who](https://a.b)"


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        (PLAN, PLAN),
        (
            "before\n\n| a | name |\n|---|---|\n| 1 | 漢字 |\n| 22 | `x` **y** |\n\nafter",
            "before\n\n```\na  | name\n---+-----\n1  | 漢字\n22 | x y\n```\n\nafter",
        ),
        ("~~~py\nx = 1\n~~~", "```py\nx = 1\n```"),
        ("text\n\n    indented\n    code", "text\n\n```\nindented\ncode\n```"),
        ("1. ```sh\n   ls\n   ```\n2. next", "1.\n```sh\nls\n```\n2. next"),
        ("#### Deep", "### Deep"),
        ("```py\nx = 1", "```py\nx = 1\n```"),
        ("```>a\nx = 1\n```", "```\n>a\nx = 1\n```"),
        ("```Use this: it is short\nx = 1\n```", "```\nUse this: it is short\nx = 1\n```"),
        ("```words-that-are-too-long-for-a-language\nx\n```", "```\nwords-that-are-too-long-for-a-language\nx\n```"),
        ('```py title="a.py"\nx = 1\n```', '```py\ntitle="a.py"\nx = 1\n```'),
        ("half \ud83d emoji", "half \ufffd emoji"),
        *((nothing, "…") for nothing in ("", "   \n\n", "\u200b\ufeff", "\x00")),
    ],
)
def test_text_of_one_message(markdown: str, shown: str) -> None:
    assert texts(markdown) == [shown]


def test_backticks_inside_code_cannot_end_it() -> None:
    [text] = texts("````\n```py\nx\n```\n````")
    assert (text.count("```"), text.replace("\u200b", "")) == (2, "```\n```py\nx\n```\n```")


def test_long_code_is_closed_and_opened_again_at_each_cut() -> None:
    lines = [f"line {number} = {'x' * (number % 70)}" for number in range(200)]
    parts = texts("```python\n" + "\n".join(lines) + "\n```")
    assert len(parts) > 3
    assert all(part.startswith("```python\n") and part.endswith("\n```") for part in parts)
    assert [line for part in parts for line in part.split("\n")[1:-1]] == lines


def test_code_that_fits_one_message_is_not_cut() -> None:
    code = "```\n" + "x\n" * 700 + "```"
    parts = texts("word " * 200 + "\n\n" + code)
    assert (len(parts), parts[1]) == (2, code)


def test_a_long_paragraph_is_cut_after_a_sentence() -> None:
    parts = texts("This is a sentence of some length. " * 120)
    assert len(parts) == 3
    assert all(part.rstrip().endswith("length.") for part in parts)


def test_a_cut_keeps_characters_with_their_combining_marks() -> None:
    family = "👨‍👩‍👧"
    parts = texts("a" + family * 500)
    assert "".join(parts) == "a" + family * 500
    assert not any(part.startswith(("\u200d", "\ufe0f")) or part.endswith("\u200d") for part in parts)


@examples(150)
@given(st.text(st.sampled_from("ab \n`~|-#>*_.1世👋\t\\"), max_size=300) | st.text(max_size=200))
def test_any_text_keeps_its_words_and_closes_its_fences(text: str) -> None:
    for limit in (LIMIT, 60):
        parts = [part.text for part in render(text, limit)]
        assert all(is_balanced(part) for part in parts)
        assert all(0 < utf16_units(part) <= limit for part in parts)
        letters = re.findall("[ab世👋]", text)
        assert re.findall("[ab世👋]", "".join(parts)) == letters


@pytest.mark.fuzz
async def test_random_answers_arrive_whole(harness: DiscordHarness) -> None:
    where = chat(harness.discord.dm_with("100000000000000003")["id"])
    async with running(harness.adapter, RecordingIntake()):
        for seed in range(ANSWERS):
            maker = AnswerMaker(seed)
            parts = harness.adapter.render(maker.answer())
            for number, part in enumerate(parts):
                await harness.adapter.send(SendRequest(chat=where, part=part, key=f"{seed}:{number}"))
            arrived = await harness.visible(where)
            harness.discord.messages[where.chat_ref].clear()
            assert arrived == [part.text for part in parts]
            assert all(is_balanced(part) and utf16_units(part) <= LIMIT for part in arrived)
            assert AnswerMaker.words_in("\n".join(arrived)) == maker.words, f"answer {seed} lost or moved a word"
