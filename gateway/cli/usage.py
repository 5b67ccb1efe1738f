"""`hermes-gateway usage | insights`: calls of models, their tokens and costs."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.answers import ask_or_read
from gateway.cli.output import Json, show
from gateway.config import load_config, process_environment
from gateway.config.settings import Config
from gateway.models.pricing import cap_limits
from gateway.operator import spending
from gateway.operator.spending import (
    DEFAULT_DAYS,
    MAX_DAYS,
    InsightsReport,
    UsageReport,
    insights_block,
    insights_notes,
    today_lines,
    usage_lines,
)
from hermes_state.admin.lineage_queries import short_key
from hermes_state.errors import ConfigError
from hermes_state.store.sql import Connection
from hermes_state.values import SystemClock


def usage(
    place: Annotated[
        str | None, typer.Argument(metavar="CHAT|SESSION", help="A chat such as telegram:42, or a session's id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was used and what it cost: in SESSION's conversation, in a chat, or in all; and the caps."""
    used = ask_or_read("usage", {"place": place}, UsageReport, _read)
    heading = "All chats" if used.chat is None else f"Chat {used.chat}"
    if used.session is not None:
        heading = f"Conversation {short_key(used.session)} of {used.chat}"
    lines = [f"{heading}:", *usage_lines(used), "", "Today:", *today_lines(used, tells_all=True)]
    show(spending.usage_row(used), lines, as_json=as_json)


def insights(
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="So many days, today included.")] = DEFAULT_DAYS,
    as_json: Json = False,
) -> None:
    """Show what was spent lately, by day, chat, model and purpose."""
    found = ask_or_read("insights", {"days": days}, InsightsReport, _read)
    text = "\n".join([insights_block(found), "", *insights_notes(found.total)]).rstrip()
    show(spending.insights_row(found), [text], as_json=as_json)


def _read(db: Connection, name: str, args: Mapping[str, Any]) -> object:
    try:
        config = load_config(process_environment()).config
    except ConfigError:
        config = Config()  # which leaves the figures the same
    return spending.report(db, name, cap_limits(config), SystemClock().now(), args)
