"""Handling of failed model calls: how each kind of error is recorded, retried, explained and counted."""

from collections.abc import Mapping

import msgspec

from hermes_state import errors
from hermes_state.text import dollars


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Handling of one kind of error: name in the ledger, retries, message, and effect on the circuit breaker."""

    outcome: str
    """Name of the error in the ledger."""
    attempts: int = 1
    """Maximum number of attempts that may fail with this error. 1: no retry."""
    sentence: str
    """Text for the user. Never contains the provider's text, which might quote a key or a prompt."""
    trouble: str | None = None
    """Fault of the route, worded to follow the model's name. Repeated faults open the route's circuit breaker. None:
    the error is not the route's fault.
    """


OUTCOME_OK = "ok"
OUTCOME_CANCELLED = "cancelled"
"""Outcome of a call that was cancelled before it ended, for example because a user stopped the turn."""

REMEDIES: Mapping[type[errors.ModelError], Remedy] = {
    errors.AuthRejected: Remedy(outcome="auth", trouble="rejects our API key", sentence="{access}."),
    errors.QuotaExceeded: Remedy(
        outcome="quota",
        trouble="has no credit left at its provider",
        sentence="The model provider account is out of credit. The owner of this bot needs to top it up.",
    ),
    errors.ModelRateLimited: Remedy(
        outcome="rate_limited",
        trouble="is rate-limited by its provider",
        attempts=4,
        sentence="The model provider is rate-limiting this bot. Please send /retry in {wait}.",
    ),
    errors.ModelTimeout: Remedy(
        outcome="timeout",
        trouble="does not answer in time",
        attempts=2,  # each attempt can take the whole read timeout
        sentence="The model took too long to answer. Send /retry to try again.",
    ),
    errors.ModelUnavailable: Remedy(
        outcome="unavailable",
        trouble="cannot be reached",
        attempts=4,
        sentence="The model provider is overloaded or cannot be reached. Please send /retry in {wait}.",
    ),
    errors.ContentRejected: Remedy(
        outcome="content_filtered",
        sentence="The model provider's content filter stopped this answer. Please word your request differently.",
    ),
    errors.ModelNotFound: Remedy(
        outcome="not_offered",
        trouble="is not offered by its provider",
        sentence="The model provider does not offer this model at this address. The owner of this bot needs to check "
        "this model's `name` and `base_url`.",
    ),
    errors.ContextOverflow: Remedy(
        outcome="overflow",
        sentence="This conversation no longer fits into the model's context window{window}. Send /compress to shorten "
        "it, or /new to start a fresh one. You can still read this one with /history.",
    ),
    errors.OutputCapExceeded: Remedy(
        outcome="output_cap",
        sentence="The configured output limit is higher than the model allows{cap}. The owner of this bot needs to "
        "lower this model's `max_output_tokens`.",
    ),
    errors.ImageRejected: Remedy(
        outcome="image",
        sentence="{image}. Please try without the image, or send /new to start a fresh conversation.",
    ),
    errors.ShapeRejected: Remedy(
        outcome="shape",
        sentence="The model provider rejected the message structure of this conversation. Send /new to start a fresh "
        "one, or /model to choose another model.",
    ),
    errors.ReplyMalformed: Remedy(
        outcome="malformed",
        trouble="sends broken answers",
        attempts=2,  # after two broken replies a third is likely to fail, and every attempt costs money
        sentence="The model's answer arrived broken or empty. Send /retry to try again.",
    ),
    errors.SpendingCapExceeded: Remedy(
        outcome="capped",
        sentence="{spending} has been reached{spent}, so I did not call the model. {opens}. The owner of this bot can "
        "raise `{key}`.",
    ),
    errors.PriceNotFound: Remedy(
        outcome="unpriced",
        sentence="There is a spending cap, but the price of the model{model} is unknown, so I did not call it. "
        "The owner of this bot needs to add the price to `costs.prices`.",
    ),
    errors.ModelError: Remedy(outcome="rejected", sentence="The model provider refused the request. {advice}."),
}
IMAGE_FAULTS = {
    errors.ImageFault.UNSUPPORTED: "The model does not accept images",
    errors.ImageFault.TOO_LARGE: "An image in this conversation is too large for the model provider",
    errors.ImageFault.TOO_MANY: "This conversation has more images than the model provider accepts",
    errors.ImageFault.UNREADABLE: "The model provider cannot process an image in this conversation",
}
"""Sentences that say why an image was refused, without the full stop."""


def remedy_for(error: errors.ModelError) -> Remedy:
    """Return the entry of `REMEDIES` for the most specific class of the error."""
    return next(REMEDIES[kind] for kind in type(error).__mro__ if kind in REMEDIES)


def sentence_for(error: errors.ModelError) -> str:
    """Return a message for the user: a sentence that states the problem, then what to do.

    >>> sentence_for(errors.ModelRateLimited("HTTP 429", retry_after=20.0))
    'The model provider is rate-limiting this bot. Please send /retry in 20 seconds.'
    """
    return remedy_for(error).sentence.format_map(_words(error))


def _words(error: errors.ModelError) -> Mapping[str, str]:
    """Return the values for the placeholders in an error's sentence."""
    match error:
        case errors.ModelRateLimited() | errors.ModelUnavailable():
            return {"wait": _duration_text(error.retry_after)}
        case errors.ContextOverflow(window=window):
            return {"window": f" of {window:,} tokens" if window else ""}
        case errors.OutputCapExceeded(cap=cap):
            return {"cap": f" ({cap:,} tokens)" if cap else ""}
        case errors.AuthRejected(is_of_plan=True):
            plan = "The plan with the model provider does not include this model"
            return {"access": f"{plan}. The owner of this bot needs to change the plan, or this model's `name`"}
        case errors.AuthRejected():
            key = "The model provider rejected the API key"
            return {"access": f"{key}. The owner of this bot needs to check this model's `api_key`"}
        case errors.ImageRejected(fault=fault):
            return {"image": IMAGE_FAULTS[fault]}
        case errors.SpendingCapExceeded(cap=key, spent=spent, limit=limit):
            spending, opens = {
                "costs.daily_cap": ("The daily spending cap", "Please try again tomorrow"),
                "costs.chat_daily_cap": ("The daily spending cap of this chat", "Please try again tomorrow"),
                "costs.conversation_cap": ("The spending cap of this conversation", "Send /new to start another one"),
            }.get(key, ("The daily spending cap of this agent", "Please try again tomorrow"))
            told = f" ({dollars(spent)} of {dollars(limit)})" if spent is not None and limit is not None else ""
            return {"key": key, "spending": spending, "opens": opens, "spent": told}
        case errors.PriceNotFound(model=model):
            return {"model": " `{}`".format(model.replace("`", "'")) if model else ""}
        case _ if error.has_answered:
            before = "The model answered earlier messages in this conversation"
            return {"advice": f"{before}, so /compress may help. You can also send /new to start a fresh one"}
        case _:
            return {"advice": "The owner of this bot should check this model's `name` and `base_url`"}


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "a minute"
    if seconds < 1.5:
        return "a second"
    if seconds < 90:
        return f"{round(seconds)} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{round(minutes / 60)} hours"
