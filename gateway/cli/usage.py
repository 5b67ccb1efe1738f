"""`hermes-gateway usage | insights`: calls of models, their tokens and costs."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.output import Json, print_json
from gateway.config import load_config, process_environment
from gateway.config.files import find_state
from gateway.config.settings import Config
from gateway.operator.render import insights_block, insights_notes, today_lines, usage_lines
from gateway.operator.socket import DaemonNotRunningError, ask
from gateway.operator.spending import DEFAULT_DAYS, MAX_DAYS, Report, insights_of, report, spending_settings, usage_of
from hermes_state.admin.lineage_queries import short_key
from hermes_state.admin.overview import open_resting
from hermes_state.errors import CommandError, ConfigError
from hermes_state.values import SystemClock

TIMEOUT_SECONDS = 30.0


def usage(
    place: Annotated[
        str | None, typer.Argument(metavar="CHAT|SESSION", help="A chat such as telegram:42, or a session's id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was used and what it cost: in SESSION's conversation, in a chat, or in all; and the caps."""
    found = _look_up("usage", {"place": place})
    if as_json:
        print_json(found)
        return
    used = usage_of(found)
    typer.echo(f"{_heading(found)}:")
    typer.echo("\n".join(usage_lines(used)))
    typer.echo("\n".join(["", "Today:", *today_lines(used, tells_all=True)]))


def _heading(found: Report) -> str:
    if found["scope"] == "gateway":
        return "All chats"
    session = found["session"]
    return f"Chat {found['chat']}" if session is None else f"Conversation {short_key(session)} of {found['chat']}"


def insights(
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="So many days, today included.")] = DEFAULT_DAYS,
    as_json: Json = False,
) -> None:
    """Show what was spent lately, by day, chat, model and purpose."""
    found = _look_up("insights", {"days": days})
    if as_json:
        print_json(found)
        return
    seen = insights_of(found)
    typer.echo("\n".join([insights_block(seen), "", *insights_notes(seen.total)]).rstrip())


def _look_up(name: str, args: Mapping[str, Any]) -> Report:
    """The daemon's answer, or that of the file itself while no daemon has it open."""
    state = find_state(process_environment())
    try:
        found: Report = ask(state.control_socket, name, args, timeout_seconds=TIMEOUT_SECONDS)
    except DaemonNotRunningError:
        with open_resting(state.database) as db:
            if db is None:
                raise CommandError("There is no database yet; the first start makes it.") from None
            found = report(db, name, spending_settings(_config(), SystemClock().now()), args)
    return found


def _config() -> Config:
    """The configuration; the defaults where it cannot be read, which leaves the figures the same."""
    try:
        return load_config(process_environment()).config
    except ConfigError:
        return Config()
