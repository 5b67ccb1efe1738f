"""`hermes-gateway run | status | url | doctor`: the daemon in the foreground, its state, its address, its checks."""

from typing import Annotated

import msgspec
import typer

from gateway.cli.answers import ask_or_read, ask_or_write, configured_database
from gateway.cli.database import repair
from gateway.cli.output import Json, echo, print_json, show, table, tree
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.browsers import browser_rows, served_elsewhere
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.admin import browsers
from hermes_state.admin.overview import load_overview
from hermes_state.engines.opening import open_resting
from hermes_state.errors import CommandError
from hermes_state.imports import without
from hermes_state.text import counted
from hermes_state.values import SystemClock

_SIGNS = {"fine": "ok", "skipped": "--", "warning": "!!", "failed": "XX"}
"""Marks before the lines of `doctor`, by `CheckStatus`."""


def run(
    is_fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin with an empty database where the one that there was is gone.")
    ] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="node|worker", help="Role of this node, instead of cluster.role.")
    ] = "",
) -> None:
    """Run the gateway in the foreground until SIGTERM or Ctrl-C.

    With nothing configured it serves the web chat on 127.0.0.1 with the offline model. SIGHUP reloads the
    configuration, but ends a gateway that runs at a terminal. Exit codes: 0 clean, 75 token or database held by
    another process, 78 configuration, or a database that was there and is gone: put it or a backup back, or begin anew
    with --fresh, which touches none that is there.
    """
    with without("rich"):  # structlog would import it for tracebacks at terminals, which ours are written without
        from gateway.daemon.process import (
            serve,  # what writes the logs takes longer to import than all of the command line
        )
    environ = process_environment()
    raise typer.Exit(serve({**environ, "HERMES_CLUSTER__ROLE": role} if role else environ, is_fresh=is_fresh))


def status(as_json: Json = False) -> None:
    """Show whether the gateway runs and how it does. Exit code 3 when it does not run."""
    state = find_state(process_environment())
    try:
        answer = {"running": True, **ask(state.control_socket, "status")}
    except DaemonNotRunningError:
        answer = {"running": False, "home": str(state.home)}
        with open_resting(*configured_database()) as db:  # refuses when somebody holds it and does not answer
            if db is not None:
                answer["database"] = msgspec.structs.asdict(load_overview(db))
    show(answer, tree(answer), as_json=as_json)
    if not answer["running"]:
        raise typer.Exit(3)  # as systemctl says of a service that is not running


def url(
    browser: Annotated[str, typer.Argument(metavar="[ID]", help="With --revoke: only this browser.")] = "",
    is_list: Annotated[bool, typer.Option("--list", help="List the browsers that are signed in.")] = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Sign out all browsers, or the one with this ID.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a fresh address of the web chat; it signs one browser in, once.

    Of several nodes the one that serves the web chat prints it; the others name that one, and list and sign out, too.
    """
    if is_revoked:
        args = {"id": browser} if browser else {}
        count = ask_or_write(
            "local.revoke", args, lambda db, now: {"signed_out": browsers.remove(db, browser or None, now)}
        )["signed_out"]
        if browser and not count:
            raise CommandError(f"no browser {browser} is signed in; `hermes-gateway url --list` shows them")
        show({"signed_out": count}, [f"Signed out: {counted(count, 'browser')}."], as_json=as_json)
    elif is_list:
        found = ask_or_read(
            "local.browsers",
            {},
            list[dict[str, str]],
            lambda db, *_: browser_rows(db, SystemClock().now()),
            empty=[],
            timeout_seconds=10,
        )
        rows = [(one["id"], one["since"], one["agent"]) for one in found]
        lines = table(("ID", "SIGNED IN", "BROWSER"), rows) if rows else ["No browser is signed in."]
        show(found, lines, as_json=as_json)
    elif (address := _mint_url()) is None:
        raise CommandError("the web chat is not being served right now; `hermes-gateway status` says why")
    else:
        show({"url": address}, [address], as_json=as_json)


def _mint_url() -> str | None:
    try:
        address: str | None = ask(find_state(process_environment()).control_socket, "local.url")["url"]
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is not None:
            with open_resting(path, url) as db:
                if db is not None and (elsewhere := served_elsewhere(db)) is not None:
                    raise CommandError(elsewhere) from None
        raise
    return address


def doctor(
    is_online: Annotated[bool, typer.Option("--online", help="Also try the Telegram and Discord tokens.")] = False,
    is_repair: Annotated[
        bool, typer.Option("--repair", help="Save what can be read of a damaged database into a new one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check configuration, files, database, model and service, and say what to do.

    Changes nothing and is safe beside a running gateway. A configured model's server is asked for its list of
    models. Exit code 1 when something failed, 78 when it is the configuration. --repair is for a gateway that is
    stopped (exit code 75 otherwise); it keeps the damaged database and says what is missing in the new one.
    """
    if is_repair:
        repair(as_json=as_json)
        return
    from gateway.operator.doctor import run_checks  # imports the agent, which takes a second

    findings = []
    for finding in run_checks(process_environment(), is_online=is_online):
        findings.append(finding)
        if not as_json:
            echo(f"{_SIGNS[finding.verdict]}  {finding.check:<12} {finding.text}".replace("\n", "\n" + " " * 17))
    if as_json:
        print_json(findings)
    failed = {finding.check for finding in findings if finding.verdict == "failed"}
    if failed:
        raise typer.Exit(78 if "config" in failed else 1)
