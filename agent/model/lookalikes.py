"""Look-alikes: whether a reader could take a text for a line or a tag of the gateway's own.

Nothing is compared by its characters: invisible ones count for nothing, brackets are any that Unicode calls so, digits
any with such a value, and a letter that is no Latin one may stand for each that is.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile

_FRAMES = ("gatewaynotice", "contextcompaction", "contextsummary", "endofcontextcompaction", "endofcontextsummary")
_TAGS = ("quotedmessage", "document")
_LONGEST = 22
_BRACKET, _ANY_LETTER, _NO_LATIN = "[", "?", "!"
_STAMP_CHARACTERS = 12
"""Letters and digits of a stamp: `2026-03-31 14:05`."""


def begins_like_ours(text: str, start: int, end: int) -> bool:
    """Tell if the line from `start` to `end` begins with what passes for a stamp, a notice or a handoff."""
    first = next((at for at in range(start, end) if not _is_unseen(text[at])), start)
    if _folded(text[first]) != _BRACKET:
        return False
    inside = takewhile(_BRACKET.__ne__, filter(None, map(_folded, _seen(text, first + 1))))
    label = "".join(islice(inside, _LONGEST))
    stamp = label[:_STAMP_CHARACTERS]
    is_stamp = len(stamp) >= _STAMP_CHARACTERS - 2 and stamp.count("0") * 2 >= len(stamp)
    return is_stamp or _passes_for(label, _FRAMES)


def closes_block(text: str, start: int) -> bool:
    """Tell if the character at `start` begins what passes for the end of a block around a person's words."""
    seen = _seen(text, start)
    if not (_is_named(next(seen, ""), "LESS-THAN", "ANGLE") and _is_named(next(seen, ""), "SOLIDUS", "SLASH")):
        return False
    return _passes_for(filter(None, map(_folded, seen)), _TAGS)


@lru_cache(maxsize=4_096)
def _is_unseen(character: str) -> bool:
    """Tell if nothing is seen of it: white space, control and format characters, marks, letters without a shape."""
    return unicodedata.category(character)[0] in "ZCM" or _is_named(character, "FILLER", "BLANK")


def _seen(text: str, start: int) -> Iterator[str]:
    return (text[at] for at in range(start, len(text)) if not _is_unseen(text[at]))


@lru_cache(maxsize=4_096)
def _folded(character: str) -> str:
    """Bracket, digit or letter that it passes for; nothing for other signs."""
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
    """Tell if one of `words` can be read at the beginning of these folded characters."""
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
