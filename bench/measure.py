"""One figure of the performance suite: the measured value, the value it is compared with, and the bar it must meet."""

import json
import os
import statistics
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from agent.model.base import Payer
from hermes_state.models.ledger import ModelCall

T = TypeVar("T")
Figure: TypeAlias = float | Sequence[float]
"""One figure, or the figures of several rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure and its bar.

    `yardstick` is the figure of another program that did the same work in the same run. With a yardstick, the bar
    limits the ratio `ours / yardstick`, because absolute figures depend on the machine. Without one, it limits `ours`.

    With several rounds, the bar limits the median. Each round's ratio is of the two figures of that round, because the
    speed of a machine changes between rounds.
    """

    name: str
    ours: Figure
    unit: str
    bar: float
    yardstick: Figure | None = None
    at_least: bool = False
    """True if the bar is a minimum, False if it is a maximum."""
    slack: float = 0.0
    """Difference to the yardstick, in `unit`, that is accepted even if the ratio misses its bar."""

    @property
    def rounds(self) -> Sequence[float]:
        """Return the number that the bar limits for each round: the ratio, or our figure if there is no yardstick."""
        if self.yardstick is None:
            return _listed(self.ours)
        return [ours / theirs for ours, theirs in zip(_listed(self.ours), _listed(self.yardstick), strict=True)]

    @property
    def holds(self) -> bool:
        """Return True if the bar is met."""
        if self.slack and self.yardstick is not None and _median(self.ours) <= _median(self.yardstick) + self.slack:
            return True
        value = _median(self.rounds)
        return value >= self.bar if self.at_least else value <= self.bar


def _listed(figure: Figure) -> Sequence[float]:
    return figure if isinstance(figure, Sequence) else [figure]


def _median(figure: Figure) -> float:
    return statistics.median(_listed(figure))


async def in_turns(rounds: int, *sides: Callable[[int], Awaitable[T]]) -> list[list[T]]:
    """Measure each side once a round, so that other load on the machine affects all sides.

    A side gets the number of the round. Return the results of each side.
    """
    found: list[list[T]] = [[] for _ in sides]
    for number in range(rounds):
        for side, results in zip(sides, found, strict=True):
            results.append(await side(number))
    return found


PEER = "BENCH_PEER"
"""Environment variable with the path of a Python interpreter that has hermes-agent."""


def peer_output(interpreter: str, script: str, arguments: Sequence[str], folder: str) -> Sequence[Any]:
    """Run a script with another program's interpreter. Return the JSON list in its last line of output."""
    environ = {"PATH": os.environ["PATH"], "HOME": folder, "HERMES_HOME": f"{folder}/home"}
    command = [interpreter, str(Path(script).resolve()), *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} could not be run:\n{done.stderr}")
    found: Sequence[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, round(len(values) * share))]


def resident_mb(line: str = "VmRSS:", *, is_reset: bool = False, pid: int | str = "self") -> float:
    """Return a process's resident memory: now (`VmRSS:`), or the maximum since the last reset (`VmHWM:`)."""
    if is_reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) / 1024 for one in status if one.startswith(line))


def table(measures: Sequence[Measure]) -> str:
    """Return the measurements as a Markdown table.

    The spread is the smallest and the largest ratio of a round, or figure if there is no yardstick.
    """
    lines = ["| measure | ours | yardstick | ratio | spread | bar | holds |", "|---|---:|---:|---:|---:|---:|---|"]
    lines += [_line(measure) for measure in measures]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is also aligned as plain text. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in (rows[0], rule, *rows[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(measure: Measure) -> str:
    sign, unit = "≥" if measure.at_least else "≤", f" {measure.unit}"
    yardstick = ratio = spread = ""
    if measure.yardstick is not None:
        yardstick, ratio = f"{_number(_median(measure.yardstick))}{unit}", f"{_median(measure.rounds):.2f}x"
    if len(measure.rounds) > 1:
        least, most = (f"{one:.2f}" if ratio else _number(one) for one in (min(measure.rounds), max(measure.rounds)))
        spread = f"{least}\N{EN DASH}{most}{'x' if ratio else unit}"
    bar = f"{sign} {measure.bar:g}{'x' if ratio else unit}"
    if measure.slack and ratio:
        bar += f", or {measure.slack:g}{unit} more"
    cells = (measure.name, f"{_number(_median(measure.ours))}{unit}", yardstick, ratio, spread, bar)
    return f"| {' | '.join(cells)} | {'yes' if measure.holds else '**no**'} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


class NoFailures:
    """Ledger for calls that must all succeed: a failed call ends the benchmark."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        if call.outcome != "ok":
            raise AssertionError(f"a call failed: {call.outcome}")

    async def output_cap(self, route: str, model: str) -> int | None:
        return None

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        raise AssertionError(f"a call was refused: more output than {cap}")
