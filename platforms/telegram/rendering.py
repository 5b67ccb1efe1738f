"""Rendering: Markdown as text and entities, in parts that Telegram takes.

Entities cannot fail to parse, unlike Telegram's own Markdown. A part keeps them as the JSON that is sent.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import orjson
from telegramify_markdown import MessageEntity, RenderConfig, convert

from hermes_state.values import OutboundPart
from platforms.telegram.inbound import MESSAGE_UNITS
from platforms.text import longest_prefix, utf16_units

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

_URL = re.compile(r"(?:https?|tg|mailto|tel|ftp)://?\S", re.IGNORECASE)
_NESTED = re.compile(r"^((?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))){8})(?=[ \t]*(?:>|[-+*\d]))", re.MULTILINE)
"""Line that opens more than eight quotes and lists, one in the other."""
_DOUBLING = re.compile(r"\\(?:sqrt|overline|underline|underbar)")
"""LaTeX that the converter shows by a mark on every character, marks included: each nesting doubles the text."""
_FORMULA_OPENS = re.compile(r"\\[(\[]")
_FORMULA_ENDS = re.compile(r"\\[)\]]")
MAX_DOUBLINGS = 6
"""Most doublings in one formula; beyond it the text stays LaTeX."""
MAX_OPEN_FORMULAS = 20
"""Most formulas of a paragraph that begin and never end: each is looked through to the end."""
MAX_DISPLAY_FORMULAS = 100
MAX_FENCES = 1_000
"""Most marks of code blocks in an answer: before each block the converter looks back over all empty ones."""

_PRIVATE_USE = [chr(code) for code in range(0xE000, 0xE100)]
_BREAKS = ("\n\n", "\n", " ")
"""Breaks at which a part may end, best first."""


def _config() -> RenderConfig:
    config = RenderConfig.isolated()
    symbol = config.markdown_symbol
    for level in range(1, 7):
        setattr(symbol, f"heading_level_{level}", "")
    symbol.unordered_list_item = "•"
    symbol.image = ""
    symbol.task_completed = "☑"
    symbol.task_uncompleted = "☐"  # the library's own choice is a box with a tick in it
    return config


_CONFIG = _config()


@dataclass(frozen=True, slots=True)
class _RenderedText:
    """Text and the entities over it, offsets in UTF-16 units."""

    text: str
    entities: Sequence[MessageEntity]

    def part(self) -> OutboundPart:
        markup = orjson.dumps([entity.to_dict() for entity in self.entities]).decode() if self.entities else ""
        return OutboundPart(text=self.text, plain=self.text, markup=markup)


def render(markdown: str) -> Sequence[OutboundPart]:
    """Render at least one part, each within `PART_UNITS`; a code block that is cut stays one on both sides."""
    # Without lone surrogates, which no network format can carry.
    source = markdown.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    fences = source.count("```") + source.count("~~~")
    rendered = _converted(source) if fences <= MAX_FENCES else _RenderedText(source.strip(), ())
    parts = [piece.part() for piece in _split(rendered)]
    if not parts and (plain := source.strip()):
        parts = [piece.part() for piece in _split(_RenderedText(plain, ()))]  # only markup: better shown than lost
    return parts or [OutboundPart(text=_EMPTY, plain=_EMPTY)]


def marked_as_repeat(part: OutboundPart) -> OutboundPart:
    """Put the repeat mark in front of a part, and move its entities along."""
    entities = orjson.loads(part.markup) if part.markup else []
    for entity in entities:
        entity["offset"] += len(REPEAT_MARK)  # ASCII: characters are units
    return OutboundPart(
        text=REPEAT_MARK + part.text,
        plain=REPEAT_MARK + part.plain,
        markup=orjson.dumps(entities).decode() if entities else "",
        buttons=part.buttons,
    )


# Conversion


def _converted(source: str) -> _RenderedText:
    """Convert Markdown to text and entities, with what the converter would take away put aside."""
    masked, mask = _masked(_NESTED.sub(r"\1 \\", source))
    text, entities = convert(masked, config=_CONFIG)
    if mask:
        table = {ord(stand_in): original for stand_in, original in mask.items()}
        text = text.translate(table)
        entities = [
            replace(
                entity,
                url=entity.url and entity.url.translate(table),
                language=entity.language and entity.language.translate(table),
            )
            if entity.url or entity.language
            else entity
            for entity in entities
        ]
    return _RenderedText(text, [entity for entity in entities if _is_showable(entity)])


def _masked(source: str) -> tuple[str, dict[str, str]]:
    """Put a character of the private use area for each one that is text in a chat and markup to the converter.

    `<` opens HTML, which is dropped; `||` opens a spoiler, which hides half of a condition. One unit stands for
    one unit, so offsets stay right when the originals are put back.
    """
    mask: dict[str, str] = {}
    free = (stand_in for stand_in in _PRIVATE_USE if stand_in not in source)  # looked for only when needed
    if "<" in source and (stand_in := next(free, None)):
        mask[stand_in] = "<"
        source = source.replace("<", stand_in)
    if "||" in source and (stand_in := next(free, None)):
        mask[stand_in] = "|"
        lines = source.split("\n")
        source = "\n".join(
            line if line.lstrip().startswith("|") else line.replace("||", stand_in * 2) for line in lines
        )
    if "\\" in source and any(map(_is_explosive, source.split("\n\n"))) and (stand_in := next(free, None)):
        mask[stand_in] = "\\"
        source = source.replace("\\", stand_in)
    if source.count("$$") > MAX_DISPLAY_FORMULAS and (stand_in := next(free, None)):
        mask[stand_in] = "$"
        source = source.replace("$", stand_in)
    return source, mask


def _is_explosive(paragraph: str) -> bool:
    """Tell whether the converter would take exponential memory or quadratic time for the formulas."""
    pieces = _FORMULA_ENDS.split(paragraph)
    if len(_FORMULA_OPENS.findall(pieces[-1])) > MAX_OPEN_FORMULAS:
        return True
    opened = (_FORMULA_OPENS.split(piece, maxsplit=1) for piece in pieces)
    formulas = [piece[1] for piece in opened if len(piece) == 2] + paragraph.split("$")[1:]
    return any(len(_DOUBLING.findall(formula)) > MAX_DOUBLINGS for formula in formulas)


def _is_showable(entity: MessageEntity) -> bool:
    """Telegram refuses a link without a host; relative links of an answer lead nowhere in a chat anyway."""
    return entity.type != "text_link" or bool(entity.url and _URL.match(entity.url))


# Splitting


def _split(rendered: _RenderedText) -> Iterator[_RenderedText]:
    """Pieces within the limits, without blank ones; white space at a cut goes away."""
    entities = sorted(rendered.entities, key=lambda entity: entity.offset)
    if utf16_units(rendered.text) <= PART_UNITS and len(entities) <= PART_ENTITIES:
        if _is_visible(rendered.text):
            yield _RenderedText(rendered.text, entities)
        return
    start = unit = 0
    begun: list[MessageEntity] = []  # those that reach into the piece from before it
    ahead = deque(entities)
    while start < len(rendered.text):
        near = [*begun, *islice(ahead, PART_ENTITIES + 1)]  # no piece takes more
        end = _piece_end(rendered.text, start, unit, near)
        text = rendered.text[start:end]
        units = utf16_units(text)
        shown = text.rstrip()
        if _is_visible(shown):
            yield _RenderedText(shown, _clipped(near, unit, unit + utf16_units(shown)))
        start, unit = end, unit + units
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
    window = longest_prefix(text[start : start + budget], budget)
    end = start + max(1, len(window))
    if end >= len(text):
        return len(text)
    for mark in _BREAKS:
        # A break in the first half would make a stub of a part; then a coarser cut is better.
        position = text.rfind(mark, start + len(window) // 2, end)
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
