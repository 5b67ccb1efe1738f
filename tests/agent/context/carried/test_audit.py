"""Identifiers in a summary are searched in all messages, even in very long conversations."""

from datetime import UTC

import pytest

from agent.context.carried.audit import PIECE_CHARACTERS, is_hollow, without_invented
from hermes_state.values import Millis
from tests.agent.context.rows import human

FILLER = "the harbour has a crane and the mill has none; "


def audited(summary: str, *said: str) -> str | None:
    rows = tuple(human(text) for text in said)
    return without_invented(summary, rows, None, Millis(0), UTC)


@pytest.mark.parametrize("place", range(PIECE_CHARACTERS - 12, PIECE_CHARACTERS + 6))
def test_an_identifier_at_a_cut_of_a_long_message_is_found(place: int) -> None:
    filler = (FILLER * (PIECE_CHARACTERS // len(FILLER) + 2))[:place]
    summary = "## Facts\nThe order is ORD-48213-X.\nIt was paid."
    assert audited(summary, f"{filler} ORD-48213-X {FILLER * 2_000}") == summary


def test_invented_identifiers_are_removed_in_a_long_conversation() -> None:
    said = [f"{FILLER * 40} TICKET-{1_000 + number}" for number in range(200)]
    summary = "## Facts\nTICKET-1003 is open.\nTICKET-1199 is closed.\nTICKET-7777 is new."
    assert audited(summary, *said) == "## Facts\nTICKET-1003 is open.\nTICKET-1199 is closed."


@pytest.mark.parametrize(
    ("said", "written", "is_known"),
    [
        ("The rent is 6,400 a month.", "6400", True),
        ("The rent is 6400 a month.", "6,400", True),
        ("The rent is ٦,٤٠٠ a month.", "the number ٦٤٠٠", True),
        ("The rent is 6,400 a month.", "16400", False),
        ("The rent is 16,400 a month.", "6400", False),
        ("The rent is 6,40 a month.", "6400", False),
        ("The rent is 6,4001 a month.", "6400", False),
        ("Ask STRASSE-77 for it.", "straße-77", True),
        ("Ask ꭰ-7712 for it.", "`Ꭰ-7712`", True),
    ],
)
def test_numbers_and_names_may_be_written_in_another_way(said: str, written: str, is_known: bool) -> None:
    summary = f"## Facts\nThey met.\nIt is {written}."
    assert audited(summary, said) == (summary if is_known else "## Facts\nThey met.")


@pytest.mark.parametrize(
    ("line", "is_vague"),
    [
        ("The assistant helped with the questions and things went well.", True),
        ("Several topics were discussed, and some decisions were made.", True),
        ("They moved the launch with Bob and Ada, and Mill Street is paid.", False),
        ("讨论了一些问题，并且取得了进展，接下来还有一些工作要做。", False),  # not among the four languages
    ],
)
def test_a_summary_of_vague_sentences_is_hollow(line: str, is_vague: bool) -> None:
    said = [f"{FILLER * 3} OPS-{10_000 + n} is for Bob and Ada on Mill Street." for n in range(30)]
    sections = [f"{line} {n}" for n in "abcdefghijklm"]
    assert is_hollow(sections, [human(text) for text in said], 13) is is_vague
