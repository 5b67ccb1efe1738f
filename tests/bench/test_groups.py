"""Groups of the benchmark whose stand-ins take the place of parts of ours: one round of each comes to its figures."""

import asyncio

from bench import compression_bench, turn_bench
from bench.conversation import Conversation


def test_a_turn_is_measured_beside_one_that_looks_at_no_window() -> None:
    assert "20 messages" in asyncio.run(turn_bench._overhead(20, 1)).name


def test_a_compression_is_measured_by_a_stand_in_that_answers() -> None:
    assert asyncio.run(compression_bench._ours(Conversation(length=16).transcript(200), 1)) > 0
