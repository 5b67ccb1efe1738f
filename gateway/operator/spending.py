"""Spending reports for the command line and for chats.

The content is the same whether the daemon or the command itself reads the database. The control socket transfers
reports field by field. With `--json`, amounts are in US dollars (None if unknown) and times are in UTC milliseconds.
Charts in the text are at most 40 columns wide, so that they fit on a phone.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import msgspec

from agent.model.caps import SpendingCapSettings, day_of, day_start, midnight
from gateway.operator.lookups import Row, find_place
from hermes_state import ratings
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.admin.overview import lacks_ratings
from hermes_state.agents import agent_of, find_agent, load_agent, shown_name
from hermes_state.chats import load_chat, load_label
from hermes_state.compressions import count_compressions
from hermes_state.errors import CommandError
from hermes_state.models import ledger
from hermes_state.models.ledger import NO_CALLS, TotalUsage, UsageRow
from hermes_state.store.sql import Connection
from hermes_state.text import counted, dollars, shortened
from hermes_state.values import MICROS, ChatId, MicroUsd, Millis

MAX_DAYS = 366
DEFAULT_DAYS = 7

WIDTH = 40
LABEL = 7
VALUE = 10
NAME = 22


def report(
    db: Connection,
    name: str,
    limits_of: Callable[[str | None], SpendingCapSettings],
    now: Millis,
    args: Mapping[str, Any],
) -> Row:
    """Load a report for the command line as a mapping of its fields. Raises `CommandError` for invalid arguments.

    `limits_of` returns the caps of the agent with this display name, or the caps of all agents.
    """
    agent = find_agent(db, None if args.get("agent") is None else str(args["agent"]))
    if name == "insights":
        days = args.get("days", DEFAULT_DAYS)
        if type(days) is not int or not 1 <= days <= MAX_DAYS:
            raise CommandError(f"The number of days must be between 1 and {MAX_DAYS}.")
        insights: Row = msgspec.to_builtins(load_insights(db, limits_of(None), now, days, agent=agent))
        return insights
    place = args.get("place")
    if place is not None and not isinstance(place, str):
        raise CommandError("Give the name of a chat or the id of a session.")
    found = None if place is None else find_place(db, place)
    whose = agent
    if found is not None and agent is None:
        whose = load_agent(db, found.chat_id) if found.session is None else agent_of(db, found.session.id)
    limits = limits_of(None if whose is None else shown_name(whose))
    usage: Row = msgspec.to_builtins(load_usage(db, limits, now, found, agent))
    return usage


def spent_row(spent: TotalUsage) -> Row:
    """Return a row with the totals. `cost_usd` is None if unknown, and excludes calls without a known price."""
    row = msgspec.structs.asdict(spent)
    cost = row.pop("cost")
    derived = {name: getattr(spent, name) for name in ("prompt_tokens", "total_tokens", "cache_percent")}
    return {"cost_usd": cost / MICROS if knows_cost(spent) else None, **row, **derived}


def knows_cost(spent: TotalUsage) -> bool:
    """Return True if the cost is known, at least in part."""
    return spent.cost > 0 or not spent.unpriced_calls


def money(spent: TotalUsage) -> str:
    """Return `$1.23`, or `$1.23+` if the price of some calls is unknown, or `unknown` if no price is known."""
    if not knows_cost(spent):
        return "unknown"
    return f"{dollars(spent.cost)}+" if spent.unpriced_calls else dollars(spent.cost)


class CapUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Spending cap, with the amount already spent."""

    key: str
    spent: MicroUsd
    limit: MicroUsd

    @property
    def is_reached(self) -> bool:
        return self.spent >= self.limit

    @property
    def warning(self) -> str:
        of_agent = self.key.startswith("agents.")
        effect = "this agent no longer calls the model" if of_agent else "the model is no longer called"
        return f"The spending cap {self.key} has been reached, so {effect}."


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    chat: str | None
    """Name of the chat, or None for the whole gateway."""
    session: str | None
    """Key of the session if this is the usage of a conversation, otherwise None."""
    by_purpose: Mapping[str, TotalUsage]
    compressions: int | None
    """Number of compressions if this is the usage of a conversation, otherwise None."""
    reported_prompt_tokens: int | None
    today_since: Millis
    chat_today: TotalUsage | None
    today: TotalUsage
    caps: tuple[CapUsage, ...]
    agents_today: Mapping[str, TotalUsage] = msgspec.field(default_factory=dict)
    """Today's spending of the chat's agent or, for the whole gateway, of each agent with a cap."""

    @property
    def spent(self) -> TotalUsage:
        return sum(self.by_purpose.values(), NO_CALLS)


def load_usage(
    db: Connection, settings: SpendingCapSettings, now: Millis, place: LookupResult | None, agent: str | None = None
) -> UsageReport:
    """Load the usage of a conversation, a chat, an agent or the whole gateway, and the caps that apply to it."""
    chat_id, session = (None, None) if place is None else (place.chat_id, place.session)
    lineage_id = None if session is None else session.lineage_id
    by_purpose = ledger.load_by_purpose(db, chat_id=chat_id, lineage_id=lineage_id, agent=agent)
    today_since = day_start(now, settings.zone)
    today = ledger.load_since(db, today_since)
    one = settings.agent if agent is None else agent
    chat_today = None if chat_id is None else ledger.load_since(db, today_since, chat_id, one)
    whose = settings.agents_daily if one is None else [one]
    agents_today = {name: ledger.load_since(db, today_since, agent=name) for name in whose}
    bounds = (
        ("costs.conversation_cap", sum(by_purpose.values(), NO_CALLS) if session else None, settings.conversation),
        ("costs.chat_daily_cap", chat_today, settings.chat_daily),
        *((_cap_of(name), spent, settings.agents_daily.get(name)) for name, spent in agents_today.items()),
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
        agents_today=agents_today,
    )


def load_daily_caps(db: Connection, settings: SpendingCapSettings, now: Millis) -> list[CapUsage]:
    """Load the daily caps of the gateway and of its agents."""
    agents = ((_cap_of(name), name, limit) for name, limit in settings.agents_daily.items())
    since = day_start(now, settings.zone)
    return [
        CapUsage(key=key, spent=ledger.load_since(db, since, agent=name).cost, limit=limit)
        for key, name, limit in (("costs.daily_cap", None, settings.daily), *agents)
        if limit is not None
    ]


def _cap_of(agent: str) -> str:
    return f"agents.{agent}.costs.daily_cap"


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
        "agents_today": {shown_name(name): spent_row(one) for name, one in usage.agents_today.items()},
        "caps": [
            {
                "cap": one.key,
                "limit_usd": one.limit / MICROS,
                "spent_usd": one.spent / MICROS,
                "is_reached": one.is_reached,
            }
            for one in usage.caps
        ],
    }


def usage_lines(usage: UsageReport) -> list[str]:
    spent, about = usage.spent, "about " if usage.spent.estimated_calls else ""
    if not spent.calls:
        return ["- No model calls yet."]
    reasoning = f", {spent.reasoning_tokens:,} of them reasoning" if spent.reasoning_tokens else ""
    figures = ((spent.failed_calls, "failed"), (spent.estimated_calls, "estimated"))
    notes = ", ".join(f"{count:,} {word}" for count, word in figures if count)
    purposes = ", ".join(
        counted(part.calls, purpose) + (f" for {money(part)}" if knows_cost(part) else "")
        for purpose, part in usage.by_purpose.items()
        if purpose != "turn"
    )
    cached = f"{spent.cache_read_tokens:,} or {spent.cache_percent} %" if spent.cache_read_tokens else "none"
    return [
        f"- Cost: {_cost(spent)}",
        f"- Input: {about}{spent.prompt_tokens:,} tokens ({spent.input_tokens:,} new, "
        f"{cached} from the cache, "
        f"{spent.cache_write_tokens:,} written to the cache)",
        f"- Output: {about}{spent.output_tokens:,} tokens{reasoning}",
        f"- Model calls: {spent.calls:,}{notes and f' ({notes})'}{purposes and f', including {purposes}'}",
    ]


def today_lines(usage: UsageReport, *, tells_all: bool) -> list[str]:
    """Return today's spending and the caps. With `tells_all`, include spending outside the chat that has no cap."""
    caps = {cap.key: cap for cap in usage.caps}
    lines = []
    if "costs.conversation_cap" in caps:
        lines.append(f"- This conversation: {_of(caps['costs.conversation_cap'])}")
    if usage.chat_today is not None:
        cap = caps.get("costs.chat_daily_cap")
        lines.append(f"- This chat today: {money(usage.chat_today) if cap is None else _of(cap)}")
    for name, spent in usage.agents_today.items():
        cap = caps.get(_cap_of(name))
        if cap is not None or tells_all:
            lines.append(f"- Agent {shown_name(name)} today: {money(spent) if cap is None else _of(cap)}")
    cap = caps.get("costs.daily_cap")
    if cap is not None or tells_all:
        lines.append(f"- The whole gateway today: {money(usage.today) if cap is None else _of(cap)}")
    return lines


def _of(cap: CapUsage) -> str:
    state = ": used up" if cap.is_reached else f" ({cap.spent * 100 // cap.limit} %)"
    return f"{dollars(cap.spent)} of {dollars(cap.limit)}{state}, `{cap.key}`"


def _cost(spent: TotalUsage) -> str:
    if not knows_cost(spent):
        return "unknown (no price is configured; see `costs.prices`)"
    cost = f"about {dollars(spent.cost)}" if spent.estimated_calls else dollars(spent.cost)
    if not spent.unpriced_calls:
        return cost
    return f"{cost}, plus {counted(spent.unpriced_calls, 'call')} with an unknown price (see `costs.prices`)"


class InsightsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Spending of recent days by day, chat, model and purpose. All groups except days are sorted by cost."""

    days: tuple[tuple[date, TotalUsage], ...]
    """Every day, oldest first, including days without spending."""
    chats: tuple[tuple[str, TotalUsage], ...]
    chat_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Display names of the chats, by the names in `chats`. A display name that several chats share is left out."""
    models: tuple[tuple[str, TotalUsage], ...]
    purposes: tuple[tuple[str, TotalUsage], ...]
    agents: tuple[tuple[str, TotalUsage], ...] = ()
    """Empty if no named agent was called."""
    total: TotalUsage
    thumbs: tuple[int, int] = (0, 0)
    """Number of ratings of answers: thumbs up and thumbs down."""

    @property
    def accounts(self) -> tuple[tuple[str, TotalUsage], ...]:
        """Spending by account; empty if every platform has only one account."""
        sums: dict[str, TotalUsage] = defaultdict(lambda: NO_CALLS)
        for name, spent in self.chats:
            sums[name.partition(":")[0]] += spent
        return _sorted(sums) if any("/" in account for account in sums) else ()


def load_insights(
    db: Connection,
    settings: SpendingCapSettings,
    now: Millis,
    days: int,
    within: ChatId | None = None,
    agent: str | None = None,
) -> InsightsReport:
    """Load the spending of the last `days`, including today, of one chat and one agent or of all (None)."""
    zone = settings.zone
    first = day_of(now, zone) - timedelta(days=days - 1)
    since = midnight(first, zone)
    slices = [one for one in ledger.load_slices(db, since, within) if agent in (None, one.agent)]
    by_agent = _added(slices, lambda one: one.agent)
    by_day = _added(slices, lambda one: day_of(one.at, zone))
    every_day = (first + timedelta(days=number) for number in range(days))
    by_chat, labels = dict[str, TotalUsage](), dict[str, str]()
    for chat_id, spent in _added(slices, lambda one: one.chat_id).items():
        name = "no chat" if chat_id is None else load_chat(db, chat_id).key.name
        by_chat[name] = spent
        labels[name] = "" if chat_id is None else shortened(load_label(db, chat_id))
    count_of = Counter(labels.values())
    return InsightsReport(
        days=tuple((day, by_day.get(day, NO_CALLS)) for day in every_day),
        chats=_sorted(by_chat),
        chat_names={name: label for name, label in labels.items() if label and count_of[label] == 1},
        models=_sorted(_added(slices, lambda one: one.model)),
        purposes=_sorted(_added(slices, lambda one: one.purpose)),
        agents=_sorted({shown_name(name): spent for name, spent in by_agent.items()} if any(by_agent) else {}),
        total=sum((one.spent for one in slices), NO_CALLS),
        thumbs=(0, 0) if lacks_ratings(db) else ratings.count(db, since, within, agent),
    )


def insights_row(found: InsightsReport) -> Row:
    def rows(name: str, entries: Iterable[tuple[date | str, TotalUsage]]) -> list[Row]:
        return [{name: str(key), **spent_row(spent)} for key, spent in entries]

    return {
        "days": rows("day", found.days),
        "chats": [row | {"chat_name": found.chat_names.get(row["chat"], "")} for row in rows("chat", found.chats)],
        "accounts": rows("account", found.accounts),
        "models": rows("model", found.models),
        "purposes": rows("purpose", found.purposes),
        **({"agents": rows("agent", found.agents)} if found.agents else {}),
        "total": spent_row(found.total),
        "thumbs": {"up": found.thumbs[0], "down": found.thumbs[1]},
    }


def _added(slices: Iterable[UsageRow], key: Callable[[UsageRow], Any]) -> dict[Any, TotalUsage]:
    sums: dict[Any, TotalUsage] = defaultdict(lambda: NO_CALLS)
    for one in slices:
        sums[key(one)] += one.spent
    return sums


def _sorted(sums: Mapping[str, TotalUsage]) -> tuple[tuple[str, TotalUsage], ...]:
    return tuple(sorted(sums.items(), key=lambda entry: (-entry[1].cost, -entry[1].total_tokens, entry[0])))


def insights_block(found: InsightsReport) -> str:
    """Return four charts and the total as text to be shown in a monospaced font."""
    total = found.total
    if not total.calls:
        return "No model calls."
    by_cost = knows_cost(total) and total.cost > 0
    parts = [
        _chart(_spans(found.days), by_cost=by_cost),
        _table("CHAT", [(found.chat_names.get(name, name), spent) for name, spent in found.chats], by_cost=by_cost),
        *([_table("ACCOUNT", found.accounts, by_cost=by_cost)] if found.accounts else []),
        _table("MODEL", found.models, by_cost=by_cost),
        _table("PURPOSE", found.purposes, by_cost=by_cost),
        *([_table("AGENT", found.agents, by_cost=by_cost)] if found.agents else []),
        _row("total", _value(total, by_cost=by_cost), total.calls),
    ]
    if any(found.thumbs):
        parts.append("answers: {:,} thumbs up, {:,} down".format(*found.thumbs))
    return "\n\n".join(parts)


def insights_notes(total: TotalUsage) -> list[str]:
    notes = []
    if not knows_cost(total):
        notes.append(
            "The prices of these models are unknown, so the charts show tokens. Set `costs.prices` to see costs."
        )
    elif total.unpriced_calls:
        notes.append(
            f"+: does not include {counted(total.unpriced_calls, 'call')} with an unknown price (see `costs.prices`)."
        )
    if total.prompt_tokens:
        notes.append(f"{total.cache_percent} % of input tokens were cached.")
    if total.failed_calls:
        verb = "was" if total.failed_calls == 1 else "were"
        notes.append(f"{counted(total.failed_calls, 'call')} failed or {verb} cut off.")
    if total.estimated_calls:
        notes.append(f"The tokens or the price of {counted(total.estimated_calls, 'call')} are estimated.")
    return notes


def _spans(days: Sequence[tuple[date, TotalUsage]]) -> list[tuple[str, TotalUsage]]:
    """Return labels and usage for the bars of a chart: one bar per day, or per week or month for long periods."""
    if len(days) <= 31:
        return [(f"{day:%a} {day.day:>2}", spent) for day, spent in days]
    by_week = len(days) <= 182
    spans: dict[str, TotalUsage] = defaultdict(lambda: NO_CALLS)
    for day, spent in days:
        spans[f"{day - timedelta(days=day.weekday()):%d %b}" if by_week else f"{day:%b %y}"] += spent
    return list(spans.items())


def _chart(entries: Sequence[tuple[str, TotalUsage]], *, by_cost: bool) -> str:
    sizes = [spent.cost if by_cost else spent.total_tokens for _, spent in entries]
    lines, width = [], WIDTH - LABEL - VALUE - 1
    for (label, spent), size in zip(entries, sizes, strict=True):
        value = _value(spent, by_cost=by_cost) if spent.calls else "-"
        eighths = max(1, size * width * 8 // max(sizes)) if size else 0  # at least one eighth, so it is visible
        bar = ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).rstrip()
        lines.append(f"{label:<{LABEL}}{bar:<{width}} {value:>{VALUE}}")
    return "\n".join(lines)


def _table(head: str, entries: Sequence[tuple[str, TotalUsage]], *, by_cost: bool) -> str:
    """Return rows for the ten largest entries, and one row for all other entries."""
    rows = []
    for name, spent in entries[:10]:
        # Keep the end of a long name, because it is more distinctive than the beginning.
        shown = name if len(name) < NAME else f"…{name[-(NAME - 2) :]}"
        rows.append(_row(shown, _value(spent, by_cost=by_cost), spent.calls))
    if rest := entries[10:]:
        others = sum((spent for _, spent in rest), NO_CALLS)
        rows.append(_row(f"{len(rest):,} more", _value(others, by_cost=by_cost), others.calls))
    return "\n".join([_row(head, "COST" if by_cost else "TOKENS", "CALLS"), *rows])


def _row(name: str, value: str, calls: int | str) -> str:
    count = calls if isinstance(calls, str) else _shortened(calls)
    return f"{name:<{NAME}}{value:>{VALUE}} {count:>{WIDTH - NAME - VALUE - 1}}"


def _value(spent: TotalUsage, *, by_cost: bool) -> str:
    if not by_cost:
        return _shortened(spent.total_tokens)
    text = money(spent)
    if len(text) < VALUE:
        return text
    return f"${_shortened(spent.cost // MICROS)}{'+' if spent.unpriced_calls else ''}"


def _shortened(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (1_000 if unit == 'k' else size):.1f}{unit}"
    return f"{number:,}"
