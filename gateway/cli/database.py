"""`hermes-gateway backup` and `doctor --repair`: copies of the database, and what is left of a damaged one."""

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.answers import configured_database
from gateway.cli.output import Json, show, tree
from gateway.config import find_store_url, process_environment
from gateway.config.files import find_state, locate_home
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.resting import open_resting_file
from hermes_state.errors import CommandError

_BACKUP_SECONDS = 3_700.0
"""Longest wait for the daemon's copy, in seconds: more than it takes by its own limit."""


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the copy.")], as_json: Json = False
) -> None:
    """Copy the database to FILE, also while the gateway runs, and also when its files were deleted meanwhile.

    A running gateway writes FILE itself: as a service it may write only into its state directory.
    """
    state, target = find_state(process_environment()), Path(os.path.abspath(file))
    try:
        size = ask(state.control_socket, "backup", {"file": str(target)}, timeout_seconds=_BACKUP_SECONDS)["bytes"]
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is not None:
            raise CommandError("The database is in PostgreSQL: pg_dump makes its backups.") from None
        with open_resting_file(path) as db:
            if db is None:
                raise CommandError("There is no database yet; the first start makes it.") from None
            db.execute("BEGIN")
            size = copy_into(db, target)
    if not os.path.exists(target):
        raise CommandError(
            f"the gateway wrote {target}, but sees other folders than you there, as services do with /tmp: name a file "
            f"in {state.home}"
        )
    line = f"{target}: the whole database, {size / 1e6:.1f} MB"
    show({"file": str(target), "bytes": size}, [line], as_json=as_json)


def repair(*, as_json: bool) -> None:
    """Save what can be read of a damaged database into a new one, which takes its place."""
    from hermes_state.admin.repair import repair_database

    environ = process_environment()
    path = locate_home(environ) / "state.db"  # which `find_state` looks into, and it may be damaged
    if find_store_url(environ) is not None:
        raise CommandError(
            "The database is in PostgreSQL, which repairs it when it starts. What is damaged beyond that comes from a "
            "backup that pg_dump has made."
        )
    report = repair_database(path)
    result = {"database": str(path), **({"sound": True} if report is None else msgspec.to_builtins(report))}
    show(result, tree(result), as_json=as_json)
