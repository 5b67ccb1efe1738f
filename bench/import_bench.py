"""Measure the import time of the command line: `hermes-gateway --help` compared with a Python that does nothing.

It uses the process's CPU time, so that other programs and waiting do not count.
"""

import resource
import statistics
import subprocess
import sys

from bench.measure import Measure
from bench.subjects import ROOT

BAR = 200.0
"""Maximum CPU time for the import, in milliseconds."""
ROUNDS = 15


def run(quick: bool) -> list[Measure]:
    """Measure the command line's CPU time minus Python's own start. The two processes take turns."""
    bare, ours = [], []
    for _ in range(5 if quick else ROUNDS):
        bare.append(_processor_ms("-c", "pass"))
        ours.append(_processor_ms("-m", "gateway", "--help"))
    took = statistics.median(ours) - statistics.median(bare)
    print(f"`hermes-gateway --help`: {statistics.median(ours):.0f} ms, of them Python {statistics.median(bare):.0f} ms")
    return [Measure(name="import of the command line", ours=took, unit="ms", bar=BAR)]


def _processor_ms(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3
