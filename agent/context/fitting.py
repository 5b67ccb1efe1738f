"""A summary that came out too long, made to fit by rule: the longest sections give way first.

Models take a length in words for a wish. A handoff that is as long as what it stands for would have the next
compression follow at once, so what is too much is left out line by line, and the section says so.
"""

import re
from dataclasses import dataclass

from agent.sizes import estimated_text_tokens
from hermes_state.values import Tokens

NOTE_TOKENS = 10
"""The line that says how many lines were left out."""

_HEADING = re.compile(r"^#{1,4}\s+\S.*$", re.MULTILINE)


@dataclass(slots=True)
class _Section:
    heading: str
    lines: list[str]
    sizes: list[int]
    left_out: int = 0

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    def drop(self) -> int:
        """Leave out the largest line and return what that frees; the first line of a section stays to the end."""
        place = max(range(len(self.lines)), key=lambda index: (index > 0, self.sizes[index]))
        freed = self.sizes[place] - (0 if self.left_out else NOTE_TOKENS)
        del self.lines[place], self.sizes[place]
        self.left_out += 1
        return freed

    def text(self) -> str:
        note = [f"[{self.left_out} lines left out for length]"] if self.left_out else []
        return "\n".join([line for line in (self.heading, *self.lines, *note) if line])


def fitted(text: str, limit: Tokens) -> str:
    """`text` with lines left out until it takes about `limit` tokens. One that fits comes back as it is."""
    if estimated_text_tokens(text) <= limit:
        return text
    sections = _sections(text)
    total = sum(section.tokens + int(estimated_text_tokens(section.heading)) + 1 for section in sections)
    while total > limit:
        longest = max((section for section in sections if section.lines), key=lambda one: one.tokens, default=None)
        if longest is None:
            break
        total -= longest.drop()
    return "\n\n".join(section.text() for section in sections)


def _sections(text: str) -> list[_Section]:
    starts = [0, *(match.start() for match in _HEADING.finditer(text))]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    sections = [_section(piece, has_heading=place > 0) for place, piece in enumerate(pieces)]
    return [section for section in sections if section.heading or section.lines]


def _section(piece: str, *, has_heading: bool) -> _Section:
    lines = [line for line in piece.splitlines() if line.strip()]
    heading = lines.pop(0) if has_heading else ""
    return _Section(heading, lines, [int(estimated_text_tokens(line)) + 1 for line in lines])
