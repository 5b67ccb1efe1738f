"""Spending reports for the command line and the chats: the same for the daemon and for a file at rest.

Reports cross the control socket field by field; a row of one is what `--json` prints, with money in US dollars, None
where it is not known. Times are UTC milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import msgspec

from agent.model.caps import SpendingCapSettings, day_of, day_start, midnight
from gateway.operator.lookups import Row, find_place
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.chats import load_chat
from hermes_state.compressions import count_compressions
from hermes_state.errors import CommandError
from hermes_state.models import ledger
from hermes_state.models.ledger import NO_CALLS, TotalUsage, UsageRow
from hermes_state.store.sql import Connection
from hermes_state.values import MICROS, ChatId, MicroUsd, Millis

MAX_DAYS = 366
DEFAULT_DAYS = 7

REPORTS = ("usage", "insights")
"""Names of the reports under which the command line asks."""


def report(db: Connection, name: str, settings: SpendingCapSettings, now: Millis, args: Mapping[str, Any]) -> Row:
    """Load the report that the command line asks for, field by field as JSON has it. Raises `CommandError`."""
    if ledger.is_outdated(db):
        raise CommandError("The database is an older version's; start the gateway once, which brings it up to date.")
    if name == "insights":
        days = args.get("days", DEFAULT_DAYS)
        if type(days) is not int or not 1 <= days <= MAX_DAYS:
            raise CommandError(f"Between 1 and {MAX_DAYS} days can be looked at.")
        insights: Row = msgspec.to_builtins(load_insights(db, settings, now, days))
        return insights
    place = args.get("place")
    if place is not None and not isinstance(place, str):
        raise CommandError("A place is a chat's name or a session's id.")
    usage: Row = msgspec.to_builtins(load_usage(db, settings, now, None if place is None else find_place(db, place)))
    return usage


# ---- usage ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsage:
    """Cap on spending, and how far it is used up."""

    key: str
    spent: MicroUsd
    limit: MicroUsd

    @property
    def is_reached(self) -> bool:
        return self.spent >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """Usage of a conversation, of a chat, or of the whole gateway."""

    chat: str | None
    """Name of the chat; None for the whole gateway."""
    session: str | None
    """Key of the session whose conversation it is."""
    by_purpose: Mapping[str, TotalUsage]
    compressions: int | None
    """Number of compressions of a conversation; None for anything else."""
    reported_prompt_tokens: int | None
    today_since: Millis
    chat_today: TotalUsage | None
    today: TotalUsage
    caps: tuple[CapUsage, ...]

    @property
    def spent(self) -> TotalUsage:
        return sum(self.by_purpose.values(), NO_CALLS)


def load_usage(db: Connection, settings: SpendingCapSettings, now: Millis, place: LookupResult | None) -> UsageReport:
    """Load what was spent in a conversation, a chat or everywhere, and how far the caps that matter are used up."""
    chat_id, session = (None, None) if place is None else (place.chat_id, place.session)
    lineage_id = None if session is None else session.lineage_id
    by_purpose = ledger.load_by_purpose(db, chat_id=chat_id, lineage_id=lineage_id)
    today_since = day_start(now, settings.zone)
    today = ledger.load_since(db, today_since)
    chat_today = None if chat_id is None else ledger.load_since(db, today_since, chat_id)
    bounds = (
        ("costs.conversation_cap", sum(by_purpose.values(), NO_CALLS) if session else None, settings.conversation),
        ("costs.chat_daily_cap", chat_today, settings.chat_daily),
        ("costs.daily_cap", today, settings.daily),
    )
    return UsageReport(
        chat=None if chat_id is None else load_chat(db, chat_id).key.name,
        session=None if session is None else session.key,
        by_purpose=by_purpose,
        compressions=None if lineage_id is None else count_compressions(db, lineage_id),
        reported_prompt_tokens=None if session is None else session.reported_prompt_tokens,
        today_since=today_since,
        chat_today=chat_today,
        today=today,
        caps=tuple(
            CapUsage(key=key, spent=sums.cost, limit=cap) for key, sums, cap in bounds if sums and cap is not None
        ),
    )


def usage_row(usage: UsageReport) -> Row:
    return {
        "scope": "gateway" if usage.chat is None else "chat" if usage.session is None else "conversation",
        "chat": usage.chat,
        "session": usage.session,
        **spent_row(usage.spent),
        "by_purpose": {purpose: spent_row(spent) for purpose, spent in usage.by_purpose.items()},
        "compressions": usage.compressions,
        "reported_prompt_tokens": usage.reported_prompt_tokens,
        "today_since": usage.today_since,
        "chat_today": None if usage.chat_today is None else spent_row(usage.chat_today),
        "today": spent_row(usage.today),
        "caps": [
            {
                "cap": cap.key,
                "limit_usd": cap.limit / MICROS,
                "spent_usd": cap.spent / MICROS,
                "is_reached": cap.is_reached,
            }
            for cap in usage.caps
        ],
    }


def spent_row(spent: TotalUsage) -> Row:
    """Row of sums. `cost_usd` is None where nothing is known, else `unpriced_calls` come on top of it."""
    row = msgspec.structs.asdict(spent)
    cost = row.pop("cost")
    derived = {name: getattr(spent, name) for name in ("prompt_tokens", "total_tokens", "cache_percent")}
    return {"cost_usd": cost / MICROS if knows_cost(spent) else None, **row, **derived}


def knows_cost(spent: TotalUsage) -> bool:
    """True where the sum says anything: not when every call that used something has an unknown price."""
    return spent.cost > 0 or not spent.unpriced_calls


# ---- insights ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightsReport:
    """Spending of the last days, cut in four ways; all but the days are sorted by what they cost."""

    days: tuple[tuple[date, TotalUsage], ...]
    """Every day, oldest first, also one on which nothing was spent."""
    chats: tuple[tuple[str, TotalUsage], ...]
    models: tuple[tuple[str, TotalUsage], ...]
    purposes: tuple[tuple[str, TotalUsage], ...]
    total: TotalUsage


def load_insights(
    db: Connection, settings: SpendingCapSettings, now: Millis, days: int, within: ChatId | None = None
) -> InsightsReport:
    """Load the spending of so many days, today included. `within`: of one chat alone."""
    zone = settings.zone
    first = day_of(now, zone) - timedelta(days=days - 1)
    slices = ledger.load_slices(db, midnight(first, zone), within)
    by_day = _added(slices, lambda one: day_of(one.at, zone))
    every_day = (first + timedelta(days=number) for number in range(days))
    by_chat = {
        "no chat" if chat_id is None else load_chat(db, chat_id).key.name: spent
        for chat_id, spent in _added(slices, lambda one: one.chat_id).items()
    }
    return InsightsReport(
        days=tuple((day, by_day.get(day, NO_CALLS)) for day in every_day),
        chats=_sorted(by_chat),
        models=_sorted(_added(slices, lambda one: one.model)),
        purposes=_sorted(_added(slices, lambda one: one.purpose)),
        total=sum((one.spent for one in slices), NO_CALLS),
    )


def insights_row(found: InsightsReport) -> Row:
    return {
        "days": _rows("day", found.days),
        "chats": _rows("chat", found.chats),
        "models": _rows("model", found.models),
        "purposes": _rows("purpose", found.purposes),
        "total": spent_row(found.total),
    }


def _rows(name: str, entries: Iterable[tuple[date | str, TotalUsage]]) -> list[Row]:
    return [{name: str(key), **spent_row(spent)} for key, spent in entries]


def _added(slices: Iterable[UsageRow], key: Callable[[UsageRow], Any]) -> dict[Any, TotalUsage]:
    sums: dict[Any, TotalUsage] = {}
    for one in slices:
        name = key(one)
        sums[name] = sums.get(name, NO_CALLS) + one.spent
    return sums


def _sorted(sums: Mapping[str, TotalUsage]) -> tuple[tuple[str, TotalUsage], ...]:
    return tuple(sorted(sums.items(), key=lambda entry: (-entry[1].cost, -entry[1].total_tokens, entry[0])))
