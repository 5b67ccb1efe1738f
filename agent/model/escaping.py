"""Escaping of text that people wrote, so that a model cannot mistake it for the gateway's own text.

Characters are compared by their appearance. Invisible characters are skipped, all Unicode brackets and digits are
recognised, and a non-Latin letter matches any Latin letter.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from types import MappingProxyType

_LONGEST = 22
_BRACKET, _ANY_LETTER, _NO_LATIN = "[", "?", "!"
_LINE = re.compile(r"[^\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]+")
"""Pattern for a line as a model might see it. Any control character except a tab, and any separator, can end a line."""
_ANGLE = re.compile(r"<(?!/?(?:[a-ce-pr-z0-9]|d[a-np-z]|q[a-tv-z]))|[^\w\s\x00-\x7f]", re.IGNORECASE)
"""Pattern for a possible closing tag. Checking its first letters rules out most other tags."""


def escaped(text: str) -> str:
    """Return the text with a backslash before each line that looks like a time stamp, a gateway notice or a summary."""
    if text.isascii() and "[" not in text:
        return text
    return _LINE.sub(lambda line: "\\" * _begins_like_ours(text, *line.span()) + line[0], text)


def enclosed(text: str) -> str:
    """Return the text with a backslash in everything that looks like the closing tag of a document or a quotation."""
    if text.isascii() and "<" not in text:
        return text
    return _ANGLE.sub(lambda found: found[0] + "\\" * _closes_block(text, found.start()), text)


def attribute(value: str) -> str:
    """Return the text in a form that is safe as a tag's attribute value, cut to 128 characters."""
    return one_line(value, {'"': "'", "<": "(", ">": ")"})[:128]


@lru_cache(maxsize=1_024)  # called for every row on every model call
def shown_name(name: str) -> str:
    """Return a person's name for use in square brackets, changed so that it cannot close them or add a line."""
    return one_line(name, {"[": "(", "]": ")", "Ps": "(", "Pe": ")"})[:64] or "?"


def one_line(text: str, signs: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text on one line, without characters that hide or reorder text.

    `signs` maps characters, or Unicode categories, to replacements.
    """
    kept: list[str] = []
    for character in text:
        category = unicodedata.category(character)
        plain = " " if category == "Cc" else signs.get(unicodedata.normalize("NFKC", character), signs.get(category))
        # Keep the joiners: emoji and several scripts need them.
        if plain is not None or category != "Cf" or character in "\u200c\u200d":
            kept.append(character if plain is None else plain)
    return " ".join("".join(kept).split())


def _begins_like_ours(text: str, start: int, end: int) -> bool:
    """Return True if the line from `start` to `end` looks like a time stamp, a gateway notice or a summary."""
    first = next((at for at in range(start, end) if not _is_unseen(text[at])), start)
    if _folded(text[first]) != _BRACKET:
        return False
    inside = takewhile(_BRACKET.__ne__, filter(None, map(_folded, _seen(text, first + 1))))
    label = "".join(islice(inside, _LONGEST))
    stamp = label[:12]  # the digits of `2026-03-31 14:05`
    is_stamp = len(stamp) >= 10 and stamp.count("0") * 2 >= len(stamp)
    frames = ("gatewaynotice", "contextcompaction", "contextsummary", "endofcontextcompaction", "endofcontextsummary")
    return is_stamp or _passes_for(label, frames)


def _closes_block(text: str, start: int) -> bool:
    """Return True if the text at `start` looks like the closing tag of a document or a quotation."""
    seen = _seen(text, start)
    if not (_is_named(next(seen, ""), "LESS-THAN", "ANGLE") and _is_named(next(seen, ""), "SOLIDUS", "SLASH")):
        return False
    return _passes_for(filter(None, map(_folded, seen)), ("quotedmessage", "document"))


@lru_cache(maxsize=4_096)
def _is_unseen(character: str) -> bool:
    """Return True for white space, control and format characters, combining marks, and blank letters."""
    return unicodedata.category(character)[0] in "ZCM" or _is_named(character, "FILLER", "BLANK")


def _seen(text: str, start: int) -> Iterator[str]:
    return (text[at] for at in range(start, len(text)) if not _is_unseen(text[at]))


@lru_cache(maxsize=4_096)
def _folded(character: str) -> str:
    """Return the bracket, digit or letter that a character looks like; empty for other characters."""
    plain = unicodedata.normalize("NFKD", character)[:1].casefold()
    if plain.isascii():
        return "0" if plain.isdigit() else plain if plain.isalpha() or plain == _BRACKET else _BRACKET * (plain == "]")
    if unicodedata.category(plain) in ("Ps", "Pe") or _is_named(plain, "BRACKET"):
        return _BRACKET
    if unicodedata.numeric(plain, -1) in range(10):
        return "0"
    if not (plain.isalpha() or _is_named(plain, "LETTER")):
        return ""
    return _NO_LATIN if unicodedata.east_asian_width(plain) in "WF" else _ANY_LETTER


def _passes_for(seen: Iterable[str], words: Sequence[str]) -> bool:
    """Return True if a reader could take the folded characters for text that starts with one of `words`."""
    label = [*islice(seen, _LONGEST)]
    return any(
        len(label) >= len(word)
        and all(one in (letter, _ANY_LETTER, "0") for one, letter in zip(label, word, strict=False))
        for word in words
    )


@lru_cache(maxsize=4_096)
def _is_named(character: str, *words: str) -> bool:
    name = unicodedata.name(character, "") if character else ""
    return any(word in name for word in words)
