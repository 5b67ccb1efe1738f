"""Costs: charts by day, chat, model and purpose, the spending caps, and a forecast for the month."""

import calendar
from collections.abc import Mapping, Sequence
from datetime import date

from gateway.console.registry import ConsoleContext, Page
from gateway.models.pricing import cap_limits
from gateway.operator.spending import InsightsReport, insights_notes, load_insights, load_usage, money
from hermes_state.models.ledger import TotalUsage
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars
from hermes_state.values import MicroUsd
from platforms.console import ConsolePage, Values, WebPerson

SPANS = {"7": "7 days", "30": "30 days", "90": "90 days"}


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    span = query.get("days", "30") if query.get("days") in SPANS else "30"
    caps, now = cap_limits(context.live.config), context.clock.now()

    def read(db: Connection) -> tuple[InsightsReport, Values]:
        return load_insights(db, caps, now, int(span)), {"usage": load_usage(db, caps, now, None)}

    found, values = await context.store.read(read)
    days = [(day.isoformat(), float(spent.cost), _title(day, spent)) for day, spent in found.days]
    return {
        "span": span,
        "spans": SPANS,
        "days": days,
        "total": money(found.total),
        "calls": counted(found.total.calls, "model call"),
        "tables": [
            ("Chats", _rows(found.chats)),
            ("Models", _rows(found.models)),
            ("Purposes", _rows(found.purposes)),
        ],
        "caps": [(cap.key, dollars(cap.spent), dollars(cap.limit)) for cap in values["usage"].caps],
        "forecast": forecast(found.days),
        "notes": [note.replace("`", "") for note in insights_notes(found.total)],
    }


def _title(day: date, spent: TotalUsage) -> str:
    return f"{day:%a %d %b}: {money(spent)}, {counted(spent.calls, 'call')}"


def _rows(entries: Sequence[tuple[str, TotalUsage]]) -> list[tuple[str, str, str, int]]:
    """Return name, cost, calls, and the share of the largest row in percent, for the 15 largest rows."""
    largest = max((spent.cost for _, spent in entries), default=0) or 1
    return [
        (name, money(spent), counted(spent.calls, "call"), spent.cost * 100 // largest) for name, spent in entries[:15]
    ]


def forecast(days: Sequence[tuple[date, TotalUsage]]) -> str | None:
    """Return the expected cost of the current month, from the mean of the last seven days, or None without costs.

    The last entry is today. Today is not yet over, so it counts at least as much as a mean day.
    """
    today = days[-1][0]
    week = [spent.cost for _, spent in days[-8:-1]]
    mean = sum(week) / len(week) if week else 0.0
    month = [spent.cost for day, spent in days if (day.year, day.month) == (today.year, today.month)]
    if len(month) < today.day or not (mean or sum(month)):
        return None
    left = calendar.monthrange(today.year, today.month)[1] - today.day
    return dollars(MicroUsd(round(sum(month[:-1]) + max(month[-1], mean) + mean * left)))


PAGE = Page(about=ConsolePage(name="costs", title="Costs"), load=load)
