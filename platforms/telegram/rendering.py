"""Rendering: Markdown as text and entities, in parts that Telegram takes.

Entities cannot fail to parse, unlike Telegram's own Markdown. A part keeps them as the JSON that is sent.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import msgspec
import orjson
from telegramify_markdown import MessageEntity

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart
from platforms.parts import longest_stretch
from platforms.telegram.conversion import convert
from platforms.telegram.inbound import MESSAGE_UNITS
from platforms.text import is_within, utf16_units, with_newlines

REPEAT_MARK = "(possibly a repeat) "
"""Mark before a part that may be visible already."""
PART_UNITS = MESSAGE_UNITS - len(REPEAT_MARK)
"""Longest part we make, in UTF-16 units: a repeat has to fit with its mark."""
PART_ENTITIES = 100
"""Most entities in a message; Telegram ignores what is formatted beyond."""
STUB_UNITS = 200
"""Shortest part that is made for the sake of formatting, in UTF-16 units."""

_EMPTY = "…"
"""Text of an answer in which there is nothing to see: Telegram takes no empty message."""

_BREAKS = ("\n\n", "\n", " ")
"""Breaks at which a part may end, best first."""


def render(markdown: str) -> Sequence[OutboundPart]:
    """Render at least one part, each within `PART_UNITS`; a code block that is cut stays one on both sides."""
    source = with_newlines(well_formed(markdown))
    parts = [*_split(*convert(source))]
    if not parts:
        parts = [*_split(source.strip(), ())]  # only markup: better shown than lost
    return parts or [_part(_EMPTY, ())]


def marked_as_repeat(part: OutboundPart) -> OutboundPart:
    """Put the repeat mark in front of a part, and move its entities along."""
    entities = orjson.loads(part.markup) if part.markup else []
    for entity in entities:
        entity["offset"] += len(REPEAT_MARK)  # ASCII: characters are units
    markup = orjson.dumps(entities).decode() if entities else ""
    return msgspec.structs.replace(part, text=REPEAT_MARK + part.text, plain=REPEAT_MARK + part.plain, markup=markup)


# Splitting


def _part(text: str, entities: Sequence[MessageEntity]) -> OutboundPart:
    markup = orjson.dumps([entity.to_dict() for entity in entities]).decode() if entities else ""
    return OutboundPart(text=text, plain=text, markup=markup)


def _split(text: str, over: Sequence[MessageEntity]) -> Iterator[OutboundPart]:
    """Parts within the limits, without blank ones; white space at a cut goes away."""
    entities = sorted(over, key=lambda entity: entity.offset)
    if utf16_units(text) <= PART_UNITS and len(entities) <= PART_ENTITIES:
        if _is_visible(text):
            yield _part(text, entities)
        return
    start = unit = 0
    begun: list[MessageEntity] = []  # those that reach into the piece from before it
    ahead = deque(entities)
    while start < len(text):
        near = [*begun, *islice(ahead, PART_ENTITIES + 1)]  # no piece takes more
        end = _piece_end(text, start, unit, near)
        piece = text[start:end]
        shown = piece.rstrip()
        if _is_visible(shown):
            yield _part(shown, _clipped(near, unit, unit + utf16_units(shown)))
        start, unit = end, unit + utf16_units(piece)
        while ahead and ahead[0].offset < unit:
            begun.append(ahead.popleft())
        begun = [entity for entity in begun if entity.offset + entity.length > unit]


def _piece_end(text: str, start: int, unit: int, entities: Sequence[MessageEntity]) -> int:
    """Index after the piece that begins at `start`, which is UTF-16 unit `unit`."""
    budget = PART_UNITS
    if len(entities) > PART_ENTITIES:
        formatted = entities[PART_ENTITIES].offset - unit
        if formatted >= STUB_UNITS:
            budget = min(budget, formatted)
    if is_within(text, start, budget):
        return len(text)
    end = start + len(longest_stretch(text, start, budget))
    for mark in _BREAKS:
        # A break in the first half would make a stub of a part; then a coarser cut is better.
        position = text.rfind(mark, (start + end) // 2, end)
        if position > start:
            return position + len(mark)
    return end


def _clipped(entities: Sequence[MessageEntity], first: int, last: int) -> list[MessageEntity]:
    """Entities between two units, clipped and counted from the first."""
    clipped = []
    for entity in entities:
        start, end = max(entity.offset, first), min(entity.offset + entity.length, last)
        if start < end:
            clipped.append(replace(entity, offset=start - first, length=end - start))
    return clipped[:PART_ENTITIES]


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)
