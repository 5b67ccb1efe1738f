"""The command `hermes-gateway`. A module per kind of command; they share `answers.py` and `output.py`.

Exit codes that scripts and systemd rely on: 0 clean, 75 token or database held by another process, 78 configuration.
1 is any other failure, 2 a wrong command line, 3 `status` of a gateway that is not running.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli.output import echo
from hermes_state.errors import ConfigError, DatabaseRejected, HermesError, LockUnavailable

EXIT_FAILED = 1
EXIT_OWNED_ELSEWHERE = 75
EXIT_CONFIG = 78

COMMANDS = {
    "run": ("daemon", "Run the gateway in the foreground until SIGTERM or Ctrl-C."),
    "init": ("init", "Ask for tokens and model, try them, and write config.yaml."),
    "status": ("daemon", "Show whether the gateway runs and how it does."),
    "url": ("daemon", "Print a fresh address of the web chat."),
    "doctor": ("daemon", "Check configuration, files, database, model and service."),
    "lineage": ("lookups", "Show how sessions continue one another, oldest first."),
    "search": ("lookups", "Find what was said, in whichever session and chat that was."),
    "history": ("lookups", "Show what was said, as it was said."),
    "sessions": ("lookups", "List conversations, the most recently used first."),
    "usage": ("lookups", "Show what was used, what it cost, and the caps."),
    "insights": ("lookups", "Show what was spent lately, by day, chat, model and purpose."),
    "backup": ("database", "Copy the database to a file, also while the gateway runs."),
    "store": ("database", "Copy the database to another file or to PostgreSQL, or back."),
    "cluster": ("cluster", "Look at the nodes that share a database."),
    "config": ("config", "Check and show the configuration."),
    "pair": ("pair", "Let people in by code, and see them out."),
    "trajectories": ("trajectories", "Write conversations to files for training, shorten such files, look into them."),
    "plugins": ("config", "Look at plugins."),
}
"""Module of each command, or group of commands, and what it is for. Only the module of one that is used is imported."""


class _CommandRegistry(TyperGroup):
    """Commands by name: placeholders until one is used."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # Any: typer's own copy of click
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load_command(name), rest


app = typer.Typer(
    name="hermes-gateway",
    cls=_CommandRegistry,
    help="An LLM agent in Telegram, Discord and a local web chat that keeps every conversation alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, and with them secrets
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, (_, purpose) in COMMANDS.items():
    app.command(command, help=purpose)(lambda: None)


def load_command(name: str) -> Any:  # Any: as above
    """The command, or group of commands, of this name, imported."""
    found = getattr(importlib.import_module(f"gateway.cli.{COMMANDS[name][0]}"), name)
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(found)
    return typer.main.get_command(alone)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from gateway import installed_version

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
    except (ConfigError, DatabaseRejected) as error:
        for warning in getattr(error, "warnings", ()):  # of `ConfigRejected`
            echo(f"hermes-gateway: warning: {warning}", err=True)
        _leave("configuration", error, EXIT_CONFIG)
    except LockUnavailable as error:
        _leave("already running", error, EXIT_OWNED_ELSEWHERE, _ways_out())
    except HermesError as error:
        _leave("failed", error, EXIT_FAILED)


def _ways_out() -> Iterator[str]:
    """Sentences on opening the gateway that runs already, if it is this state directory's, and on ending it."""
    from gateway.config import process_environment
    from gateway.config.files import find_state
    from hermes_state.store.lock import holder

    if holder(find_state(process_environment()).lock_file) is not None:
        command = sys.argv[0] if Path(sys.argv[0]).name == "hermes-gateway" else "hermes-gateway"
        yield f"`{command} url` prints an address of its web chat"
    yield "Ctrl-C where it runs, `kill` with its process id, or `systemctl stop hermes-gateway` ends it"


def _leave(kind: str, error: HermesError, code: int, hints: Iterable[str] = ()) -> None:
    for line in (*(str(error).splitlines() or [type(error).__name__]), *hints):
        echo(f"hermes-gateway: {kind}: {line}", err=True)
    sys.exit(code)
