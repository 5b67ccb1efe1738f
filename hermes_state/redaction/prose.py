"""Secrets mentioned in a sentence ("das Passwort für den Drucker ist …"), and payment card numbers."""

import re
from collections.abc import Iterator
from functools import cache

from hermes_state.redaction.assignments import is_reference
from hermes_state.redaction.patterns import MARK, Span, expression, stored

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
    # Patterns start with the word: starting with a negative lookbehind takes many times as long. CJK has no boundaries.
    whole = "{0}(?<![^\\W_]{0})(?![^\\W_])"
    return tuple((noun, re.compile(noun if noun >= "\u2e80" else whole.format(noun)), counts) for noun, counts in told)


@cache
def _told() -> re.Pattern[str]:
    """Return a pattern for a value at the start of the text or after linking words, such as "is"."""
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
