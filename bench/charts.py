"""Bar charts of the most important figures, drawn as SVG for `docs/figures` from the benchmarks' tables."""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent.parent / "docs/figures"
Cell: TypeAlias = tuple[str, str]  # a row's name and a column's name
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 HEIGHT" font-family="sans-serif" font-size="13">
<style>.page { fill: #ffffff } text { fill: #1f2328 } .c0 { fill: #2f6feb } .c1 { fill: #8c959f }
@media (prefers-color-scheme: dark) { .page { fill: #0d1117 } text { fill: #e6edf3 } }</style>
<rect class="page" width="720" height="HEIGHT" rx="8"/>"""
OURS, PEER, DASH = "hermes-gateway", "hermes-agent 0.19.0", "\u2013"
SDK_CALL = "a call against the bare SDK: {}, streamed, 60 messages"
SEARCH = "search 5,000,000 messages: {}, p50"


class Chart(NamedTuple):
    """Chart of some rows of a table.

    `names`: programs that the first and the second bars show. `rows`: table cells for each label.
    """

    file: str
    title: str
    names: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]


def _cells(row: str) -> Sequence[Cell]:
    return (row, "ours"), (row, "yardstick")


CHARTS = (
    Chart(
        "throughput.svg",
        "Messages answered per second",
        (OURS, "minimal bot"),
        {name: _cells(name) for name in ("50 chats x 10", "200 chats x 5", "1,000 chats x 2")},
    ),
    Chart(
        "model-calls.svg",
        "Duration of a streamed call with 60 messages, by protocol",
        (OURS, "the provider's SDK"),
        {name: _cells(SDK_CALL.format(name)) for name in ("chat_completions", "responses", "anthropic")},
    ),
    Chart(
        "search.svg",
        "Search in 5,000,000 messages, median",
        (OURS,),
        {
            n: _cells(SEARCH.format(n))[:1]
            for n in ("a rare word", "a common word in one chat", "two Chinese characters")
        },
    ),
    Chart(
        "recall.svg",
        "Content of earlier messages that is still in the prompt, by context window",
        (OURS, PEER),
        {
            f"{label}, {size}": ((row, size), (f"{row} {DASH} {PEER}", size))
            for label, row in (
                ("what questions need", "recall: what questions need, in the prompt"),
                ("preferences, decisions", "recall: preferences and decisions in the prompt"),
                ("newest values", "recall: newest value in the prompt"),
            )
            for size in ("32K", "128K")
        },
    ),
)


def write(tables: str, folder: Path = FOLDER) -> list[str]:
    """Write each chart whose rows are all in the Markdown tables. Return the names of the files."""
    cells = cells_of(tables)
    whole = [chart for chart in CHARTS if all(cells.get(cell) for row in chart.rows.values() for cell in row)]
    for file, title, names, rows in whole:
        drawn = bar_chart(title, names, [(label, [cells[cell] for cell in row]) for label, row in rows.items()])
        (folder / file).write_text(drawn, encoding="utf-8")
    return [chart.file for chart in whole]


def cells_of(tables: str) -> dict[Cell, str]:
    """Return the cells of Markdown tables.

    If a row's name begins with a dash, it continues the name of the row above.
    """
    found, heads, above = dict[Cell, str](), list[str](), ""
    for line in tables.splitlines():
        name, *cells = (cell.strip() for cell in line[1:-1].split("|"))
        if not line.startswith("|") or not heads:
            heads = cells if line.startswith("|") else []
        above = above if name.startswith(DASH) else name
        name = name if name == above else f"{above} {name}"
        found |= {(name, head): cell for head, cell in zip(heads, cells, strict=False)}
    return found


def bar_chart(title: str, names: Sequence[str], bars: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return an SVG with a group of horizontal bars for each label, in colours for light and dark mode."""
    top = max(_value(text) for _, figures in bars for text in figures)
    lines, y = [_text(16, 28, title)], 44
    for index, name in enumerate(names):
        lines += [_bar(index, 16 + 180 * index, y, 14), _text(36 + 180 * index, y + 12, name)]
    for label, figures in bars:
        y += 30
        lines.append(_text(16, y + 12, label))
        for index, text in enumerate(figures):
            width = max(1, round(320 * _value(text) / top))
            lines += [_bar(index, 230, y + 18 * index, width), _text(238 + width, y + 18 * index + 12, text)]
        y += 18 * (len(figures) - 1)
    return "\n".join((HEAD.replace("HEIGHT", str(y + 34)), *lines, "</svg>\n"))


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'


def _bar(index: int, x: int, y: int, width: int) -> str:
    return f'<rect class="c{index}" x="{x}" y="{y}" width="{width}" height="14"/>'


def _value(text: str) -> float:
    """Return the number in a cell, or the middle of a range."""
    return statistics.mean(float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text))
