"""Redaction of a text, with or without the configured secrets, and the places where a text may be cut."""

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

from hermes_state.redaction.encodings import holds_encoded
from hermes_state.redaction.named import MAX_HEADER_CHARS, named_secrets
from hermes_state.redaction.parts import MIN_SECRET_CHARS, secret_parts
from hermes_state.redaction.patterns import Span, expression, words_in
from hermes_state.redaction.shapes import MARK, without_shapes
from hermes_state.redaction.speech import card_numbers, told_secrets

_URL_PASSWORD = re.compile(r"://([^\s/:@\"'<>]*):([^\s/@\"'<>]+)(?=@)")
_URL_TOKEN = re.compile(
    r"://(?:(?<=http://)|(?<=https://)|(?=[A-Za-z0-9_~=-]{16}))(?=[^\s/:@]{0,80}[0-9])[A-Za-z0-9_~=-]{6,500}"
    r"(?=:?@|:[a-z-]{1,20}@)"
)
# Behind the last letters of `Bearer`, `password` and the like, or behind a sign, a secret may follow.
_SEAM = re.compile(r"""(?<=[^\srctnydeRCTNYDE"'\\:=>])\s""")
_QUOTE_ENDS = "\"'\r\n"
_QUOTE_END = re.compile(f"[{_QUOTE_ENDS}]")
_REACH_CHARS = 140
"""More characters than a secret with a space in it has with its name, but for quoted values, headers and commands."""
_COMMAND_CHARS = 600
_SEAM_TRIES = 50
MAX_KNOWN_CLEAN = 4_096
"""Texts remembered to hold no secret, by a digest; the same names and words come in every line of a log."""


def redact(text: str) -> str:
    """`text` without anything that looks like a secret; see `Redactor` for one that also knows the configured ones."""
    text = without_shapes(text)
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(rf"://\1:{MARK}", _URL_TOKEN.sub(f"://{MARK}", text))
    lower = text.replace("\u0130", "I").lower()  # the one letter that is two in lower case
    spans = list(card_numbers(text, lower))
    if words := words_in(lower):
        spans += (*named_secrets(text, lower, words), *told_secrets(text, lower, words))
    return _marked(text, sorted(spans)) if spans else text


def _marked(text: str, spans: Iterable[Span]) -> str:
    """`text` with a mark in place of each span, and one for those that overlap."""
    kept: list[str] = []
    done = 0
    for start, end in spans:
        if start >= done:
            kept += (text[done:start], MARK)
        done = max(done, end)
    return "".join((*kept, text[done:]))


def seam(text: str, start: int, end: int) -> int | None:
    """The first index between `start` and `end` at which `text` can be cut: nothing that is taken out reaches over it.

    A space or line break, with the pieces in front of it and from it on redacted by themselves.
    """
    if "-----BEGIN" in text:
        return None
    looked, quote, tries = 0, -1, _SEAM_TRIES
    while (found := _SEAM.search(text, start, end)) is not None:
        index = found.start()
        quote = max(quote, *(text.rfind(mark, looked, index) for mark in _QUOTE_ENDS))
        if quote < 0 or not _may_open_value(text, quote):
            if _is_apart(text, index):
                return index
            if (tries := tries - 1) == 0:
                return None
            start = index + 1
            continue
        behind = _QUOTE_END.search(text, index, end)
        if behind is None:
            return None
        looked, start = index, behind.end()
    return None


def _is_apart(text: str, index: int) -> bool:
    """True when nothing around `index` but a quoted value, which may be longer, reaches over it."""
    line = text.rfind("\n", max(0, index - MAX_HEADER_CHARS), index) + 1
    start, end = max(0, index - _REACH_CHARS), index + _REACH_CHARS
    first = min(line, max(0, index - _COMMAND_CHARS))
    before = text[first:index].lower()  # which may be longer
    if any(word in before for word in ("curl", "cookie", "authorization")):
        start, end = first, index + _COMMAND_CHARS
    around = text[start:end]
    if not words_in(around.lower()) and expression("cards", "hint").search(around) is None:
        return True
    return redact(text[start:index]) + redact(text[index:end]) == redact(around)


def _may_open_value(text: str, index: int) -> bool:
    return text[index] in "\"'" and text[max(0, index - 7) : index].rstrip("\\").rstrip().endswith((":", "=", ">"))


def _written(secret: str) -> tuple[str, ...]:
    """Return the secret as texts hold it: plain, in an address, in JSON."""
    in_path, in_query = quote(secret), quote(secret, safe="")
    lower = (re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in (in_path, in_query))
    return (secret, in_path, in_query, *lower, json.dumps(secret)[1:-1])


class Redactor:
    """Takes out the configured secrets and their parts (plain, URL-encoded, JSON-escaped), then what `redact` finds.

    Remembers what it has seen clean; other secrets need another redactor.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        known = given.union(*map(secret_parts, given))
        whole = {form for secret in known for form in _written(secret)}
        # A text may be cut at a seam inside of one (the lines of a key, say): each piece is a secret, too.
        pieces = {piece for form in whole for piece in _SEAM.split(form) if len(piece) >= MIN_SECRET_CHARS}
        self._forms = sorted(whole | pieces, key=lambda form: (-len(form), form))  # the longest first
        self._known = known
        self._exact = re.compile("|".join(map(re.escape, self._forms))) if self._forms else None
        self._clean: set[int] = set()

    def __call__(self, text: str) -> str:
        digest = hash(text)
        if digest in self._clean:
            return text
        safe = self._redacted(text)
        if safe == text:
            if len(self._clean) >= MAX_KNOWN_CLEAN:
                self._clean.clear()
            self._clean.add(digest)
        return safe

    def knows(self, text: str) -> bool:
        """True when a configured secret stands in `text`."""
        return any(form in text for form in self._forms)

    def would_leak(self, text: str) -> bool:
        """True when a configured secret stands in `text`, also in a common encoding (`docs/tools.md`)."""
        return self.knows(text) or holds_encoded(text, self._known)

    def _redacted(self, text: str) -> str:
        if self._exact is not None and self.knows(text):
            text = self._exact.sub(MARK, text)
        return redact(text)
