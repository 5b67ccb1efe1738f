"""Output of the command line: sentences and tables for people, or one JSON document for programs."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

import msgspec
import orjson
import typer

from gateway.times import format_time
from hermes_state.disk import flush
from hermes_state.errors import CommandError
from hermes_state.text import printable
from hermes_state.values import Millis, Progress

_STEPS = 1_000  # steps of a progress bar
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def echo(text: str, *, err: bool = False) -> None:
    """Print a line to standard output or standard error. The command line prints only through this function."""
    typer.echo(printable(text), err=err)


def confirm(question: str, *, default: bool = False) -> bool:
    """Ask a yes-or-no question in the terminal. If the user only presses Enter, the answer is `default`."""
    return typer.confirm(printable(question), default=default)


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print `value` as JSON if `as_json` is set, otherwise the same content as readable `lines`."""
    if as_json:
        print_json(value)
    else:
        for line in lines:
            echo(line)


def print_json(value: Any) -> None:
    """Print a value as JSON. Supports structs and dataclasses."""
    default = partial(msgspec.to_builtins, enc_hook=str)
    echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS, default=default).decode())


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a function that shows a progress bar on standard error, if that is a terminal, until the block ends."""
    bar = None
    with ExitStack() as stack:

        def show_step(name: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                is_hidden = not sys.stderr.isatty()
                bar = stack.enter_context(typer.progressbar(length=_STEPS, file=sys.stderr, hidden=is_hidden))
            bar.label = printable(name)
            bar.update(_STEPS * min(done, total) // max(1, total) - bar.pos)

        yield show_step


def check_folder(path: Path) -> None:
    """Raise `CommandError` if there is no folder for the new file `path`."""
    if not os.path.isdir(path.parent):
        raise CommandError(f"The folder {path.parent} does not exist. Create it, or choose another one.")


@contextmanager
def new_file(path: Path, *, is_forced: bool) -> Iterator[BinaryIO]:
    """Open a file for writing (mode 0600), which replaces `path` at the end. After an error, `path` is unchanged.

    Raises `CommandError` if the file cannot be written, or if `path` exists and `is_forced` is not set.
    """
    if path.exists() and not is_forced:
        raise CommandError(f"{path} exists. Use --force to overwrite it.")
    check_folder(path)
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        flush(unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table line by line. Each column is as wide as its widest cell, and each row is one line."""
    rows = [head, *([printable(" ".join(cell.splitlines())) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def tree(value: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield nested values as indented `name: value` lines."""
    space = "  " * depth
    for name, held in value.items():
        if held == "":
            continue  # do not show empty values
        label = f"{space}{name.replace('_', ' ')}:"
        if isinstance(held, Mapping) and held:
            yield label
            yield from tree(held, depth + 1)
        elif isinstance(held, list) and held and isinstance(held[0], Mapping):
            yield label
            for row in held:
                yield f"{space}  - " + ", ".join(f"{key} {_cell(key, cell)}" for key, cell in row.items() if cell != "")
        elif isinstance(held, list | Mapping):
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
