"""Rendering: Markdown as models write it becomes messages that Discord shows as meant.

Discord shows most of CommonMark, but no tables, no `~~~` fences, no indented code and no headings below the
third level, and it takes 2,000 characters. So code of every kind becomes a block between three backticks,
tables become aligned code blocks, and a text that is too long is cut into parts whose fences are closed and
opened again at the cut. Lengths are UTF-16 code units, the stricter of the two ways to count.
"""

import re
from collections.abc import Sequence

from markdown_it.token import Token

from hermes_state.text import well_formed
from hermes_state.values import OutboundPart
from platforms.markdown import BLOCKS, code_of, table_lines
from platforms.parts import PartWriter
from platforms.text import utf16_units, with_newlines

LIMIT = 2000
"""Longest Discord message in UTF-16 code units."""

FENCE = "```"
EMPTY_TEXT = "…"
"""Text of an answer without anything visible: Discord would refuse it as an empty message."""

_DEEP_HEADING = re.compile(r"#{4,6}(?=[ \t])")
_INVISIBLE = re.compile(r"[\s\u200b-\u200f\u2060-\u2064\ufeff\u00ad\x00-\x1f\x7f]")
_THIRD_BACKTICK = re.compile(r"(?<=``)(?=`)")
_BACKTICK_RUN = re.compile(r"`{3,}")


def render(text: str, limit: int = LIMIT) -> tuple[OutboundPart, ...]:
    """Render at least one part, each within `limit` UTF-16 units, visible, and with balanced code fences."""
    clean = with_newlines(well_formed(text))
    lines = clean.split("\n")
    writer = PartWriter(limit)
    position = 0
    for token in BLOCKS.parse(clean):
        if token.map is None or (code := _code(token)) is None:
            continue
        start, end = token.map
        lead = _text_before(token, lines[start])
        writer.add_prose([_prose_line(line, limit) for line in (*lines[position:start], *lead)])
        writer.add_code(*code)
        position = end
    writer.add_prose([_prose_line(line, limit) for line in lines[position:]])
    parts = [part for part in writer.finish() if _INVISIBLE.sub("", part)] or [EMPTY_TEXT]
    return tuple(OutboundPart(text=part, plain=part) for part in parts)


def _code(token: Token) -> tuple[str, Sequence[str], str] | None:
    """Opening, lines and closing of what is shown as code; a table inside a list or a quote stays as written."""
    if token.type in ("fence", "code_block"):
        language, lines = code_of(token)
    elif token.type == "table" and token.level == 0:
        language, lines = "", [*table_lines(token.meta["rows"])]
    else:
        return None
    safe = [_THIRD_BACKTICK.sub("\u200b", line) for line in lines]  # so that no line can end its block
    return FENCE + language, safe, FENCE


def _text_before(code: Token, line: str) -> list[str]:
    """Beginning of the line that a code block begins in, such as the `1.` of a list item."""
    mark = code.markup or code.content.partition("\n")[0].strip()
    lead = line[: max(0, line.find(mark))].rstrip()
    return [lead] if lead.strip(" \t>") else []


def _prose_line(line: str, limit: int) -> str:
    """Line of prose without an open fence in it, wherever it is cut: Discord begins code at any three backticks."""
    line = _DEEP_HEADING.sub("###", line, count=1) if line.startswith("####") else line
    if line.count(FENCE) % 2 or utf16_units(line) > limit:
        line = _BACKTICK_RUN.sub(lambda run: r"\`" * len(run[0]), line)
    return line
