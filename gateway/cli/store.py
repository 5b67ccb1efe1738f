"""`hermes-gateway store copy`: the database moves to another file or to PostgreSQL, or back."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, echo, show, table
from hermes_state.admin.copy import CopiedTable, copy_database
from hermes_state.engines.opening import name_of, open_ends
from hermes_state.errors import CommandError
from hermes_state.kinds import checked_store_url
from hermes_state.text import counted

_REPORT_ROWS = 50_000
"""Rows of a table between two lines of progress."""

app = typer.Typer(no_args_is_help=True, help="Move the database.", rich_markup_mode=None)


@app.command()
def copy(
    to: Annotated[str, typer.Option("--to", metavar="URL|FILE", help="An empty PostgreSQL database, or a new file.")],
    as_json: Json = False,
) -> None:
    """Copy the configured database, row by row with all ids, while no gateway runs; the source is only read.

    A copy that was interrupted is gone on with by the same command. At the end each table is compared on both sides.
    The target's password comes from PGPASSWORD or ~/.pgpass. Exit code 75 while a gateway has one of them open, 78
    for a target with other rows.
    """
    path, url = configured_database()
    source: Path | str = path if url is None else url
    target = _target(to)
    with open_ends(source, target) as (read, written):
        tables = copy_database(read, written, name_of(source), _show_progress)
    rows = [(one.table, f"{one.rows:,}", one.checksum[:16]) for one in tables]
    show(tables, [*table(("TABLE", "ROWS", "CHECKSUM"), rows), *_notes(tables, target)], as_json=as_json)


def _target(text: str) -> Path | str:
    if "://" not in text:
        return Path(os.path.abspath(text))
    try:
        url = checked_store_url(text)
    except ValueError as error:
        raise CommandError(f"--to {error}") from None
    if urlsplit(url).password is not None or "password=" in url:
        raise CommandError(
            "leave the password out of --to, where process lists show it: set PGPASSWORD, or write it into ~/.pgpass"
        )
    return url


def _show_progress(name: str, done: int, total: int) -> None:
    if done == total or done % _REPORT_ROWS == 0:
        echo(f"{name}: {done:,} of {total:,} rows", err=True)


def _notes(tables: list[CopiedTable], target: Path | str) -> list[str]:
    rows, replaced = sum(one.rows for one in tables), sum(one.replaced for one in tables)
    lines = [f"{name_of(target)}: {counted(rows, 'row')}, all the same as in the source."]
    if replaced:
        lines.append(f"NUL characters in {counted(replaced, 'text')} became � there.")
    return lines
