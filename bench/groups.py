"""Command line that runs groups of measurements: all of them, or only the named ones."""

import argparse
import asyncio
import platform
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NoReturn

from bench import charts
from bench.measure import Measure, table

Groups = Mapping[str, Callable[[bool], Sequence[Measure] | Coroutine[Any, Any, Sequence[Measure]]]]
"""Functions that run a group, by group name. The argument is True for a quick run."""


def run_groups(module: str, description: str | None, groups: Groups) -> NoReturn:
    """Run groups, print a table and write its charts. The exit code is 0 if every bar is met."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help="smaller databases, fewer messages and rounds")
    parser.add_argument("groups", nargs="*", help=f"all of them by default: {', '.join(groups)}")
    given = parser.parse_args()
    if unknown := set(given.groups) - set(groups):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(groups)}")
    print(f"Python {platform.python_version()}, {platform.machine()}; ratios are within this run\n")
    measures: list[Measure] = []
    for name in given.groups or groups:
        found = groups[name](given.quick)
        measures += asyncio.run(found) if isinstance(found, Coroutine) else found
    print(table(measures))
    if not given.quick:
        charts.write(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)
