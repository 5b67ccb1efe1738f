"""Failed model calls: the consequences of each kind of error for the ledger, the retries, the person and the route."""

from collections.abc import Mapping
from dataclasses import dataclass

from hermes_state import errors
from hermes_state.text import dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Consequences of one kind of failure: for the ledger, the retries, the person and the route."""

    outcome: str
    """Name of the failure in the ledger."""
    attempts: int = 1
    """Number of such failures after which a call is given up; 1 means that it is not repeated."""
    sentence: str
    """Sentence for the person, with nothing of the provider's own text, which may quote a key or a prompt."""
    trouble: str | None = None
    """Fault of the route, as the end of a sentence that begins with the model's name; several open its circuit breaker.

    None: the request would fare alike on another route.
    """


OUTCOME_OK = "ok"
OUTCOME_CANCELLED = "cancelled"
"""Outcome of a call that was stopped, or whose time was up."""

REMEDIES: Mapping[type[errors.ModelError], Remedy] = {
    errors.AuthRejected: Remedy(outcome="auth", trouble="is not open to our key", sentence="{access}."),
    errors.QuotaExceeded: Remedy(
        outcome="quota",
        trouble="has no credit left at its provider",
        sentence="The account at the model provider has no credit left; whoever runs this gateway has to top it up.",
    ),
    errors.ModelRateLimited: Remedy(
        outcome="rate_limited",
        trouble="is asked more often than its provider allows",
        attempts=4,
        sentence="The model provider limits how often it may be asked; please send /retry in {wait}.",
    ),
    errors.ModelTimeout: Remedy(
        outcome="timeout",
        trouble="does not answer in time",
        attempts=2,  # each attempt may take the whole read timeout
        sentence="The model did not answer in time; /retry asks again.",
    ),
    errors.ModelUnavailable: Remedy(
        outcome="unavailable",
        trouble="cannot be reached",
        attempts=4,
        sentence="The model provider cannot be reached or is overloaded right now; please send /retry in {wait}.",
    ),
    errors.ContentRejected: Remedy(
        outcome="content_filtered",
        sentence="The model provider's content filter stopped this answer; please put the request differently.",
    ),
    errors.ModelNotFound: Remedy(
        outcome="not_offered",
        trouble="is not offered by its provider",
        sentence="The model provider does not have this model at this address; whoever runs this gateway has to check "
        "its `name` and `base_url`.",
    ),
    errors.ContextOverflow: Remedy(
        outcome="overflow",
        sentence="This conversation no longer fits into the model's memory{window}; /compress makes room in it, /new "
        "starts a fresh one, and /history keeps this one.",
    ),
    errors.OutputCapExceeded: Remedy(
        outcome="output_cap",
        sentence="The configured output limit is above what the model allows{cap}; whoever runs this gateway has to "
        "lower this model's `max_output_tokens`.",
    ),
    errors.ImageRejected: Remedy(
        outcome="image", sentence="{image}; please write without it, or /new starts a fresh conversation."
    ),
    errors.ShapeRejected: Remedy(
        outcome="shape",
        sentence="The model provider does not accept the form of this conversation; send /new to start a fresh one, or "
        "/model to choose another model.",
    ),
    errors.ReplyMalformed: Remedy(
        outcome="malformed",
        trouble="gives broken answers",
        attempts=2,  # a second broken reply is no accident any more, and every try costs
        sentence="The model's answer arrived broken or empty; /retry asks again.",
    ),
    errors.SpendingCapExceeded: Remedy(
        outcome="capped",
        sentence="{spending} is used up{spent}, so the model was not asked; {opens}, and whoever runs this gateway can "
        "raise `{key}`.",
    ),
    errors.PriceNotFound: Remedy(
        outcome="unpriced",
        sentence="Spending is capped here, and what the model{model} costs is not known, so it was not asked; "
        "whoever runs this gateway has to add its price to `costs.prices`.",
    ),
    errors.ModelError: Remedy(outcome="rejected", sentence="The model provider refused the request; {advice}."),
}
IMAGE_FAULTS = {
    errors.ImageFault.UNSUPPORTED: "The model takes no images",
    errors.ImageFault.TOO_LARGE: "An image of this conversation is too large for the model provider",
    errors.ImageFault.TOO_MANY: "This conversation holds more images than the model provider takes",
    errors.ImageFault.UNREADABLE: "The model provider cannot process an image of this conversation",
}
"""Reason why an image was refused, without the full stop."""


def remedy_for(error: errors.ModelError) -> Remedy:
    """Return the row of the most specific kind of the error."""
    return next(REMEDIES[kind] for kind in type(error).__mro__ if kind in REMEDIES)


def sentence_for(error: errors.ModelError) -> str:
    """Return one sentence for the person, with the fault and a remedy.

    >>> sentence_for(errors.ModelRateLimited("HTTP 429", retry_after=20.0))
    'The model provider limits how often it may be asked; please send /retry in 20 seconds.'
    """
    return remedy_for(error).sentence.format_map(_words(error))


def _words(error: errors.ModelError) -> Mapping[str, str]:
    """Return the words in an error's sentence that differ within its kind."""
    match error:
        case errors.ModelRateLimited() | errors.ModelUnavailable():
            return {"wait": _duration_text(error.retry_after)}
        case errors.ContextOverflow(window=window):
            return {"window": f" of {window:,} tokens" if window else ""}
        case errors.OutputCapExceeded(cap=cap):
            return {"cap": f" ({cap:,} tokens)" if cap else ""}
        case errors.AuthRejected(is_of_plan=True):
            plan = "The plan at the model provider does not include this model"
            return {"access": f"{plan}; whoever runs this gateway has to change the plan, or this model's `name`"}
        case errors.AuthRejected():
            key = "The model provider does not accept the API key"
            return {"access": f"{key}; whoever runs this gateway has to check this model's `api_key`"}
        case errors.ImageRejected(fault=fault):
            return {"image": IMAGE_FAULTS[fault]}
        case errors.SpendingCapExceeded(cap=key, spent=spent, limit=limit):
            spending, opens = {
                "costs.daily_cap": ("What may be spent in a day", "it opens again tomorrow"),
                "costs.chat_daily_cap": ("What this chat may spend in a day", "it opens again tomorrow"),
                "costs.conversation_cap": ("What one conversation may cost", "/new starts another one"),
            }[key]
            told = f" ({dollars(spent)} of {dollars(limit)})" if spent is not None and limit is not None else ""
            return {"key": key, "spending": spending, "opens": opens, "spent": told}
        case errors.PriceNotFound(model=model):
            return {"model": " `{}`".format(model.replace("`", "'")) if model else ""}
        case _ if error.has_answered:
            before = "it has answered in this conversation before"
            return {"advice": f"{before}, so /compress may help, and /new starts a fresh one"}
        case _:
            return {"advice": "whoever runs this gateway should check this model's `name` and `base_url`"}


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "a minute"
    if seconds < 1.5:
        return "a second"
    if seconds < 90:
        return f"{round(seconds)} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{round(minutes / 60)} hours"
