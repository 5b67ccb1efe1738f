"""Rendering of Markdown from models as messages that Discord shows correctly.

Discord shows no tables, no `~~~` fences, no indented code and no headings below the third level. It finds more markup
than CommonMark does, as in `2*3*4` or `a || b || c`, so literal marks are escaped with a backslash.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from markdown_it.token import Token

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart
from platforms.discord.inbound import LIMIT
from platforms.formulas import add_formulas, shown
from platforms.markdown import (
    BREAK,
    ESCAPE,
    TEXT_LINE,
    Listed,
    code_of,
    is_backslash,
    listed,
    parsed_cell,
    parser,
    table_rows,
    unfolded,
)
from platforms.settings import TableStyle
from platforms.text import PartWriter, utf16_units, with_newlines

_INVISIBLE = re.compile(r"[\s\u200b-\u200f\u2060-\u2064\ufeff\u00ad\x00-\x1f\x7f]")
_SPOILER = r"(?<![\w\\|])\|\|(?![\s|])[^|\n]{2,}(?<!\s)\|\|(?![\w|])"
_HIDDEN = re.compile(
    rf"(`{{1,16}})(?!`)[^`]++\1(?!`)|{_SPOILER}|(?P<pipes>(?<!\\)\|\|+)|(?P<br>{BREAK.pattern})|(?P<slash>{ESCAPE.pattern})",
    re.I,
)
"""Matches inline code and spoilers, which stay unchanged, and pipes, line breaks and backslashes outside them."""
_MARK_ESCAPE = "\x00"
"""Placeholder for an added backslash while the text's own backslashes are being escaped."""
_EMPTIED = "\x01"
"""Line whose text belongs to a formula that began on an earlier line."""
_PARSER = parser().disable(["lheading", "reference", "details", "fragments_join", "text_join"])
add_formulas(_PARSER)


def render(text: str, limit: int = LIMIT, tables: TableStyle = "list") -> tuple[OutboundPart, ...]:
    """Render Markdown as one or more visible parts within `limit` UTF-16 units, with balanced code fences.

    Wide tables become lists. Other tables and all code blocks become blocks between three backticks.
    """
    clean = with_newlines(well_formed(text))
    lines = clean.split("\n")
    writer = PartWriter(limit)
    position = 0
    for token in _PARSER.parse(clean):
        if token.type == "inline":
            _escape(token, lines)
        if token.map is None or token.type not in ("fence", "code_block", "table", "formula"):
            continue
        start, end = token.map
        rows = table_rows(token) if token.type == "table" else []
        items = listed(token, rows) if rows and tables == "list" else None
        if rows and items is None and token.level and token.tag != "html":
            continue  # a narrow Markdown table inside a list or a quote stays unchanged
        mark = token.markup or token.content.partition("\n")[0].strip()
        found = re.match(r"(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*", lines[start]) if rows and token.level else None
        lead = (found[0] if found else lines[start][: max(0, lines[start].find(mark))]).rstrip()
        indent = "> " * lead.count(">")
        before = [*lines[position:start], lead] if lead.strip(" \t>") else lines[position:start]
        writer.add_prose([*_prose_lines(before, limit)])
        if items is not None:
            for row in _listed_lines(items, token.meta["rows"][0][0], indent):
                writer.add_prose([*_prose_lines(row, limit)], is_row=True)
        elif token.type == "formula" and "\n" not in shown(token):
            writer.add_prose([f"{indent}`{shown(token)}`"], is_row=True)
        else:
            writer.add_code(*_code(token, rows), header_rows=len(rows[:1]))
        position = end
    writer.add_prose([*_prose_lines(lines[position:], limit)])
    parts = [part for part in writer.finish() if _INVISIBLE.sub("", part)] or ["…"]  # Discord refuses empty messages
    return tuple(OutboundPart(text=part, plain=part) for part in parts)


def _code(token: Token, rows: Sequence[str]) -> tuple[str, Sequence[str], str]:
    """Return the opening line, content and closing line of code, of a table with `rows`, or of a formula."""
    language, lines = ("", shown(token).split("\n")) if token.type == "formula" else code_of(token)
    safe = [re.sub("(?<=``)(?=`)", "\u200b", line) for line in rows or lines]  # so that the code cannot end the block
    return f"```{language}", safe, "```"


def _listed_lines(items: Listed, caption: str, indent: str) -> Iterator[list[str]]:
    """Yield the Markdown of each row of a wide table. Above the first row is the header of the title column."""
    lines = [indent + re.sub("^(?=[#>-])", r"\\", f"{_cell(caption)}:")] if caption else []
    for title, values in ((_cell(title), values) for title, values in items):
        lines.append(indent + (title if "**" in title else f"**{title}**"))
        lines += [f"{indent}• {_cell(name)}{': ' if name else ''}{_cell(value)}" for name, value in values]
        yield [*lines, indent.rstrip()]
        lines = []


def _cell(text: str) -> str:
    lines = [text]
    _escape(parsed_cell(_PARSER, text), lines)
    return lines[0]


def _escape(inline: Token, lines: list[str]) -> None:
    """Add a backslash before literal emphasis marks, because Discord might read them as markup. Convert formulas."""
    content = re.sub(r"https?://\S+", lambda address: "-" * len(address[0]), inline.content)
    escaped = list(inline.content)
    for token in inline.children or ():
        if token.type == "formula":
            at, end = token.meta["at"], token.meta["at"] + len(token.info)
            escaped[at:end] = ["\n" if one == "\n" else "" for one in token.info]
            escaped[at] = f"`{'; '.join(shown(token).splitlines())}`"
        if token.type != "text" or "at" not in token.meta:
            continue
        start, end = token.meta["run"]
        before, after = content[max(0, start - 1) : start] or " ", content[end : end + 1] or " "
        is_harmless = (before + after).isspace() or (content[start] == "_" and (before + after).isalnum())
        if content[start] == inline.content[start] and not (end - start == 1 and is_harmless):
            for at in range(token.meta["at"], token.meta["at"] + len(token.content)):
                escaped[at] = _MARK_ESCAPE + escaped[at]
    texts = zip(inline.content.split("\n"), "".join(escaped).split("\n"), strict=True)
    for number, (text, made) in enumerate(texts, inline.map[0] if inline.map else 0):
        if text != made and (at := lines[number].rfind(text)) >= 0:
            lines[number] = (lines[number][:at] + made + lines[number][at + len(text) :]) if made else _EMPTIED


def _prose_lines(lines: Iterable[str], limit: int) -> Iterator[str]:
    for line in lines:
        if line == _EMPTIED:
            continue
        indent = line[: len(line) - len(line.lstrip(" \t>"))]

        def replaced(found: re.Match[str], indent: str = indent) -> str:
            is_text = found["pipes"] or (found["slash"] and is_backslash(found.string, found.start()))
            pipes = re.sub(r"[|\\]", r"\\\g<0>", found[0]) if is_text else found[0]
            return "\n" + indent if found["br"] else pipes

        for piece in _HIDDEN.sub(replaced, unfolded(line)).split("\n"):
            prose = "\\" + piece if TEXT_LINE.match(piece) else piece
            prose = re.sub(r"#{4,6}(?=[ \t])", "###", prose, count=1) if prose.startswith("####") else prose
            # Discord begins code at any three backticks. Escape them if the line does not end the code or must be cut.
            if prose.count("```") % 2 or utf16_units(prose) > limit:
                prose = re.sub("`{3,}", lambda run: r"\`" * len(run[0]), prose)
            yield prose.replace(_MARK_ESCAPE, "\\")
