"""The page on compression has the keys of the configuration and the numbers of the code."""

import re
from pathlib import Path

from agent.context.compressor import MAX_LENGTH_PERCENT
from agent.context.controller import MAX_PASSES, PRESSURE_PERCENT
from agent.context.limits import LimitSettings, limits_of, summary_input_tokens
from agent.context.state import (
    MIN_GAIN_PERCENT,
    NO_MODEL_SECONDS,
    STRIKES_TO_BLOCK,
    TIMEOUT_LADDER_SECONDS,
)
from agent.context.summary import HEADINGS
from agent.model.sizes import DEFAULT_OUTPUT
from agent.turn import MAX_OVERFLOWS
from gateway.config.docs import describe_settings
from gateway.outbound.notices import ACCURACY_EVERY, ACCURACY_FROM
from gateway.turns.fallbacks import MIN_HYGIENE_MESSAGES
from tests.gateway.test_docs import between

PAGE = (Path(__file__).parents[2] / "docs/reference/compression.md").read_text(encoding="utf-8")
WINDOWS = (32_768, 128_000, 200_000, 1_000_000)
BLOCKS = ("compression.", "hygiene.", "auxiliary.compression.", "context.", "notices.")


def limits_table() -> str:
    """Every limit at the default settings."""
    limits = [limits_of(window, min(DEFAULT_OUTPUT, window // 4), LimitSettings()) for window in WINDOWS]
    rows = {
        "input window (the rest is reserved for the answer)": [one.input_window for one in limits],
        "notice to the chat": [one.threshold * PRESSURE_PERCENT // 100 for one in limits],
        "**the agent compresses** (threshold)": [one.threshold for one in limits],
        "**hygiene compresses**": [one.hygiene for one in limits],
        "no room to wait": [one.urgent for one in limits],
        "kept beginning, at most": [one.head for one in limits],
        "kept end": [one.tail for one in limits],
        "summary, at most": [one.summary_ceiling for one in limits],
        "standing rules, at most": [one.rules for one in limits],
        "facts, at most": [one.facts for one in limits],
        "shown to the summary's model, at most": [summary_input_tokens(window) for window in WINDOWS],
    }
    lines = ["| tokens | " + " | ".join(f"{window:,}" for window in WINDOWS) + " |", "|---|" + "--:|" * len(WINDOWS)]
    lines += [f"| {name} | " + " | ".join(f"{value:,}" for value in values) + " |" for name, values in rows.items()]
    return "\n".join(lines)


def keys_table() -> str:
    rows = [row for row in describe_settings() if row.key.startswith(BLOCKS)]
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    lines += [f"| `{row.key}` | {row.default} | {row.allowed} | {row.text} |" for row in rows]
    return "\n".join(lines)


def test_the_computed_values_are_those_of_the_code() -> None:
    assert between(PAGE, "limits:", "end of limits") == limits_table(), limits_table()


def test_every_key_is_there_with_its_default_and_its_range() -> None:
    assert between(PAGE, "keys:", "end of keys") == keys_table(), keys_table()


def test_the_headings_of_a_summary_are_those_that_are_asked_for() -> None:
    listed = re.search(r"thirteen headings: (.*?)\.\n", PAGE, re.DOTALL)
    assert listed is not None
    assert tuple(" ".join(listed[1].split()).split(", ")) == HEADINGS


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split()).lower()
    first, second, third = TIMEOUT_LADDER_SECONDS
    for words in (
        f"at {PRESSURE_PERCENT} % of the threshold",
        f"up to {MAX_PASSES} times",
        f"at least {MIN_HYGIENE_MESSAGES} messages",
        f"at most {MAX_OVERFLOWS} times in one turn",
        f"{first}, {second} and {third} seconds",
        f"{NO_MODEL_SECONDS // 60} minutes",
        f"less than {MIN_GAIN_PERCENT} %",
        f"{MAX_LENGTH_PERCENT} % of the length",
        {(2, 10): "At the second compression and then at every tenth"}[ACCURACY_FROM, ACCURACY_EVERY],
        {2: "Two strikes in a row"}[STRIKES_TO_BLOCK],
    ):
        assert words.lower() in text, words


def test_the_worked_example_adds_up() -> None:
    """The window of the example, as the table has it, and its own sums."""
    limits = limits_of(200_000, DEFAULT_OUTPUT, LimitSettings())
    example = " ".join(PAGE.partition("## A worked example")[2].partition("\n## ")[0].split())
    assert f"from {limits.threshold:,} tokens on" in example
    assert f"{limits.tail:,} tokens for the kept end" in example
    assert f"at most {limits.summary_ceiling:,} tokens long" in example
    before, system, head, middle, tail = (
        int(re.search(rf"([\d,]+) tokens {words}", example)[1].replace(",", ""))  # type: ignore[index]
        for words in ("in all", "of system prompt", "at the beginning", "in the middle", "at the end")
    )
    assert before == system + head + middle + tail >= limits.threshold
    assert tail <= limits.tail
    assert limits.summary_tokens(middle) == limits.summary_ceiling
    frame = 400
    after = re.search(r"next prompt has about ([\d,]+) tokens", example)
    assert after is not None
    assert int(after[1].replace(",", "")) == system + head + limits.summary_ceiling + limits.facts + frame + tail
