"""Audit of a model's summary: whether its sections say something, and whether it names what nobody has said."""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import tzinfo
from functools import cached_property
from itertools import islice

import structlog

from agent.context.carried.facts import arguments_of, identifiers
from agent.context.excerpt import moment, said
from hermes_state.values import Message, Millis, Transcript, recall_id

log = structlog.get_logger()

MIN_SECTION_WORDS = 4
"""Words of a section, from which on it says something."""
MIN_SECTION_CHARACTERS = 20
"""Characters of one whose words are not told apart."""
MIN_SECTIONS = 3
"""Sections that have to, where there are enough identifiers."""
MANY_IDENTIFIERS = 20
PIECE_CHARACTERS = 50_000
"""Length of the texts in which identifiers are looked up: an expression that runs over one holds all threads."""
PIECE_OVERLAP = 400
"""No identifier is longer."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W_]+")
_PART = re.compile(r"[\w.]*\w")
_GROUPED = re.compile(r"[,.' \u00a0\u202f](?<=\d.)(?=\d{3})")


def is_hollow(sections: Collection[str], rows: Transcript, wanted: int) -> bool:
    """True when sections hold nothing: a few words that come again in each, or, where much was said, the same ones."""
    words = {text: sum(1 for _ in islice(_WORD.finditer(text), MIN_SECTION_WORDS)) for text in sections}
    if _has_many_identifiers(rows):
        return sum(count not in range(1, MIN_SECTION_WORDS) for count in words.values()) < min(MIN_SECTIONS, wanted)
    is_same = len(words) < len(sections)
    return is_same and all(
        0 < words[text] < MIN_SECTION_WORDS and len(text) <= MIN_SECTION_CHARACTERS for text in words
    )


def without_invented(text: str, rows: Transcript, record: str | None, now: Millis, zone: tzinfo) -> str | None:
    """The summary without the lines whose identifiers neither the rows nor the earlier record hold.

    None when those are more than half of its lines.
    """
    lines = text.splitlines()
    source = _Source(rows, record, now, zone)
    kept = [line for line in lines if line.startswith("#") or all(map(source.holds, identifiers(line)))]
    if len(kept) == len(lines):
        return text
    before, after = (sum(bool(line.strip()) and not line.startswith("#") for line in some) for some in (lines, kept))
    log.info("summary.audited", lines=before, left_out=before - after)
    return "\n".join(kept) if after * 2 >= before else None


def _has_many_identifiers(rows: Transcript) -> bool:
    found = set[str]()
    for one in islice((one for row in rows for text in said(row) for one in identifiers(text[:2_000])), 1_000):
        found.add(one)
        if len(found) >= MANY_IDENTIFIERS:
            return True
    return False


class _Source:
    """All that was said, as texts to look things up in: one of all of it would hold up the event loop."""

    def __init__(self, rows: Transcript, record: str | None, now: Millis, zone: tzinfo) -> None:
        said_texts = (record or "", moment(now, zone), *_all_of(rows, zone))
        self._pieces = [*_pieces(said_texts)]

    @cached_property
    def _texts(self) -> list[str]:
        return [piece.casefold() for piece in self._pieces]

    @cached_property
    def _plain(self) -> list[str]:
        return [_GROUPED.sub("", text) for text in self._texts]

    def holds(self, identifier: str) -> bool:
        """True for what was said, for its parts, and for what is no more than a few letters or digits."""
        written = identifier.strip('`"“”„«»「」($€£¥+.,: ')
        token = written.casefold()
        digits = sum(map(str.isdigit, token))
        if (digits < 4 and not (digits and len(token) > 3)) and not re.search(r"[/@]", token):
            return True
        if _is_in(written, self._pieces) or _is_in(token, self._texts):
            return True
        parts = [part for part in _PART.findall(token) if any(map(str.isdigit, part))]
        return _is_in(_GROUPED.sub("", token), self._plain) or (
            len(parts) > 1 and "/" not in token[:1] and all(_is_in(part, self._texts) for part in parts)
        )


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """The texts, short ones joined and long ones cut with an overlap, in pieces of about `PIECE_CHARACTERS`."""
    joined: list[str] = []
    length = 0
    for text in texts:
        for start in range(0, max(1, len(text) - PIECE_OVERLAP), PIECE_CHARACTERS):
            part = text[start : start + PIECE_CHARACTERS + PIECE_OVERLAP]
            joined.append(part)
            length += len(part)
            if length >= PIECE_CHARACTERS:
                yield "\n".join(joined)
                joined, length = [], 0
    yield "\n".join(joined)


def _is_in(token: str, texts: Iterable[str]) -> bool:
    """True for a token that is not a part of a longer number in one of the texts."""
    return any(_is_in_one(token, text) for text in texts)


def _is_in_one(token: str, text: str) -> bool:
    at = text.find(token)
    while at >= 0:
        before, behind = text[at - 1 : at], text[at + len(token) : at + len(token) + 1]
        if not (token[:1].isdigit() and before.isdigit()) and not (token[-1:].isdigit() and behind.isdigit()):
            return True
        at = text.find(token, at + 1)
    return False


def _all_of(rows: Iterable[Message], zone: tzinfo) -> Iterator[str]:
    for row in rows:
        yield f"{recall_id(row.id)} {moment(row.created_at, zone)} {row.sender_name or ''} {row.tool_name or ''}"
        yield from said(row)
        for call in row.body.calls:
            if "\\" in call.arguments:
                yield from arguments_of(call.arguments)
