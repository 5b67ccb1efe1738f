"""Names of the page's chats: letters, marks and digits of any script in lower case, `-` and `_`."""

import re
import secrets
import unicodedata

MAX_CHARACTERS = 32

_UNNAMED = re.compile(r"chat-[0-9a-f]{8}")


def named_after(text: str) -> str:
    """Name made of what a person typed; empty where nothing of it can stand in one.

    >>> named_after("Über café"), named_after("旅行 2026!"), named_after("../"), named_after("हिन्दी")
    ('über-café', '旅行-2026', '', 'हिन्दी')
    """
    kept = "".join(character if _is_kept(character) else " " for character in _folded(text))
    return "-".join(kept.split()).strip("-_")[:MAX_CHARACTERS].strip("-_")


def is_name(text: str) -> bool:
    """Tell whether a chat can have this name."""
    is_whole = 0 < len(text) <= MAX_CHARACTERS and text[0] not in "-_" and text == _folded(text)
    return is_whole and all(map(_is_kept, text))


def unnamed() -> str:
    """Name of a new chat that nobody named; people see the title of its conversation instead."""
    return f"chat-{secrets.token_hex(4)}"


def shown(name: str, title: str | None) -> str:
    """Name of a chat for people.

    >>> shown("plans", "A week in Rome"), shown("chat-0123abcd", "A week in Rome"), shown("chat-0123abcd", None)
    ('plans', 'A week in Rome', 'New chat')
    """
    return (title or "New chat") if _UNNAMED.fullmatch(name) else name


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())


def _is_kept(character: str) -> bool:
    return character in "-_" or unicodedata.category(character)[0] in "LMN"
