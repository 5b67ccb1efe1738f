"""A summary that came out too long, made to fit by rule: the longest sections give way first.

Models take a length in words for a wish. A handoff that is as long as what it stands for would have the next
compression follow at once, so what is too much is left out line by line, and the section says so.
"""

import heapq
import re

from agent.sizes import estimated_text_tokens
from hermes_state.values import Tokens

NOTE_TOKENS = 10
"""The line that says how many lines were left out."""

_HEADING = re.compile(r"^#{1,4}\s+\S.*$", re.MULTILINE)


class _Section:
    """A heading and its lines; each line is looked at once, however many there are."""

    def __init__(self, heading: str, lines: list[str]) -> None:
        self.heading = heading
        self._lines = lines
        self._sizes = [int(estimated_text_tokens(line)) + 1 for line in lines]
        self._dropped: set[int] = set()
        # The largest line goes first; the first line of a section stays to the end.
        self._order = sorted(range(len(lines)), key=lambda place: (place > 0, self._sizes[place]))
        self.tokens = sum(self._sizes)

    @property
    def has_lines(self) -> bool:
        return bool(self._order)

    def drop(self) -> int:
        """Leave out the next line and return what that frees."""
        place = self._order.pop()
        self.tokens -= self._sizes[place]
        freed = self._sizes[place] - (0 if self._dropped else NOTE_TOKENS)
        self._dropped.add(place)
        return freed

    def text(self) -> str:
        kept = [line for place, line in enumerate(self._lines) if place not in self._dropped]
        note = [f"[{len(self._dropped)} lines left out for length]"] if self._dropped else []
        return "\n".join([line for line in (self.heading, *kept, *note) if line])


def fitted(text: str, limit: Tokens) -> str:
    """`text` with lines left out until it takes about `limit` tokens. One that fits comes back as it is."""
    if estimated_text_tokens(text) <= limit:
        return text
    sections = _sections(text)
    total = sum(section.tokens + int(estimated_text_tokens(section.heading)) + 1 for section in sections)
    longest = [(-section.tokens, place) for place, section in enumerate(sections) if section.has_lines]
    heapq.heapify(longest)
    while total > limit and longest:
        _, place = heapq.heappop(longest)
        total -= sections[place].drop()
        if sections[place].has_lines:
            heapq.heappush(longest, (-sections[place].tokens, place))
    return "\n\n".join(section.text() for section in sections)


def _sections(text: str) -> list[_Section]:
    starts = [0, *(match.start() for match in _HEADING.finditer(text))]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    sections = [_section(piece, has_heading=place > 0) for place, piece in enumerate(pieces)]
    return [section for section in sections if section.heading or section.has_lines]


def _section(piece: str, *, has_heading: bool) -> _Section:
    lines = [line for line in piece.splitlines() if line.strip()]
    heading = lines.pop(0) if has_heading else ""
    return _Section(heading, lines)
