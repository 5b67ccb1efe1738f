"""Text as chat services send it, its length as they count it, in UTF-16 code units, and lines as parsers do."""

import json
from typing import Any, Final

import orjson

from hermes_state.text import well_formed


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


def is_within(text: str, start: int, max_units: int) -> bool:
    """Tell if what follows `start` has at most `max_units`, at a cost that grows with `max_units` only."""
    return len(text) - start <= max_units and utf16_units(text[start:]) <= max_units


def with_newlines(text: str) -> str:
    """`text` with a newline character at the end of each line, the way a parser of Markdown counts them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, OSError, RecursionError)
"""Exceptions of reading a shape that neither an SDK nor we expect; times beyond the calendar raise three of them."""


def parsed_json(text: Any) -> Any:  # JSON, and where it comes from text or bytes of any kind
    """The value of a JSON text, with replacements for halves of characters and whole numbers of at most 400 digits.

    Services may send others, and one must not hide whatever comes in the same answer. Raises one of `UNREADABLE`.

    >>> parsed_json('{"text": "half of \\ud83d"}')
    {'text': 'half of \ufffd'}
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        value = json.loads(text, parse_int=lambda digits: int(digits[:400]))
        return json.loads(well_formed(json.dumps(value, ensure_ascii=False)))
