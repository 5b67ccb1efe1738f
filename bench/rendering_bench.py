"""Measure the cost of rendering hostile model output on each platform, compared with ordinary prose of the same length.

The times are CPU time of one thread. The stall is measured in an event loop while a thread renders all texts.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from bench.compression_bench import heartbeat, prepared
from bench.measure import Measure
from platforms.discord import rendering as discord
from platforms.local.markdown import split_parts, to_html
from platforms.telegram import rendering as telegram

LENGTH = 100_000
BAR = 4.0
"""Maximum time for rendering one text, as a multiple of the time for prose."""
STALL_BAR = 10.0
"""Maximum stall of the event loop, in milliseconds."""

PROSE = (
    "The **gateway** keeps *every* message in `state.db`, see [the docs](https://example.org/a_b), and tells people.\n"
    "- first **item** with `code`\n- second item, plain words\n\n> a quoted line of some length\n\n## A heading\n\n"
    "Then some words without any markup, as most are, up to the end of this paragraph of it all.\n\n"
)
HOSTILE: Mapping[str, str] = {
    "open brackets": "[" * LENGTH,
    "nested brackets": "[" * (LENGTH // 2) + "]" * (LENGTH // 2),
    "nested images": "![" * (LENGTH // 2),
    "a line": "x" * LENGTH,
    "a line of wide characters": "世" * LENGTH,
    "a line of code": "```\n" + "x" * LENGTH,
    "short lines of code": "```\n" + "x = 1\n" * (LENGTH // 6) + "```",
    "lines of code of one character": "```\n" + "x\n" * (LENGTH // 2) + "```",
    "a long table": "|a|b|\n|-|-|\n" + "| cell | cell |\n" * (LENGTH // 16),
    "a wide table": "|a" * (LENGTH // 4) + "|\n" + "|-" * (LENGTH // 4) + "|",
    "a table with a wide column": "|a|b|\n|-|-|\n|" + "x" * (LENGTH // 2) + "|y|\n" + "| c | d |\n" * (LENGTH // 20),
    "empty columns": "|a" * (LENGTH // 8) + "|\n" + "|-" * (LENGTH // 8) + "|\n" + "|\n" * (LENGTH // 4),
    "code blocks": "```\nx\n```\n" * (LENGTH // 10),
    "backticks": "".join("`" * length + "a" for length in range(440)),
    "a run of backticks": "a " + "`" * LENGTH,
    "a summary of spaces": "<summary>" + " " * LENGTH,
    "quotes": "> " * (LENGTH // 2),
}

Renderer: TypeAlias = Callable[[str], Sequence[object]]


def on_the_web(text: str) -> Sequence[object]:
    """Return the HTML of each part of `text`, without using the cache."""
    return [to_html.__wrapped__(part) for part in split_parts(text, 100_000)]


RENDERERS: Mapping[str, Renderer] = {"Telegram": telegram.render, "Discord": discord.render, "the web": on_the_web}


def seconds(render: Renderer, text: str) -> float:
    """Return the CPU seconds that one rendering takes in the current thread."""
    before = time.thread_time()
    render(text)
    return time.thread_time() - before


def run(quick: bool) -> list[Measure]:
    """Measure the slowest hostile text on each platform, and the longest stall while all texts are rendered."""
    rounds = 2 if quick else 5
    prose = PROSE * (LENGTH // len(PROSE))
    measures = []
    for platform, render in RENDERERS.items():
        usual = statistics.median(seconds(render, prose) for _ in range(rounds))
        took = {name: statistics.median(seconds(render, text) for _ in range(rounds)) for name, text in HOSTILE.items()}
        worst = max(took, key=took.__getitem__)
        name = f"rendering for {platform}: the worst of {len(took)} hostile texts ({worst}), against prose"
        measures.append(Measure(name=name, ours=took[worst] * 1e3, unit="ms", bar=BAR, yardstick=usual * 1e3))
    return [*measures, asyncio.run(_stall(rounds))]


async def _stall(rounds: int) -> Measure:
    """Measure the longest time that other tasks wait.

    The best round counts, because other programs do not cause delays in every round.
    """
    longest = []
    with prepared():
        for _ in range(rounds):
            async with heartbeat() as lags:
                await asyncio.to_thread(_render_all)
            longest.append(max(lags))
    return Measure(
        name="rendering of hostile texts: longest stall of the event loop",
        ours=min(longest) * 1e3,
        unit="ms",
        bar=STALL_BAR,
    )


def _render_all() -> None:
    for render in RENDERERS.values():
        for text in HOSTILE.values():
            render(text)
