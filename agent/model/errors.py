"""Failed model calls: what follows from each kind of error, and which kind a provider's error answer is.

Providers agree on little more than the status, so codes and wordings are looked at too. Nothing of the provider's
text goes into our errors: it may quote a key or the prompt.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from hermes_state import errors
from hermes_state.text import dollars
from hermes_state.values import CanonicalUsage, MicroUsd


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
    """Fault of the route, as the end of a sentence that begins with the model's name.

    Another route may do better, and this one's circuit breaker opens when it goes on. None: the request would fare
    alike elsewhere.
    """


OUTCOME_OK = "ok"
OUTCOME_CANCELLED = "cancelled"
"""Outcome of a call for whose reply nobody waits any more: it was stopped, or its time was up."""

REMEDIES: Mapping[type[errors.ModelError], Remedy] = {
    errors.AuthRejected: Remedy(
        outcome="auth",
        trouble="is not open to our key",
        sentence="The model provider does not accept the API key; whoever runs this gateway has to check "
        "this model's `api_key`.",
    ),
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
    errors.ContentFiltered: Remedy(
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
    errors.OutputCapTooLarge: Remedy(
        outcome="output_cap",
        sentence="The configured output limit is above what the model allows{cap}; whoever runs this gateway has to "
        "lower this model's `max_output_tokens`.",
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
    errors.ModelError: Remedy(
        outcome="rejected",
        sentence="The model provider refused the request; whoever runs this gateway should check this model's "
        "`name` and `base_url`.",
    ),
}
_SPENDING = {
    "costs.daily_cap": ("What may be spent in a day", "it opens again tomorrow"),
    "costs.chat_daily_cap": ("What this chat may spend in a day", "it opens again tomorrow"),
    "costs.conversation_cap": ("What one conversation may cost", "/new starts another one"),
}
"""Bounded spending and what helps against the cap, by its key in the configuration."""

E = TypeVar("E", bound=errors.ModelError)


def with_usage(error: E, usage: CanonicalUsage | None, cost: MicroUsd | None = None) -> E:
    """The same error, with what the provider reported of the call before it failed."""
    error.usage, error.reported_cost = usage, cost
    return error


def remedy_for(error: errors.ModelError) -> Remedy:
    """The row of the most specific kind that `error` is."""
    return next(REMEDIES[kind] for kind in type(error).__mro__ if kind in REMEDIES)


def sentence_for(error: errors.ModelError) -> str:
    """One sentence for the person: what happened and what helps.

    >>> sentence_for(errors.ModelRateLimited("HTTP 429", retry_after=20.0))
    'The model provider limits how often it may be asked; please send /retry in 20 seconds.'
    """
    words: defaultdict[str, str] = defaultdict(str)
    match error:
        case errors.ModelRateLimited() | errors.ModelUnavailable():
            words["wait"] = _duration_text(error.retry_after)
        case errors.ContextOverflow(window=window) if window:
            words["window"] = f" of {window:,} tokens"
        case errors.OutputCapTooLarge(cap=cap) if cap:
            words["cap"] = f" ({cap:,} tokens)"
        case errors.SpendingCapExceeded(cap=key):
            words["key"], (words["spending"], words["opens"]) = key, _SPENDING[key]
            if error.spent is not None and error.limit is not None:
                words["spent"] = f" ({dollars(error.spent)} of {dollars(error.limit)})"
        case errors.PriceNotFound(model=model) if model:
            words["model"] = " `{}`".format(model.replace("`", "'"))
    return remedy_for(error).sentence.format_map(words)


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "a minute"
    if seconds < 1.5:
        return "a second"
    if seconds < 90:
        return f"{round(seconds)} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 90 else f"{round(minutes / 60)} hours"


MIN_OUTPUT_ROOM = 256
"""Smallest room for an answer, in tokens: a prompt that leaves less is too long, whatever output was asked for."""


def status_error(status: int, headers: Mapping[str, str], body: object) -> errors.ModelError:
    """The kind of error that an HTTP error answer stands for; `body` is the decoded `error` object, or the text.

    >>> status_error(429, {"retry-after": "20"}, {"code": "rate_limit_exceeded"}).retry_after
    20.0
    >>> status_error(400, {}, "This model's maximum context length is 8192 tokens.").window
    8192
    """
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    code, kind = str(fields.get("code") or ""), str(fields.get("type") or "")
    text = error_text(body)
    named = code or kind
    what = f"HTTP {status} {named}" if _NAME.fullmatch(named) else f"HTTP {status}"
    if code in _QUOTA_CODES or kind in _QUOTA_CODES or status == 402:
        return errors.QuotaExceeded(what)
    if code in _FILTER_CODES or kind in _FILTER_CODES or (status == 403 and _is_flagged(fields)):
        return errors.ContentFiltered(what)
    if status in (401, 403):
        return errors.AuthRejected(what)
    if status in (413, 429) and (allowance := _allowance(text)) is not None:
        return errors.ContextOverflow(what, window=allowance, is_of_account=True)
    if status == 429:
        return errors.ModelRateLimited(what, retry_after=retry_after_seconds(headers))
    if status in (400, 422) and _OUTPUT_CAP.search(text) and _WINDOW.search(text) is None:
        return errors.OutputCapTooLarge(what, cap=_matched_number(_CAP, text))
    if status == 413 or code in _OVERFLOW_CODES or kind in _OVERFLOW_CODES or _is_overflow(status, fields, text):
        return _too_long(what, fields, text)
    if status >= 500 or status in (408, 409, 425):
        return errors.ModelUnavailable(what, retry_after=retry_after_seconds(headers))
    return errors.ModelError(what) if status in _REQUEST_FAULTS else errors.ModelNotFound(what)


def stream_error(body: object) -> errors.ModelError:
    """The kind of an error that arrives inside an event stream, after a 200."""
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    code = fields.get("code")
    headers: dict[str, str] = {}
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    elif code == "rate_limit_exceeded":
        status = 429
        if (wait := _TRY_AGAIN.search(str(fields.get("message")))) is not None:
            headers["retry-after-ms" if wait[2] == "ms" else "retry-after"] = wait[1]
    else:
        status = 400 if isinstance(code, str) and _BLAMING_CODE.match(code) else 500
    return status_error(status, headers, body)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an answer asks not to be called again; None where it names neither a number nor a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= _MAX_WAIT_SECONDS:
            return seconds
    try:  # the date of the answer and the one it names, for clocks differ
        named, sent = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (named - sent).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    return seconds if 0 <= seconds <= _MAX_WAIT_SECONDS else None


def error_text(body: object) -> str:
    """The provider's own words, wherever they stand: some answer with a bare text, some with FastAPI's `detail`."""
    text = (body.get("message") or body.get("detail")) if isinstance(body, Mapping) else body
    return str(text or "")[:2_000]


_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_OVERFLOW = re.compile(
    r"maximum (?:context|prompt) length|context[_ ]length[_ ]exceeded|prompt is too long|input is too long"
    r"|exceeds the available context size|input token count .{0,40}exceeds|context window|exceed context limit"
    r"|greater than the context length|model token limit|reduce the length of the (?:messages|input)",
    re.IGNORECASE,
)
_LIMIT_NAME = r"\bmax_(?:completion_|output_|new_)?tokens\b[`'\"]?"
_OUTPUT_CAP = re.compile(
    rf"{_LIMIT_NAME} (?:is too large|(?:value|must be) .{{0,40}}(?:range|less than|at most))|^max_tokens: \d+ >"
    rf"|valid range of {_LIMIT_NAME}|{_LIMIT_NAME}: integer above maximum value",
    re.IGNORECASE,
)
_REQUEST_FAULTS = (400, 422)
"""Statuses that blame the request: without a reason it may be anything about it, its length too."""
_QUOTA_CODES = frozenset({"insufficient_quota", "insufficient_credits", "billing_hard_limit_reached"})
_FILTER_CODES = frozenset(
    {
        *("content_filter", "content_policy_violation", "image_content_policy_violation"),
        *("invalid_prompt", "bio_policy", "misalignment_policy_violation"),
    }
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""Form of a code as providers write them. Anything else may be a sentence, or a key."""
_COUNT = r"(\d{1,9})(?!\d)"
_WINDOW = re.compile(
    rf"(?:context|prompt) length (?:is|of)(?: only)? {_COUNT}|> {_COUNT} maximum|allowed \({_COUNT}\)"
    rf"|context limit: \d{{1,9}} \+ \d{{1,9}} > {_COUNT}"
    rf"|token limit: {_COUNT}|configured limit of {_COUNT}|model with {_COUNT} maximum",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    rf"resulted in {_COUNT}|too long: {_COUNT}|count \({_COUNT}\)|context limit: {_COUNT} \+"
    rf"|\({_COUNT} (?:in the messages|in your prompt|of text input)|(?:request has|contains) {_COUNT}",
    re.IGNORECASE,
)
_OF_INPUT = re.compile(r"input tokens exceed", re.IGNORECASE)
"""Wording of bounds that hold for the prompt alone."""
_PROMPT_TOOLS = re.compile(rf", {_COUNT} of tool input", re.IGNORECASE)
"""Tokens that are named beside those of the text and belong to the prompt, too."""
_ABOVE_ALLOWANCE = re.compile(
    rf"request too large\b.{{0,300}}\btokens per min.{{0,20}}: limit {_COUNT}, requested {_COUNT}", re.IGNORECASE
)
_WINDOW_LESS_OUTPUT = re.compile(r"request has \d{1,9} input tokens\.", re.IGNORECASE)
"""Wording of servers that state the window less the wanted output: nothing to remember it by."""
_CAP = re.compile(
    rf"at most {_COUNT}|> {_COUNT}, which is the maximum|less than or equal to [`'\"]?{_COUNT}"
    rf"|\[\d{{1,9}}, ?{_COUNT}\]|expected a value <= {_COUNT}",
    re.IGNORECASE,
)
_TRY_AGAIN = re.compile(r"try again in (\d{1,9}(?:\.\d{1,9})?) ?(ms|s)\b", re.IGNORECASE)
"""Wording of a pause inside a stream, where there are no headers any more."""
_BLAMING_CODE = re.compile(r"invalid_|unsupported_|empty_|image_|context_length_exceeded")
_MAX_WAIT_SECONDS = 31 * 86_400.0
"""Longest pause that is believed, in seconds: quotas are counted by the month at most.

More, `inf` included, is no time to tell a person.
"""


def _is_flagged(fields: Mapping[str, Any]) -> bool:
    """True for a prompt that OpenRouter's moderation refuses; it says so by nothing else than this."""
    metadata = fields.get("metadata")
    return isinstance(metadata, Mapping) and "flagged_input" in metadata


def _allowance(text: str) -> int | None:
    """Tokens that may be sent in a minute, where one request alone is more: it would be refused for ever."""
    found = _ABOVE_ALLOWANCE.search(text)
    return int(found[1]) if found is not None and int(found[1]) < int(found[2]) else None


def _is_overflow(status: int, fields: Mapping[str, Any], text: str) -> bool:
    """Judges by the wording; a server error counts only as an object: a proxy's page may say anything."""
    return (status < 500 or bool(fields)) and _OVERFLOW.search(text) is not None


def _too_long(what: str, fields: Mapping[str, Any], text: str) -> errors.ContextOverflow | errors.OutputCapTooLarge:
    """Error for prompt and output that are too long together: the output's fault if the prompt leaves room."""
    window = _token_count(fields.get("n_ctx")) or _matched_number(_WINDOW, text)
    prompt = _token_count(fields.get("n_prompt_tokens")) or _matched_number(_PROMPT, text)
    if prompt is not None:
        prompt += _matched_number(_PROMPT_TOOLS, text) or 0
    if _WINDOW_LESS_OUTPUT.search(text):
        window = None
    if prompt is not None and window is not None:
        # Some providers say "about", and count the answer's frame later.
        room = window - prompt - (16 + prompt // 100)
        if room >= MIN_OUTPUT_ROOM:
            return errors.OutputCapTooLarge(what, cap=room)
    return errors.ContextOverflow(
        what, prompt_tokens=prompt, window=window, is_of_input=window is not None and _OF_INPUT.search(text) is not None
    )


def _matched_number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return next((int(group) for group in found.groups() if group), None) if found else None


def _token_count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1_000_000_000 else None
