"""Figures with several rounds: the median that counts, and the table."""

import asyncio

from bench.measure import Measure, in_turns, table

SPEED = Measure(name="speed", ours=[4, 9, 20], unit="ms", yardstick=[2, 3, 10], bar=2.5)


def cells(measure: Measure) -> list[str]:
    """The cells of a row, without its name."""
    return [cell.strip() for cell in table([measure]).splitlines()[-1].split("|")[2:-1]]


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert SPEED.holds
    assert cells(SPEED) == ["9 ms", "3 ms", "2.00x", "2.00–3.00x", "≤ 2.5x", "yes"]


def test_without_a_yardstick_the_median_of_the_rounds_counts() -> None:
    memory = Measure(name="memory", ours=[1_500, 90, 99.5], unit="MB", bar=100, at_least=True)
    assert cells(memory) == ["99.5 MB", "", "", "90–1,500 MB", "≥ 100 MB", "**no**"]


def test_one_figure_has_no_spread() -> None:
    start = Measure(name="start", ours=7, unit="s", yardstick=2, bar=1, slack=5)
    assert cells(start) == ["7 s", "2 s", "3.50x", "", "≤ 1x, or 5 s more", "yes"]


def test_sides_are_measured_in_turns() -> None:
    asked: list[str] = []

    async def ask(name: str, number: int) -> int:
        asked.append(f"{name}{number}")
        return number

    found = asyncio.run(in_turns(2, lambda n: ask("a", n), lambda n: ask("b", n)))
    assert (found, asked) == ([[0, 1], [0, 1]], ["a0", "b0", "a1", "b1"])
