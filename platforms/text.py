"""Lengths of text as chat services count them: in UTF-16 code units."""


def utf16_units(text: str) -> int:
    """Length in UTF-16 code units: a character outside the basic plane counts twice.

    >>> utf16_units("aé🙂")
    4
    """
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def longest_prefix(text: str, max_units: int) -> str:
    """The longest beginning of `text` within `max_units` UTF-16 code units; no character is cut in half."""
    head = text[:max_units]
    while (excess := utf16_units(head) - max_units) > 0:
        head = head[: len(head) - (excess + 1) // 2]
    return head
