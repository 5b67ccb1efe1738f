"""`python -m bench`: every figure with its bar, as one table, or those of the groups that are named."""

import argparse
import asyncio
import platform
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from bench import (
    compression_bench,
    estimate_bench,
    gateway_bench,
    hostile_bench,
    import_bench,
    life_bench,
    mcp_bench,
    model_bench,
    rendering_bench,
    schedules_bench,
    store_bench,
    stored_bench,
    tools_bench,
    trajectories_bench,
    turn_bench,
)
from bench.measure import Measure, table

GROUPS: Mapping[str, Callable[[bool], Sequence[Measure] | Coroutine[Any, Any, Sequence[Measure]]]] = {
    "estimate": lambda _: estimate_bench.run(),
    "compression": compression_bench.run,
    "turn": turn_bench.run,
    "store": store_bench.run,
    "import": import_bench.run,
    "rendering": rendering_bench.run,
    "tools": tools_bench.run,
    "schedules": schedules_bench.run,
    "trajectories": trajectories_bench.run,
    "mcp": mcp_bench.run,
    "model": model_bench.run,
    "hostile": hostile_bench.run,
    "chats": gateway_bench.run,
    "crowd": gateway_bench.crowd,
    "streaming": gateway_bench.streaming,
    "discord": gateway_bench.discord,
    "full": stored_bench.full,
    "long": stored_bench.long,
    "start": life_bench.start,
    "growth": life_bench.growth,
    "half-open": life_bench.half_open,
}


def main() -> None:
    """Run the groups and print the table; the exit code says whether every bar holds."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller databases and fewer messages")
    parser.add_argument("groups", nargs="*", help=f"all of them by default: {', '.join(GROUPS)}")
    given = parser.parse_args()
    if unknown := set(given.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    print(f"Python {platform.python_version()}, {platform.machine()}; ratios are within this run\n")
    measures: list[Measure] = []
    for name in given.groups or GROUPS:
        found = GROUPS[name](given.quick)
        measures += asyncio.run(found) if isinstance(found, Coroutine) else found
    print(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)


if __name__ == "__main__":
    main()
