"""Classifier of providers' error answers: the kind of `ModelError` that each of them stands for.

Providers agree on little more than the status, and not always on that. So every answer is brought into one form first,
and then judged by its features: what it calls itself, which words stand together, and the numbers beside them. A list
of whole sentences would know yesterday's wordings only.

Nothing of a provider's text goes into our errors: it may quote a key or the prompt.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from agent.model.base import ModelRequest
from agent.model.error_answer import ErrorAnswer, error_answer
from agent.model.usage import ASSUMED_IMAGE_TOKENS, estimated_prompt_size
from hermes_state import errors
from hermes_state.errors import ImageFault, ModelError

MIN_OUTPUT_ROOM: Final = 256
"""Smallest room for an answer, in tokens: a prompt that leaves less is too long, whatever output was asked for."""
MIN_AFFORDED_OUTPUT: Final = 1_024
"""Shortest answer worth its call, in tokens, where the credit does not last for the one that was asked for."""


def status_error(
    status: int, headers: Mapping[str, str], body: object, request: ModelRequest | None = None
) -> ModelError:
    """The kind of error that an HTTP error answer stands for; `body` is its JSON, decoded or not, or a text.

    `request`: the one that was refused, where it is known; it tells what the numbers mean.

    >>> status_error(429, {"retry-after": "20"}, {"code": "rate_limit_exceeded"}).retry_after
    20.0
    >>> status_error(400, {}, "This model's maximum context length is 8192 tokens.").window
    8192
    """
    answer = error_answer(status, headers, body)
    for recognise in (_filtered, _image, _of_account, _not_offered, _too_large):
        if (error := recognise(answer, request)) is not None:
            return error
    return _by_status(answer)


def stream_error(body: object, request: ModelRequest | None = None) -> ModelError:
    """The kind of an error that arrives after a 200: inside an event stream, or in place of the reply."""
    return status_error(0, {}, body, request)


# ---- from features to kinds


def _by_status(answer: ErrorAnswer) -> ModelError:
    status, what, passes = answer.status, answer.title, _says(answer, "passing")
    if status == 402:
        return errors.QuotaExceeded(what)
    if status in (401, 403, 407):
        return errors.AuthRejected(what)
    if status == 451:
        return errors.ContentFiltered(what)
    if status == 429:
        return errors.ModelRateLimited(what, retry_after=answer.retry_after)
    if _blames_request(answer) and not passes:
        return ModelError(what)
    if passes or status in (0, 408, 409, 425) or status >= 500:
        return errors.ModelUnavailable(what, retry_after=answer.retry_after)
    return errors.ModelNotFound(what)


def _blames_request(answer: ErrorAnswer) -> bool:
    """True where the request is called invalid, whatever the status is: it would fare alike again."""
    if answer.status in _REQUEST_FAULTS:
        return True
    is_open = answer.status == 0 or answer.status >= 500
    return is_open and (not answer.stated.isdisjoint(_REQUEST_FAULTS) or _says(answer, "invalid"))


def _filtered(answer: ErrorAnswer, _request: ModelRequest | None) -> ModelError | None:
    return errors.ContentFiltered(answer.title) if _says(answer, "filtered") else None


def _image(answer: ErrorAnswer, request: ModelRequest | None) -> ModelError | None:
    """Error for an image in the request. Where there is one, what is only too large is so because of it."""
    what = answer.title
    if request is not None and estimated_prompt_size(request).images:
        if _says(answer, "no_parts"):
            return errors.ImageRejected(what, fault=ImageFault.UNSUPPORTED)
        if answer.status == 413 and not _says(answer, "tokens"):
            return errors.ImageRejected(what, fault=ImageFault.TOO_LARGE)
    if not _says(answer, "image") or _says(answer, "whole_prompt"):
        return None
    if (most := _number(answer, "most_images")) is not None:
        fault = ImageFault.TOO_MANY if most else ImageFault.UNSUPPORTED
        return errors.ImageRejected(what, fault=fault, max_count=most or None)
    if _says(answer, "unseen"):
        return errors.ImageRejected(what, fault=ImageFault.UNSUPPORTED)
    if _says(answer, "large_image"):
        side = _number(answer, "most_pixels")
        return errors.ImageRejected(what, fault=ImageFault.TOO_LARGE, max_side=side, max_bytes=_most_bytes(answer))
    return errors.ImageRejected(what, fault=ImageFault.UNREADABLE) if _says(answer, "broken_image") else None


def _most_bytes(answer: ErrorAnswer) -> int | None:
    """Most bytes of an image: the exact number where one is named, else the rounded one."""
    exact, rounded = _number(answer, "exact_bytes"), _found(answer, "round_bytes")
    if exact is not None or rounded is None:
        return exact
    return int(float(rounded[1]) * (1_000 if rounded[2] == "k" else 1_000_000))


def _of_account(answer: ErrorAnswer, _request: ModelRequest | None) -> ModelError | None:
    """Error for what the account lacks, for a while or until somebody does something: allowance, credit, a plan."""
    what, status, wait = answer.title, answer.status, answer.retry_after
    if (afforded := _number(answer, "afforded")) is not None:
        is_worth_it = afforded >= MIN_AFFORDED_OUTPUT
        return errors.OutputCapTooLarge(what, cap=afforded) if is_worth_it else errors.QuotaExceeded(what)
    found = _found(answer, "above_allowance")
    if found is not None and int(found[1]) < int(found[2]):  # this request alone is too much: refused for ever
        return errors.ContextOverflow(what, window=int(found[1]), is_of_account=True)
    if _says(answer, "long_context"):
        return errors.ContextOverflow(what)
    if _says(answer, "not_in_plan"):
        return errors.AuthRejected(what, is_of_plan=True)
    is_rate = status != 413 and _says(answer, "rate")
    if _says(answer, "no_credit") and not (is_rate and (wait is not None or _says(answer, "pace"))):
        return errors.QuotaExceeded(what)
    if _says(answer, "quota") and not (is_rate or status == 429):
        return errors.QuotaExceeded(what)
    if status == 429 and _says(answer, "overloaded"):
        return errors.ModelUnavailable(what, retry_after=wait)
    is_slowed = is_rate or (status in (402, 403) and wait is not None)
    if is_slowed and (status < 500 or 429 in answer.stated):
        return errors.ModelRateLimited(what, retry_after=wait)
    return None


def _not_offered(answer: ErrorAnswer, _request: ModelRequest | None) -> ModelError | None:
    """Where a model may be missing or closed to the key, some say only that it is one of both; the status tells."""
    is_closed = _says(answer, "no_access")
    if _says(answer, "no_model") and not (is_closed and answer.status in (401, 403)):
        return errors.ModelNotFound(answer.title)
    return errors.AuthRejected(answer.title) if is_closed else None


def _too_large(answer: ErrorAnswer, request: ModelRequest | None) -> ModelError | None:
    """Error for a prompt, or an output, that is too large for the model."""
    what, counts = answer.title, answer.counts
    window = _token_count(counts.get("n ctx")) or _number(answer, "window")
    prompt = _token_count(counts.get("n prompt tokens")) or _number(answer, "prompt")
    is_prompt = _says(answer, "overflow") and not _says(answer, "other_length")
    is_both, is_vain = _says(answer, "both"), _says(answer, "negative_output")
    if _says(answer, "output_cap") and not (is_both or is_vain or (is_prompt and window and prompt)):
        return errors.OutputCapTooLarge(what, cap=_stated_cap(answer), is_of_model=True)
    if not (is_prompt or is_both or is_vain or answer.status == 413 or _names_prompt(answer, request)):
        return None
    if answer.status == 402:  # it is the credit that does not last for the prompt
        return errors.ContextOverflow(what, prompt_tokens=prompt, window=window, is_of_account=True)
    if prompt is not None:
        prompt += _number(answer, "prompt_tools") or 0
    if _says(answer, "window_less_output"):
        window = None
    # Where only the sum is stated, or the prompt was counted no further than it fits, our estimate has to do.
    is_counted = prompt is not None and not _says(answer, "partly_counted")
    taken = prompt
    if not is_counted and (is_both or prompt is not None):
        taken = None if request is None else max(prompt or 0, _estimated_tokens(request))
    is_claimed = _says(answer, "claimed")
    if window is not None and taken is not None and not is_claimed:
        # Some providers say "about", and count the answer's frame later; an estimate is further off.
        room = window - taken - (16 + taken // (100 if is_counted else 20))
        if room >= MIN_OUTPUT_ROOM:
            return errors.OutputCapTooLarge(what, cap=room)
    if is_both and taken is None and prompt is not None and prompt < (window or 0):
        return errors.OutputCapTooLarge(what)
    return errors.ContextOverflow(
        what,
        prompt_tokens=prompt if is_counted else None,
        window=None if is_claimed and window and prompt and prompt <= window else window,
        is_of_input=_says(answer, "input_bound") and not is_both,
    )


def _stated_cap(answer: ErrorAnswer) -> int | None:
    """Largest output limit that is allowed; some name the first one that is not."""
    if (above := _number(answer, "first_above_cap")) is not None:
        return above - 1
    return _number(answer, "cap")


def _names_prompt(answer: ErrorAnswer, request: ModelRequest | None) -> bool:
    """True where a refusal speaks of length, and names a number near the prompt's estimated size."""
    if request is None or not (_blames_request(answer) and _says(answer, "length")) or _says(answer, "other_length"):
        return False
    estimated = _estimated_tokens(request)
    return any(
        estimated <= int(number) * 2 <= estimated * 4 for number in _features()["token_number"][0].findall(answer.text)
    )


def _estimated_tokens(request: ModelRequest) -> int:
    size = estimated_prompt_size(request)
    return size.text + size.images * ASSUMED_IMAGE_TOKENS


def _says(answer: ErrorAnswer, feature: str) -> bool:
    return _found(answer, feature) is not None


def _number(answer: ErrorAnswer, feature: str) -> int | None:
    """Number beside the words of a feature."""
    found = _found(answer, feature)
    return None if found is None else next((int(group) for group in found.groups() if group), None)


def _found(answer: ErrorAnswer, feature: str) -> re.Match[str] | None:
    return next(filter(None, (pattern.search(answer.text) for pattern in _features()[feature])), None)


def _token_count(value: int | None) -> int | None:
    return value if value is not None and 0 < value < 1_000_000_000 else None


# ---- the features

_REQUEST_FAULTS: Final = frozenset({400, 422})
"""Statuses that blame the request: without a reason it may be anything about it, its length too."""


@cache
def _features() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """The patterns of each feature, as the head of the file describes them; read when the first refusal comes."""
    stored = tomllib.loads(Path(__file__).with_name("error_features.toml").read_text(encoding="utf-8"))
    parts = {name: _joined(lines) for name, lines in stored.pop("parts").items()}

    def pattern(lines: str) -> re.Pattern[str]:
        written = _joined(lines).replace("<n>", r"(\d{1,9})(?![\d.]{0,9}\d)")
        for name, part in parts.items():
            written = written.replace(f"<{name}>", part)
        return re.compile(written, re.ASCII)  # else a word would not end before Chinese

    listed = {name: [found] if isinstance(found, str) else found for name, found in stored.items()}
    return {name: tuple(map(pattern, found)) for name, found in listed.items()}


def _joined(lines: str) -> str:
    return lines.strip("\n").replace("\n ", "").replace("\n", "|")
