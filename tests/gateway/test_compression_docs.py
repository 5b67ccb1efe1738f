"""The page on compression has the figures that the gateway works with."""

import re
from pathlib import Path

import pytest

from agent.context.carried.rules import rules_in_force
from agent.context.compressor import MAX_LENGTH_PERCENT
from agent.context.controller import MAX_PASSES, PRESSURE_PERCENT
from agent.context.limits import Limits, summary_input_tokens
from agent.context.state import MIN_GAIN_PERCENT, NO_MODEL_SECONDS, STRIKES_TO_BLOCK, TIMEOUT_LADDER_SECONDS
from agent.context.summary import HEADINGS
from agent.handoff import SYSTEM_NOTE, Handoff, framed
from agent.model.usage import estimated_text_tokens
from agent.turn import MAX_OVERFLOWS
from gateway.config import load_config
from gateway.models.routes import window_of
from gateway.outbound.notices import ACCURACY_EVERY, ACCURACY_FROM
from gateway.turns.runner import MIN_HYGIENE_MESSAGES
from tests.agent.context.rows import human
from tests.gateway.test_docs import between

PAGE = (Path(__file__).parents[2] / "docs/reference/compression.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
WINDOWS = (32_768, 128_000, 200_000, 1_000_000)


def limits_with(**variables: object) -> Limits:
    """Return the limits of a gateway with these variables and nothing else, as `doctor` and `/status` show them."""
    config = load_config({"HERMES_HOME": "/nowhere/yet", **{name: str(value) for name, value in variables.items()}})
    return window_of(config.config)[0]


def limits_at(window: int) -> Limits:
    return limits_with(HERMES_MODEL__NAME="some-model", HERMES_MODEL__CONTEXT_LENGTH=window)


def limits_table() -> str:
    """Return the table of limits at the default settings."""
    limits = [limits_at(window) for window in WINDOWS]
    rows = {
        "input window": [one.input_window for one in limits],
        "pressure notice": [one.threshold * PRESSURE_PERCENT // 100 for one in limits],
        "**threshold**": [one.threshold for one in limits],
        "**hygiene**": [one.hygiene for one in limits],
        "no room (92 % of the input window)": [one.urgent for one in limits],
        "kept beginning, at most": [one.head for one in limits],
        "newest messages, kept": [one.tail for one in limits],
        "summary, at most": [one.summary_ceiling for one in limits],
        "standing rules, at most": [one.rules for one in limits],
        "facts, at most": [one.facts for one in limits],
        "input of the summary model, at most": [summary_input_tokens(one.context_length) for one in limits],
    }
    lines = [
        "| context window | " + " | ".join(f"{window:,}" for window in WINDOWS) + " |",
        "|---|" + "--:|" * len(WINDOWS),
    ]
    lines += [f"| {name} | " + " | ".join(f"{value:,}" for value in values) + " |" for name, values in rows.items()]
    return "\n".join(lines)


def test_the_table_of_limits_has_the_limits_of_the_gateway() -> None:
    assert between(PAGE, "limits:", "end of limits") == limits_table(), limits_table()


@pytest.mark.parametrize(("window", "tokens"), [(128_000, 107_828), (200_000, 170_000)])
def test_hygiene_acts_at_the_documented_size(window: int, tokens: int) -> None:
    assert limits_at(window).hygiene == tokens
    [row] = re.findall(r"\| \*\*hygiene\*\* \|(.*)\|", PAGE)
    assert row.split("|")[WINDOWS.index(window)].strip() == f"{tokens:,}"


def test_the_text_has_the_shares_at_which_hygiene_acts() -> None:
    def share(limits: Limits) -> str:
        return f"{limits.hygiene * 100 / limits.context_length:.1f} %"

    assert f"{share(limits_at(8_192))} of a window of 8,192 tokens" in TEXT
    assert f"{share(limits_at(32_768))} of a window of 32,768 tokens" in TEXT
    assert f"{share(limits_at(128_000))} of a window of 128,000 tokens" in TEXT
    assert f"{share(limits_with(HERMES_MODEL__NAME='gpt-5'))} of the window of `gpt-5`" in TEXT
    smallest = re.search(r"windows below ([\d,]+) tokens, to models", TEXT)
    assert smallest is not None
    window = int(smallest[1].replace(",", ""))
    assert share(limits_at(window)) == "85.0 %"
    assert limits_at(window - 100).hygiene < (window - 100) * 85 // 100


def test_the_examples_of_standing_rules_are_told_apart() -> None:
    table = PAGE.partition("| becomes a rule |")[2].partition("\n\n")[0]
    examples = re.findall(r'^\| "(.+)" \| "(.+)" \|$', table, re.MULTILINE)
    assert len(examples) == 4
    for rule, other in examples:
        found = [
            [one.text for one in rules_in_force((), (), (human(text),), redact=str, is_shared=False)]
            for text in (rule, other)
        ]
        assert found == [[rule], []]


def test_the_headings_of_a_summary_are_those_that_are_asked_for() -> None:
    listed = re.search(r"thirteen headings: (.*?)\.\s", PAGE, re.DOTALL)
    assert listed is not None
    assert tuple(" ".join(listed[1].split()).split(", ")) == HEADINGS


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    first, second, third = TIMEOUT_LADDER_SECONDS
    for words in (
        f"reaches {PRESSURE_PERCENT} % of the threshold",
        f"up to {MAX_PASSES} times",
        f"at least {MIN_HYGIENE_MESSAGES} messages",
        f"at most {MAX_OVERFLOWS} times in one turn",
        f"{first}, {second} and {third} seconds",
        f"{NO_MODEL_SECONDS // 60} minutes",
        f"less than {MIN_GAIN_PERCENT} %",
        f"{MAX_LENGTH_PERCENT} % of the length",
        f"after the {ACCURACY_FROM}nd and every {ACCURACY_EVERY}th compression",
        {2: "two strikes in a row"}[STRIKES_TO_BLOCK],
    ):
        assert words.lower() in TEXT.lower(), words


def test_the_worked_example_adds_up() -> None:
    """The limits and the size of the markers are those of the gateway, and the sums are right."""
    limits = limits_at(200_000)
    example = " ".join(PAGE.partition("## A worked example")[2].partition("\n## ")[0].split())
    assert f"threshold is {limits.threshold:,} tokens" in example
    assert f"{limits.tail:,} tokens for the most recent messages, which are kept," in example
    assert f"{limits.summary_ceiling:,} tokens for a summary" in example
    assert f"at most {summary_input_tokens(limits.context_length):,} tokens of the middle" in example
    before, system, head, middle, tail, after = (
        int(re.search(words.replace("N", r"([\d,]+)"), example)[1].replace(",", ""))  # type: ignore[index]
        for words in (
            *(
                "the prompt has N tokens",
                "N tokens of system prompt",
                "N tokens at the beginning",
                "N tokens in the middle",
            ),
            *("N tokens at the end", "next prompt has about N tokens"),
        )
    )
    assert before == system + head + middle + tail >= limits.threshold
    assert tail <= limits.tail
    assert limits.summary_tokens(middle) == limits.summary_ceiling
    markers = after - (system + head + limits.summary_ceiling + limits.facts + tail)
    assert f"+ {markers} for the markers" in example
    handoff = Handoff(text="", messages=240, first_id=4, last_id=243)
    assert abs(markers - estimated_text_tokens(framed(handoff.stored()) + SYSTEM_NOTE)) < 100
