"""Markdown of models is shown completely on every platform, in time proportional to its length."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.rendering_bench import BAR, HOSTILE, LENGTH, PROSE, RENDERERS, Renderer, seconds
from platforms.discord import rendering as discord
from platforms.local.markdown import to_html
from platforms.telegram import rendering as telegram
from tests.platforms.words import lost_on_discord, lost_on_telegram, lost_on_the_web

_CORPUS = sorted((Path(__file__).parents[1] / "fixtures" / "markdown").glob("*.json"))


def lost(text: str, *, discord_units: int = discord.LIMIT, web_units: int = 100_000) -> dict[str, list[str]]:
    """Return the words of `text` that are not visible, by platform."""
    words = {
        "telegram": lost_on_telegram(text, telegram.render(text, "text")),
        "telegram's lists": lost_on_telegram(text, telegram.render(text), in_order=False),
        "discord": lost_on_discord(text, discord.render(text, discord_units, "text")),
        "discord's lists": lost_on_discord(text, discord.render(text, discord_units), in_order=False),
        "web": lost_on_the_web(text, web_units),
    }
    return {platform: found for platform, found in words.items() if found}


@pytest.mark.parametrize("path", _CORPUS, ids=lambda path: path.stem)
def test_real_markdown_loses_no_word(path: Path) -> None:
    examples: list[str] = msgspec.json.decode(path.read_bytes())["examples"]
    assert len(examples) > 20
    assert {text: found for text in examples if (found := lost(text))} == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("| a | b |\n|---|---|\n| 1 | `x|y` |", "x|y"),
        ("| a | b |\n|---|---|\n| 1 | ``p|`|q`` | r |", "p|`|q"),
        ("| a | b |\n|---|---|\n| 1 | 2 | three | four |", "four"),
        ("> | a |\n> |---|\n> | 1 | two |", "two"),
        ("```py and so on\nx\n```", "and so on"),
        ("~~~ read this first\nx\n~~~", "read this first"),
        ("[a]: https://example.org/unused", "https://example.org/unused"),
        ('See [a].\n\n[a]: https://example.org/used "Title"\n[a]: https://example.org/second', "second"),
        ("text[^1]\n\n[^1]: https://example.org/note\n[^2]: single", "single"),
        ("> " * 30 + "deep", "deep"),
        ("".join("  " * depth + "- item\n" for depth in range(30)) + "  " * 30 + "- deep", "deep"),
        ("x <!-- said aside --> y", "said aside"),
    ],
)
def test_no_platform_hides_these_words(text: str, words: str) -> None:
    assert lost(text) == {}
    html = str(to_html(text)).replace("&#39;", "'")
    for shown in (telegram.render(text)[0].text, discord.render(text)[0].text, html):
        assert words in shown


_MARKS = [
    *("\n", "\n\n", "\n", " ", "  \n", "\t", "    ", "> ", "- ", "* ", "1. ", "2) ", "# ", "###### ", "---\n", "===\n"),
    *("`", "``", "```", "```py ", "\n```\n", "~~~", "\n~~~\n", "*", "**", "_", "__", "~~", "\\", "|", "||", "\\|"),
    *("[", "]", "](", ")", "](https://e.example/", "![", "]: ", "][", "[^"),
    *("<", ">", "<https://", "</", "<!--", "&amp;"),
    *("$", "$$", "\\(", "\\)", "\\[", "\\]", "\\sqrt{", "\\frac{", "}", "_{", "^{", "- [ ] ", "- [x] ", "\r", "\r\n"),
    *("|---|---|\n", "\n|:-:|--:|\n", "| a | b |\n|---|---|\n", "\n[r]: /u\n", "[r]", "\u2028", "\x0b", '"', "'", " "),
]


@st.composite
def _answers(draw: st.DrawFn) -> str:
    """Random marks between words that are all different."""
    pieces = draw(st.lists(st.sampled_from(_MARKS) | st.sampled_from(["word", "word "]), max_size=60))
    return "".join(piece.replace("word", f"w{number}é世") for number, piece in enumerate(pieces))


@pytest.mark.fuzz
@example("| a | b |\n|---|---|\n| w1 | `w2|w3` | w4 |")
@given(text=_answers())
def test_no_random_markdown_loses_a_word(text: str) -> None:
    assert (lost(text), lost(text * 4, discord_units=120, web_units=200)) == ({}, {})


@pytest.mark.parametrize("render", RENDERERS.values(), ids=RENDERERS)
def test_rendering_takes_less_than_four_times_as_long_as_prose(render: Renderer, subtests: pytest.Subtests) -> None:
    prose = PROSE * (LENGTH // len(PROSE))
    usual = min(seconds(render, prose) for _ in range(2))
    for name, text in HOSTILE.items():
        with subtests.test(name):
            ratios = [seconds(render, text) / usual]
            while (
                min(ratios) > BAR and len(ratios) < 6
            ):  # a busy machine may slow down either measurement, so repeat both
                ratios.append(seconds(render, text) / seconds(render, prose))
            assert min(ratios) <= BAR
