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
