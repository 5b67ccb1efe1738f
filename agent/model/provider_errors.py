"""From a provider's error answer to our error tree.

Providers agree on little more than the status, so codes and wordings are looked at too. Nothing of the provider's
text goes into our errors: it may quote a key or the prompt.
"""

import re
from collections.abc import Mapping
from typing import Any

from hermes_state.errors import (
    AuthRejected,
    ContentFiltered,
    ContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelUnavailable,
    OutputCapTooLarge,
    QuotaExceeded,
)

_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_OVERFLOW = re.compile(
    r"maximum context length|context_length_exceeded|prompt is too long|exceeds the available context size"
    r"|input token count .{0,40}exceeds|context window",
    re.IGNORECASE,
)
_OUTPUT_CAP = re.compile(
    r"max_(?:completion_)?tokens is too large|`?max_tokens`? exceed context limit|^max_tokens: \d+ >", re.IGNORECASE
)
_QUOTA_CODES = frozenset({"insufficient_quota", "insufficient_credits", "billing_hard_limit_reached"})
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""A code as providers write them. Anything else may be a sentence, or a key."""
_WINDOW = re.compile(r"context length is (\d+)|> (\d+) maximum|allowed \((\d+)\)", re.IGNORECASE)
_PROMPT = re.compile(r"resulted in (\d+)|too long: (\d+)|count \((\d+)\)|\((\d+) in the messages", re.IGNORECASE)
_CAP = re.compile(r"at most (\d+)|> (\d+), which is the maximum", re.IGNORECASE)
_LONGEST_WAIT_SECONDS = 31 * 86_400.0
"""Quotas are counted by the month at most. What is longer, `inf` included, is no time to tell a person."""


def status_error(status: int, headers: Mapping[str, str], body: object) -> ModelError:
    """The kind that an HTTP error answer stands for; `body` is the decoded `error` object, or the text."""
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    code, kind = str(fields.get("code") or ""), str(fields.get("type") or "")
    text = str(fields.get("message") or (body if isinstance(body, str) else ""))[:2_000]
    named = code or kind
    what = f"HTTP {status} {named}" if _NAME.fullmatch(named) else f"HTTP {status}"
    if code in _QUOTA_CODES or kind in _QUOTA_CODES or status == 402:
        return QuotaExceeded(what)
    if status in (401, 403):
        return AuthRejected(what)
    if status == 429:
        return ModelRateLimited(what, retry_after=retry_after_seconds(headers))
    if code in _FILTER_CODES or kind in _FILTER_CODES:
        return ContentFiltered(what)
    if status in (400, 422) and _OUTPUT_CAP.search(text):
        return OutputCapTooLarge(what, cap=_number(_CAP, text))
    if status == 413 or code in _OVERFLOW_CODES or kind in _OVERFLOW_CODES or (status < 500 and _OVERFLOW.search(text)):
        return _overflow(what, fields, text)
    if status >= 500 or status in (408, 409, 425):
        return ModelUnavailable(what)
    return ModelError(what)


def stream_error(body: object) -> ModelError:
    """The kind of an error that arrives inside an event stream, after a 200."""
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return status_error(status, {}, body)


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """What a rate-limit answer asks for; None where it does not say, or only as a date, or nonsense."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= _LONGEST_WAIT_SECONDS:
            return seconds
    return None


def _overflow(what: str, fields: Mapping[str, Any], text: str) -> ContextOverflow:
    window, prompt = fields.get("n_ctx"), fields.get("n_prompt_tokens")
    return ContextOverflow(
        what,
        prompt_tokens=prompt if isinstance(prompt, int) else _number(_PROMPT, text),
        window=window if isinstance(window, int) else _number(_WINDOW, text),
    )


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return next((int(group) for group in found.groups() if group), None) if found else None
