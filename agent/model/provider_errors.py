"""From a provider's error answer to our error tree.

Providers agree on little more than the status, so codes and wordings are looked at too. Nothing of the provider's
text goes into our errors: it may quote a key or the prompt.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from hermes_state.errors import (
    AuthRejected,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelUnavailable,
    NotOffered,
    OutputCapTooLarge,
    QuotaExceeded,
)

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
LEAST_OUTPUT_ROOM = 256
"""A prompt that leaves less room than this for an answer is too long, whatever output was asked for."""
_BLAMES_REQUEST = (400, 422)
"""Without a reason it may be anything about the request, its length too."""
_QUOTA_CODES = frozenset({"insufficient_quota", "insufficient_credits", "billing_hard_limit_reached"})
_FILTER_CODES = frozenset(
    {
        *("content_filter", "content_policy_violation", "image_content_policy_violation"),
        *("invalid_prompt", "bio_policy", "misalignment_policy_violation"),
    }
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""A code as providers write them. Anything else may be a sentence, or a key."""
_COUNT = r"(\d{1,9})(?!\d)"
_WINDOW = re.compile(
    rf"(?:context|prompt) length (?:is|of)(?: only)? {_COUNT}|> {_COUNT} maximum|allowed \({_COUNT}\)"
    rf"|context limit: \d{{1,9}} \+ \d{{1,9}} > {_COUNT}"
    rf"|token limit: {_COUNT}|model with {_COUNT} maximum",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    rf"resulted in {_COUNT}|too long: {_COUNT}|count \({_COUNT}\)|context limit: {_COUNT} \+"
    rf"|\({_COUNT} (?:in the messages|in your prompt|of text input)|(?:request has|contains) {_COUNT}",
    re.IGNORECASE,
)
_PROMPT_TOOLS = re.compile(rf", {_COUNT} of tool input", re.IGNORECASE)
"""What is named beside the text and belongs to the prompt, too."""
_ABOVE_ALLOWANCE = re.compile(
    rf"request too large\b.{{0,300}}\btokens per min.{{0,20}}: limit {_COUNT}, requested {_COUNT}", re.IGNORECASE
)
_WINDOW_LESS_OUTPUT = re.compile(r"request has \d{1,9} input tokens\.", re.IGNORECASE)
"""Some servers of this wording state the window less the wanted output: nothing to remember it by."""
_CAP = re.compile(
    rf"at most {_COUNT}|> {_COUNT}, which is the maximum|less than or equal to [`'\"]?{_COUNT}"
    rf"|\[\d{{1,9}}, ?{_COUNT}\]|expected a value <= {_COUNT}",
    re.IGNORECASE,
)
_TRY_AGAIN = re.compile(r"try again in (\d{1,9}(?:\.\d{1,9})?) ?(ms|s)\b", re.IGNORECASE)
"""Where there are no headers any more."""
_BLAMING_CODE = re.compile(r"invalid_|unsupported_|empty_|image_|context_length_exceeded")
_LONGEST_WAIT_SECONDS = 31 * 86_400.0
"""Quotas are counted by the month at most. What is longer, `inf` included, is no time to tell a person."""


def status_error(status: int, headers: Mapping[str, str], body: object) -> ModelError:
    """The kind that an HTTP error answer stands for; `body` is the decoded `error` object, or the text."""
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    code, kind = str(fields.get("code") or ""), str(fields.get("type") or "")
    text = text_of_error(body)
    named = code or kind
    what = f"HTTP {status} {named}" if _NAME.fullmatch(named) else f"HTTP {status}"
    if code in _QUOTA_CODES or kind in _QUOTA_CODES or status == 402:
        return QuotaExceeded(what)
    if code in _FILTER_CODES or kind in _FILTER_CODES or (status == 403 and _is_flagged(fields)):
        return ContentFiltered(what)
    if status in (401, 403):
        return AuthRejected(what)
    if status in (413, 429) and (allowance := _allowance(text)) is not None:
        return ContextOverflow(what, window=allowance, is_of_account=True)
    if status == 429:
        return ModelRateLimited(what, retry_after=retry_after_seconds(headers))
    if status in (400, 422) and _OUTPUT_CAP.search(text) and _WINDOW.search(text) is None:
        return OutputCapTooLarge(what, cap=_number(_CAP, text))
    if status == 413 or code in _OVERFLOW_CODES or kind in _OVERFLOW_CODES or _is_overflow(status, fields, text):
        return _too_long(what, fields, text)
    if status >= 500 or status in (408, 409, 425):
        return ModelUnavailable(what, retry_after=retry_after_seconds(headers))
    return ModelError(what) if status in _BLAMES_REQUEST else NotOffered(what)


def text_of_error(body: object) -> str:
    """What a provider says, wherever it says it: some answer with a bare text, some with FastAPI's `detail`."""
    said = (body.get("message") or body.get("detail")) if isinstance(body, Mapping) else body
    return str(said or "")[:2_000]


def stream_error(body: object) -> ModelError:
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
    """How long an answer asks to be left alone, in seconds or until a date; None where it does not say, or nonsense."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= _LONGEST_WAIT_SECONDS:
            return seconds
    return _seconds_until(headers)


def _seconds_until(headers: Mapping[str, str]) -> float | None:
    """As far as the date lies behind that of the answer itself: clocks differ."""
    try:
        named, said = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (named - said).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    return seconds if 0 <= seconds <= _LONGEST_WAIT_SECONDS else None


def _is_flagged(fields: Mapping[str, Any]) -> bool:
    """OpenRouter says so of a prompt that its moderation refuses, and by nothing else than this."""
    metadata = fields.get("metadata")
    return isinstance(metadata, Mapping) and "flagged_input" in metadata


def _allowance(text: str) -> int | None:
    """What may be sent in a minute, where one request alone is more: it would be refused for ever."""
    found = _ABOVE_ALLOWANCE.search(text)
    return int(found[1]) if found is not None and int(found[1]) < int(found[2]) else None


def _is_overflow(status: int, fields: Mapping[str, Any], text: str) -> bool:
    """By wording. An error on the provider's side counts only as an object: a proxy's page may say anything."""
    return (status < 500 or bool(fields)) and _OVERFLOW.search(text) is not None


def _too_long(what: str, fields: Mapping[str, Any], text: str) -> ContextOverflow | OutputCapTooLarge:
    """Prompt and output are too long together: the output's fault if the prompt leaves room for an answer."""
    window = _count(fields.get("n_ctx")) or _number(_WINDOW, text)
    prompt = _count(fields.get("n_prompt_tokens")) or _number(_PROMPT, text)
    if prompt is not None:
        prompt += _number(_PROMPT_TOOLS, text) or 0
    if _WINDOW_LESS_OUTPUT.search(text):
        window = None
    if prompt is not None and window is not None:
        room = window - prompt - _uncertainty(prompt)
        if room >= LEAST_OUTPUT_ROOM:
            return OutputCapTooLarge(what, cap=room)
    return ContextOverflow(what, prompt_tokens=prompt, window=window)


def _uncertainty(prompt: int) -> int:
    """How far a stated prompt may be off: some providers say "about", and count the answer's frame later."""
    return 16 + prompt // 100


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return next((int(group) for group in found.groups() if group), None) if found else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1_000_000_000 else None
