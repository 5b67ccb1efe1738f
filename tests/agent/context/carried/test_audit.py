"""Identifiers in a summary are searched in all messages, even in very long conversations."""

from datetime import UTC

import pytest

from agent.context.carried.audit import PIECE_CHARACTERS, without_invented
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
