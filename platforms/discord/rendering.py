"""Rendering: Markdown as models write it becomes messages that Discord shows as meant.

Discord shows most of CommonMark, but no tables, no `~~~` fences, no indented code and no headings below the
third level, and it takes 2,000 characters. So code of every kind becomes a block between three backticks,
tables become aligned code blocks, and a text that is too long is cut into parts whose fences are closed and
opened again at the cut. Lengths are UTF-16 code units, the stricter of the two ways to count.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from markdown_it import MarkdownIt
from markdown_it.token import Token

from hermes_state.values import OutboundPart
from platforms.text import longest_prefix, utf16_units

LIMIT = 2000
"""Longest Discord message in UTF-16 code units."""

FENCE = "```"
EMPTY_TEXT = "…"
"""Text of an answer without anything visible: Discord would refuse it as an empty message."""

_PARSER = MarkdownIt("commonmark").enable("table")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+\-.#]{1,20}")
_ATTRIBUTE = re.compile(r"[\w-]+=|\{")
"""Beginning of what some write behind a language, such as `title="a.py"` or `{1,3-5}`."""
_DEEP_HEADING = re.compile(r"#{4,6}(?=[ \t])")
_INVISIBLE = re.compile(r"[\s\u200b-\u200f\u2060-\u2064\ufeff\u00ad\x00-\x1f\x7f]")
_THIRD_BACKTICK = re.compile(r"(?<=``)(?=`)")
_PLAIN_INLINE = frozenset({"text", "text_special", "code_inline", "em_open", "em_close", "strong_open", "strong_close"})
_BACKTICK_RUN = re.compile(r"`{3,}")
_SENTENCE_ENDS = (". ", "! ", "? ", "\u3002", "\uff01", "\uff1f")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")


_Block: TypeAlias = tuple[str | None, Sequence[str]]
"""Lines under the language of their code, empty where none is named; None for prose."""


def render(text: str, limit: int = LIMIT) -> tuple[OutboundPart, ...]:
    """Render at least one part, each within `limit` UTF-16 units, visible, and with balanced code fences."""
    clean = text.encode("utf-8", "replace").decode().replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    writer = _PartWriter(limit)
    for language, lines in _blocks(clean):
        if language is None:
            writer.add_prose(lines)
        else:
            writer.add_code(language, lines)
    parts = [part for part in writer.finish() if _INVISIBLE.sub("", part)] or [EMPTY_TEXT]
    return tuple(OutboundPart(text=part, plain=part) for part in parts)


# Blocks: what is prose, what is code


def _blocks(text: str) -> Iterator[_Block]:
    lines = text.split("\n")
    position = 0
    for token, code, marker in _code_tokens(_PARSER.parse(text)):
        assert token.map is not None
        start, end = token.map
        if start < position:
            continue
        before = lines[position:start]
        if lead := _text_before(marker, lines[start]):  # the `1.` of a list item that begins with code
            before.append(lead)
        if before:
            yield None, before
        yield code
        position = end
    if position < len(lines):
        yield None, lines[position:]


def _code_tokens(tokens: Sequence[Token]) -> Iterator[tuple[Token, _Block, str]]:
    """Blocks to be shown as code, each with what marks its beginning in its first line."""
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        if token.type == "fence":
            language, rest = _language_and_rest(token.info.strip())
            content = _content_lines(token)
            yield token, (language, [rest, *content] if rest else content), token.markup
        elif token.type == "code_block":
            content = _content_lines(token)
            yield token, ("", content), content[0].strip()
        elif token.type == "table_open" and token.level == 0:
            yield token, ("", [*_table_lines(tokens[index:])]), ""


def _language_and_rest(info: str) -> tuple[str, str]:
    """The language behind an opening fence, and what else stands there: Discord would show nothing of it."""
    first, _, rest = info.partition(" ")
    is_language = _LANGUAGE.fullmatch(first) is not None and (not rest or _ATTRIBUTE.match(rest) is not None)
    return (first, rest.strip()) if is_language else ("", info)


def _content_lines(token: Token) -> list[str]:
    return token.content.removesuffix("\n").split("\n")


def _text_before(marker: str, line: str) -> str:
    lead = line[: max(0, line.find(marker))].rstrip() if marker else ""
    return lead if lead.strip(" \t>") else ""


def _table_lines(tokens: Sequence[Token]) -> Iterator[str]:
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_plain_cell(token))
    widths = [max(_columns(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        padded = (cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=False))
        yield " | ".join(padded).rstrip()
        if number == 0:
            yield "-+-".join("-" * width for width in widths)


def _plain_cell(token: Token) -> str:
    """Text of a cell: code blocks show no emphasis. What holds more than emphasis and code stays as written."""
    children = token.children or []
    is_plain = {child.type for child in children} <= _PLAIN_INLINE
    text = "".join(child.content for child in children) if is_plain else token.content
    return " ".join(text.split())


def _columns(text: str) -> int:
    """Width in a fixed-width font: Han, kana, Hangul and emoji take two columns, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


# Parts: packing blocks into messages


class _PartWriter:
    """Writer of parts, filled line by line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._lines: list[str] = []
        self._units = 0

    def finish(self) -> list[str]:
        self._flush()
        return self._parts

    def add_prose(self, lines: Sequence[str]) -> None:
        for paragraph in _paragraphs(lines):
            safe = [_prose_line(line, self._limit) for line in paragraph]
            if not self._fits(safe) and self._cost(safe) <= self._limit:
                self._flush()
            for line in safe:
                self._add_prose_line(line)

    def add_code(self, language: str, lines: Sequence[str]) -> None:
        opening = FENCE + language
        safe = [_THIRD_BACKTICK.sub("\u200b", line) for line in lines]  # so that no line can end its block
        whole = [opening, *safe, FENCE]
        if self._fits(whole):
            self._extend(whole)
            return
        if self._cost(whole) <= self._limit or not self._fits([opening, "x" * 200, FENCE]):
            self._flush()
        self._split_code(opening, safe)

    def _split_code(self, opening: str, lines: Sequence[str]) -> None:
        max_units = self._limit - self._cost([opening, "", FENCE])
        pieces = [piece for line in lines for piece in _cut_hard(line, max_units)]
        held: list[str] = []
        for piece in pieces:
            if not self._fits([opening, *held, piece, FENCE]):
                if held:
                    self._extend([opening, *held, FENCE])
                    held = []
                self._flush()
            held.append(piece)
        self._extend([opening, *held, FENCE])

    def _add_prose_line(self, line: str) -> None:
        if self._fits([line]):
            self._extend([line])
            return
        self._flush()
        for piece in _cut_prose(line, self._limit):
            if not self._fits([piece]):
                self._flush()
            self._extend([piece])

    def _cost(self, lines: Sequence[str]) -> int:
        return sum(utf16_units(line) + 1 for line in lines) - 1

    def _fits(self, lines: Sequence[str]) -> bool:
        return self._units + self._cost(lines) <= self._limit

    def _extend(self, lines: Sequence[str]) -> None:
        self._lines.extend(lines)
        self._units += self._cost(lines) + 1

    def _flush(self) -> None:
        part = "\n".join(self._lines).strip("\n")
        if part:
            self._parts.append(part)
        self._lines, self._units = [], 0


def _paragraphs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Groups of lines, each with the blank lines that follow it."""
    group: list[str] = []
    was_blank = False
    for line in lines:
        is_empty = not line.strip()
        if group and was_blank and not is_empty:
            yield group
            group = []
        group.append(line)
        was_blank = is_empty
    if group:
        yield group


def _prose_line(line: str, limit: int) -> str:
    """Line of prose without an open fence in it, wherever it is cut: Discord begins code at any three backticks."""
    line = _DEEP_HEADING.sub("###", line, count=1) if line.startswith("####") else line
    if line.count(FENCE) % 2 or utf16_units(line) > limit:
        line = _BACKTICK_RUN.sub(lambda run: r"\`" * len(run[0]), line)
    return line


def _cut_prose(line: str, limit: int) -> Iterator[str]:
    while len(line) > limit or utf16_units(line) > limit:  # counting a long line for every piece would be quadratic
        head = _head(line, limit)
        cut = _kind_cut(head)
        yield line[:cut].rstrip() or line[:cut]
        line = line[cut:].lstrip(" ")
    yield line


def _kind_cut(head: str) -> int:
    """Index to cut at: after a sentence, else at a space, not inside inline code, never before half of it."""
    min_cut = len(head) // 2
    if head.count("`") % 2 and (tick := head.rfind("`")) > min_cut:
        head = head[:tick]
    sentence = max(head.rfind(end) + len(end) for end in _SENTENCE_ENDS)
    if sentence > min_cut:
        return sentence
    space = head.rfind(" ") + 1
    return space if space > min_cut else len(head)


def _cut_hard(line: str, limit: int) -> Iterator[str]:
    while len(line) > limit or utf16_units(line) > limit:
        head = _head(line, limit)
        yield head
        line = line[len(head) :]
    yield line


def _head(line: str, limit: int) -> str:
    """Longest beginning within `limit` units that does not part a character from its marks."""
    end = cut = len(longest_prefix(line, limit))
    min_cut = max(1, end - 16)
    while cut > min_cut and (
        line[cut] in _JOINERS or line[cut - 1] == "\u200d" or line[cut - 1] == "\\" or unicodedata.combining(line[cut])
    ):
        cut -= 1
    return line[:cut] if cut > min_cut else line[:end]
