"""Audit of a model's summary: finds empty sections, and names that do not occur in the conversation."""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import tzinfo
from functools import cached_property
from itertools import islice

import structlog

from agent.context.carried.facts import arguments_of, identifiers
from agent.context.carried.phrases import any_of
from agent.context.excerpt import moment, said
from hermes_state.imports import late_pattern
from hermes_state.values import Millis, Transcript, recall_id

log = structlog.get_logger()

MIN_VAGUE_PERCENT = 35
"""Minimum percentage of vague words in a vague summary. A good summary has less than 15 %."""
MIN_SECTION_WORDS = 4  # a section with fewer words counts as empty
PIECE_CHARACTERS = 50_000
"""Length of the pieces in which text is searched for identifiers: short, because each search blocks all threads."""
PIECE_OVERLAP = 400  # length of the longest identifier, in characters
_WORD = late_pattern(r"[\u3040-\u30ff\u3400-\u9fff]{2}|[^\W_]+")
_NAME = re.compile(r"(?<=[^\W_] )(?=[^\W\d_])\w{2,}|(?<=[,;:(] )(?=[^\W\d_])\w{2,}")
_DIGITS = bytes(byte if chr(byte) in "0123456789" else 32 for byte in range(256))
_SEPARATOR = r"[,.' \u00a0\u202f]"
_GROUPED = late_pattern(rf"{_SEPARATOR}(?<=\d.)(?=\d{{3}})")


def is_hollow(sections: Collection[str], rows: Transcript, wanted: int) -> bool:
    """Return True if the sections of a summary contain almost nothing.

    If the rows contain at least 20 identifiers, a good summary has more than three words in at least three sections (or
    in all of the `wanted` sections, if there are fewer), and is not vague. Otherwise, a summary is hollow only if every
    section has at most three words and some sections are identical.
    """
    words = {text: sum(1 for _ in islice(_WORD.finditer(text), MIN_SECTION_WORDS)) for text in sections}
    looked_at = islice((one for row in rows for text in said(row) for one in identifiers(text[:2_000])), 1_000)
    if len(set(looked_at)) >= 20:
        filled = sum(count not in range(1, MIN_SECTION_WORDS) for count in words.values())
        return filled < min(3, wanted) or _is_vague("\n".join(sections), rows)
    is_same = len(words) < len(sections)
    return is_same and all(0 < count < MIN_SECTION_WORDS and len(text) <= 20 for text, count in words.items())


def _is_vague(text: str, rows: Transcript) -> bool:
    """Return True if a summary has many vague words, and fewer than three names or identifiers of the rows.

    `phrases.toml` lists the vague words of four languages (`vague`).
    """
    words = [word for word in _WORD.findall(text) if any_of("common").fullmatch(word) is None]
    said_little = sum(any_of("vague").fullmatch(word) is not None for word in words)
    if said_little * 100 < MIN_VAGUE_PERCENT * len(words) or not words:
        return False
    names = {word for word in _NAME.findall(text) if word[:1].isupper()}
    named = {one.casefold() for one in (*identifiers(text), *names)}
    texts = [one.casefold() for row in rows for one in (row.sender_name or "", *said(row))]
    return sum(1 for _ in islice((one for one in named if any(one in text for text in texts)), 3)) < 3


def without_invented(text: str, rows: Transcript, record: str | None, now: Millis, zone: tzinfo) -> str | None:
    """Return the summary without the lines that contain an invented identifier.

    An identifier is invented if it occurs neither in the rows nor in the earlier record. Return None if fewer than half
    of the lines remain.
    """
    lines = text.splitlines()
    source = _Source(rows, record, now, zone)
    kept = [line for line in lines if line.startswith("#") or all(map(source.holds, identifiers(line)))]
    if len(kept) == len(lines):
        return text
    before, after = (sum(bool(line.strip()) and not line.startswith("#") for line in some) for some in (lines, kept))
    log.info("summary.audited", lines=before, left_out=before - after)
    return "\n".join(kept) if after * 2 >= before else None


class _Source:
    def __init__(self, rows: Transcript, record: str | None, now: Millis, zone: tzinfo) -> None:
        texts = [record or "", moment(now, zone)]
        for row in rows:
            named = f"{row.sender_name or ''} {row.tool_name or ''}"
            texts += [f"{recall_id(row.id)} {moment(row.created_at, zone)} {named}", *said(row)]
            for call in row.body.calls:
                texts += arguments_of(call.arguments) if "\\" in call.arguments else ()
        self._pieces = [_Piece(text) for text in _pieces(texts)]

    def holds(self, identifier: str) -> bool:
        """Return True if an identifier or all of its parts occur in the texts. Very short identifiers always pass."""
        written = identifier.strip('`"“”„«»「」($€£¥+.,: ')
        token = written.casefold()
        digits = sum(map(str.isdigit, token))
        if (digits < 4 and not (digits and len(token) > 3)) and not re.search(r"[/@]", token):
            return True
        near = self._near(token)
        if any(_is_in(written, piece.text) for piece in near):
            return True
        has_letters = not token.isascii() or token.upper() != token
        if has_letters and any(_is_in(token, piece.folded) for piece in near):
            return True
        # A number without its separators differs from the number only if it has four digits in a row.
        plain = _GROUPED.sub("", token)
        long = re.search(r"\d{4,}", plain)
        grouped = re.compile(f"{_SEPARATOR}?".join(long[0])) if long is not None else None
        if grouped and any(grouped.search(one.text) and _is_in(plain, one.plain) for one in self._pieces):
            return True
        parts = [part for part in re.findall(r"[\w.]*\w", token) if any(map(str.isdigit, part))]
        return (
            len(parts) > 1
            and "/" not in token[:1]
            and all(any(_is_in(part, piece.folded) for piece in self._near(part)) for part in parts)
        )

    def _near(self, token: str) -> list["_Piece"]:
        """Return the pieces that contain all numbers of a token. Only they can contain the token."""
        numbers = _numbers_in(token)
        return [piece for piece in self._pieces if numbers <= piece.numbers]


class _Piece:
    def __init__(self, text: str) -> None:
        self.text = text
        self.numbers = _numbers_in(text)

    @cached_property
    def folded(self) -> str:
        return self.text.casefold()

    @cached_property
    def plain(self) -> str:
        return _GROUPED.sub("", self.folded)


def _numbers_in(text: str) -> frozenset[bytes]:
    return frozenset(text.encode("utf-8", "surrogatepass").translate(_DIGITS).split())


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in pieces of about `PIECE_CHARACTERS`. The pieces of a long text overlap."""
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


def _is_in(token: str, text: str) -> bool:
    """Return True if the text contains the token, other than as part of a longer number."""
    at = text.find(token)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(token) : at + len(token) + 1]
        if not (token[:1].isdigit() and before.isdigit()) and not (token[-1:].isdigit() and after.isdigit()):
            return True
        at = text.find(token, at + 1)
    return False
