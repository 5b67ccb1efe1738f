"""Keys that are known by their shape alone, wherever they stand."""

import re
from collections.abc import Mapping
from functools import cache

from hermes_state.redaction.patterns import stored

MARK = "[redacted]"

_MIN_RUN_CHARS = 15
"""Characters without a space or a sign between them, at least, in every key that has a shape of its own."""
_SHORT_BEGINNING = 3
"""Characters of a beginning that is found in the middle of too many words to be looked for there."""
_IN_RUNS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_APART = bytes(code if code in _IN_RUNS else ord(" ") for code in range(256))
_DIGITS = b"0123456789"
_TAIL = re.compile(r"[_-]([A-Za-z0-9]{30,})", re.ASCII)
_TAIL_HINT = re.compile(_TAIL.pattern.encode())
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)


@cache
def _beginnings() -> tuple[tuple[bytes, str, str], ...]:
    """Beginnings of keys: each to be looked for in the long words of a text, as it is, and with what follows it."""
    return tuple(
        (f"{' ' if len(begin) <= _SHORT_BEGINNING else ''}{begin}".encode(), begin, keys["rest"])
        for keys in stored()["keys"]
        for begin in keys["begin"]
    )


@cache
def _shape(begin: str, rest: str) -> re.Pattern[str]:
    # The beginning comes first: a search that begins with what is not in front of it takes many times as long.
    boundary = "" if begin[0] in "_-" else rf"(?<![A-Za-z0-9_]{re.escape(begin)})"
    return re.compile(re.escape(begin) + boundary + rest, re.ASCII)  # else no key would end before Chinese


@cache
def _unmarked() -> Mapping[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """Keys that begin with nothing of their own, by a part that is quickly found."""
    found: dict[re.Pattern[str], tuple[re.Pattern[str], ...]] = {}
    for key in stored()["unmarked"]:
        hint = re.compile(key["hint"])
        found[hint] = (*found.get(hint, ()), re.compile(key["shape"], re.ASCII))
    return found


def without_shapes(text: str) -> str:
    """`text` with a mark for each key that has a known shape."""
    if "-----BEGIN" in text:
        text = _PEM.sub(MARK, text)
    # To look for a shape at every position of a text takes a thousand times as long as to find that its beginning is
    # nowhere in it, and most texts hold no word that is long enough and more than a name in small letters.
    words = text.encode("utf-8", "surrogatepass").translate(_APART).split()
    long = [word for word in words if len(word) >= _MIN_RUN_CHARS]
    runs = b" ".join([b"", *[word for word in long if not word.islower() or word.translate(None, _DIGITS) != word]])
    if not runs:
        return text
    for hint, shapes in _unmarked().items():
        for shape in shapes if hint.search(text) is not None else ():
            text = shape.sub(_key_mark, text)
    for sought, begin, rest in _beginnings():
        if sought in runs:
            text = _shape(begin, rest).sub(MARK, text)
    return _TAIL.sub(_tail_mark, text) if _TAIL_HINT.search(runs) is not None else text


def _key_mark(key: re.Match[str]) -> str:
    return key[0].replace(key[1], MARK) if key.lastindex else MARK


def _tail_mark(tail: re.Match[str]) -> str:
    """The mark of a key that is of nobody known: so long, no word is in mixed case and with digits."""
    random = tail[1]
    return tail[0] if random.isalpha() or random.islower() or random.isupper() else f"{tail[0][0]}{MARK}"
