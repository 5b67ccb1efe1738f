"""Wide tables become lists of rows and formulas become Unicode text, on Telegram and Discord alike.

The inputs in `fixtures/outside` have the form of tables and formulas in models' answers, model cards, and bug reports
of chat programs (`source`), often with other words. `shown` is the text that people see.
"""

from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from platforms.discord import rendering as discord
from platforms.formulas import to_unicode
from platforms.local.markdown import to_html
from platforms.markdown import PHONE_COLUMNS
from platforms.telegram import rendering as telegram
from tests.platforms.discord.shown import shown

_FOLDER = Path(__file__).parents[1] / "fixtures" / "outside"
OUTSIDE = {
    name: [msgspec.json.decode(line) for line in (_FOLDER / f"{name}.jsonl").read_bytes().splitlines()]
    for name in ("tables", "formulas")
}
LITERAL = [
    *("costs $5 and $10", "from $125K → $108K (this week)", "**$1.50** a bundle, $1.50 each", "a $20-$30 range"),
    *("$10+$5=$15", "$0.15/1M input, $0.60/1M output", "US$5 = C$7", "从$100-150美元和$200", "win $5, net $0"),
    *("echo $HOME/$USER and ${a}${b}", "awk '{print $1, $2}'", "$x = $y + 1;", "set $my_var and $other_var then"),
    *("cell $A$1 and $B$2", "^a$|^b$", "C:\\(x)", "`$x^2$` and ``\\(y_1\\)``", "```\n$x^2$ \\[y_1\\]\n```"),
]
"""Prices, variables, patterns and code."""


def on_discord(markdown: str, **options: Any) -> str:
    return shown("\n".join(part.text for part in discord.render(markdown, **options))).text


@pytest.mark.parametrize("name", OUTSIDE)
def test_recorded_tables_and_formulas_read_well(name: str) -> None:
    assert len(OUTSIDE[name]) >= {"tables": 18, "formulas": 69}[name]
    for row in OUTSIDE[name]:
        seen = on_discord(row["markdown"])
        assert row["shown"] in "\n".join(part.text for part in telegram.render(row["markdown"]))
        assert row["shown"] in (seen if name == "tables" else seen.replace("`", "")), row


def test_titles_are_bold_and_cells_keep_their_markup() -> None:
    row = "| **`make`** and *so on* | building | [docs](https://e.example) |"
    source = f"| *Tool* | What it is for | Page |\n|---|---|---|\n{row}"
    [part] = telegram.render(source)
    styles = [(entity["type"], entity["offset"], entity["length"]) for entity in orjson.loads(part.markup)]
    assert part.text.startswith("Tool:\nmake and so on\n• What it is for: building")
    assert {("italic", 0, 4), ("bold", 6, 14), ("code", 6, 4)} <= {*styles}
    assert styles[-1][0] == "text_link"
    assert shown(discord.render(source)[0].text).covered("bold") == ["make"]


def test_the_setting_keeps_wide_tables_as_text() -> None:
    source = "| Name | Something that is long enough |\n|---|--:|\n| a | 1 |"
    for text in (telegram.render(source, "text")[0].text, on_discord(source, tables="text")):
        assert text == f"Name | Something that is long enough\n-----+{'-' * 30}\na    | {'1':>29}"
        assert len(text.split("\n")[0]) > PHONE_COLUMNS


@pytest.mark.parametrize("text", LITERAL)
def test_prices_variables_and_code_stay_as_they_are(text: str) -> None:
    code = text.replace("```\n", "").replace("\n```", "").replace("`", "")
    assert telegram.render(text)[0].text == code.replace("**", "")
    assert on_discord(text).strip("\n") == code.replace("**", "")


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\(2 x^2\)", "2 x²"),
        ("$$3 a_1 + 1$$", "3 a₁ + 1"),
        (r"\[5 a + b\]", "5 a + b"),
        ("$2 x^2$", "2 x²"),
        ("$2 x + 1$", "2 x + 1"),
        (r"$X:\Omega \to A$", "X:Ω → A"),
    ],
)
def test_coefficients_and_functions_are_no_prices_or_paths(latex: str, text: str) -> None:
    assert telegram.render(f"So {latex} here")[0].text == f"So {text} here"


@pytest.mark.parametrize("formula", [r"$\frac{a}{b_1}$", "$$\nx^2\n$$", r"\(a_1 + b\)", "\\[\nx_1\n\\]"])
def test_a_formula_that_is_being_written_stays_as_it_is(formula: str) -> None:
    for length in range(1, len(formula)):
        begun = f"So\n\n{formula[:length]}"
        assert telegram.render(begun)[0].markup == ""
        assert "`" not in discord.render(begun)[0].text


@pytest.mark.parametrize("latex", [r"x_{", r"\frac", r"\left(x", "}{", "{" * 40 + "}" * 40, r"\overline" * 9 + "x"])
def test_a_formula_that_cannot_be_converted_is_none(latex: str) -> None:
    assert to_unicode(latex) is None


def test_the_web_shows_unicode_where_mathml_is_impossible() -> None:
    assert "<math" in to_html(r"$\sqrt{x}$")
    assert to_html("So $x^2^3$ and $$\nx_1_2\n$$") == "<p>So x²³ and x₁₂</p>\n"
