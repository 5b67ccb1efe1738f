"""One figure of the performance suite: the measured value, the value it is compared with, and the bar it must meet."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.model.base import Payer
from hermes_state.models.ledger import ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure and its bar.

    `yardstick` is the figure of another program that did the same work in the same run. With a yardstick, the bar
    limits the ratio `ours / yardstick`, because absolute figures depend on the machine. Without one, it limits `ours`.
    """

    name: str
    ours: float
    unit: str
    bar: float
    yardstick: float | None = None
    at_least: bool = False
    """True if the bar is a minimum, False if it is a maximum."""
    slack: float = 0.0
    """Difference to the yardstick, in `unit`, that is accepted even if the ratio misses its bar."""

    @property
    def ratio(self) -> float | None:
        """Return our figure divided by the yardstick."""
        return None if self.yardstick is None else self.ours / self.yardstick

    @property
    def holds(self) -> bool:
        """Return True if the bar is met."""
        if self.slack and self.yardstick is not None and self.ours <= self.yardstick + self.slack:
            return True
        value = self.ours if self.ratio is None else self.ratio
        return value >= self.bar if self.at_least else value <= self.bar


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
    """Return the measurements as a Markdown table."""
    lines = ["| measure | ours | yardstick | ratio | bar | holds |", "|---|---:|---:|---:|---:|---|"]
    lines += [_line(measure) for measure in measures]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is also aligned as plain text. The first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in (rows[0], rule, *rows[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(measure: Measure) -> str:
    ours = f"{_number(measure.ours)} {measure.unit}"
    sign = "≥" if measure.at_least else "≤"
    if measure.yardstick is None or measure.ratio is None:
        yardstick, ratio, bar = "", "", f"{sign} {measure.bar:g} {measure.unit}"
    else:
        yardstick = f"{_number(measure.yardstick)} {measure.unit}"
        or_slack = f", or {measure.slack:g} {measure.unit} more" if measure.slack else ""
        ratio, bar = f"{measure.ratio:.2f}x", f"{sign} {measure.bar:g}x{or_slack}"
    return f"| {measure.name} | {ours} | {yardstick} | {ratio} | {bar} | {'yes' if measure.holds else '**no**'} |"


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
