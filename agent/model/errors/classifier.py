"""Classifier for providers' error responses: finds the right kind of `ModelError` for each.

Providers agree on little more than the status. A response is therefore normalised and then classified by its features:
error names, combinations of words, and numbers next to those words. A list of known sentences would miss new wordings.
Our errors never contain a provider's text, because it might quote a key or the prompt.
"""

import re
from collections.abc import Mapping
from typing import Final

from agent.model.base import ModelRequest
from agent.model.errors.answer import ErrorAnswer, error_answer
from agent.model.usage import estimated_prompt_size
from hermes_state import errors
from hermes_state.errors import ImageFault, ModelError

MIN_OUTPUT_ROOM: Final = 256
"""Minimum number of tokens left for an answer. A prompt that leaves fewer counts as too long."""
_REQUEST_FAULTS: Final = frozenset({400, 415, 422})
"""HTTP statuses that providers use for any fault in a request, such as excessive length."""


def status_error(
    status: int, headers: Mapping[str, str], body: object, request: ModelRequest | None = None
) -> ModelError:
    """Return the error for an HTTP error response. `body` is decoded JSON, JSON text, or other text.

    `request`: the refused request, which helps to interpret the numbers in the response.

    >>> status_error(429, {"retry-after": "20"}, {"code": "rate_limit_exceeded"}).retry_after
    20.0
    >>> status_error(400, {}, "This model's maximum context length is 8192 tokens.").window
    8192
    """
    answer = error_answer(status, headers, body)
    if answer.says("unread_call"):
        return errors.ReplyUnfinished(answer.title)
    if answer.says("filtered"):
        return errors.ContentRejected(answer.title)
    if (error := _image(answer, request)) is not None:
        return error
    if answer.says("shape"):  # checked first, because it can come with any status
        return errors.ShapeRejected(answer.title)
    return _of_account(answer) or _not_offered(answer) or _too_large(answer, request) or _by_status(answer)


def stream_error(body: object, request: ModelRequest | None = None) -> ModelError:
    """Return the `ModelError` for an error that arrives after a 200, in an event stream or instead of a reply."""
    return status_error(0, {}, body, request)


def error_in(event: object) -> object:
    """Return the error object in an event or reply, or None if it has no error."""
    if not isinstance(event, dict):
        return None
    base = event.get("base_resp")  # MiniMax
    if event.get("error") or (isinstance(base, Mapping) and base.get("status_code")):
        return event
    if event.get("choices") is not None:
        return None  # the most common case
    if not any(isinstance(event.get(key), str | list) for key in ("message", "msg", "detail", "error_msg")):
        return None
    is_reply = any(event.get(key) is not None for key in ("output", "content", "usage"))
    return None if is_reply else event


# ---- from features to kinds


def _by_status(answer: ErrorAnswer) -> ModelError:
    status, what, passes = answer.status, answer.title, answer.says("passing")
    match status:
        case 402:
            return errors.QuotaExceeded(what)
        case 401 | 403 | 407:
            return errors.AuthRejected(what)
        case 451:
            return errors.ContentRejected(what)
        case 429:
            return errors.ModelRateLimited(what, retry_after=answer.retry_after)
    if _blames_request(answer) and not passes:
        is_shape = _names_messages(answer) or answer.says("conversation")
        return errors.ShapeRejected(what) if is_shape else ModelError(what)
    if passes or status in (0, 408, 409, 425) or status >= 500:
        return errors.ModelUnavailable(what, retry_after=answer.retry_after)
    return errors.ModelNotFound(what)


def _names_messages(answer: ErrorAnswer) -> bool:
    return any(field.startswith(("messages", "input[")) for field in answer.fields)


def _blames_request(answer: ErrorAnswer) -> bool:
    """Return True if the request itself is invalid, so that a retry would be pointless.

    The status decides. If it is missing or a server error, the text of the response decides instead.
    """
    if answer.status in _REQUEST_FAULTS:
        return True
    is_open = answer.status == 0 or answer.status >= 500
    return is_open and (not answer.stated.isdisjoint(_REQUEST_FAULTS) or answer.says("invalid"))


def _image(answer: ErrorAnswer, request: ModelRequest | None) -> ModelError | None:
    """Return the error for a refused image, or None. A plain "too large" is blamed on the request's images, if any."""
    what = answer.title
    if request is not None and estimated_prompt_size(request).images:
        if answer.says("no_parts"):
            return errors.ImageRejected(what, fault=ImageFault.UNSUPPORTED)
        if answer.status == 413 and not answer.says("tokens"):
            return errors.ImageRejected(what, fault=ImageFault.TOO_LARGE)
        if answer.says("unfetched"):
            return errors.ImageRejected(what, fault=ImageFault.UNREADABLE)
    if not answer.says("image") or answer.says("whole_prompt"):
        return None
    if (most := answer.number("most_images")) is not None:
        counted = ImageFault.TOO_MANY if most else ImageFault.UNSUPPORTED
        return errors.ImageRejected(what, fault=counted, max_count=most or None)
    faults = {
        "many_images": ImageFault.TOO_MANY,
        "unseen": ImageFault.UNSUPPORTED,
        "large_image": ImageFault.TOO_LARGE,
        "broken_image": ImageFault.UNREADABLE,
    }
    fault = next((fault for feature, fault in faults.items() if answer.says(feature)), None)
    if fault is ImageFault.TOO_LARGE:
        side = answer.number("most_pixels")
        return errors.ImageRejected(what, fault=fault, max_side=side, max_bytes=_most_bytes(answer))
    return None if fault is None else errors.ImageRejected(what, fault=fault)


def _most_bytes(answer: ErrorAnswer) -> int | None:
    """Return the maximum size of an image in bytes: the exact number if stated, else the rounded one."""
    exact, rounded = answer.number("exact_bytes"), answer.found("round_bytes")
    if exact is not None and answer.says("sent_bytes"):
        return exact * 3 // 4
    if exact is not None or rounded is None:
        return exact
    return int(float(rounded[1]) * (1_000 if rounded[2] == "k" else 1_000_000))


def _of_account(answer: ErrorAnswer) -> ModelError | None:
    """Return the error if the account's rate limit, quota, credit or plan caused the refusal, else None."""
    what, status, wait = answer.title, answer.status, answer.retry_after
    if (afforded := answer.number("afforded")) is not None:
        is_worth_it = afforded >= 1_024  # in tokens; a shorter answer is not worth a call
        return errors.OutputCapExceeded(what, cap=afforded) if is_worth_it else errors.QuotaExceeded(what)
    found = answer.found("above_allowance")
    if found is not None and int(found[1]) < int(found[2]):  # waiting does not help
        return errors.ContextOverflow(what, window=int(found[1]), is_of_account=True)
    if answer.says("long_context"):
        return errors.ContextOverflow(what)
    if answer.says("not_in_plan"):
        return errors.AuthRejected(what, is_of_plan=True)
    is_rate = status != 413 and answer.says("rate")
    if answer.says("no_credit") and not (is_rate and (wait is not None or answer.says("pace"))):
        return errors.QuotaExceeded(what)
    if answer.says("quota") and not (is_rate or status == 429):
        return errors.QuotaExceeded(what)
    if status == 429 and answer.says("overloaded"):
        return errors.ModelUnavailable(what, retry_after=wait)
    is_slowed = is_rate or (status in (402, 403) and wait is not None)
    if is_slowed and (status < 500 or 429 in answer.stated):
        return errors.ModelRateLimited(what, retry_after=wait)
    return None


def _not_offered(answer: ErrorAnswer) -> ModelError | None:
    """Return the error for a model that does not exist, or that the key may not use."""
    is_closed = answer.says("no_access")
    if answer.says("no_model") and not (is_closed and answer.status in (401, 403)):
        return errors.ModelNotFound(answer.title)
    return errors.AuthRejected(answer.title) if is_closed else None


def _too_large(answer: ErrorAnswer, request: ModelRequest | None) -> ModelError | None:
    """Return the error for a prompt or an output limit that is too large for the model."""
    what = answer.title
    window = answer.count("n ctx") or answer.number("window")
    prompt = answer.count("n prompt tokens") or answer.number("prompt")
    is_prompt = answer.says("overflow") and not answer.says("other_length")
    is_both, is_vain = answer.says("both"), answer.says("negative_output")
    if not (is_both or is_vain or (is_prompt and window and prompt)):
        above = answer.number("first_above_cap") or answer.count("lt")  # the lowest limit that is too high
        cap = answer.number("cap") if above is None else above - 1
        bounds = map(answer.count, ("le", "limit value", "maximum", "limit", "max"))  # field names of validators
        cap = cap or next(filter(None, bounds), None)
        asked = request.max_output_tokens if request is not None else None
        is_above = cap is not None and asked is not None and cap < asked in answer.numbers("token_number")
        limit = re.compile(r"\bmax_?(?:completion_?|output_?|new_?)?tokens$|\bnum_predict$")
        if answer.says("output_cap") or is_above or (cap and any(map(limit.search, answer.fields))):
            return errors.OutputCapExceeded(what, cap=cap, is_of_model=True)
    if not (is_prompt or is_both or is_vain or answer.status == 413 or _names_prompt(answer, request)):
        return None
    if answer.status == 402:  # the credit does not cover the prompt
        return errors.ContextOverflow(what, prompt_tokens=prompt, window=window, is_of_account=True)
    if prompt is not None:
        prompt += answer.number("prompt_tools") or 0
    if answer.says("characters") and not answer.says("tokens"):
        prompt = window = None
    if answer.says("window_less_output"):
        window = None
    return _overflow(answer, request, prompt, window, is_both=is_both)


def _overflow(
    answer: ErrorAnswer, request: ModelRequest | None, prompt: int | None, window: int | None, *, is_both: bool
) -> ModelError:
    """Return `OutputCapExceeded` if a shorter answer would fit, else `ContextOverflow`.

    `is_both`: the sizes in the refusal include the output.
    """
    # If only the sum is stated, or counting stopped at the limit, use our own estimate.
    is_counted = prompt is not None and not answer.says("partly_counted")
    taken = prompt
    if not is_counted and (is_both or prompt is not None):
        taken = None if request is None else max(prompt or 0, estimated_prompt_size(request).tokens)
    if answer.says("claimed"):
        window = None if window and prompt and prompt <= window else window
    elif window is not None and taken is not None:
        # The margin allows for rounding and for tokens that some providers add. An estimate needs a larger margin.
        room = window - taken - (16 + taken // (100 if is_counted else 20))
        if room >= MIN_OUTPUT_ROOM:
            return errors.OutputCapExceeded(answer.title, cap=room)
    elif is_both and taken is None and prompt is not None and prompt < (window or 0):
        return errors.OutputCapExceeded(answer.title)
    return errors.ContextOverflow(
        answer.title,
        prompt_tokens=prompt if is_counted else None,
        window=window,
        is_of_input=answer.says("input_bound") and not is_both,
    )


def _names_prompt(answer: ErrorAnswer, request: ModelRequest | None) -> bool:
    """Return True if a refusal is probably about the length of the prompt.

    Such a refusal names a limit in characters for messages, or a length and a number close to the prompt's estimated
    size.
    """
    if answer.says("characters") and _names_messages(answer) and not answer.says("other_length"):
        return True
    if request is None or not (_blames_request(answer) and answer.says("length")) or answer.says("other_length"):
        return False
    estimated = estimated_prompt_size(request).tokens
    return any(estimated <= number * 2 <= estimated * 4 for number in answer.numbers("token_number"))
