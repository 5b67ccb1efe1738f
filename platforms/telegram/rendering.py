"""Rendering of Markdown as plain text plus entities, split into parts that Telegram accepts.

Entity offsets are in UTF-16 code units. Telegram can fail to parse its own Markdown, but entities need no parsing. A
part stores its entities as JSON.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from urllib.parse import unquote

import msgspec
import orjson
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from telegramify_markdown import MessageEntity
from telegramify_markdown.latex_escape.helper import LatexToUnicodeHelper

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart
from platforms.markdown import BREAK, code_of, parser, table_lines
from platforms.parts import longest_stretch
from platforms.telegram.inbound import MESSAGE_UNITS
from platforms.text import is_within, utf16_units, with_newlines

REPEAT_MARK = "(possibly a repeat) "
"""Prefix of a part that might already be visible."""
PART_UNITS = MESSAGE_UNITS - len(REPEAT_MARK)
"""Maximum length of a part, in UTF-16 units. It leaves room for the repeat mark."""
PART_ENTITIES = 100
"""Maximum number of entities in a message. Telegram ignores any further entities."""

_URL = re.compile(r"(?:https?|tg|mailto|tel|ftp)://?\S", re.IGNORECASE)
_NO_FORMULA = r"[\s{]|\d[\d.,]*\w?\s(?![=+*/<>-]\s|\\[A-Za-z])|[A-Z_]{3,}[/\s:]"
"""Pattern for text after `$` that does not begin a formula, as in `$5 and 10$`, `$HOME/x` and `${HOME}`."""
_FORMULA = re.compile(
    r"\$\$(?P<display>[^$]++)\$\$"
    rf"|(?<![\w$])\$(?!{_NO_FORMULA})(?P<inline>[^$\n]++)(?<!\s)\$(?![\w{{])"  # `$5 or $10` are prices
    r"|\\\[(?P<long>(?:[^\\]++|\\[^()\[\]])*+)\\\]|\\\((?P<short>(?:[^\\]++|\\[^()\[\]])*+)\\\)"
)
_IS_LATEX = re.compile(r"\\[A-Za-z]|[\^_]")
_DOUBLING = re.compile(r"\\(?:sqrt|overline|underline|underbar|overbrace|underbrace|[bx]?cancel|sout)")
"""LaTeX commands that put a combining mark on every character. Each nested command doubles the text."""
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}(?:\{[lcr|]+\})?|\\[A-Za-z]+")
_ROOTS = str.maketrans({"∛": "3", "∜": "4"})

_STYLES = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_HEADINGS = {"h1": ("bold", "underline"), "h2": ("bold", "underline"), "h3": ("bold",), "h4": ("bold",)}
_LATEX = LatexToUnicodeHelper()


def render(markdown: str) -> Sequence[OutboundPart]:
    """Render Markdown as parts within `PART_UNITS`, at least one. A cut code block continues in the next part."""
    source = with_newlines(well_formed(markdown))
    writer = _EntityWriter(source.split("\n"))
    for token in _PARSER.parse(source):
        writer.add(token)
    parts = [*_split("".join(writer.pieces), writer.entities)]
    if not parts:
        parts = [*_split(source.strip(), ())]  # the text consists only of markup, which is shown unchanged
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


def _split(text: str, over: Sequence[MessageEntity]) -> Iterator[OutboundPart]:
    """Yield parts within the limits, but no blank parts. White space at a cut is removed."""
    entities = sorted(over, key=lambda entity: entity.offset)
    if utf16_units(text) <= PART_UNITS and len(entities) <= PART_ENTITIES:
        if _is_visible(text):
            yield _part(text, entities)
        return
    start = unit = 0
    begun: list[MessageEntity] = []  # entities that began before this piece
    ahead = deque(entities)
    while start < len(text):
        near = [*begun, *islice(ahead, PART_ENTITIES + 1)]  # the rest cannot belong to this piece
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
    """Return the end of the piece that begins at index `start`. `unit`: `start` counted in UTF-16 units."""
    budget = PART_UNITS
    if len(entities) > PART_ENTITIES:
        formatted = entities[PART_ENTITIES].offset - unit
        if formatted >= 200:  # do not shorten a part only to keep formatting
            budget = min(budget, formatted)
    if is_within(text, start, budget):
        return len(text)
    end = start + len(longest_stretch(text, start, budget))
    for mark in ("\n\n", "\n", " "):
        # A break in the first half would make the part too short, so use a weaker break.
        position = text.rfind(mark, (start + end) // 2, end)
        if position > start:
            return position + len(mark)
    return end


def _clipped(entities: Sequence[MessageEntity], first: int, last: int) -> list[MessageEntity]:
    """Return the entities between two UTF-16 positions, clipped to this range, with offsets from its start."""
    ends = ((one, max(one.offset, first), min(one.offset + one.length, last)) for one in entities)
    clipped = (replace(one, offset=start - first, length=end - start) for one, start, end in ends if start < end)
    return [*islice(clipped, PART_ENTITIES)]


def _is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


# Markdown as text and entities


class _EntityWriter:
    """Writes blocks of text with entities. A block begins on a new line, after a blank line if the source has one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.pieces: list[str] = []
        self.entities: list[MessageEntity] = []
        self._lines = lines
        self._units = self._newlines = 0
        self._begun: list[MessageEntity] = []
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
            case "table":
                self._add_code(token, [*table_lines(token.meta["rows"])])
            case "hr":
                self._begin_block(token, is_below_marker=True)
                self._write("————————")

    def _add_heading(self, token: Token) -> None:
        if token.nesting > 0:
            self._begin_block(token)
            self._write_marker()
        for style in _HEADINGS.get(token.tag, ("italic",)):
            self._begin(style) if token.nesting > 0 else self._end()

    def _begin_item(self, token: Token) -> None:
        self._begin_block(token, is_below_marker=True)
        number = self._numbers[-1]
        if number is not None:
            number = max(number, int(token.info))  # `1. 1. 1.` becomes 1, 2, 3
            self._numbers[-1] = number + 1
        bullet = "+ " if token.markup == "+" else "• "  # `+ 50` can be a positive number
        self._marker = "  " * (len(self._numbers) - 1) + (bullet if number is None else f"{number}{token.markup} ")

    def _add_code(self, token: Token, lines: Sequence[str], language: str = "") -> None:
        self._begin_block(token, is_below_marker=True)
        self._add_marked("pre", "\n".join(lines), language or None)

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
                    self._add_marked("pre" if token.block else "code", token.content)
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

    def _end(self) -> None:
        """End the newest entity. Leave it out if it is empty, a quote inside a quote, or a link without a host."""
        entity = self._begun.pop()
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
            ends = len(text) - len(text.rstrip("\n"))
            self._newlines = ends + (self._newlines if ends == len(text) else 0)


def _formula(state: StateInline, silent: bool) -> bool:
    """Inline rule for the formulas `$…$`, `$$…$$`, `\\(…\\)` and `\\[…\\]`."""
    if state.src[state.pos] not in "$\\":
        return False
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None or found.lastgroup is None:
        return False
    content = found[found.lastgroup]
    if found.lastgroup in ("long", "short") and not _IS_LATEX.search(content):
        return False  # ordinary brackets, not a formula
    if not silent:
        token = state.push("formula", "", 0)
        token.content = _without_latex(content)
        token.block = found.lastgroup in ("display", "long")
    state.pos = found.end()
    return True


def _without_latex(formula: str) -> str:
    """Return the formula in Unicode, or unchanged if the conversion would lose a letter or take too long."""
    if len(formula) > 1_000 or len(_DOUBLING.findall(formula)) > 4 or not _IS_LATEX.search(formula):
        return formula
    shown: str = _LATEX.convert(formula).strip()  # type: ignore[no-untyped-call]  # the library has types only for its Markdown
    letters = iter(unicodedata.normalize("NFKD", shown.translate(_ROOTS)))
    wanted = unicodedata.normalize("NFKD", _COMMAND.sub("", formula))
    return shown if all(letter in letters for letter in wanted if letter.isalnum()) else formula


_PARSER = parser()
_PARSER.inline.ruler.before("escape", "formula", _formula)
