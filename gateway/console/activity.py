"""Pages about the gateway's activity: overview, live turns, compressions, and costs."""

import calendar
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

from agent.model.caps import day_start
from agent.tools.mcp.settings import ServerState
from gateway import installed_version
from gateway.access.pairing import approve_request, deny_request
from gateway.console.registry import ConsoleContext, Page, field_of
from gateway.models.pricing import limits_in, unpriced_models
from gateway.operator.spending import (
    InsightsReport,
    UsageReport,
    insights_notes,
    load_daily_caps,
    load_insights,
    load_usage,
    money,
)
from hermes_state.admin import console
from hermes_state.admin.pairings import PairingState, UserRole, list_pairings
from hermes_state.agents import stored_name
from hermes_state.errors import CommandError
from hermes_state.models import ledger
from hermes_state.models.ledger import TotalUsage
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars
from hermes_state.values import MicroUsd, Millis
from platforms.base import STATE_WORDS, AdapterState
from platforms.console import ConsolePage, SentCommand, Values, WebPerson, platform_name

DAY_MS = 86_400_000
COMPRESSION_DAYS = 30
SPANS = {"7": "7 days", "30": "30 days", "90": "90 days"}


# ---- overview


async def load_overview(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    now, limits = context.clock.now(), limits_in(context.live.loaded, None)

    def read(db: Connection) -> Values:
        return {
            "turns": console.load_live_turns(db),
            "waiting": console.count_waiting(db),
            "failures": console.load_failures(db, Millis(now - DAY_MS)),
            "today": ledger.load_since(db, day_start(now, limits.zone)),
            "caps": load_daily_caps(db, limits, now),
            "requests": [one for one in list_pairings(db, now) if one.state is PairingState.PENDING],
        }

    values = await context.store.read(read)
    today = values["today"]
    return {
        **values,
        "version": installed_version(),
        "model": context.live.config.model.shown_label,
        "uptime": now - context.started_at,
        "platforms": sorted(context.adapters.health().items()),
        "states": STATE_WORDS,
        "cost_today": money(today),
        "calls_today": counted(today.calls, "model call"),
        "attention": list(_attention(context, values)),
    }


def _attention(context: ConsoleContext, values: Values) -> Iterator[str]:
    """Yield a sentence for each problem that needs the owner's attention, the most urgent first."""
    if context.store.trouble is not None:
        yield f"The database is not writable: {context.store.trouble}"
    for name, health in sorted(context.adapters.health().items()):
        if not health.is_ready and health.state is not AdapterState.STARTING:
            yield f"{platform_name(name)}: {STATE_WORDS[health.state].lower()}. {health.detail}".rstrip()
    yield from context.pauses()
    yield from (cap.warning for cap in values["caps"] if cap.is_reached)
    if models := unpriced_models(context.live.loaded.agents):
        yield f"No price is known for {', '.join(models)}, so the spending caps block calls to these models."
    if requests := len(values["requests"]):
        yield f"{requests} {'person is' if requests == 1 else 'people are'} waiting for access."
    if failed := sum(failure.count for failure in values["failures"]):
        yield f"{counted(failed, 'answer')} failed in the last 24 hours."
    for server in context.servers.statuses():
        if server.state is ServerState.DOWN:
            yield f"The MCP server {server.name} is not connected."


async def approve(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    role = UserRole.ADMIN if form.get("role") == "admin" else UserRole.USER
    code_hash, now = field_of(form, "request"), context.clock.now()
    pairing, chat_id = await context.store.write(approve_request, code_hash, role, person.ref, now)
    await context.access.load()
    if chat_id is not None:
        context.delivery.wake(chat_id)
    await context.record(person, "approve", pairing.user_ref)
    return f"{pairing.display_name} now has access with the role {role}."


async def deny(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    await context.store.write(deny_request, field_of(form, "request"))
    return "The request was denied. The person can ask again."


# ---- live turns


async def load_live(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    turns, waiting = await context.store.read(lambda db: (console.load_live_turns(db), console.count_waiting(db)))
    turns = [turn for turn in turns if stored_name(query.get("agent")) in (None, turn.agent)]
    return {"turns": turns, "waiting": waiting, "now": context.clock.now()}


async def stop(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> SentCommand:
    wanted = field_of(form, "turn")
    turns = await context.store.read(console.load_live_turns)
    turn = next((one for one in turns if str(one.id) == wanted and not one.is_subagent), None)
    if turn is None:
        raise CommandError("This turn has already ended.")
    await context.record(person, "stop", turn.chat.name)
    said = "The turn is stopped. Its chat receives a message."
    return SentCommand(chat=turn.chat, kind=turn.kind, text=f"/stop t{turn.id}", said=said)


# ---- compressions


async def load_compressions(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load the recent compressions of all chats, and the models that are paused."""
    is_newest = query.get("order") == "newest"
    since = Millis(context.clock.now() - COMPRESSION_DAYS * DAY_MS)
    rows = await context.store.read(console.load_compressions, since, 200, not is_newest)
    saved = [row.saved_percent for row in rows if row.saved_percent is not None]
    return {
        "rows": rows,
        "is_newest": is_newest,
        "days": COMPRESSION_DAYS,
        "failed": sum(row.outcome == "aborted" for row in rows),
        "mean_saved": round(sum(saved) / len(saved)) if saved else None,
        "paused": context.pauses(),
    }


# ---- costs


async def load_costs(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    span = days if (days := query.get("days", "")) in SPANS else "30"
    shown, now = query.get("agent"), context.clock.now()
    caps, agent = limits_in(context.live.loaded, shown), stored_name(shown)

    def read(db: Connection) -> tuple[InsightsReport, UsageReport]:
        return load_insights(db, caps, now, int(span), agent=agent), load_usage(db, caps, now, None, agent)

    found, usage = await context.store.read(read)
    titles = [f"{day:%a %d %b}: {money(spent)}, {counted(spent.calls, 'call')}" for day, spent in found.days]
    return {
        "span": span,
        "spans": SPANS,
        "days": [(f"{day}", float(spent.cost), title) for (day, spent), title in zip(found.days, titles, strict=True)],
        "total": money(found.total),
        "calls": counted(found.total.calls, "model call"),
        "tables": [
            ("Chats", found.chats),
            *([("Accounts", found.accounts)] if found.accounts else []),
            ("Models", found.models),
            ("Purposes", found.purposes),
            *([("Agents", found.agents)] if found.agents else []),
        ],
        "money": money,
        "caps": usage.caps,
        "forecast": forecast(found.days),
        "notes": [note.replace("`", "") for note in insights_notes(found.total)],
    }


def forecast(days: Sequence[tuple[date, TotalUsage]]) -> str | None:
    """Return the expected cost of the current month. Return None if there are no costs, or too few days.

    `days` ends with today and must include the first day of the month. Each remaining day is estimated as the mean of
    the last seven full days. Today is not over, so the same estimate is used for today, unless it has already cost
    more.
    """
    today = days[-1][0]
    week = [spent.cost for _, spent in days[-8:-1]]
    mean = sum(week) / len(week) if week else 0.0
    month = [spent.cost for day, spent in days if (day.year, day.month) == (today.year, today.month)]
    if len(month) < today.day or not (mean or sum(month)):
        return None
    left = calendar.monthrange(today.year, today.month)[1] - today.day
    return dollars(MicroUsd(round(sum(month[:-1]) + max(month[-1], mean) + mean * left)))


OVERVIEW = Page(
    about=ConsolePage(name="overview", title="Overview", refresh_seconds=10),
    load=load_overview,
    actions={"approve": approve, "deny": deny},
)
LIVE = Page(
    about=ConsolePage(name="live", title="Live turns", refresh_seconds=3), load=load_live, actions={"stop": stop}
)
COSTS = Page(about=ConsolePage(name="costs", title="Costs"), load=load_costs)
COMPRESSIONS = Page(about=ConsolePage(name="compressions", title="Compressions"), load=load_compressions)
