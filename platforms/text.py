"""Text and JSON for chat services: length in UTF-16 units, parsing, and splitting of long text.

Long text is split before headings, paragraphs, list items or sentences. No part ends with a heading. Code, links,
formulas and table rows are cut only if they are longer than a part.
"""

import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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


# ---- splitting

_GAP = re.compile(r"\s+|(?<=[\u3002\uff01\uff1f])")
_ITEM = re.compile(r"[ \t>]*(?:[-*+\u2022\u2610\u2611]|\d{1,9}[.)])[ \t]")
_HEADING = re.compile(r"#{1,6}[ \t]")
_HEADING_RANK, _PARAGRAPH, _LIST_ITEM, _LINE, _SENTENCE, _WORD = range(6)
_SHARES = (1 / 3, 1 / 4, 1 / 3, 1 / 2, 1 / 2, 1 / 2)
"""Minimum length of a part for each rank of break, as a share of the limit. Earlier breaks make parts too short."""
_INLINE = re.compile(
    r"(?<!`)(`++)(?:[^`\n]|\n(?!\s*\n))++\1(?!`)|!?\[[^\[\]\n]*\]\([^()\s]*\)"
    r"|\$\$[^$]++\$\$|(?<![\w$])\$[^$\n]++\$"
    r"|\\\[(?:[^\\]|\\[^\[\]])*+\\\]|\\\((?:[^\\]|\\[^()])*+\\\)"
)
"""Inline code, links and formulas of Markdown."""


@dataclass(frozen=True)
class Block:
    """Code or a table, which is cut only between lines. `head` begins and `tail` ends each part of it."""

    start: int
    end: int
    head: str = ""
    tail: str = ""


class Splitter:
    """Places where a text should not be cut. Indexes count characters, and limits count UTF-16 units."""

    def __init__(self) -> None:
        self.headings: list[tuple[int, int]] = []
        self.blocks: list[Block] = []
        self.spans: list[tuple[int, int]] = []
        """Links, formulas, inline code and table rows."""
        self._text, self._tail = "", 0
        self._whole: list[tuple[int, int]] = []

    def prepare(self, text: str, limit: int) -> None:
        """Find the spans that fit into a part. Call this once, before `next_piece`."""
        self._text = text
        self._tail = max((utf16_units(block.tail) for block in self.blocks), default=0)
        spans = [*self.spans]
        for start, end in self.headings:
            content = _GAP.match(text, end)
            spans.append((start, (content.end() if content else end) + 1))
        for block in self.blocks:
            first, last = block.start + len(block.head), block.end - len(block.tail)
            spans += [(block.start, block.end), (block.start, first + 1), (last - 1, block.end)]
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            outer, before = self._whole[-1] if self._whole else (0, 0)
            first = min(start, outer) if start < before else start
            if end > before and is_within(text[first:end], 0, limit - self._tail):
                self._whole[-1 if start < before else len(self._whole) :] = [(first, end)]

    def next_piece(self, start: int, limit: int) -> tuple[int, str, str]:
        """Return the end of the piece that begins at `start`, and the texts to put before and after it."""
        opened = self._block_at(start)
        head = opened.head if opened else ""
        units = limit - utf16_units(head)
        if is_within(self._text, start, units):
            return len(self._text), head, ""
        end = self._cut(start, start + len(longest_stretch(self._text, start, units - self._tail)))
        block = self._block_at(end)
        return end, head, block.tail if block else ""

    def _cut(self, start: int, end: int) -> int:
        """Return the best index after `start` to end a piece that can contain the text up to `end`."""
        text = self._text
        first, last = bisect_left(self.headings, (start + 1,)), bisect_left(self.headings, (end + 1,))
        cuts = [(_HEADING_RANK, heading) for heading, _ in self.headings[first:last]]
        for gap in _GAP.finditer(text, start + 1, min(len(text), end + 2)):
            if gap.start() > end:
                break
            newlines = gap[0].count("\n")
            cut = gap.start() + gap[0].rfind("\n") + 1 if newlines else gap.end()
            if newlines:
                rank = _PARAGRAPH if newlines > 1 else _LIST_ITEM if _ITEM.match(text, cut) else _LINE
            else:
                rank = _SENTENCE if text[gap.start() - 1] in ".!?\u2026\u3002\uff01\uff1f" else _WORD
            cuts.append((rank, cut))
        found = dict[tuple[bool, bool, int], int]()
        for rank, cut in cuts:
            in_block = self._block_at(cut) is not None
            is_in_line = in_block and rank > _LINE
            # Of the white space before the end of a block, only one newline is removed.
            if self._span_at(cut) is None and not (in_block and cut > end + (rank <= _LINE)):
                # A line of a block is cut between words only if it is longer than a part.
                found[is_in_line, cut - start < (end - start) * _SHARES[rank], rank] = cut
        if found:
            return found[min(found)]
        span = self._span_at(end)
        return end if span is None or span <= start else span

    def _span_at(self, index: int) -> int | None:
        """Return the start of the span that a cut at `index` would break."""
        number = bisect_left(self._whole, (index,)) - 1
        return self._whole[number][0] if number >= 0 and index < self._whole[number][1] else None

    def _block_at(self, index: int) -> Block | None:
        number = bisect_left(self.blocks, index, key=lambda block: block.start) - 1
        return self.blocks[number] if number >= 0 and index < self.blocks[number].end else None


class PartWriter(Splitter):
    """Splits Markdown into parts of at most `limit` units. A code block that is cut continues in the next part."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit, self._length = limit, 0
        self._lines: list[str] = []

    def finish(self) -> list[str]:
        text, parts, start = "\n".join(self._lines), [], 0
        self.prepare(text, self._limit)
        while start < len(text):
            end, head, tail = self.next_piece(start, self._limit)
            shown = text[start:end].removesuffix("\n") if tail else text[start:end].rstrip()
            parts.append(head + (shown if head else shown.lstrip("\n")) + tail)
            start = end
        return [part for part in parts if part]

    def add_prose(self, lines: Sequence[str], *, is_row: bool = False) -> None:
        """Add lines of text. With `is_row`, the lines are one table row and stay together."""
        start, prose = self._length, "\n".join(lines)
        for line in lines:
            whole = self._length, self._length + len(line)
            self.headings += [whole] * bool(_HEADING.match(line))
            self.spans += [whole] * ("```" in line)
            self._add(line)
        self.spans += [(start + found.start(), start + found.end()) for found in _INLINE.finditer(prose)]
        self.spans += [(start, start + len(prose))] * is_row

    def add_code(self, opening: str, rows: Sequence[str], closing: str, header_rows: int = 0) -> None:
        """Add lines of code, or rows of a table, which can have several lines. Each part repeats the header rows."""
        start, head = self._length, "\n".join([opening, *rows[:header_rows], ""])
        for row in (opening, *rows, closing):
            self.spans += [(self._length, self._length + len(row))] * ("\n" in row)
            self._add(row)
        head = head if utf16_units(head) <= self._limit // 4 else f"{opening}\n"
        self.blocks.append(Block(start, self._length - 1, head, f"\n{closing}"))

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._length += len(line) + 1


def longest_stretch(text: str, start: int, limit: int) -> str:
    """Return the longest text from `start` that fits in `limit` units. Combining marks stay with their character."""
    end = cut = start + len(longest_prefix(text[start : start + limit], limit))
    min_cut = max(start + 1, end - 16)
    while cut > min_cut and (
        text[cut] in "\u200d\ufe0e\ufe0f"
        or text[cut - 1] == "\u200d"
        or text[cut - 1] == "\\"
        or unicodedata.combining(text[cut])
    ):
        cut -= 1
    return text[start:cut] if cut > min_cut else text[start:end]
