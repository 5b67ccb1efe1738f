"""Spending reports for the command line and the chats: the same for the daemon and for a file at rest.

The reports are what `--json` prints. Money is in US dollars, None where it is not known; times are UTC milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from sqlite3 import Connection
from typing import Any, TypeAlias

import msgspec

from agent.model.caps import SpendingCapSettings, day_of, day_start, midnight
from gateway.config.settings import Config
from gateway.models.pricing import cap_limits
from gateway.operator.lookups import find_place
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.chats import load_chat
from hermes_state.compressions import count_compressions
from hermes_state.errors import CommandError
from hermes_state.models.ledger import (
    NO_CALLS,
    TotalUsage,
    UsageRow,
    is_outdated,
    load_by_purpose,
    load_since,
    load_slices,
)
from hermes_state.values import MICROS, ChatId, LineageId, MicroUsd, Millis, micro_usd

Report: TypeAlias = dict[str, Any]
"""One JSON object."""

MAX_DAYS = 366
DEFAULT_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingSettings:
    """Point of view of a report: now, and the caps with their time zone."""

    now: Millis
    limits: SpendingCapSettings

    @property
    def today(self) -> Millis:
        return day_start(self.now, self.limits.zone)


def spending_settings(config: Config, now: Millis) -> SpendingSettings:
    return SpendingSettings(now=now, limits=cap_limits(config))


def days_in(args: Mapping[str, Any]) -> int:
    """Number of days that a request asks for. Raises `CommandError`."""
    days = args.get("days", DEFAULT_DAYS)
    if type(days) is not int or not 1 <= days <= MAX_DAYS:
        raise CommandError(f"Between 1 and {MAX_DAYS} days can be looked at.")
    return days


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
    """Usage of a conversation, of a chat, or with neither of the whole gateway."""

    by_purpose: Mapping[str, TotalUsage]
    chat_today: TotalUsage | None
    today: TotalUsage
    caps: tuple[CapUsage, ...]
    compressions: int | None
    """Number of compressions of a conversation; None for anything else."""

    @property
    def spent(self) -> TotalUsage:
        return sum(self.by_purpose.values(), NO_CALLS)


def load_usage(
    db: Connection, settings: SpendingSettings, chat_id: ChatId | None, lineage_id: LineageId | None
) -> UsageReport:
    """Load what was spent, and how far the caps that matter there are used up."""
    by_purpose = load_by_purpose(db, chat_id=chat_id, lineage_id=lineage_id)
    today = load_since(db, settings.today)
    chat_today = None if chat_id is None else load_since(db, settings.today, chat_id)
    limits, spent = settings.limits, sum(by_purpose.values(), NO_CALLS)
    bounds = (
        ("costs.conversation_cap", None if lineage_id is None else spent, limits.conversation),
        ("costs.chat_daily_cap", chat_today, limits.chat_daily),
        ("costs.daily_cap", today, limits.daily),
    )
    caps = [
        CapUsage(key=key, spent=sums.cost, limit=limit) for key, sums, limit in bounds if sums and limit is not None
    ]
    compressions = None if lineage_id is None else count_compressions(db, lineage_id)
    return UsageReport(
        by_purpose=by_purpose, chat_today=chat_today, today=today, caps=tuple(caps), compressions=compressions
    )


def usage_report(db: Connection, settings: SpendingSettings, name: str | None) -> Report:
    """Report on a session's conversation, a chat, or everything. Raises `CommandError` for a name that is nothing's."""
    place = None if name is None else find_place(db, name)
    session = None if place is None else place.session
    chat_id = None if place is None else place.chat_id
    usage = load_usage(db, settings, chat_id, None if session is None else session.lineage_id)
    return {
        "scope": "gateway" if place is None else "chat" if session is None else "conversation",
        "chat": _chat_name(db, place),
        "session": None if session is None else session.key,
        **spent_row(usage.spent),
        "by_purpose": {purpose: spent_row(spent) for purpose, spent in usage.by_purpose.items()},
        "compressions": usage.compressions,
        "reported_prompt_tokens": None if session is None else session.reported_prompt_tokens,
        "today_since": settings.today,
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


def _chat_name(db: Connection, place: LookupResult | None) -> str | None:
    return None if place is None else load_chat(db, place.chat_id).key.name


def spent_row(spent: TotalUsage) -> Report:
    """Row of `--json`. `cost_usd` is None where nothing is known, else `unpriced_calls` come on top of it."""
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


NO_CHAT = "no chat"


def load_insights(
    db: Connection, settings: SpendingSettings, days: int, within: ChatId | None = None
) -> InsightsReport:
    """Load the spending of so many days, today included. `within`: of one chat alone."""
    zone = settings.limits.zone
    first = day_of(settings.now, zone) - timedelta(days=days - 1)
    slices = load_slices(db, midnight(first, zone), within)
    by_day = _added(slices, lambda one: day_of(one.at, zone))
    every_day = (first + timedelta(days=number) for number in range(days))
    by_chat = {
        NO_CHAT if chat_id is None else load_chat(db, chat_id).key.name: spent
        for chat_id, spent in _added(slices, lambda one: one.chat_id).items()
    }
    return InsightsReport(
        days=tuple((day, by_day.get(day, NO_CALLS)) for day in every_day),
        chats=_sorted(by_chat),
        models=_sorted(_added(slices, lambda one: one.model)),
        purposes=_sorted(_added(slices, lambda one: one.purpose)),
        total=sum((one.spent for one in slices), NO_CALLS),
    )


def insights_report(db: Connection, settings: SpendingSettings, days: int) -> Report:
    """`load_insights` as JSON."""
    found = load_insights(db, settings, days)
    return {
        "days": _rows("day", found.days),
        "chats": _rows("chat", found.chats),
        "models": _rows("model", found.models),
        "purposes": _rows("purpose", found.purposes),
        "total": spent_row(found.total),
    }


def _rows(name: str, entries: Iterable[tuple[date | str, TotalUsage]]) -> list[Report]:
    return [{name: str(key), **spent_row(spent)} for key, spent in entries]


def _added(slices: Iterable[UsageRow], key: Callable[[UsageRow], Any]) -> dict[Any, TotalUsage]:
    sums: dict[Any, TotalUsage] = {}
    for one in slices:
        name = key(one)
        sums[name] = sums.get(name, NO_CALLS) + one.spent
    return sums


def _sorted(sums: Mapping[str, TotalUsage]) -> tuple[tuple[str, TotalUsage], ...]:
    return tuple(sorted(sums.items(), key=lambda entry: (-entry[1].cost, -entry[1].total_tokens, entry[0])))


# ---- over the control socket and back ---------------------------------------------------------------------------


REPORTS = ("usage", "insights")
"""Names of the reports under which the command line asks."""


def report(db: Connection, name: str, settings: SpendingSettings, args: Mapping[str, Any]) -> Report:
    """Make a report for the command line. Raises `CommandError`."""
    if is_outdated(db):
        raise CommandError("The database is an older version's; start the gateway once, which brings it up to date.")
    if name == "insights":
        return insights_report(db, settings, days_in(args))
    place = args.get("place")
    if place is not None and not isinstance(place, str):
        raise CommandError("A place is a chat's name or a session's id.")
    return usage_report(db, settings, place)


def usage_of(report: Report) -> UsageReport:
    """Usage from what `usage_report` made."""
    chat_today = report["chat_today"]
    return UsageReport(
        by_purpose={purpose: spent_of(row) for purpose, row in report["by_purpose"].items()},
        chat_today=None if chat_today is None else spent_of(chat_today),
        today=spent_of(report["today"]),
        caps=tuple(
            CapUsage(key=row["cap"], spent=micro_usd(row["spent_usd"]), limit=micro_usd(row["limit_usd"]))
            for row in report["caps"]
        ),
        compressions=report["compressions"],
    )


def insights_of(report: Report) -> InsightsReport:
    """Insights from what `insights_report` made."""
    return InsightsReport(
        days=tuple((date.fromisoformat(row["day"]), spent_of(row)) for row in report["days"]),
        chats=tuple((row["chat"], spent_of(row)) for row in report["chats"]),
        models=tuple((row["model"], spent_of(row)) for row in report["models"]),
        purposes=tuple((row["purpose"], spent_of(row)) for row in report["purposes"]),
        total=spent_of(report["total"]),
    )


def spent_of(row: Report) -> TotalUsage:
    """Sums from a row that `spent_row` made."""
    return msgspec.convert({**row, "cost": micro_usd(row["cost_usd"] or 0.0)}, TotalUsage)
