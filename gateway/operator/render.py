"""Text of spending reports: sentences, and charts of at most 40 columns, which a phone shows without wrapping."""

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from itertools import groupby

from gateway.operator.spending import CapUsage, InsightsReport, UsageReport, knows_cost
from hermes_state.models.ledger import NO_CALLS, TotalUsage
from hermes_state.text import counted, dollars
from hermes_state.values import MICROS

WIDTH = 40
LABEL = 7
VALUE = 10
BAR = WIDTH - LABEL - VALUE - 1
NAME = 22
MAX_ENTRIES = 10
"""Most rows of a table; what lies beyond becomes one."""
MAX_DAYS = 31
"""Most days that are shown one by one; more are shown by the week."""
MAX_WEEK_DAYS = 182

_EIGHTHS = " ▏▎▍▌▋▊▉"


def money(spent: TotalUsage) -> str:
    """`$1.23`, `$1.23+` where further calls have no known price, `unknown` where none has."""
    if not knows_cost(spent):
        return "unknown"
    return f"{dollars(spent.cost)}+" if spent.unpriced_calls else dollars(spent.cost)


# ---- usage ------------------------------------------------------------------------------------------------------


def usage_lines(usage: UsageReport) -> list[str]:
    """Cost, tokens and calls, as the points of a list."""
    spent = usage.spent
    if not spent.calls:
        return ["- No model was asked yet."]
    reasoning = f", {spent.reasoning_tokens:,} of them reasoning" if spent.reasoning_tokens else ""
    return [
        f"- Cost: {_cost(spent)}",
        f"- Read: {_amount(spent.prompt_tokens, spent)} tokens: {spent.input_tokens:,} new, "
        f"{spent.cache_read_tokens:,} from the cache ({spent.cache_percent} %), "
        f"{spent.cache_write_tokens:,} written to it",
        f"- Written: {_amount(spent.output_tokens, spent)} tokens{reasoning}",
        f"- Calls: {_calls(spent)}{_purposes(usage)}",
    ]


def today_lines(usage: UsageReport, *, tells_all: bool) -> list[str]:
    """Spending of today, and the caps. `tells_all`: the whole gateway's too, also where nothing caps it."""
    caps = {cap.key: cap for cap in usage.caps}
    lines = []
    if "costs.conversation_cap" in caps:
        lines.append(f"- This conversation: {_of(caps['costs.conversation_cap'])}")
    if usage.chat_today is not None:
        cap = caps.get("costs.chat_daily_cap")
        lines.append(f"- This chat today: {money(usage.chat_today) if cap is None else _of(cap)}")
    cap = caps.get("costs.daily_cap")
    if cap is not None or tells_all:
        lines.append(f"- The whole gateway today: {money(usage.today) if cap is None else _of(cap)}")
    return lines


def _of(cap: CapUsage) -> str:
    state = ": used up" if cap.is_reached else f" ({cap.spent * 100 // cap.limit} %)"
    return f"{dollars(cap.spent)} of {dollars(cap.limit)}{state}, `{cap.key}`"


def _cost(spent: TotalUsage) -> str:
    if not knows_cost(spent):
        return "unknown, because nobody has told me the model's price (`costs.prices`)"
    cost = f"about {dollars(spent.cost)}" if spent.estimated_calls else dollars(spent.cost)
    if not spent.unpriced_calls:
        return cost
    return f"{cost}, and {counted(spent.unpriced_calls, 'call')} at an unknown price (`costs.prices`)"


def _amount(tokens: int, spent: TotalUsage) -> str:
    return f"about {tokens:,}" if spent.estimated_calls else f"{tokens:,}"


def _calls(spent: TotalUsage) -> str:
    notes = [
        f"{spent.failed_calls:,} failed" if spent.failed_calls else "",
        f"{spent.estimated_calls:,} estimated" if spent.estimated_calls else "",
    ]
    text = ", ".join(note for note in notes if note)
    return f"{spent.calls:,} ({text})" if text else f"{spent.calls:,}"


def _purposes(usage: UsageReport) -> str:
    """Calls beside the answers, with their costs where these are known; that they are not stands above."""
    named = [
        counted(spent.calls, purpose) + (f" for {money(spent)}" if knows_cost(spent) else "")
        for purpose, spent in usage.by_purpose.items()
        if purpose != "turn"
    ]
    return f"; of these {', '.join(named)}" if named else ""


# ---- insights ---------------------------------------------------------------------------------------------------


def insights_block(found: InsightsReport) -> str:
    """Four charts and a sum, for a font in which all characters are equally wide."""
    total = found.total
    if not total.calls:
        return "No model was asked."
    by_cost = knows_cost(total) and total.cost > 0
    parts = [
        _chart(_spans(found.days), by_cost=by_cost),
        _table("CHAT", found.chats, by_cost=by_cost),
        _table("MODEL", found.models, by_cost=by_cost),
        _table("FOR", found.purposes, by_cost=by_cost),
        _row("total", _value(total, by_cost=by_cost), total.calls),
    ]
    return "\n\n".join(parts)


def insights_notes(total: TotalUsage) -> list[str]:
    """Notes on what the figures do not say by themselves."""
    notes = []
    if not knows_cost(total):
        notes.append("The price of these models is not known (`costs.prices`), so this counts tokens.")
    elif total.unpriced_calls:
        notes.append(f"+: {counted(total.unpriced_calls, 'call')} at an unknown price come on top (`costs.prices`).")
    if total.prompt_tokens:
        notes.append(f"{total.cache_percent} % of what models read came from a cache.")
    if total.failed_calls:
        notes.append(
            f"{counted(total.failed_calls, 'call')} failed or {'was' if total.failed_calls == 1 else 'were'} cut off."
        )
    if total.estimated_calls:
        notes.append(f"Of {counted(total.estimated_calls, 'call')} the tokens or the price are an estimate.")
    return notes


def _spans(days: Sequence[tuple[date, TotalUsage]]) -> list[tuple[str, TotalUsage]]:
    if len(days) <= MAX_DAYS:
        return [(f"{day:%a} {day.day:>2}", spent) for day, spent in days]
    if len(days) <= MAX_WEEK_DAYS:
        weeks = groupby(days, lambda entry: entry[0] - timedelta(days=entry[0].weekday()))
        return [(f"{week:%d %b}", _sum(entries)) for week, entries in weeks]
    months = groupby(days, lambda entry: entry[0].replace(day=1))
    return [(f"{month:%b %y}", _sum(entries)) for month, entries in months]


def _sum(entries: Iterable[tuple[date, TotalUsage]]) -> TotalUsage:
    return sum((spent for _, spent in entries), NO_CALLS)


def _chart(entries: Sequence[tuple[str, TotalUsage]], *, by_cost: bool) -> str:
    sizes = [spent.cost if by_cost else spent.total_tokens for _, spent in entries]
    largest = max(sizes, default=0)
    lines = []
    for (label, spent), size in zip(entries, sizes, strict=True):
        value = _value(spent, by_cost=by_cost) if spent.calls else "-"
        lines.append(f"{label:<{LABEL}}{_bar(size, largest):<{BAR}} {value:>{VALUE}}")
    return "\n".join(lines)


def _bar(size: int, largest: int) -> str:
    """Bar in eighths of a character; whatever is not nothing can be seen."""
    eighths = max(1, size * BAR * 8 // largest) if size else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _table(head: str, entries: Sequence[tuple[str, TotalUsage]], *, by_cost: bool) -> str:
    shown, rest = entries[:MAX_ENTRIES], entries[MAX_ENTRIES:]
    rows = [_row(_short(name), _value(spent, by_cost=by_cost), spent.calls) for name, spent in shown]
    if rest:
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
    return f"${_shortened(spent.cost // MICROS)}{'+' if spent.unpriced_calls else ''}"  # cents do not matter any more


def _short(name: str) -> str:
    """A name that fits, with its end, which tells more than its beginning."""
    return name if len(name) < NAME else f"…{name[-(NAME - 2) :]}"


def _shortened(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (1_000 if unit == 'k' else size):.1f}{unit}"
    return f"{number:,}"
