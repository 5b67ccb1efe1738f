"""`python -m bench`: every figure with its bar, as one table."""

import argparse
import asyncio
import platform

from bench import (
    compression_bench,
    estimate_bench,
    gateway_bench,
    hostile_bench,
    import_bench,
    model_bench,
    rendering_bench,
    store_bench,
    turn_bench,
)
from bench.measure import table


def main() -> None:
    """Run the suites and print the table; the exit code says whether every bar holds."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller databases and fewer messages")
    quick = parser.parse_args().quick
    print(f"Python {platform.python_version()}, {platform.machine()}; ratios are within this run\n")
    measures = [*estimate_bench.run(), *compression_bench.run(quick), *turn_bench.run(quick), *store_bench.run(quick)]
    measures += [*import_bench.run(quick), *rendering_bench.run(quick), *asyncio.run(model_bench.run(quick))]
    measures += asyncio.run(hostile_bench.run(quick))
    measures += asyncio.run(gateway_bench.run(quick=quick))
    print(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)


if __name__ == "__main__":
    main()
