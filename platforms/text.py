"""Helpers for text and JSON from chat services: length in UTF-16 units, line endings and parsing."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import orjson

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart


def utf16_units(text: str) -> int:
    """Return the length in UTF-16 code units. A character outside the Basic Multilingual Plane counts as two.

    >>> utf16_units("aé🙂")
    4
    """
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def longest_prefix(text: str, max_units: int) -> str:
    """Return the longest beginning of `text` within `max_units` UTF-16 units, without cutting a character in half."""
    head = text[:max_units]
    while (excess := utf16_units(head) - max_units) > 0:
        head = head[: len(head) - (excess + 1) // 2]
    return head


def is_within(text: str, start: int, max_units: int) -> bool:
    """Return True if the text from `start` fits in `max_units` UTF-16 units. The cost depends only on `max_units`."""
    return len(text) - start <= max_units and utf16_units(text[start:]) <= max_units


def with_newlines(text: str) -> str:
    """Return `text` with all line endings changed to newlines, as a Markdown parser does."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


UNFINISHED: Final = " …"
"""Mark at the end of an unfinished answer. If the process is killed, the unfinished answer stays in the chat."""


def unfinished(part: OutboundPart) -> OutboundPart:
    return msgspec.structs.replace(part, text=part.text + UNFINISHED, plain=part.plain + UNFINISHED)


UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, OSError, RecursionError)
"""Exceptions that data of an unexpected form can cause. An out-of-range time alone can cause three different ones."""
_TEXT_KEYS: Final = {
    *("text", "content", "title", "question", "description", "label", "summary", "caption", "expression"),
    *("body", "value", "html", "markdown"),
}


def parsed_json(text: Any) -> Any:  # text or bytes in, JSON out
    """Parse JSON text. Unpaired surrogates are replaced, and integers are cut to 400 digits.

    Services can send these values, and the rest of the response must still be readable. Raises one of `UNREADABLE`.

    >>> parsed_json('{"text": "half of \\ud83d"}')
    {'text': 'half of \ufffd'}
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        value = json.loads(text, parse_int=lambda digits: int(digits[:400]))
        return json.loads(well_formed(json.dumps(value, ensure_ascii=False)))


def known_parts(value: Any, read: Callable[[Any], object], dropped: list[str], path: str = "") -> Any:
    """Return only the parts of `value` that `read` accepts, or None. Add the paths of rejected parts to `dropped`."""

    def known(key: str) -> Any:
        return known_parts(nested[key], lambda part: read({**base, key: part}), dropped, f"{path}.{key}".lstrip("."))

    if _is_read(value, read):
        return value
    if isinstance(value, list):
        parts = [known_parts(one, lambda part: read([part]), dropped, path) for one in value]
        return [part for part in parts if part is not None] or None
    items = value.items() if isinstance(value, dict) else ()
    nested = {key: part for key, part in items if isinstance(part, dict) or (part and isinstance(part, list))}
    plain = {key: part for key, part in items if key not in nested}
    # An object can require one of its children: a message needs its chat.
    for base in (plain, *({**plain, key: part} for key, part in nested.items())) if items else ():
        if _is_read(base, read):
            found = {key: known(key) for key in nested.keys() - base.keys()}
            return base | {key: part for key, part in found.items() if part is not None}
    base, count = plain, len(dropped)
    for key in nested:
        if (part := known(key)) is not None:
            return known_parts({**value, key: part}, read, dropped, path)
        del dropped[count:]
    dropped.append(path)
    return None


def text_in(value: Any, *, is_text: bool = False) -> str:
    """Return the text under keys such as `caption`, with each object and each list item on its own line."""
    if isinstance(value, dict):
        return "\n".join(filter(None, (text_in(part, is_text=key in _TEXT_KEYS) for key, part in value.items())))
    if isinstance(value, list):  # a list under a text key is one text in several items
        return ("" if is_text else "\n").join(filter(None, (text_in(part, is_text=is_text) for part in value)))
    return value if is_text and isinstance(value, str) else ""


def _is_read(value: Any, read: Callable[[Any], object]) -> bool:
    with suppress(*UNREADABLE):
        read(value)
        return True
    return False
