"""Quoted lines: pieces of messages on one line each, without secrets and without characters that hide or reorder."""

import re

from agent.context.excerpt import Redact, clean
from hermes_state.redaction import seam

ROW_CHARACTERS = 20_000
"""Characters of one message that are looked at."""
_REACH_CHARACTERS = 4_000
_UNSEEN = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+"
)


def bounded(text: str, redact: Redact) -> str:
    """The beginning of a text, without secrets. Where it cannot be cut before those are out of it, it is cut behind."""
    if len(text) > ROW_CHARACTERS:
        cut = seam(text, ROW_CHARACTERS - _REACH_CHARACTERS, ROW_CHARACTERS)
        text = text if cut is None else text[:cut]
    return clean(text, redact)[:ROW_CHARACTERS]


def without_unseen(text: str) -> str:
    """The text with a space for each run of characters that nobody sees."""
    return _UNSEEN.sub(" ", text) if "  " in text or not text.isprintable() else text


def one_line(text: str, limit: int) -> str:
    """The text on one line of so many characters at most. It has no secrets any more: half of one is one, too."""
    line = without_unseen(text[: limit * 4]).strip()
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 1]}…"
