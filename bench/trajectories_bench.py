"""Measure the cost of compressing trajectory files, without the model: `make bench ARGS=trajectories`.

It runs the real command as a process, without a model, on conversations with tools. It measures how many turns per
second one core reads, checks and writes, and the memory for a file and for one four times as long.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Measure

TURNS_BAR = 2_000.0
"""Minimum number of turns per second."""
MEMORY_BAR = 1.15
"""Maximum peak memory for the long file, as a multiple of that for the short file."""
LINES = 1_500
EXCHANGES = 12
_WORDS = "the register names a boat and the day on which it came in, 4471 fish, /srv/port/log.txt, Zürich; " * 5


# The kernel's figure for a child process starts with its parent's peak.
_MEASURED = """
import atexit, re, sys, time
from gateway.cli import main
def tell():
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(time.process_time(), int(peak) / 1024, file=sys.stderr)
atexit.register(tell)
sys.argv = ["hermes-gateway", "trajectories", *sys.argv[1:]]
main()
"""


def run(is_quick: bool) -> Sequence[Measure]:
    """Run both measurements on files of several megabytes."""
    lines = LINES // 5 if is_quick else LINES
    with tempfile.TemporaryDirectory() as folder:
        short_file, long_file = Path(folder) / "short.jsonl", Path(folder) / "long.jsonl"
        turns = _write(short_file, lines)
        _write(long_file, lines * 4)
        idle_seconds, _ = _compress(Path(folder), Path(os.devnull))
        short_seconds, short_memory = _compress(Path(folder), short_file)
        _, long_memory = _compress(Path(folder), long_file)
    return [
        Measure(
            name="trajectories: turns without the model's time",
            ours=turns / (short_seconds - idle_seconds),
            unit="turns/s",
            bar=TURNS_BAR,
            at_least=True,
        ),
        Measure(
            name="trajectories: peak memory, file 4 times as long",
            ours=long_memory,
            yardstick=short_memory,
            unit="MB",
            bar=MEMORY_BAR,
        ),
    ]


def _write(path: Path, lines: int) -> int:
    """Write `conversations` that are all too long. Return their number of turns."""
    said = [{"from": "system", "value": "You keep the register."}]
    for number in range(EXCHANGES):
        said += [
            {"from": "human", "value": f"What came in on day {number}?"},
            {
                "from": "gpt",
                "value": f'<tool_call>\n{{"name": "look", "arguments": {{"day": {number}}}}}\n</tool_call>',
            },
            {"from": "tool", "value": f"<tool_response>\n{_WORDS * (1 + number % 4)}\n</tool_response>"},
            {"from": "gpt", "value": f"Day {number}: {_WORDS[:100]}"},
        ]
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            file.write(json.dumps({"id": number, "conversations": said}) + "\n")
    return len(said) * lines


def _compress(folder: Path, source: Path) -> tuple[float, float]:
    """Return the CPU seconds of the command for a file, and its peak memory in MB."""
    target = folder / f"{source.name}.{time.monotonic_ns()}"
    words = ("compress", source, target, "--summary-model", "none", "--target-max-tokens", "1500")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "HERMES_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, words)], env=environ, capture_output=True, check=True
    )
    seconds, memory = map(float, done.stderr.split()[-2:])
    return seconds, memory
