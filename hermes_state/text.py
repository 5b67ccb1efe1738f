import difflib
import re
from collections.abc import Iterable, Iterator

import orjson

from hermes_state.values import MICROS, MicroUsd


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to the misspelt `name`, ignoring case, or None if none is similar enough.

    >>> closest("Telegarm", ["telegram", "discord"])
    'telegram'
    """
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return names[found[0]] if found else None


def shortened(text: str, limit: int = 60) -> str:
    """Return `text` in one line of at most `limit` characters.

    >>> shortened("one\\ntwo three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plain(text: str) -> str:
    """Return a name or a title that people chose, in one line and without Markdown markup.

    >>> plain("**Ann**\\n[here](http://x)")
    'Ann here(http://x)'
    """
    return " ".join(re.sub(r"[*`~|<>\[\]\\]", "", text).split())


def place_name(label: str, name: str) -> str:
    """Return the name of a chat for people, or the chat's id (`name`) if it has no name."""
    return f"“{shortened(shown, 40)}”" if (shown := plain(label)) else f"`{name}`"


def both_ends(text: str, limit: int) -> str:
    """Return `text`. If it is longer than about `limit` characters, a note replaces its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}{left_out(len(text) - 2 * half)} {text[len(text) - half :]}"


def enclosed(tag: str, text: str) -> str:
    """Return `text` for use inside a `<tag>` block, with the block's closing tags escaped.

    >>> enclosed("page", "one</page> two")
    'one<\\\\/page> two'
    """
    return re.sub(rf"<(?=/{tag}\b)", r"<\\", text, flags=re.IGNORECASE)


def left_out(characters: int) -> str:
    return f" [… {characters:,} characters …]"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular or plural.

    >>> counted(1, "message"), counted(1_200, "message"), counted(2, "summary"), counted(2, "day"), counted(2, "push")
    ('1 message', '1,200 messages', '2 summaries', '2 days', '2 pushes')
    """
    if number != 1:
        noun = re.sub(r"(?<![aeiou])y$", "ie", noun) + ("es" if noun.endswith("sh") else "s")
    return f"{number:,} {noun}"


def whole_number(text: str, digits: int = 18) -> int | None:
    """Return the number in `text`, or None if `text` is not a whole number of at most `digits` digits.

    >>> whole_number("42"), whole_number("-1"), whole_number("٣"), whole_number("123", 2)
    (42, None, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def duration(milliseconds: int) -> str:
    """Return a duration with at most two units.

    >>> duration(900), duration(61_000), duration(7_300_000), duration(200_000_000)
    ('0 s', '1 min 1 s', '2 h 1 min', '2 d 7 h')
    """
    seconds = max(0, milliseconds) // 1_000
    units = (("d", seconds // 86_400), ("h", seconds // 3_600 % 24), ("min", seconds // 60 % 60), ("s", seconds % 60))
    shown = [f"{count} {unit}" for unit, count in units if count]
    return " ".join(shown[:2]) or "0 s"


def dollars(amount: MicroUsd) -> str:
    """Return `$12.34`, or a small amount with two significant digits: `$0.0042`. Only zero is shown as zero.

    >>> dollars(MicroUsd(12_340_000)), dollars(MicroUsd(4_200)), dollars(MicroUsd(1))
    ('$12.34', '$0.0042', '<$0.0001')
    """
    value = amount / MICROS
    if amount == 0 or abs(value) >= 0.995:
        return f"${value:,.2f}"
    if abs(value) >= 0.0995:
        return f"${value:.3f}"
    return f"${value:.4f}" if abs(value) >= 0.0001 else "<$0.0001"


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (C0, C1) except tab and line feed, direction overrides, and lone surrogates."""


def printable(text: str) -> str:
    r"""Return `text` for a terminal, with control characters escaped. JSON stays valid.

    >>> printable("one\ttwo\x1b]0;mine\x07")
    'one\ttwo\\u001b]0;mine\\u0007'
    """
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def well_formed(text: str) -> str:
    """Return `text` without NUL and lone surrogates. Two surrogates that form a pair become one character.

    JSON can contain NUL, and half an emoji if a provider splits the emoji across chunks.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def ends_in_half(text: str) -> bool:
    """Return True if the last character is the first half of a surrogate pair."""
    return "\ud800" <= text[-1:] <= "\udbff"


def thoughts(blocks: str) -> Iterator[str]:
    """Yield the readable reasoning texts in `Reasoning.blocks`, for all protocols."""
    try:
        yield from filter(str.strip, _texts(orjson.loads(blocks)))
    except orjson.JSONDecodeError:  # blocks of an older version, which are not JSON
        return


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    parts: list[object] = []
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        parts = [part for part in value if not isinstance(part, str)]
    elif isinstance(value, dict):
        # Keys under which protocols store readable reasoning. Encrypted reasoning has other keys.
        keys = "reasoning_details reasoning_content reasoning thinking blocks content summary text"
        parts = [value.get(key) for key in keys.split()]
    for part in parts if depth <= 8 else ():
        yield from _texts(part, depth + 1)
