"""Output of the command line: sentences and tables for people, one JSON document for programs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import orjson
import typer

from gateway.times import format_time
from hermes_state.values import Millis

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def print_json(value: Any) -> None:
    """Print any value that JSON can carry; dataclasses included."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=str).decode())


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their widest cell, the last one as it comes."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_tree(value: Mapping[str, Any]) -> None:
    """Print nested values as indented `name: value` lines."""
    for line in _lines(value, 0):
        typer.echo(line)


def _lines(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    space = "  " * depth
    for name, held in value.items():
        if held == "":
            continue  # a detail that there is not
        label = f"{space}{name.replace('_', ' ')}:"
        if isinstance(held, Mapping) and held:
            yield label
            yield from _lines(held, depth + 1)
        elif isinstance(held, list) and held and isinstance(held[0], Mapping):
            yield label
            for row in held:
                yield f"{space}  - " + ", ".join(f"{key} {_cell(key, cell)}" for key, cell in row.items() if cell != "")
        elif isinstance(held, list):
            yield f"{label} {', '.join(map(str, held)) or 'none'}"
        else:
            yield f"{label} {_cell(name, held)}"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at") and isinstance(value, int):
        return format_time(Millis(value))
    return str(value)
