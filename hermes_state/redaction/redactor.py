"""Redact text, with or without configured secrets, and find places where text can be split safely.

This module finds secrets in addresses, passwords mentioned in a sentence ("das Passwort für den Drucker ist …"), and
payment card numbers.
"""

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from urllib.parse import quote, unquote_plus

from hermes_state.redaction.assignments import MAX_HEADER_CHARS, is_reference, named_secrets
from hermes_state.redaction.parts import MIN_SECRET_CHARS, secret_parts
from hermes_state.redaction.patterns import MARK, Span, expression, stored, without_shapes, words_in

_URL_PASSWORD = re.compile(r"://([^\s/:@\"'<>]*):([^\s/@\"'<>]+)(?=@)")
_URL_TOKEN = re.compile(
    r"://(?:(?<=http://)|(?<=https://)|(?=[A-Za-z0-9_~=-]{16}))(?=[^\s/:@]{0,80}[0-9])[A-Za-z0-9_~=-]{6,500}"
    r"(?=:?@|:[a-z-]{1,20}@)"
)
# Whitespace at which text can be split. A secret may follow `Bearer`, `password` and the like, so the text is not
# split after the last letters of these words, or after some punctuation marks.
_SEAM = re.compile(r"""(?<=[^\srctnydeRCTNYDE"'\\:=>])\s""")
_QUOTE_ENDS = "\"'\r\n"
_QUOTE_END = re.compile(f"[{_QUOTE_ENDS}]")
_REACH_CHARS = 140
"""Maximum length of a secret together with its name and spaces. Quoted values, headers and commands can be longer."""
_COMMAND_CHARS = 600
MAX_KNOWN_CLEAN = 4_096
"""Maximum number of texts whose hashes are remembered because they contain no secret. Log lines often repeat."""


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
    """Return True if no secret crosses `index`. Ignores long quoted values, which `seam` handles."""
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
        """Return True if `text` contains a configured secret."""
        return any(form in text for form in self._forms)

    def would_leak(self, text: str) -> bool:
        """Return True if `text` contains a configured secret, plain or encoded (see `docs/reference/tools.md`)."""
        return self.knows(text) or holds_encoded(text, self._known)


# ---- encodings


def holds_encoded(text: str, secrets: Iterable[str]) -> bool:
    """Return True if `text` contains one of `secrets`, as is, in base64 or hex, or percent-encoded up to four times."""
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


# ---- passwords in sentences

_REACH = 80
"""Number of characters to search after a word that means "password"."""
_BESIDE = 20
"""Number of characters to search after a word for "password" that comes shortly after another such word."""
_CARD_REACH = 40


@cache
def _nouns() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """Return each word for a password, its pattern as a whole word, and whether it means a number, as "PIN" does."""
    speech = stored()["speech"]
    told = [(noun, noun in speech["numbers"]) for noun in (*speech["nouns"], *speech["numbers"])]
    # Starting with a negative lookbehind takes many times as long as starting with the word. CJK has no spaces.
    whole = "{0}(?<![^\\W_]{0})(?![^\\W_])"
    return tuple((noun, re.compile(noun if noun >= "\u2e80" else whole.format(noun)), counts) for noun, counts in told)


@cache
def _told() -> re.Pattern[str]:
    """Return a pattern for a password in the text after a word such as "password".

    The password comes first in this text, or after linking words such as "is".
    """
    speech = stored()["speech"]
    link = rf"(?:{speech['link']}|(?<![^\W_])(?:{'|'.join(speech['links'])})(?![^\W_]))"
    return re.compile(rf"(?:^|{link})(?:\s?{link})*\s?(?:{speech['quoted']}|({speech['value']}))")


def told_secrets(text: str, lower: str, words: frozenset[str]) -> Iterator[Span]:
    """Yield the spans of passwords mentioned in a sentence.

    `lower` is `text` in lower case, with the same length. `words` comes from `words_in`.
    """
    for noun, pattern, is_number in _nouns():
        looked = 0
        for match in pattern.finditer(lower) if noun in words else ():
            start = match.end()
            reach = _REACH if start >= looked else _BESIDE
            looked = max(looked, start + _BESIDE)
            if (span := _told_behind(text, lower, start, reach, is_number=is_number)) is not None:
                yield span


def _told_behind(text: str, lower: str, start: int, reach: int, *, is_number: bool) -> Span | None:
    sentence = text[start : start + reach]
    if expression("speech", "needed").search(sentence) is None:
        return None
    sentence = expression("speech", "end").split(sentence, maxsplit=1)[0]
    for match in _told().finditer(lower[start : start + len(sentence)]):
        at, quoted = match.span(1 if match[1] else 2), bool(match[1])
        value = sentence[slice(*at)].rstrip(".,;:)]}\u201d\u2019\u00bb")
        if value.startswith(MARK[:-1]):
            return None
        is_beside = not match[0][: at[0] - match.start()].strip("\"'`\u201c\u201e\u00ab\u2018\u300c\u300e ")
        if is_number or value.isdigit():
            has_unit = expression("speech", "units").match(sentence.lower(), at[0] + len(value)) is not None
            is_told = (
                re.fullmatch(r"\d{3,12}", value) is not None
                and not has_unit
                and (is_number or not is_beside or len(value) > 4)
            )
        else:
            is_told = _looks_told(value, is_beside=is_beside, is_quoted=quoted)
        if is_told:
            return start + at[0], start + at[0] + len(value)
    return None


def _looks_told(value: str, *, is_beside: bool, is_quoted: bool) -> bool:
    """Return True if the characters of `value` suggest a password instead of ordinary words."""
    if expression("speech", "other").match(value) is not None or is_reference(value):
        return False
    has_letter, has_digit = any(map(str.isalpha, value)), any(map(str.isdigit, value))
    if has_letter and has_digit:
        return len(value) > (4 if is_beside else 3)
    if is_beside or not has_letter:
        return False
    has_sign = any(sign in value[1:] for sign in "@#$%^*=~!") or value.count("-") > 2
    return has_sign or len(value) >= 20 or (is_quoted and value.replace(" ", "").isalpha())


# ---- payment cards


def card_numbers(text: str, lower: str) -> Iterator[Span]:
    """Yield the spans of payment card numbers.

    They have an issuer's prefix, a valid check digit, and either grouped digits or a word for a card nearby.

    One in ten other long numbers, such as order numbers, also has a valid check digit.
    """
    if expression("cards", "hint").search(text) is None:
        return
    for match in expression("cards", "number").finditer(text):
        digits = re.sub(r"\D", "", match[0])
        doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
        is_checked = (sum(doubled) + sum(map(int, digits[::-2]))) % 10 == 0  # Luhn's formula
        if expression("cards", "issuers").match(digits) is None or not is_checked:
            continue
        around = lower[max(0, match.start() - _CARD_REACH) : match.end() + _CARD_REACH // 2]
        if len(digits) < len(match[0]) or expression("cards", "named").search(around) is not None:
            yield match.span()
