"""Splits long text into parts within a chat service's limit, at the ends of paragraphs, sentences or words."""

import unicodedata
from collections.abc import Iterator, Sequence

from platforms.text import is_within, longest_prefix, utf16_units


class PartWriter:
    """Fills parts of at most `limit` units, line by line. A code block that is cut continues in the next part."""

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
            if not self._fits(paragraph) and self._cost(paragraph) <= self._limit:
                self._flush()
            for line in paragraph:
                if not self._fits([line]):
                    self._flush()
                for piece in _cut(line, self._limit, is_prose=True):
                    if not self._fits([piece]):
                        self._flush()
                    self._extend([piece])

    def add_code(self, opening: str, lines: Sequence[str], closing: str) -> None:
        """Add code between the given opening and closing lines. Long lines of code can be cut anywhere."""
        whole = [opening, *lines, closing]
        units = self._cost(whole)
        if self._units + units <= self._limit:
            self._extend(whole)
            return
        if units <= self._limit or not self._fits([opening, "x" * 200, closing]):
            self._flush()
        frame_units = self._cost([opening, "", closing])
        held: list[str] = []
        units = frame_units
        for piece in (piece for line in lines for piece in _cut(line, self._limit - frame_units, is_prose=False)):
            piece_units = utf16_units(piece) + 1
            if self._units + units + piece_units - 1 > self._limit:
                if held:
                    self._extend([opening, *held, closing])
                self._flush()
                held, units = [], frame_units
            held.append(piece)
            units += piece_units
        self._extend([opening, *held, closing])

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
    """Yield groups of lines, each with the blank lines that follow it."""
    group: list[str] = []
    for line in lines:
        if group and line.strip() and not group[-1].strip():
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _cut(line: str, limit: int, *, is_prose: bool) -> Iterator[str]:
    """Yield pieces of a line. White space at a cut in prose is removed."""
    start = 0
    while not is_within(line, start, limit):
        head = longest_stretch(line, start, limit)
        head = head[: _kind_cut(head)] if is_prose else head
        yield (is_prose and head.rstrip()) or head
        start += len(head)
        while is_prose and line.startswith(" ", start):
            start += 1
    yield line[start:]


def _kind_cut(head: str) -> int:
    """Return the index of the best cut: after a sentence or at a space, but never in inline code or the first half."""
    min_cut = len(head) // 2
    if head.count("`") % 2 and (tick := head.rfind("`")) > min_cut:
        head = head[:tick]
    sentence = max(head.rfind(end) + len(end) for end in (". ", "! ", "? ", "\u3002", "\uff01", "\uff1f"))
    if sentence > min_cut:
        return sentence
    space = head.rfind(" ") + 1
    return space if space > min_cut else len(head)


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
