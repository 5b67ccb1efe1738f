"""Classifier of providers' error answers: the kind of `ModelError` that each of them stands for.

Providers agree on little more than the status, and not always on that. So every answer is brought into one form first:
what it says may stand in `error`, in FastAPI's `detail`, in lists, in strings that are JSON again, and in a field of
whoever passed the request on. Then it is judged by its features: what it calls itself, which words stand together, and
the numbers beside them. A list of whole sentences would know yesterday's wordings only.

Nothing of a provider's text goes into our errors: it may quote a key or the prompt.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Final

from agent.model.base import ModelRequest
from agent.model.usage import ASSUMED_IMAGE_TOKENS, estimated_prompt_size
from hermes_state import errors
from hermes_state.errors import ImageFault, ModelError

MIN_OUTPUT_ROOM: Final = 256
"""Smallest room for an answer, in tokens: a prompt that leaves less is too long, whatever output was asked for."""
MIN_AFFORDED_OUTPUT: Final = 1_024
"""Shortest answer worth its call, in tokens, where the credit does not last for the one that was asked for."""
MAX_CHARACTERS: Final = 4_000
"""Most characters of one answer that are judged; what is said stands at the beginning."""
MAX_PARTS: Final = 200
"""Most fields and elements of one answer that are looked at."""
MAX_HELD_CHARACTERS: Final = 100_000
"""Longest JSON that is looked for in a text."""
MAX_DEPTH: Final = 10
MAX_WAIT_SECONDS: Final = 31 * 86_400.0
"""Longest pause that is believed, in seconds: quotas are counted by the month at most.

More, `inf` included, is no time to tell a person.
"""
MIN_WORDED_WAIT_SECONDS: Final = 5.0
"""Shortest pause, in seconds, that is looked for in words where there are headers to name one; ours are as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """Error answer of a provider, whatever its shape was."""

    status: int
    """HTTP status; behind a 200 the one that the error states itself, else 0."""
    headers: Mapping[str, str]
    text: str
    """All words and names of the error: one line in lower case, without quotes, underscores in names and thousands
    separators. Empty for a proxy's page, which may say anything."""
    stated: frozenset[int]
    """Statuses that the answer holds itself."""
    counts: Mapping[str, int]
    """Numbers by the name of their field."""
    name: str
    """The first name, as it was written; empty where it may be a sentence, or a key."""

    @property
    def title(self) -> str:
        return " ".join(filter(None, (f"HTTP {self.status}" if self.status else "in a stream", self.name)))

    @property
    def retry_after(self) -> float | None:
        """Seconds for which the provider asks not to be called again, by the headers or in words."""
        seconds = retry_after_seconds(self.headers)
        if seconds is not None or "retry-after" in self.headers:
            return seconds
        if (found := _WAIT.search(self.text)) is not None:
            parts = _WAIT_PART.findall(found[1])
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
            if self.headers and seconds < MIN_WORDED_WAIT_SECONDS:
                return None
        else:
            seconds = next((float(self.counts[key]) for key in _WAIT_COUNTS if key in self.counts), None)
        return seconds if seconds is not None and 0 <= seconds <= MAX_WAIT_SECONDS else None


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
    answer = _error_answer(status, headers, body)
    for recognise in (_filtered, _image, _of_account, _not_offered, _too_large):
        if (error := recognise(answer, request)) is not None:
            return error
    return _by_status(answer)


def stream_error(body: object, request: ModelRequest | None = None) -> ModelError:
    """The kind of an error that arrives after a 200: inside an event stream, or in place of the reply."""
    return status_error(0, {}, body, request)


def error_in(event: object) -> object:
    """The error in an event or reply of an API whose own events are no errors; None where there is none."""
    if not isinstance(event, Mapping):
        return None
    base = event.get("base_resp")  # MiniMax
    if event.get("error") or (isinstance(base, Mapping) and base.get("status_code")):
        return event
    is_reply = any(event.get(key) is not None for key in ("choices", "output", "content", "usage"))
    has_words = any(isinstance(event.get(key), str | list) for key in ("message", "msg", "detail", "error_msg"))
    return event if has_words and not is_reply else None


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an answer asks not to be called again; None where it names neither a number nor a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= MAX_WAIT_SECONDS:
            return seconds
    try:  # the date of the answer and the one it names, for clocks differ
        named, sent = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (named - sent).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    return seconds if 0 <= seconds <= MAX_WAIT_SECONDS else None


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
        if _says(answer, "unfetched"):
            return errors.ImageRejected(what, fault=ImageFault.UNREADABLE)
    if not _says(answer, "image") or _says(answer, "whole_prompt"):
        return None
    if (most := _number(answer, "most_images")) is not None:
        counted = ImageFault.TOO_MANY if most else ImageFault.UNSUPPORTED
        return errors.ImageRejected(what, fault=counted, max_count=most or None)
    fault = next((fault for feature, fault in _FAULTS.items() if _says(answer, feature)), None)
    if fault is ImageFault.TOO_LARGE:
        side = _number(answer, "most_pixels")
        return errors.ImageRejected(what, fault=fault, max_side=side, max_bytes=_most_bytes(answer))
    return None if fault is None else errors.ImageRejected(what, fault=fault)


_FAULTS: Final[Mapping[str, ImageFault]] = {
    "many_images": ImageFault.TOO_MANY,
    "unseen": ImageFault.UNSUPPORTED,
    "large_image": ImageFault.TOO_LARGE,
    "broken_image": ImageFault.UNREADABLE,
}
"""Faults of images by what tells them, the first that is found."""


def _most_bytes(answer: ErrorAnswer) -> int | None:
    """Most bytes of an image: the exact number where one is named, else the rounded one."""
    exact, rounded = _number(answer, "exact_bytes"), _found(answer, "round_bytes")
    if exact is not None and _says(answer, "sent_bytes"):
        return exact * 3 // 4
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
    """Wording for a model that may be missing or closed to the key: the status tells which."""
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
    if is_both and not is_claimed and taken is None and prompt is not None and prompt < (window or 0):
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


# ---- one form for all answers


def _error_answer(status: int, headers: Mapping[str, str], body: object) -> ErrorAnswer:
    """The answer with this status, 0 behind a 200; `body` is its JSON, decoded or not, or a text."""
    walk = _AnswerReader()
    if not (isinstance(body, str) and body.lstrip().startswith("<")):
        walk.take("message", body)
    names = [_HUMP.sub(r"\1 \2", name).replace("_", " ").replace("-", " ") for name in walk.names]
    said = " ; ".join([*walk.texts, *dict.fromkeys(names)])[:MAX_CHARACTERS].lower()
    said = " ".join(said.translate(_UNQUOTED).split()).replace("context deadline", "deadline")
    return ErrorAnswer(
        status=status if status >= 400 else next(iter(walk.statuses), 0),
        headers=headers,
        text=_SEPARATOR.sub(lambda match: match[1] or "", said),
        stated=frozenset(walk.statuses),
        counts=walk.counts,
        name=next(filter(_NAME.fullmatch, walk.names), ""),
    )


@dataclass(slots=True)
class _AnswerReader:
    """Parts of an answer, collected from wherever they stand."""

    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    parts: int = 0

    def take(self, key: str, value: object, depth: int = 0) -> None:
        self.parts += 1
        if key == "flagged_input":  # OpenRouter's moderation says so by nothing else
            self.names.append("flagged")
        if depth > MAX_DEPTH or self.parts > MAX_PARTS or key in _QUOTING:
            return
        if isinstance(value, Mapping):
            for name, part in value.items():
                self.take(str(name).lower(), part, depth + 1)
        elif isinstance(value, list):
            for part in value:
                self.take(key, part, depth + 1)
        elif type(value) is int:
            self.counts.setdefault(key.replace("_", " "), value)
            if key in _NAMING:
                self._take_text(key, str(value), depth)
        elif isinstance(value, str):
            self._take_text(key, value, depth)

    def _take_text(self, key: str, text: str, depth: int) -> None:
        begin = _JSON_BEGIN.search(text)
        if begin is not None and (parsed := _parsed(text[begin.start() :])) is not None:
            self.take(key, parsed, depth + 1)
            text = text[: begin.start()]  # some put words in front of what they pass on
        if key in _NAMING and text.isdigit():
            if len(text) == 3 and 400 <= int(text) < 600:
                self.statuses.append(int(text))
            self.names.append(f"#{text}")  # else it would be taken for a number of tokens
        elif (key in _NAMING and " " not in text.strip()) or ("_" in text and _NAME.fullmatch(text)):
            self.names.insert(0 if key == "code" else len(self.names), text.strip()[:MAX_CHARACTERS])
        elif key in _NAMING or any(part in key for part in _SAYING):
            self.texts.append(text[:MAX_CHARACTERS])
        elif "retry" in key:
            self.texts.append(f"retry in {text}")


def _parsed(text: str) -> object:
    """The JSON that a text begins with; None where it is none, or too long."""
    end = max(text.rfind("}"), text.rfind("]"))
    if not 0 < end < MAX_HELD_CHARACTERS:
        return None
    try:
        value: object = json.loads(text[: end + 1])
    except (ValueError, RecursionError):
        return None
    return value


_QUOTING: Final = frozenset(
    {"input", "flagged_input", "failed_generation", "headers", "user_id", "request_id", "id", "provider_name", "url"}
)
"""Fields that quote the request, or name something: no words of the error."""
_NAMING: Final = frozenset(
    {
        *("code", "type", "status", "statuscode", "status_code", "http_code", "error_code", "errorcode", "error_type"),
        *("__type", "reason", "kind", "cause", "quotaid", "param"),
    }
)
"""Fields by which errors call themselves."""
_SAYING: Final = ("message", "msg", "detail", "error", "description", "title", "raw", "body", "text", "reason", "hint")
"""Parts of the names of fields that hold words."""
_JSON_BEGIN: Final = re.compile(r"[{\[]\s{0,40}[\"{\[]")
_HUMP: Final = re.compile(r"([a-z0-9])([A-Z])")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""Form of a name as providers write them. Anything else may be a sentence, or a key."""
_UNQUOTED: Final = str.maketrans(dict.fromkeys("`'\"*\u2018\u2019\u201c\u201d\\", ""))
_SEPARATOR: Final = re.compile(r"(\[\s*\d+\s*,\s*\d+\s*\])|(?<=\d)[,_\u202f\u00a0](?=\d{3}(?!\d))")
"""Separators of thousands; not the comma of a range."""
_UNIT_SECONDS: Final = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WAIT_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|mil|[smhd])")
_WAIT_COUNTS: Final = ("retry after", "retry after seconds", "resets in seconds")
_WAIT: Final = re.compile(
    r"(?:(?:try|retry)(?: again)?(?: after| in)|reset(?:s|ting)? in|wait(?: for)?|available in)[ :=]*(?:about )?(("
    r"?:\d{1,9}(?:\.\d{1,9})? ?(?:ms|milliseconds?|s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|d|days?)\b[ ,]*(?:and )?)+)"
)
