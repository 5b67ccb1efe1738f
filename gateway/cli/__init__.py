"""The command `hermes-gateway`. A module per kind of command; they share `answers.py` and `output.py`.

Exit codes that scripts and systemd rely on: 0 clean, 75 token or database held by another process, 78 configuration.
1 is any other failure, 2 a wrong command line, 3 `status` of a gateway that is not running.
"""

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import config, daemon, database, init, lookups, pair, plugins, usage
from gateway.cli.output import echo
from gateway.config import ConfigRejected, process_environment
from gateway.config.files import find_state
from hermes_state.errors import ConfigError, DatabaseRejected, HermesError, LockUnavailable, SchemaTooNew
from hermes_state.store.lock import holder

EXIT_FAILED = 1
EXIT_OWNED_ELSEWHERE = 75
EXIT_CONFIG = 78

app = typer.Typer(
    name="hermes-gateway",
    help="An LLM agent in Telegram, Discord and a local web chat that keeps every conversation alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, and with them secrets
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# fmt: off
for name, command in (
    ("run", daemon.run), ("init", init.init), ("status", daemon.status), ("url", daemon.url), ("doctor", daemon.doctor),
    ("lineage", lookups.lineage), ("search", lookups.search), ("history", lookups.history),
    ("sessions", lookups.sessions), ("usage", usage.usage), ("insights", usage.insights), ("backup", database.backup),
):
    app.command(name)(command)
# fmt: on
app.add_typer(config.app, name="config")
app.add_typer(pair.app, name="pair")
app.add_typer(plugins.app, name="plugins")


def installed_version() -> str:
    """The version of the installed distribution; `unknown` when run from a bare checkout."""
    try:
        return version("hermes-gateway")
    except PackageNotFoundError:
        return "unknown"


def _show_version(is_asked: bool) -> None:
    if is_asked:
        echo(f"hermes-gateway {installed_version()}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An LLM agent in Telegram, Discord and a local web chat that keeps every conversation alive.

    The state directory is HERMES_HOME, by default ~/.hermes-gateway.
    """


def main() -> None:
    """Entry point: our errors become one sentence on standard error and the exit code that belongs to them."""
    try:
        app()
    except (ConfigError, DatabaseRejected, SchemaTooNew) as error:
        for warning in error.warnings if isinstance(error, ConfigRejected) else ():
            echo(f"hermes-gateway: warning: {warning}", err=True)
        _leave("configuration", error, EXIT_CONFIG)
    except LockUnavailable as error:
        _leave("already running", error, EXIT_OWNED_ELSEWHERE, _ways_out())
    except HermesError as error:
        _leave("failed", error, EXIT_FAILED)


def _ways_out() -> Iterator[str]:
    """Sentences on opening the gateway that runs already, if it is this state directory's, and on ending it."""
    if holder(find_state(process_environment()).lock_file) is not None:
        command = sys.argv[0] if Path(sys.argv[0]).name == "hermes-gateway" else "hermes-gateway"
        yield f"`{command} url` prints an address of its web chat"
    yield "Ctrl-C where it runs, `kill` with its process id, or `systemctl stop hermes-gateway` ends it"


def _leave(kind: str, error: HermesError, code: int, hints: Iterable[str] = ()) -> None:
    for line in (*(str(error).splitlines() or [type(error).__name__]), *hints):
        echo(f"hermes-gateway: {kind}: {line}", err=True)
    sys.exit(code)
