"""Measure what compressions keep: `make quality` prints a table for three chats, three windows and other policies.

`BENCH_PEER=/path/to/python`: interpreter with hermes-agent 0.19.0, which then runs through the same months. Without it,
a line says that hermes-agent is left out. `ARGS="--windows 32 facts"` selects windows and groups. `ARGS=costs` prints
the cost of a compression instead.
"""

import argparse
import asyncio
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog
from msgspec.structs import replace

from agent.context import compressor, summary
from agent.context.carried.facts import known_line
from agent.model.catalog import price_of
from agent.tools.registry import Tool
from bench import charts
from bench.agent_month import Record
from bench.built_in import agent_with_all_tools
from bench.compression_bench import prepared
from bench.measure import PEER, aligned
from bench.months import DENSE, USUAL
from bench.policies import REMEDIES
from bench.quality_questions import corpus, search, topics
from bench.quality_runs import LEAN, PEER_NAME, SIZES, Bench, Cell, Row, span
from bench.recall import NOTE, recall

LONG = {128_000: (250, 8)}
"""Number of turns and length factor for windows in which ten compressions need more than the usual month."""
MODELS = ("gpt-5-mini", "claude-sonnet-4-5", "claude-opus-4-5")
READ_A_SECOND, WRITTEN_A_SECOND = 5_000, 60
"""Tokens per second that a summary model reads and writes."""
AUDIT = ("without_invented", "is_hollow")
"""Functions that check a summary."""


# ---- facts


def facts(bench: Bench) -> list[Row]:
    """Return the share of facts in prompts during the second half of each month, compared with other policies."""
    rows: list[Row] = []
    for who, bar in (("people", "100 %"), ("answers", "≥ 98 %"), ("arguments", ""), ("results", ""), ("documents", "")):
        rows += bench.row(f"facts of {who}, usual", bench.over(_shown(who), density=USUAL), bar)
    bench.ask_peer()
    others = [PEER_NAME] * bool(os.environ.get(PEER)) + list(REMEDIES)

    def beside(group: str, density: float, form: str) -> list[Row]:
        named = (
            (policy, lambda w, p=policy: span(bench.other(p, w, density), lambda one: one[group], form))
            for policy in others
        )
        return [row for policy, cell in named for row in bench.row(f"– {policy}", cell)]

    rows += bench.row("**all facts, usual**", bench.over(_shown("all"), density=USUAL), "≥ 85 %")
    rows += beside("all", USUAL, "{:.0%}")
    rows += bench.row("**all facts, dense**", bench.over(_shown("all")))
    rows += beside("all", DENSE, "{:.0%}")
    rows += bench.row("mean prompt, dense, tokens", bench.over(_shown("prompt"), "{:,.0f}"))
    rows += beside("prompt", DENSE, "{:,.0f}")
    for kind in ("omits", "invents"):
        name = f"all facts, dense, stand-in that {kind}"
        rows += bench.row(name, bench.over(_shown("all"), kind=kind), "± 3 points", [32_768])
    bar = "≥ 1.7 at 32K, ≥ 2.5 at 128K"
    rows += bench.row("all facts, dense, by lean's", _against(bench, LEAN, "all", DENSE), bar)
    rows += bench.row("mean prompt, dense, by lean's", _against(bench, LEAN, "prompt", DENSE), "< 1")
    rows += bench.row(
        f"price of a month, by {PEER_NAME}'s", _against(bench, PEER_NAME, "price", USUAL, DENSE), "≤ 0.95"
    )
    return rows + bench.row("price of a month, by lean's", _against(bench, LEAN, "price", USUAL, DENSE), "≤ 0.88")


def _shown(group: str) -> Callable[[Record], float]:
    return lambda one: one.meter.figures()[group]


def _against(bench: Bench, policy: str, group: str, *densities: float) -> Cell:
    """Return a cell with the ratio of our figure to another policy's figure."""

    def cell(window: int) -> str | None:
        pairs = [(bench.run(window, density), bench.other(policy, window, density)) for density in densities]
        both = [pair for ours, theirs in pairs for pair in zip(ours, theirs or (), strict=False)]
        return span(both or None, lambda pair: pair[0].meter.figures()[group] / pair[1][group], "{:.2f}")

    return cell


# ---- rules


def rules(bench: Bench) -> list[Row]:
    """Return rows on rules, revoked rules, sentences that look like rules, invented identifiers, and requests."""

    def listed(kind: str, **options: Any) -> Cell:
        def cell(window: int) -> str:
            found = [one.listed_of(kind) for one in bench.run(window, **options)]
            return f"{sum(one for one, _ in found)} of {sum(every for _, every in found)}"

        return cell

    def behind(window: int) -> str:
        found = [shown for key, one in bench.records.items() if key[0] == window for shown in one.behind]
        return f"{sum(found):,} of {len(found):,}"

    def long(measure: Callable[[Record], float]) -> Cell:
        return lambda window: bench.over(measure, "{:.0f}", shape=LONG.get(window))(window)

    rows = bench.row("compressions of the month in the next line", long(lambda one: len(one.compressions)))
    rows += bench.row("standing rules verbatim at its end, of 12", long(Record.kept_rules), "12")
    for kind in ("omits", "invents"):
        rows += bench.row(f"– stand-in that {kind}", bench.over(Record.kept_rules, "{:.0f}", kind=kind), "12", [32_768])
    rows += bench.row("listed as rules: revoked rules", listed("taken back"), "0")
    rows += bench.row("– one-time wishes", listed("once"), "0")
    rows += bench.row("– casual sentences with a rule's words", listed("trap"), "≤ 2 %")
    invented = bench.over(lambda one: one.invented, "{:.0f}", kind="invents")
    rows += bench.row("invented identifiers, stand-in that invents", invented, "0", [32_768])
    return rows + bench.row("newest request once after the end marker", behind, "all")


# ---- waiting


def waiting(bench: Bench) -> list[Row]:
    """Return the share of turns that wait for a summary, and the number of compressions."""

    def waits(**options: Any) -> Cell:
        def cell(window: int) -> str:
            found = bench.run(window, USUAL, **options)
            return f"{span(found, _share_waiting, '{:.1%}')}, {max(max(one.waits) for one in found):.0f} s"

        return cell

    def small(window: int) -> str:
        found = bench.run(window, USUAL)
        counts = span(found, lambda one: len(one.compressions), "{:.0f}")
        return f"{counts}; {span(found, lambda one: one.meter.read_by_summaries / one.meter.read, '{:.2f}')} ×"

    rows = bench.row("turns that wait, longest; a message every 45 s", waits(), "0")
    talk, bursts = (400, 0), (60, 6)
    rows += bench.row("– every 2 s, small talk", waits(gap=2.0, shape=talk), "≤ 2 %", [8_192])
    rows += bench.row("– a compression every 4 turns", waits(shape=bursts), "≤ 2 %", [32_768])
    return rows + bench.row("120 turns: compressions; read by summaries of the turns'", small, "≤ 32; ≤ 0.6 ×", [8_192])


def _share_waiting(one: Record) -> float:
    return sum(wait > 0.05 for wait in one.waits) / len(one.waits)


def without(bench: Bench) -> list[Row]:
    """Return figures with single features disabled, and the CPU time of rules, facts and audit."""
    rows: list[Row] = []
    for name, options in (("facts_share 0", {"facts_share": 0.0}), ("mode blocking", {"mode": "blocking"})):
        rows += bench.row(f"{name}: all facts, dense", bench.over(_shown("all"), **options))
        rows += bench.row(f"{name}: turns that wait", bench.over(_share_waiting, "{:.1%}", **options))
        rows += bench.row(f"{name}: mean prompt, dense", bench.over(_shown("prompt"), "{:,.0f}", **options))
    spent, leaving = [0.0], [0]

    def no_rules(*given: Any, **options: Any) -> Any:
        return replace(real(*given, **options), rules=())

    def timed(function: Any, *given: Any, **options: Any) -> Any:
        began = time.thread_time()
        result = function(*given, **options)
        spent[0] += time.thread_time() - began
        return result

    def timed_rows(*given: Any, **options: Any) -> Any:
        leaving[0] += len(given[2])
        return timed(real, *given, **options)

    real: Any = compressor.carried
    with patch.object(compressor, "carried", no_rules):
        kept = Bench(bench.windows, bench.tools).over(Record.kept_rules, "{:.0f}")
        rows += bench.row("without rules: standing rules verbatim, of 12", kept, "", [32_768])
    with patch.object(summary, AUDIT[0], lambda text, *given: text):
        invented = Bench(bench.windows, bench.tools).over(lambda one: one.invented, "{:.0f}", kind="invents")
        rows += bench.row("without audit: invented identifiers", invented, "", [32_768])
    both: dict[str, Any] = {name: partial(timed, getattr(summary, name)) for name in AUDIT}
    known_line.cache_clear()  # so that garbage collection does not have to visit objects of earlier months
    with prepared(), patch.multiple(summary, **both), patch.object(compressor, "carried", timed_rows):
        Bench([32_768], bench.tools).run(32_768)
    cost = f"{spent[0] * 1e3 / leaving[0]:.3f} ms"
    rows.append(("CPU of rules, facts and audit, per row that leaves", {32_768: cost}, "≤ 0.15 ms"))
    return rows


# ---- what a compression costs


def costs(bench: Bench) -> list[Row]:
    """Return rows for `docs/figures/quality-tables.md`: the tokens, time and money that one compression costs."""
    found = {}
    for window in SIZES:
        record = bench.run(window, USUAL)[0]
        read, written = (statistics.mean(pair[at] for pair in record.meter.summaries) for at in (0, 1))
        before = statistics.mean(one.job.tokens_before for one in record.compressions)
        after = statistics.mean(one.prepared.tokens_after for one in record.compressions)
        found[window] = (before, after, read, written)
    rows: list[Row] = [
        (name, {window: f"{round(sizes[at], -1):,.0f}" for window, sizes in found.items()}, "")
        for at, name in enumerate(("prompt before", "prompt after", "summary: tokens read", "summary: tokens written"))
    ]
    seconds = {
        w: f"{read / READ_A_SECOND + written / WRITTEN_A_SECOND:.0f} s" for w, (_, _, read, written) in found.items()
    }
    rows.append(("summary: time", seconds, ""))
    for model in MODELS:
        price = price_of(model, {})
        assert price is not None
        # The cost of the summary, plus the next prompt, which is not cached after the system prompt.
        paid = {
            window: (read * price.input + written * price.output + after * (price.input - price.cache_read)) / 10_000
            for window, (_, after, read, written) in found.items()
        }
        rows.append((f"{model}, US cents", {window: f"{cents:.2f}" for window, cents in paid.items()}, ""))
    return rows


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "facts": facts,
    "rules": rules,
    "corpus": corpus,
    "waiting": waiting,
    "topics": topics,
    "search": search,
    "recall": recall,
    "without": without,
    "costs": costs,
}


async def _all_tools() -> Sequence[Tool]:
    """Return the built-in tools. Prompts contain their schemas, but no month calls them."""
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        async with agent_with_all_tools(Path(folder)) as agent:
            return agent.offers.registry.available()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--windows", nargs="*", type=int, default=(8, 32, 128), help="in thousands of tokens")
    parser.add_argument("--tools", choices=("all", "recall"), default="all", help="built-in tools that prompts list")
    parser.add_argument("groups", nargs="*", help=f"without costs by default: {', '.join(GROUPS)}")
    given = parser.parse_args()
    if unknown := set(given.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    groups = given.groups or [name for name in GROUPS if name != "costs"]
    windows = [window for window in SIZES if window // 1_000 in given.windows or groups == ["costs"]]
    bench = Bench(windows, asyncio.run(_all_tools()) if given.tools == "all" else ())
    rows = [row for name in groups for row in GROUPS[name](bench)]
    heads = ["measure", *(f"{window // 1_000}K" for window in windows), "to reach"]
    lines = [[name, *(cells.get(window, "") for window in windows), bar] for name, cells, bar in rows]
    found = aligned([heads, *lines])
    print(found)
    charts.write(found)
    left_out = [f"Left out: {name}" for name in dict.fromkeys(bench.left_out)]
    print("\n".join(["", *[NOTE] * ("recall" in groups), *left_out]))


if __name__ == "__main__":
    main()
