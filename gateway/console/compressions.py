"""Compressions of all chats: outcome, savings and cost, and what holds compression back."""

from collections.abc import Mapping

from gateway.console.registry import ConsoleContext, Page
from gateway.console.words import duration
from hermes_state.admin import console
from hermes_state.text import dollars
from hermes_state.values import Millis
from platforms.console import ConsolePage, Values, WebPerson

DAYS = 30


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    is_newest = query.get("order") == "newest"
    since = Millis(context.clock.now() - DAYS * 86_400_000)
    found = await context.store.read(console.load_compressions, since, 200, not is_newest)
    rows = [
        {
            "label": one.label or one.chat.name,
            "name": one.chat.name,
            "session": one.key,
            "at": one.at,
            "layer": one.layer.replace("_", "-"),
            "outcome": _outcome(one),
            "is_bad": one.outcome == "aborted" or one.summary_kind == "deterministic" or one.verdict == "ineffective",
            "before": one.tokens_before,
            "after": one.tokens_after,
            "saved": _saved(one),
            "took": duration(one.took_ms) if one.took_ms is not None else "",
            "cost": dollars(one.cost),
            "by": one.model or "",
            "focus": one.focus or "",
        }
        for one in found
    ]
    helped = [saved for saved in map(_saved, found) if saved is not None]
    return {
        "rows": rows,
        "is_newest": is_newest,
        "days": DAYS,
        "failed": sum(one.outcome == "aborted" for one in found),
        "mean_saved": round(sum(helped) / len(helped)) if helped else None,
        "paused": [
            f"{client.name} {circuit.why}; it is paused for {max(1, round(circuit.seconds))} s."
            for client in context.runtime.models.in_use()
            if (circuit := client.breaker.open) is not None
        ],
    }


def _saved(one: console.ListedCompression) -> int | None:
    """Return the share of tokens that the compression removed, in percent."""
    if not one.tokens_before or one.tokens_after is None:
        return None
    return round(100 * (1 - one.tokens_after / one.tokens_before))


def _outcome(one: console.ListedCompression) -> str:
    if one.outcome == "aborted":
        return f"failed: {one.reason}" if one.reason else "failed"
    words = "summary without a model" if one.summary_kind == "deterministic" else "compressed"
    if one.was_undone:
        words += ", undone later"
    return f"{words}, hardly helped" if one.verdict == "ineffective" else words


PAGE = Page(about=ConsolePage(name="compressions", title="Compressions"), load=load)
