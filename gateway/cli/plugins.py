"""`hermes-gateway plugins list`: context engines of plugins."""

import typer

from gateway.cli.output import Json, echo, show, table
from gateway.config import load_config, process_environment

app = typer.Typer(no_args_is_help=True, help="Look at plugins.", rich_markup_mode=None)


@app.command("list")
def list_engines(as_json: Json = False) -> None:
    """Show every context engine: found, active, or failed and why. The code of all of them is run for that.

    Exit code 78 when the one that `context.engine` names cannot be used.
    """
    from agent.engines.loader import list_plugins, unknown_engine  # which take the agent with them

    loaded = load_config(process_environment())
    configured = loaded.config.context.engine
    reports = list_plugins(loaded.home, configured)
    active = next((report.name for report in reports if report.state == "active"), None)
    problem = None
    if active is None:
        broken = next((report for report in reports if report.name == configured), None)
        known = [report.name for report in reports]
        problem = f"context.engine: {configured}: {broken.why}" if broken else unknown_engine(configured, known)
    rows = [(report.name, report.state, report.source, report.why or report.about) for report in reports]
    found = {"active": active, "problem": problem, "plugins": reports}
    show(found, table(("ENGINE", "STATE", "FROM", "ABOUT"), rows), as_json=as_json)
    if problem is not None:
        if not as_json:
            echo(f"\n{problem}", err=True)
        raise typer.Exit(78)
