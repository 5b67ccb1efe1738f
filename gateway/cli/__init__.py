"""The command `hermes-gateway`. Each kind of command has its own module; all of them use `answers.py` and `output.py`.

Exit codes for scripts and systemd: 0 success, 75 token or database in use by another process, 78 configuration error,
1 any other failure, 2 invalid command line, 3 `status` of a gateway that is not running.
"""

import gc
import importlib
import sys
from collections.abc import Iterable, Iterator
from keyword import iskeyword
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
    "init": ("init", "Ask for tokens and a model, test and save them."),
    "status": ("status", "Show the state of the gateway."),
    "url": ("daemon", "Print a new link to the web chat."),
    "doctor": ("daemon", "Check configuration, files, database, model and service."),
    "update": ("update", "Ask whether a newer version exists."),
    "service": ("service", "Install, remove and watch the systemd service."),
    "lineage": ("lookups", "Show the chain of sessions, oldest first."),
    "search": ("lookups", "Search all conversations."),
    "history": ("lookups", "Show the original messages of a chat or session."),
    "sessions": ("lookups", "List conversations, most recently used first."),
    "why": ("lookups", "Show what happened to a message, from arrival to delivery."),
    "usage": ("lookups", "Show token usage, cost and spending caps."),
    "insights": ("lookups", "Show recent spending by day, chat, model and purpose."),
    "backup": ("database", "Copy the database to a file, even while the gateway runs."),
    "restore": ("database", "Replace the database with a backup."),
    "forget": ("forget", "Delete a chat, a conversation, a person, or old conversations."),
    "store": ("database", "Copy the database to PostgreSQL or to another file."),
    "export": ("moving", "Write conversations to a Markdown, JSON lines or HTML file."),
    "import": ("moving", "Import conversations, notes and schedules from another program."),
    "cluster": ("cluster", "Show the nodes of a cluster."),
    "config": ("config", "Check and show the configuration."),
    "chat": ("talk", "Talk to the agent in the terminal."),
    "send": ("talk", "Send a message to a chat, for scripts."),
    "client": ("client", "Add or revoke tokens for programs that use the API."),
    "pair": ("pair", "Approve or revoke access by pairing code."),
    "trajectories": ("trajectories", "Export, shorten and view conversations as training data."),
    "plugins": ("config", "Show plugins."),
}
"""Module and help text of each command or command group. Only the module of the command that runs is imported."""


class _CommandRegistry(TyperGroup):
    """Registry of the commands. A command's module is imported only when the command is invoked."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # Any: typer's own copy of click
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load_command(name), rest


app = typer.Typer(
    name="hermes-gateway",
    cls=_CommandRegistry,
    help="Run an LLM agent in Telegram, Discord and a local web chat, for conversations that last months.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # rich tracebacks show local variables, which can contain secrets
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, (_, purpose) in COMMANDS.items():
    app.command(command, help=purpose)(lambda: None)


def load_command(name: str) -> Any:  # Any: typer's own copy of click
    """Import a command, or a group of commands, by name."""
    found = getattr(
        importlib.import_module(f"gateway.cli.{COMMANDS[name][0]}"), f"{name}_" if iskeyword(name) else name
    )
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
    """Run an LLM agent in Telegram, Discord and a local web chat, for conversations that last months.

    The state directory is HERMES_HOME, by default ~/.hermes-gateway.
    """


def main() -> None:
    """Run the command line. Print expected errors without a traceback, and exit with the matching code."""
    gc.set_threshold(500_000)  # imports create no garbage, and looking for it would take 15 % of the start-up time
    try:
        app()
    except (ConfigError, DatabaseRejected) as error:
        for warning in getattr(error, "warnings", ()):  # only `ConfigRejected` has warnings
            echo(f"hermes-gateway: warning: {warning}", err=True)
        _leave("configuration", error, EXIT_CONFIG)
    except LockUnavailable as error:
        _leave("already running", error, EXIT_OWNED_ELSEWHERE, _ways_out())
    except HermesError as error:
        _leave("failed", error, EXIT_FAILED)


def _ways_out() -> Iterator[str]:
    """Yield hints: how to stop the running gateway and, if it uses this state directory, how to open its web chat."""
    from gateway.config import process_environment
    from gateway.config.files import find_state
    from hermes_state.store.lock import holder

    if holder(find_state(process_environment()).lock_file) is not None:
        command = sys.argv[0] if Path(sys.argv[0]).name == "hermes-gateway" else "hermes-gateway"
        yield f"`{command} url` prints a link to the web chat of the running gateway."
    yield "To stop it, press Ctrl-C in its terminal, `kill` its process id, or run `systemctl stop hermes-gateway`."


def _leave(kind: str, error: HermesError, code: int, hints: Iterable[str] = ()) -> None:
    for line in (*(str(error).splitlines() or [type(error).__name__]), *hints):
        echo(f"hermes-gateway: {kind}: {line}", err=True)
    sys.exit(code)
