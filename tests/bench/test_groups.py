"""Groups of the benchmark whose stand-ins take the place of parts of ours: one round of each comes to its figures."""

import asyncio
import importlib
import pkgutil

import pytest

import bench
from bench import compression_bench, turn_bench
from bench.conversation import Conversation


def test_a_turn_is_measured_beside_one_that_looks_at_no_window() -> None:
    assert "20 messages" in asyncio.run(turn_bench._overhead(20, 1)).name


def test_a_compression_is_measured_by_a_stand_in_that_answers() -> None:
    assert asyncio.run(compression_bench._ours(Conversation(length=16).transcript(200), 1)) > 0


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(bench.__path__)))
def test_every_module_of_the_benchmarks_can_be_imported(name: str) -> None:
    if name != "__main__":
        importlib.import_module(f"bench.{name}")
