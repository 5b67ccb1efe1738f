"""Small helpers for text that every layer needs."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that a misspelt one most likely meant, whatever its case; None when none is alike.

    `cutoff`: likeness from which on a name counts, 1 for the same.

    >>> closest("Telegarm", ["telegram", "discord"])
    'telegram'
    """
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return names[found[0]] if found else None


def shortened(text: str, limit: int = 60) -> str:
    """One line of `text`, at most `limit` characters.

    >>> shortened("one\\ntwo three", 9)
    'one two …'
    """
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
