"""`hermes-gateway backup | restore | store copy` and `doctor --repair`: copy the database, or rescue a damaged one."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, check_folder, progress_bar, show, table, tree
from gateway.config import find_store_url, process_environment
from gateway.config.files import find_state, locate_home
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.admin.copy import CopyResult, copy_database
from hermes_state.engines.opening import name_of, open_ends
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.offline import open_offline_file
from hermes_state.errors import CommandError
from hermes_state.setting_types import checked_store_url
from hermes_state.text import counted
from hermes_state.values import Progress


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the copy.")], as_json: Json = False
) -> None:
    """Copy the database to FILE, even while the gateway runs.

    If the gateway is running, it writes FILE itself, even if its database files have been deleted. A gateway that runs
    as a systemd service can write only to its state directory.
    """
    state, target = find_state(process_environment()), Path(os.path.abspath(file))
    check_folder(target)
    try:
        with progress_bar() as progress, _watched(state.database, target, progress):
            # The daemon gives up on a copy before this timeout.
            size = ask(state.control_socket, "backup", {"file": str(target)}, timeout_seconds=3_700)["bytes"]
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is not None:
            raise CommandError("The database is in PostgreSQL. Use pg_dump for backups.") from None
        with open_offline_file(path) as db:
            if db is None:
                raise CommandError("There is no database yet. The first start of the gateway creates it.") from None
            db.execute("BEGIN")
            with progress_bar() as progress:
                size = copy_into(db, target, progress=progress)
    if not os.path.exists(target):
        raise CommandError(
            f"The gateway wrote {target}, but into a private folder of its service, such as the service's own /tmp. "
            f"Choose a file in {state.home}."
        )
    line = f"Copied the whole database to {target} ({size / 1e6:.1f} MB)."
    show({"file": str(target), "bytes": size}, [line], as_json=as_json)


@contextmanager
def _watched(source: Path, target: Path, progress: Progress) -> Iterator[None]:
    """Show how much of `target` the daemon has written within the block, judged by the sizes of the files."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            with suppress(OSError):  # the files may be in a private folder of the service
                parts = target.parent.glob(f".{target.name}.*.unfinished")
                progress("backup", sum(part.stat().st_size for part in parts), source.stat().st_size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `hermes-gateway backup` wrote.")],
    as_json: Json = False,
) -> None:
    """Replace the database with the backup FILE, while no gateway is running. FILE is not changed.

    The old database stays next to the new one. Exits with code 75 if a gateway is running, or 78 if FILE is not a
    complete backup of this or an earlier version. Then nothing has changed.
    """
    from hermes_state.admin.restore import restore_database

    environ = process_environment()
    if find_store_url(environ) is not None:
        raise CommandError("The database is in PostgreSQL. Use pg_restore or psql with a pg_dump backup.")
    path = locate_home(environ) / "state.db"  # not `find_state`, which refuses a damaged file
    with progress_bar() as progress:
        report = restore_database(path, Path(os.path.abspath(file)), progress)
    lines = [f"Restored {path} from {file} ({report.bytes / 1e6:.1f} MB)."]
    lines += [] if report.kept is None else [f"The old database is now {report.kept}."]
    show(report, [*lines, "Run `hermes-gateway doctor`, then start the gateway."], as_json=as_json)


def repair(*, as_json: bool) -> None:
    """Copy the readable part of a damaged database into a new database, which replaces the damaged one."""
    from hermes_state.admin.repair import repair_database

    environ = process_environment()
    path = locate_home(environ) / "state.db"  # not `find_state`, which would open the damaged file
    if find_store_url(environ) is not None:
        raise CommandError(
            "The database is in PostgreSQL, which repairs itself when it starts. If that is not enough, restore "
            "a pg_dump backup."
        )
    with progress_bar() as progress:
        report = repair_database(path, progress)
    result = {"database": str(path), **({"sound": True} if report is None else msgspec.to_builtins(report))}
    show(result, tree(result), as_json=as_json)


store = typer.Typer(
    no_args_is_help=True, help="Copy the database to PostgreSQL or to another file.", rich_markup_mode=None
)


@store.command()
def copy(
    to: Annotated[str, typer.Option("--to", metavar="URL|FILE", help="Empty PostgreSQL database or new file.")],
    as_json: Json = False,
) -> None:
    """Copy the configured database with all ids, while no gateway is running. The source is not changed.

    To continue an interrupted copy, run the same command again. At the end, the command compares every table in both
    databases. The target's password comes from PGPASSWORD or ~/.pgpass. Exits with code 75 if a gateway has one of the
    databases open, or 78 if the target contains rows that are not from the source.
    """
    path, url = configured_database()
    source: Path | str = path if url is None else url
    target = _target(to)
    with open_ends(source, target) as (read, written), progress_bar() as progress:
        tables = copy_database(read, written, name_of(source), progress)
    rows = [(one.table, f"{one.rows:,}", one.checksum[:16]) for one in tables]
    show(tables, [*table(("TABLE", "ROWS", "CHECKSUM"), rows), *_notes(tables, target)], as_json=as_json)


def _target(text: str) -> Path | str:
    if "://" not in text:
        return Path(os.path.abspath(text))
    try:
        url = checked_store_url(text)
        has_password = urlsplit(url).password is not None or "password=" in url
    except ValueError as error:
        raise CommandError(f"--to {error}") from None
    if has_password:
        raise CommandError(
            "Leave the password out of --to because process lists show it. Set PGPASSWORD or use ~/.pgpass instead."
        )
    return url


def _notes(tables: list[CopyResult], target: Path | str) -> list[str]:
    rows, replaced = sum(one.rows for one in tables), sum(one.replaced for one in tables)
    lines = [f"{name_of(target)}: {counted(rows, 'row')}, identical to the source."]
    if replaced:
        lines.append(f"PostgreSQL cannot store NUL characters, so � replaces them in {counted(replaced, 'text')}.")
    return lines
