"""Redaction of a text with or without configured secrets, and places where a text can be split safely."""

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote_plus

from hermes_state.redaction.assignments import MAX_HEADER_CHARS, named_secrets
from hermes_state.redaction.parts import MIN_SECRET_CHARS, secret_parts
from hermes_state.redaction.patterns import MARK, expression, without_shapes, words_in
from hermes_state.redaction.prose import card_numbers, told_secrets

_URL_PASSWORD = re.compile(r"://([^\s/:@\"'<>]*):([^\s/@\"'<>]+)(?=@)")
_URL_TOKEN = re.compile(
    r"://(?:(?<=http://)|(?<=https://)|(?=[A-Za-z0-9_~=-]{16}))(?=[^\s/:@]{0,80}[0-9])[A-Za-z0-9_~=-]{6,500}"
    r"(?=:?@|:[a-z-]{1,20}@)"
)
# A secret may follow the last letters of `Bearer`, `password` and the like, or a punctuation mark.
_SEAM = re.compile(r"""(?<=[^\srctnydeRCTNYDE"'\\:=>])\s""")
_QUOTE_ENDS = "\"'\r\n"
_QUOTE_END = re.compile(f"[{_QUOTE_ENDS}]")
_REACH_CHARS = 140
"""Maximum length of a secret together with its name and spaces. Quoted values, headers and commands can be longer."""
_COMMAND_CHARS = 600
MAX_KNOWN_CLEAN = 4_096
"""Maximum number of texts remembered, by their hashes, as free of secrets. Log lines often repeat the same words."""


def redact(text: str) -> str:
    """Return `text` without anything that looks like a secret. `Redactor` also knows the configured secrets."""
    text = without_shapes(text)
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(rf"://\1:{MARK}", _URL_TOKEN.sub(f"://{MARK}", text))
    lower = text.replace("\u0130", "I").lower()  # the only letter whose lower case is two characters
    spans = list(card_numbers(text, lower))
    if words := words_in(lower):
        spans += (*named_secrets(text, lower, words), *told_secrets(text, lower, words))
    kept: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:  # else it overlaps the previous span
            kept += (text[done:start], MARK)
        done = max(done, end)
    return "".join((*kept, text[done:]))


def seam(text: str, start: int, end: int) -> int | None:
    """Return the first index from `start` to `end` where `text` can be split without splitting a secret, or None.

    The index points to a space or line break. Both parts can be redacted separately.
    """
    if "-----BEGIN" in text:
        return None
    looked, quote, tries = 0, -1, 50
    while (found := _SEAM.search(text, start, end)) is not None:
        index = found.start()
        quote = max(quote, *(text.rfind(mark, looked, index) for mark in _QUOTE_ENDS))
        before = text[max(0, quote - 7) : max(0, quote)].rstrip("\\").rstrip()
        if quote < 0 or text[quote] not in "\"'" or not before.endswith((":", "=", ">")):  # else a value may begin
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
    """True if no secret crosses `index`. Ignores long quoted values, which `seam` handles."""
    line = text.rfind("\n", max(0, index - MAX_HEADER_CHARS), index) + 1
    start, end = max(0, index - _REACH_CHARS), index + _REACH_CHARS
    first = min(line, max(0, index - _COMMAND_CHARS))
    before = text[first:index].lower()  # lower-casing can change the length
    if any(word in before for word in ("curl", "cookie", "authorization")):
        start, end = first, index + _COMMAND_CHARS
    around = text[start:end]
    if not words_in(around.lower()) and expression("cards", "hint").search(around) is None:
        return True
    return redact(text[start:index]) + redact(text[index:end]) == redact(around)


def _written(secret: str) -> tuple[str, ...]:
    """Return the forms in which a secret can occur in text: plain, URL-encoded, and JSON-escaped."""
    in_path, in_query = quote(secret), quote(secret, safe="")
    lower = (re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), form) for form in (in_path, in_query))
    return (secret, in_path, in_query, *lower, json.dumps(secret)[1:-1])


class Redactor:
    """Removes configured secrets and their parts (plain, URL-encoded, JSON-escaped), then calls `redact`."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        known = given.union(*map(secret_parts, given))
        whole = {form for secret in known for form in _written(secret)}
        # `seam` may split a secret that contains spaces or line breaks, such as a long key, so each piece is also a
        # secret.
        pieces = {piece for form in whole for piece in _SEAM.split(form) if len(piece) >= MIN_SECRET_CHARS}
        self._forms = sorted(whole | pieces, key=lambda form: (-len(form), form))  # longest first
        self._known = known
        self._exact = re.compile("|".join(map(re.escape, self._forms)))
        self._clean: set[int] = set()

    def __call__(self, text: str) -> str:
        digest = hash(text)
        if digest in self._clean:
            return text
        safe = redact(self._exact.sub(MARK, text) if self.knows(text) else text)
        if safe == text:
            if len(self._clean) >= MAX_KNOWN_CLEAN:
                self._clean.clear()
            self._clean.add(digest)
        return safe

    def knows(self, text: str) -> bool:
        """True if `text` contains a configured secret."""
        return any(form in text for form in self._forms)

    def would_leak(self, text: str) -> bool:
        """True if `text` contains a configured secret, plain or in a common encoding (`docs/reference/tools.md`)."""
        return self.knows(text) or holds_encoded(text, self._known)


# ---- encodings


def holds_encoded(text: str, secrets: Iterable[str]) -> bool:
    """True if `text` contains a secret: plain, in base64 or hexadecimal, or percent-encoded up to four times."""
    layers = [text]
    while len(layers) < 5 and (inner := unquote_plus(layers[-1])) != layers[-1]:
        layers.append(inner)
    layers = [_plain(layer) for layer in layers]
    return any(form in layer for secret in secrets for form in _forms(secret) for layer in layers)


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower())


@lru_cache(maxsize=4_000)
def _forms(secret: str) -> frozenset[str]:
    """Return the encodings of a secret. For base64, this is only the part that surrounding text does not change."""
    data = secret.encode("utf-8", "surrogatepass")
    encoded = [b64encode(bytes(shift) + data).decode().rstrip("=")[-(-8 * shift // 6) : -1] for shift in range(3)]
    return frozenset(form for form in map(_plain, (secret, data.hex(), *encoded)) if len(form) >= MIN_SECRET_CHARS)
