"""`hermes-gateway run | url | doctor`: run the daemon, open its web chat and check it."""

from typing import Annotated

import typer

from gateway.cli.answers import ask_or_read, ask_or_write, configured_database
from gateway.cli.database import repair
from gateway.cli.output import Json, echo, print_json, show, table
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.browsers import browser_rows, served_elsewhere
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.admin import browsers
from hermes_state.admin.pairings import UserRole
from hermes_state.engines.opening import open_offline
from hermes_state.errors import CommandError
from hermes_state.imports import without
from hermes_state.text import counted
from hermes_state.values import SystemClock

_SIGNS = {"fine": "ok", "skipped": "--", "warning": "!!", "failed": "XX"}
"""Mark at the start of a `doctor` line, for each `CheckStatus`."""


def run(
    is_fresh: Annotated[
        bool, typer.Option("--fresh", help="Start with a new, empty database if the old one is missing.")
    ] = False,
    role: Annotated[
        str, typer.Option("--role", metavar="node|worker", help="Role of this node; overrides cluster.role.")
    ] = "",
) -> None:
    """Run the gateway in the foreground until SIGTERM or Ctrl-C.

    Without any configuration, it serves the web chat on 127.0.0.1 with the offline model. SIGHUP reloads the
    configuration, or stops a gateway that runs in a terminal.

    Exit codes: 0 stopped, 75 token or database in use by another process, 78 configuration error or missing database.
    If the database is missing, restore it, or use --fresh to start with an empty database. --fresh never touches an
    existing database.
    """
    with without("rich", "greenlet"):  # structlog would import them for tracebacks and greenlets, which we do not use
        from gateway.daemon.process import serve  # logging takes longer to import than the whole command line
    environ = process_environment()
    raise typer.Exit(serve({**environ, "HERMES_CLUSTER__ROLE": role} if role else environ, is_fresh=is_fresh))


def url(
    browser: Annotated[str, typer.Argument(metavar="[ID]", help="With --revoke: only this browser.")] = "",
    is_list: Annotated[bool, typer.Option("--list", help="List the browsers that are signed in.")] = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Sign out the browser with this ID, or all browsers and unused links.")
    ] = False,
    name: Annotated[str, typer.Option("--for", metavar="NAME", help="Sign in this person, not the owner.")] = "",
    role: Annotated[UserRole | None, typer.Option("--role", help="With --for: role of the person.")] = None,
    as_json: Json = False,
) -> None:
    """Print a new link to the web chat. The link signs in one browser and works once.

    With --for, the link signs in another person, who has their own conversations, notes and limits. A new person
    becomes a user unless --role says otherwise.

    In a cluster, only the node that serves the web chat prints a link; other nodes name that node. --list and --revoke
    work on every node.
    """
    if role is not None and not name:
        raise CommandError("--role needs --for NAME.")
    if is_revoked:
        args = {"id": browser} if browser else {}
        count = ask_or_write(
            "local.revoke", args, lambda db, now: {"signed_out": browsers.remove(db, browser or None, now)}
        )["signed_out"]
        if browser and not count:
            raise CommandError(
                f"No browser with the id {browser} is signed in. `hermes-gateway url --list` shows the ids."
            )
        show({"signed_out": count}, [f"Signed out {counted(count, 'browser')}."], as_json=as_json)
    elif is_list:
        found = ask_or_read(
            "local.browsers",
            {},
            list[dict[str, str]],
            lambda db, *_: browser_rows(db, SystemClock().now()),
            empty=[],
            timeout_seconds=10,
        )
        rows = [(one["id"], one["person"], one["since"], one["agent"]) for one in found]
        lines = table(("ID", "PERSON", "SIGNED IN", "BROWSER"), rows) if rows else ["No browser is signed in."]
        show(found, lines, as_json=as_json)
    elif (address := _mint_url(name, role)) is None:
        raise CommandError("The web chat is not running. `hermes-gateway status` shows why.")
    else:
        show({"url": address}, [address], as_json=as_json)


def _mint_url(name: str, role: UserRole | None) -> str | None:
    args = {"for": name, "role": role or ""}
    try:
        address: str | None = ask(find_state(process_environment()).control_socket, "local.url", args)["url"]
    except DaemonNotRunningError:
        path, url = configured_database()
        if url is not None:
            with open_offline(path, url) as db:
                if db is not None and (elsewhere := served_elsewhere(db)) is not None:
                    raise CommandError(elsewhere) from None
        raise
    return address


def doctor(
    is_online: Annotated[bool, typer.Option("--online", help="Also test the Telegram and Discord tokens.")] = False,
    is_repair: Annotated[
        bool, typer.Option("--repair", help="Copy the readable part of a damaged database into a new one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check configuration, files, database, model and service, and say how to fix problems.

    Changes nothing, and is safe while the gateway runs. It requests the list of models from the server of each
    configured model. Exits with code 1 if a check failed, or 78 if the configuration is invalid.

    --repair exits with code 75 if the gateway is running. It keeps the damaged database, and reports which data it
    could not save.
    """
    if is_repair:
        repair(as_json=as_json)
        return
    from gateway.operator.doctor import run_checks  # this module imports the agent, which takes a second

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
