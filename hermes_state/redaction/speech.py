"""Secrets that people tell in a sentence ("das Passwort für den Drucker ist …"), and the numbers of payment cards."""

import re
from collections.abc import Iterator
from functools import cache

from hermes_state.redaction.named import is_reference
from hermes_state.redaction.patterns import Span, expression, stored
from hermes_state.redaction.shapes import MARK

_FIRST_CJK = "\u2e80"
_REACH = 80
"""Characters behind the word for a password in which it may be told."""
_BESIDE = 20
"""Characters behind a further such word, so close behind the first that these were looked through already."""
_TRAILING = ".,;:)]}\u201d\u2019\u00bb"
_BEFORE_VALUE = "\"'`\u201c\u201e\u00ab\u2018\u300c\u300e "
_TOLD_NUMBER = re.compile(r"\d{3,12}")
_CARD_REACH = 40


@cache
def _nouns() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """Words for a password: each, where it stands as a word, and whether it names a number."""
    speech = stored()["speech"]
    told = [(noun, noun in speech["numbers"]) for noun in (*speech["nouns"], *speech["numbers"])]
    # The word comes first: a search that begins with what is not in front of it takes many times as long.
    whole = "{0}(?<![^\\W_]{0})(?![^\\W_])"
    return tuple(
        (noun, re.compile(noun if noun >= _FIRST_CJK else whole.format(noun)), counts) for noun, counts in told
    )


@cache
def _told() -> re.Pattern[str]:
    """A value with the words in front of it, or right at the beginning."""
    speech = stored()["speech"]
    link = rf"(?:{speech['link']}|(?<![^\W_])(?:{'|'.join(speech['links'])})(?![^\W_]))"
    return re.compile(rf"(?:^|{link})(?:\s?{link})*\s?(?:{speech['quoted']}|({speech['value']}))")


def told_secrets(text: str, lower: str, words: frozenset[str]) -> Iterator[Span]:
    """Spans of passwords that a sentence tells.

    `lower` is `text` in lower case, of the same length; `words` are those of `words_in`.
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
        value = sentence[slice(*at)].rstrip(_TRAILING)
        if value.startswith(MARK[:-1]):
            return None
        is_beside = not match[0][: at[0] - match.start()].strip(_BEFORE_VALUE)
        if is_number or value.isdigit():
            has_unit = expression("speech", "units").match(sentence.lower(), at[0] + len(value)) is not None
            is_told = (
                _TOLD_NUMBER.fullmatch(value) is not None
                and not has_unit
                and (is_number or not is_beside or len(value) > 4)
            )
        else:
            is_told = _looks_told(value, is_beside=is_beside, is_quoted=quoted)
        if is_told:
            return start + at[0], start + at[0] + len(value)
    return None


def _looks_told(value: str, *, is_beside: bool, is_quoted: bool) -> bool:
    """Tell a password from the words of a sentence: by what no word has in it."""
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
    """Spans of card numbers: an issuer's, of a card's length, with the right check digit, and grouped or called a card.

    A tenth of all long numbers has the right check digit, and orders have long numbers.
    """
    if expression("cards", "hint").search(text) is None:
        return
    for match in expression("cards", "number").finditer(text):
        digits = re.sub(r"\D", "", match[0])
        if expression("cards", "issuers").match(digits) is None or not _is_checked(digits):
            continue
        around = lower[max(0, match.start() - _CARD_REACH) : match.end() + _CARD_REACH // 2]
        if len(digits) < len(match[0]) or expression("cards", "named").search(around) is not None:
            yield match.span()


def _is_checked(digits: str) -> bool:
    """True when the last digit is the one that the others ask for (Luhn)."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(map(int, digits[::-2]))) % 10 == 0
