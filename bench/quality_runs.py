"""Runs of the quality bench: every month once with the agent and once with each other policy, and rows of its table."""

import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from agent.context.limits import ContextSettings
from agent.tools.registry import Tool
from bench import policies
from bench.agent_month import AgentMonth, Record, virtual
from bench.measure import PEER, peer_output
from bench.months import DENSE, DOMAINS, USUAL, month
from bench.policies import REMEDIES, StandInKind, Turn, simulate
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.store.writer import Store

T = TypeVar("T")
Cell = Callable[[int], str | None]
Row = tuple[str, Mapping[int, str], str]
"""Name of the measurement, cells by window, and the target."""

PEER_NAME, LEAN = "hermes-agent 0.19.0", "lean, emulated"
SIZES = {8_192: (120, 2), 32_768: (190, 2), 128_000: (160, 8), 200_000: (110, 8)}
"""Number of turns in a month and their length factor, by window."""
GAP = 45.0
"""Seconds between two messages."""
DEFAULTS = ContextSettings()


def script_of(domain: str, window: int, density: float, shape: tuple[int, int] | None = None) -> list[Turn]:
    turns, length = shape or SIZES[window]
    return month(domain, turns, density, length=length)


@asynccontextmanager
async def opened() -> AsyncIterator[Store]:
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        store = await SqliteStore.open(Path(folder) / "months.db", synchronous="NORMAL")
        yield store
        await store.close()


async def played(
    store: Store,
    domain: str,
    window: int,
    script: Sequence[Turn],
    *,
    kind: StandInKind = "shortens",
    gap: float = GAP,
    settings: ContextSettings | None = None,
    tools: Sequence[Tool] = (),
) -> AgentMonth:
    chat = AgentMonth(store, window, len(script), domain, kind, settings or ContextSettings(), tools)
    async for _ in chat.play(script, gap):
        pass
    await chat.agent.close()
    return chat


@dataclass(slots=True)
class Bench:
    """All months of this bench. Each is run only once."""

    windows: Sequence[int]
    tools: Sequence[Tool] = ()
    """Tools in the prompts. Empty: only the history tools."""
    records: dict[tuple[object, ...], Record] = field(default_factory=dict)
    figures: dict[tuple[object, ...], Mapping[str, float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    systems: dict[int, str] = field(default_factory=dict)
    """System prompts by context window, each with the tools that fit."""

    def run(
        self,
        window: int,
        density: float = DENSE,
        *,
        kind: StandInKind = "shortens",
        gap: float = GAP,
        shape: tuple[int, int] | None = None,
        **options: object,
    ) -> list[Record]:
        """Return the records of one month for each chat, played with the agent."""
        settings = replace(DEFAULTS, **options)

        async def play(script: Sequence[Turn], domain: str) -> Record:
            async with opened() as store:
                chat = await played(
                    store, domain, window, script, kind=kind, gap=gap, settings=settings, tools=self.tools
                )
                return chat.record

        keys = {domain: (window, domain, density, kind, gap, shape, *sorted(options.items())) for domain in DOMAINS}
        for domain, key in keys.items():
            if key not in self.records:
                self.records[key] = virtual(play(script_of(domain, window, density, shape), domain))
                self.systems[window] = self.records[key].pieces[0]
        return [self.records[key] for key in keys.values()]

    def other(self, policy: str, window: int, density: float) -> list[Mapping[str, float]] | None:
        """Return the figures of another policy; None if they are missing."""
        keys = {domain: (policy, domain, window, density) for domain in DOMAINS}
        for domain, key in keys.items():
            if key not in self.figures:
                if policy not in REMEDIES:
                    return None
                script = script_of(domain, window, density)
                self.figures[key] = simulate(script, self.systems[window], window, REMEDIES[policy])
        return [self.figures[key] for key in keys.values()]

    def peer(self) -> str | None:
        """Return the interpreter that has hermes-agent. If there is none, note that the comparison is left out."""
        if not os.environ.get(PEER):
            self.left_out.append(f"{PEER_NAME}: {PEER} names no interpreter that has it")
        return os.environ.get(PEER)

    def ask_peer(self) -> None:
        """Run hermes-agent through the months, in an interpreter that has it."""
        interpreter = self.peer()
        if not interpreter:
            return
        keys = [
            (domain, window, density) for window in self.windows for density in (USUAL, DENSE) for domain in DOMAINS
        ]
        jobs = [{"month": script_of(*key), "system": self.systems[key[1]], "window": key[1]} for key in keys]
        with tempfile.TemporaryDirectory(prefix="peer-quality-") as folder:
            path = Path(folder) / "months.json"
            path.write_text(json.dumps(jobs), encoding="utf-8")
            found = peer_output(interpreter, policies.__file__, [str(path)], folder)
        self.figures |= {(PEER_NAME, *key): figures for key, figures in zip(keys, found, strict=True)}

    def row(self, name: str, cell: Cell, bar: str = "", windows: Sequence[int] = ()) -> list[Row]:
        """Return a row of the table. If a cell is missing, return no row and note its name."""
        cells = {window: cell(window) for window in windows or self.windows if window in self.windows}
        if None in cells.values():
            self.left_out.append(name)
            return []
        return [(name, {window: text or "" for window, text in cells.items()}, bar)] if cells else []

    def over(self, measure: Callable[[Record], float], form: str = "{:.0%}", **options: Any) -> Cell:
        """Return a cell with the lowest and the highest value of the three chats."""
        return lambda window: span(self.run(window, **options), measure, form)


def span(found: Sequence[T] | None, measure: Callable[[T], float], form: str) -> str | None:
    if found is None:
        return None
    values = [measure(one) for one in found]
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low.rstrip('%')}–{high}"
