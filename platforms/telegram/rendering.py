"""Rendering of Markdown as plain text plus entities, split into parts that Telegram accepts.

Entity offsets are in UTF-16 code units. Telegram can fail to parse its own Markdown, but entities need no parsing. A
part stores its entities as JSON.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from urllib.parse import unquote

import msgspec
import orjson
from markdown_it.token import Token
from telegramify_markdown.entity import MessageEntity

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart
from platforms.formulas import add_formulas, shown
from platforms.markdown import BREAK, Listed, code_of, listed, parsed_cell, parser, table_rows
from platforms.settings import TableStyle
from platforms.telegram.inbound import MESSAGE_UNITS
from platforms.text import Block, Splitter, utf16_units, with_newlines

REPEAT_MARK = "(possibly a repeat) "
"""Prefix of a part that might already be visible."""
PART_UNITS = MESSAGE_UNITS - len(REPEAT_MARK)
"""Maximum length of a part, in UTF-16 units. It leaves room for the repeat mark."""
PART_ENTITIES = 100
"""Maximum number of entities in a message. Telegram ignores any further entities."""

_URL = re.compile(r"(?:https?|tg|mailto|tel|ftp)://?\S", re.IGNORECASE)
_PROSE = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?!'()-]){0,500}+(?<! )")
"""A short line without any markup. The parser would return it unchanged."""
_STYLES = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_HEADINGS = {"h1": ("bold", "underline"), "h2": ("bold", "underline"), "h3": ("bold",), "h4": ("bold",)}


def render(markdown: str, tables: TableStyle = "list") -> Sequence[OutboundPart]:
    """Render Markdown as parts within `PART_UNITS`, at least one. A cut code block continues in the next part."""
    if _PROSE.fullmatch(markdown):
        return [_part(markdown, ())]
    source = with_newlines(well_formed(markdown))
    writer = _EntityWriter(source.split("\n"), tables)
    for token in _PARSER.parse(source):
        writer.add(token)
    parts = [*_split("".join(writer.pieces), writer.entities, writer.splitter)]
    if not parts:
        parts = [*_split(source.strip(), (), Splitter())]  # the text consists only of markup, which is shown unchanged
    return parts or [_part("…", ())]  # Telegram rejects empty messages


def marked_as_repeat(part: OutboundPart) -> OutboundPart:
    """Put the repeat mark before a part's text, and shift the entities accordingly."""
    entities = orjson.loads(part.markup) if part.markup else []
    for entity in entities:
        entity["offset"] += len(REPEAT_MARK)  # ASCII, so characters are units
    markup = orjson.dumps(entities).decode() if entities else ""
    return msgspec.structs.replace(part, text=REPEAT_MARK + part.text, plain=REPEAT_MARK + part.plain, markup=markup)


# Splitting


def _part(text: str, entities: Sequence[MessageEntity]) -> OutboundPart:
    markup = orjson.dumps([entity.to_dict() for entity in entities]).decode() if entities else ""
    return OutboundPart(text=text, plain=text, markup=markup)


def _split(text: str, over: Sequence[MessageEntity], splitter: Splitter) -> Iterator[OutboundPart]:
    """Yield parts within the limits, but no blank parts. White space at a cut is removed."""
    entities = sorted(over, key=lambda entity: entity.offset)
    if utf16_units(text) <= PART_UNITS and len(entities) <= PART_ENTITIES:
        if _is_visible(text):
            yield _part(text, entities)
        return
    splitter.prepare(text, PART_UNITS)
    start = unit = 0
    begun: list[MessageEntity] = []  # entities that began before this piece
    ahead = deque(entities)
    while start < len(text):
        near = [*begun, *islice(ahead, PART_ENTITIES + 1)]  # the rest cannot belong to this piece
        formatted = near[PART_ENTITIES].offset - unit if len(near) > PART_ENTITIES else PART_UNITS
        limit = formatted if 200 <= formatted < PART_UNITS else PART_UNITS  # formatting must not shorten a part
        end, head, _ = splitter.next_piece(start, limit)
        visible = text[start:end].rstrip()
        if _is_visible(visible):
            yield _part(head + visible, _clipped(near, unit, unit + utf16_units(visible), utf16_units(head)))
        start, unit = end, unit + utf16_units(text[start:end])
        while ahead and ahead[0].offset < unit:
            begun.append(ahead.popleft())
        begun = [entity for entity in begun if entity.offset + entity.length > unit]


def _clipped(entities: Sequence[MessageEntity], first: int, last: int, added: int) -> list[MessageEntity]:
    """Return the entities between two UTF-16 positions, clipped to this range, with offsets from its start.

    `added`: length of the table header that is repeated before the range, in UTF-16 units.
    """
    ends = ((one, max(one.offset, first), min(one.offset + one.length, last)) for one in entities)
    clipped = [replace(one, offset=a - first + added, length=b - a) for one, a, b in ends if a < b]
    for entity in clipped:
        if entity.offset == added and entity.type == "pre":
            entity.offset, entity.length = 0, entity.length + added
    return clipped[:PART_ENTITIES]


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


# Markdown as text and entities


class _EntityWriter:
    """Writes blocks of text with entities. A block begins on a new line, after a blank line if the source has one."""

    def __init__(self, lines: Sequence[str], tables: TableStyle) -> None:
        self.pieces: list[str] = []
        self.entities: list[MessageEntity] = []
        self.splitter = Splitter()
        self._lines, self._tables = lines, tables
        self._units = self._length = self._newlines = 0
        self._begun: list[MessageEntity] = []
        self._starts: list[int] = []  # index of the first character of each open entity
        self._titles: list[tuple[int, str]] = []
        self._numbers: list[int | None] = []
        """Number of the next item of each open list; None for a bulleted list."""
        self._marker = ""
        """Bullet or number of a list item whose text has not begun."""

    def add(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._add_inline(token.children or ())
            case "paragraph_open":
                self._begin_block(token)
            case "heading_open" | "heading_close":
                self._add_heading(token)
            case "bullet_list_open" | "ordered_list_open":
                self._numbers.append(int(token.attrs.get("start", 1)) if token.tag == "ol" else None)
            case "bullet_list_close" | "ordered_list_close":
                self._numbers.pop()
            case "list_item_open":
                self._begin_item(token)
            case "list_item_close":
                self._write_marker()
            case "blockquote_open":
                self._begin_block(token, is_below_marker=True)
                self._begin("blockquote")
            case "blockquote_close":
                self._end()
            case "fence" | "code_block":
                language, lines = code_of(token)
                self._add_code(token, lines, language)
            case "formula":
                self._add_code(token, [shown(token)])
            case "table":
                rows = table_rows(token)
                items = listed(token, rows) if self._tables == "list" else None
                self._add_code(token, rows, is_table=True) if items is None else self._add_list(token, items)
            case "hr":
                self._begin_block(token, is_below_marker=True)
                self._write("————————")

    def _add_heading(self, token: Token) -> None:
        if token.nesting > 0:
            self._begin_block(token)
            self._write_marker()
            self.splitter.headings.append((self._length, self._length))
        for style in _HEADINGS.get(token.tag, ("italic",)):
            self._begin(style) if token.nesting > 0 else self._end()
        self.splitter.headings[-1] = (self.splitter.headings[-1][0], self._length)

    def _begin_item(self, token: Token) -> None:
        self._begin_block(token, is_below_marker=True)
        number = self._numbers[-1]
        if number is not None:
            number = max(number, int(token.info))  # `1. 1. 1.` becomes 1, 2, 3
            self._numbers[-1] = number + 1
        bullet = "+ " if token.markup == "+" else "• "  # `+ 50` can be a positive number
        self._marker = "  " * (len(self._numbers) - 1) + (bullet if number is None else f"{number}{token.markup} ")

    def _add_code(self, token: Token, lines: Sequence[str], language: str = "", *, is_table: bool = False) -> None:
        self._begin_block(token, is_below_marker=True)
        start = at = self._length
        self._add_marked("pre", "\n".join(lines), language or None)
        head = f"{lines[0]}\n" if is_table and utf16_units(lines[0]) < PART_UNITS // 4 else ""
        self.splitter.blocks.append(Block(start, self._length, head))
        for line in lines if is_table else ():
            self.splitter.spans += [(at, at + len(line))] * ("\n" in line)  # a row of several lines
            at += len(line) + 1

    def _add_list(self, token: Token, items: Listed) -> None:
        """Add a table as a list: the title of each row in bold, then one line for each of its other cells."""
        self._begin_block(token, is_below_marker=True)
        for number, (title, values) in enumerate(items):
            self._write("\n\n" if number else "")
            start, caption = self._length, "" if number else token.meta["rows"][0][0]
            self._add_cell(caption)
            self._write(":\n" if caption else "")
            self._begin("bold")
            self._add_cell(title)
            self._end()
            for name, value in values:
                self._write("\n• ")
                self._add_cell(name)
                self._write(": " if name else "")
                self._add_cell(value)
            self.splitter.spans.append((start, self._length))

    def _add_cell(self, cell: str) -> None:
        self._add_inline(parsed_cell(_PARSER, cell).children or ())

    def _add_inline(self, tokens: Sequence[Token]) -> None:
        if self._marker and tokens and tokens[0].content.startswith(("☐ ", "☑ ")):
            self._marker = " " * (len(self._marker) - len(self._marker.lstrip()))  # the check box replaces it
        self._write_marker()
        for token in tokens:
            match token.type:
                case "softbreak" | "hardbreak":
                    self._write("\n")
                case "code_inline":
                    self._add_marked("code", token.content)
                case "formula":
                    self._add_marked("pre" if "\n" in shown(token) else "code", shown(token))
                case "image":
                    self._begin_link(token)
                    self._add_inline(token.children or ())
                    self._end_link()
                case "link_open":
                    self._begin_link(token)
                case "link_close":
                    self._end_link()
                case _ if token.tag in _STYLES:
                    self._begin(_STYLES[token.tag]) if token.nesting > 0 else self._end()
                case _:
                    self._write(BREAK.sub("\n", token.content))

    def _begin_block(self, token: Token, *, is_below_marker: bool = False) -> None:
        if self._marker and not is_below_marker:
            return
        self._write_marker()
        if self._units:
            is_item = bool(self._numbers) and token.type in ("paragraph_open", "list_item_open")
            start = token.map[0] if token.map else 0
            is_apart = not is_item and start > 0 and not self._lines[start - 1].strip(" \t>")
            self._write("\n" * (1 + is_apart - self._newlines))

    def _begin_link(self, token: Token) -> None:
        url = str(token.attrs.get("href") or token.attrs.get("src") or "")
        is_in_word = bool(self.pieces) and self.pieces[-1][-1].isalnum()
        self._begin("text_link", url=url)
        self._titles.append((len(self.pieces), str(token.attrs.get("title", ""))))
        self._write("[" if is_in_word and not _URL.match(url) else "")  # `handlers[name](event)`

    def _end_link(self) -> None:
        """End a link. Write its title, and any URL that is invalid or has no link text."""
        url, (start, title) = unquote(self._begun[-1].url or ""), self._titles.pop()
        text = "".join(self.pieces[start:])
        shown = f"]({url})" if text.startswith("[") else f" ({url})" if url != text else ""
        self._write(url if not text.strip() else "" if _URL.match(url) else shown)
        self._end()
        self._write(f" ({title})" if title else "")

    def _add_marked(self, style: str, text: str, language: str | None = None) -> None:
        self._begin(style, language=language)
        self._write(text)
        self._end()

    def _begin(self, style: str, *, url: str | None = None, language: str | None = None) -> None:
        self._begun.append(MessageEntity(style, self._units, 0, url=url, language=language))
        self._starts.append(self._length)

    def _end(self) -> None:
        """End the newest entity. Leave it out if it is empty, a quote inside a quote, or a link without a host."""
        entity, start = self._begun.pop(), self._starts.pop()
        if entity.type in ("code", "text_link"):
            self.splitter.spans.append((start, self._length))
        entity.length = self._units - entity.offset
        if entity.type == "blockquote":
            if any(outer.type == "blockquote" for outer in self._begun):
                return
            entity.type = "expandable_blockquote" if entity.length > 200 else "blockquote"
        if entity.length and (entity.url is None or _URL.match(entity.url)):
            self.entities.append(entity)

    def _write_marker(self) -> None:
        marker, self._marker = self._marker, ""
        self._write(marker)

    def _write(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self._units += utf16_units(text)
            self._length += len(text)
            ends = len(text) - len(text.rstrip("\n"))
            self._newlines = ends + (self._newlines if ends == len(text) else 0)


_PARSER = parser()
add_formulas(_PARSER)
