"""What can go wrong with a model call, and what then: one row a kind."""

from dataclasses import dataclass
from typing import TypeVar

from hermes_state.errors import (
    AuthRejected,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    NotOffered,
    OutputCapTooLarge,
    PriceUnknown,
    QuotaExceeded,
    ReplyMalformed,
    SpendingCapReached,
)
from hermes_state.money import dollars
from hermes_state.values import CanonicalUsage, MicroUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What follows from one kind of failure."""

    kind: type[ModelError]
    outcome: str
    """How the ledger calls it."""
    attempts: int
    """How often a call may fail so before it is given up; 1 means that it is not repeated."""
    sentence: str
    """What the person reads. It holds nothing of the provider's own text, which may quote a key or a prompt."""
    trouble: str | None = None
    """What is wrong with the route, as the end of a sentence that begins with the model's name: another route may do
    better, and this one rests when it goes on. None: the request would fare alike elsewhere."""


OUTCOME_OK = "ok"
OUTCOME_CANCELLED = "cancelled"
"""Nobody waits for the reply any more: it was stopped, or its time was up."""

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        kind=AuthRejected,
        outcome="auth",
        trouble="is not open to our key",
        attempts=1,
        sentence="The model provider does not accept the API key; whoever runs this gateway has to check "
        "this model's `api_key`.",
    ),
    Remedy(
        kind=QuotaExceeded,
        outcome="quota",
        trouble="has no credit left at its provider",
        attempts=1,
        sentence="The account at the model provider has no credit left; whoever runs this gateway has to top it up.",
    ),
    Remedy(
        kind=ModelRateLimited,
        outcome="rate_limited",
        trouble="is asked more often than its provider allows",
        attempts=4,
        sentence="The model provider limits how often it may be asked; please send /retry in {wait}.",
    ),
    Remedy(
        kind=ModelTimeout,
        outcome="timeout",
        trouble="does not answer in time",
        attempts=2,  # each attempt may take the whole read timeout
        sentence="The model did not answer in time; /retry asks again.",
    ),
    Remedy(
        kind=ModelUnavailable,
        outcome="unavailable",
        trouble="cannot be reached",
        attempts=4,
        sentence="The model provider cannot be reached or is overloaded right now; please send /retry in {wait}.",
    ),
    Remedy(
        kind=ContentFiltered,
        outcome="content_filtered",
        attempts=1,
        sentence="The model provider's content filter stopped this answer; please put the request differently.",
    ),
    Remedy(
        kind=NotOffered,
        outcome="not_offered",
        trouble="is not offered by its provider",
        attempts=1,
        sentence="The model provider does not have this model at this address; whoever runs this gateway has to check "
        "its `name` and `base_url`.",
    ),
    Remedy(
        kind=ContextOverflow,
        outcome="overflow",
        attempts=1,
        sentence="This conversation no longer fits into the model's memory{window}; /compress makes room in it, /new "
        "starts a fresh one, and /history keeps this one.",
    ),
    Remedy(
        kind=OutputCapTooLarge,
        outcome="output_cap",
        attempts=1,
        sentence="The configured output limit is above what the model allows{cap}; whoever runs this gateway has to "
        "lower this model's `max_output_tokens`.",
    ),
    Remedy(
        kind=ReplyMalformed,
        outcome="malformed",
        trouble="gives broken answers",
        attempts=2,  # a second broken reply is no accident any more, and every try costs
        sentence="The model's answer arrived broken or empty; /retry asks again.",
    ),
    Remedy(
        kind=SpendingCapReached,
        outcome="capped",
        attempts=1,
        sentence="{spending} is used up{spent}, so the model was not asked; {opens}, and whoever runs this gateway can "
        "raise `{key}`.",
    ),
    Remedy(
        kind=PriceUnknown,
        outcome="unpriced",
        attempts=1,
        sentence="Spending is capped here, and what the model{model} costs is not known, so it was not asked; "
        "whoever runs this gateway has to add its price to `costs.prices`.",
    ),
    Remedy(
        kind=ModelError,
        outcome="rejected",
        attempts=1,
        sentence="The model provider refused the request; whoever runs this gateway should check this model's "
        "`name` and `base_url`.",
    ),
)
_BY_KIND = {remedy.kind: remedy for remedy in REMEDIES}


_SPENDING = {
    "costs.daily_cap": ("What may be spent in a day", "it opens again tomorrow"),
    "costs.chat_daily_cap": ("What this chat may spend in a day", "it opens again tomorrow"),
    "costs.conversation_cap": ("What one conversation may cost", "/new starts another one"),
}
"""What a cap bounds, and what helps, by its key in the configuration."""


E = TypeVar("E", bound=ModelError)


def paid_for(error: E, usage: CanonicalUsage | None, cost: MicroUsd | None = None) -> E:
    """`error`, with what the provider reported of the call before it failed."""
    error.usage, error.reported_cost = usage, cost
    return error


def remedy_for(error: ModelError) -> Remedy:
    """The row of the most specific kind that `error` is."""
    return next(_BY_KIND[kind] for kind in type(error).__mro__ if kind in _BY_KIND)


def wanted_pause(error: ModelError) -> float | None:
    """Seconds for which the provider wants to be left alone; None where it does not say."""
    return error.retry_after if isinstance(error, (ModelRateLimited, ModelUnavailable)) else None


def sentence_for(error: ModelError) -> str:
    """One sentence for the person: what happened and what helps."""
    wait = window = cap = key = spending = spent = opens = model = ""
    if isinstance(error, (ModelRateLimited, ModelUnavailable)):
        wait = _in_words(wanted_pause(error))
    if isinstance(error, ContextOverflow) and error.window:
        window = f" of {error.window:,} tokens"
    if isinstance(error, OutputCapTooLarge) and error.cap:
        cap = f" ({error.cap:,} tokens)"
    if isinstance(error, SpendingCapReached):
        key, (spending, opens) = error.cap, _SPENDING[error.cap]
        if error.spent is not None and error.limit is not None:
            spent = f" ({dollars(error.spent)} of {dollars(error.limit)})"
    if isinstance(error, PriceUnknown):
        model = " `{}`".format(error.model.replace("`", "'")) if error.model else ""
    return remedy_for(error).sentence.format(
        wait=wait, window=window, cap=cap, key=key, spending=spending, spent=spent, opens=opens, model=model
    )


def _in_words(seconds: float | None) -> str:
    if seconds is None:
        return "a minute"
    if seconds < 1.5:
        return "a second"
    if seconds < 90:
        return f"{round(seconds)} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{round(minutes / 60)} hours"
