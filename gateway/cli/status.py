"""`hermes-gateway status | url`: state of the daemon, or of its database at rest; address of the web chat."""

import msgspec
import typer

from gateway.cli.output import Json, show, tree
from gateway.config import process_environment
from gateway.config.files import find_state
from gateway.operator.socket import DaemonNotRunningError, ask
from hermes_state.admin.overview import load_overview, open_resting
from hermes_state.errors import CommandError

EXIT_NOT_RUNNING = 3


def status(as_json: Json = False) -> None:
    """Show whether the gateway runs and how it does. Exit code 3 when it does not run."""
    state = find_state(process_environment())
    try:
        answer = {"running": True, **ask(state.control_socket, "status")}
    except DaemonNotRunningError:
        answer = {"running": False, "home": str(state.home)}
        with open_resting(state.database) as db:  # refuses when somebody holds it and does not answer
            if db is not None:
                answer["database"] = msgspec.structs.asdict(load_overview(db))
    show(answer, tree(answer), as_json=as_json)
    if not answer["running"]:
        raise typer.Exit(EXIT_NOT_RUNNING)


def url() -> None:
    """Print a fresh address of the web chat; it signs one browser in, once."""
    answer = ask(find_state(process_environment()).control_socket, "local.url")
    if answer["url"] is None:
        raise CommandError("the web chat is switched off (local.enabled)")
    typer.echo(answer["url"])
