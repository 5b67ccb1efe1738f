"""One figure of the performance suite: what we measured, what it is compared with, and the bar it has to meet."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.model.base import Payer
from hermes_state.values import ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure and its bar.

    With a `yardstick` (the same work done by something else in the same run) the bar is about `ours / yardstick`,
    because absolute figures differ from machine to machine; without one it is about `ours` itself.
    """

    name: str
    ours: float
    unit: str
    bar: float
    yardstick: float | None = None
    at_least: bool = False
    """The bar is a minimum; otherwise it is a maximum."""
    slack: float = 0.0
    """By so much, in `unit`, ours may be above the yardstick even where the ratio is beyond its bar."""

    @property
    def ratio(self) -> float | None:
        """Ours over the yardstick."""
        return None if self.yardstick is None else self.ours / self.yardstick

    @property
    def holds(self) -> bool:
        """Whether the bar is met."""
        if self.slack and self.yardstick is not None and self.ours <= self.yardstick + self.slack:
            return True
        value = self.ours if self.ratio is None else self.ratio
        return value >= self.bar if self.at_least else value <= self.bar


PEER = "BENCH_PEER"
"""Variable that names an interpreter with hermes-agent."""


def peer_output(interpreter: str, script: str, arguments: Sequence[str], folder: str) -> Sequence[Any]:
    """List that a script prints as JSON in its last line, run by an interpreter that has another program."""
    environ = {"PATH": os.environ["PATH"], "HOME": folder, "HERMES_HOME": f"{folder}/home"}
    command = [interpreter, str(Path(script).resolve()), *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} could not be run:\n{done.stderr}")
    found: Sequence[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, round(len(values) * share))]


def resident_mb(line: str = "VmRSS:", *, is_reset: bool = False) -> float:
    """Resident memory of this process, now (`VmRSS:`) or at most (`VmHWM:`) since the last reset."""
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) / 1024 for one in status if one.startswith(line))


def table(measures: Sequence[Measure]) -> str:
    """The measures as a Markdown table."""
    lines = ["| measure | ours | yardstick | ratio | bar | holds |", "|---|---:|---:|---:|---:|---|"]
    lines += [_line(measure) for measure in measures]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that also reads well as text; the first row is its head."""
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
    """A ledger for calls that all work: one that fails ends the benchmark."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        if call.outcome != "ok":
            raise AssertionError(f"a call failed: {call.outcome}")

    async def output_cap(self, route: str, model: str) -> int | None:
        return None

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        raise AssertionError(f"a call was refused: more output than {cap}")
