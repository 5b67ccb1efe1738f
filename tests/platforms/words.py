"""Oracle for the visible words of Markdown: every run of letters and digits that is not markup, in order."""

import re
import unicodedata
from collections.abc import Iterable
from html.parser import HTMLParser
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from hermes_state.values import OutboundPart
from platforms.local.markdown import split_parts, to_html

_HIDDEN = (
    re.compile(r"&(#?\w+);"),
    re.compile(r"(?<![^\s>*+-])(\d{1,9})[.)](?!\S)"),  # number of a list item
    re.compile(r"\[([xX])\](?!\S)"),  # task box
    re.compile(r"(?<=\])\[([^\]]*)\]"),  # name of a link target
    re.compile(r"\\(?:begin|end)\{(\w+)\*?\}(?:\{(\w+)\})?"),  # LaTeX
    re.compile(r"\\([A-Za-z]+)"),
    re.compile(r"(?i)</?(table|caption|thead|tbody|tfoot|tr|td|th|br|details|summary|p|b|strong|i|em)\b([^<>]*)>"),
)
_REOPENING = 80
"""Maximum letters between the ends of two parts."""
_STOCK = MarkdownIt("commonmark", {"html": False})


def lost_words(source: str, shown: str, hidden: Iterable[str] = (), *, in_order: bool = True) -> list[str]:
    """Return runs of `source` that are missing in `shown`, in order, unless they are markup, entities, or part of
    `hidden`. A list of rows has the headers of a table elsewhere."""
    letters = "".join(_runs(shown))
    found = (match for pattern in _HIDDEN for match in pattern.finditer(source))
    markup = {run for match in found for group in match.groups() if group for run in _runs(group)}
    markup |= {run for text in hidden for run in (*_runs(text), *_runs(unquote(text)))}
    lost, position = [], 0
    has_breaks = "<br" in source.lower()  # lines of a cell are shown below each other, next to those of other cells
    for run in _runs(source):
        if run in markup:
            continue
        end = _end_of(run, letters, position)
        lost += [run] if end is None and not ((has_breaks or not in_order) and run in letters) else []
        position = end or position
    return lost


def _end_of(run: str, letters: str, position: int) -> int | None:
    """Return the index after `run` in `letters`. A part may end inside it, where a code block is opened again."""
    if (at := letters.find(run, position)) >= 0:
        return at + len(run)
    for cut in range(1, len(run)):
        first = letters.find(run[:cut], position)
        second = letters.find(run[cut:], first + cut, first + len(run) + _REOPENING) if first >= 0 else -1
        if second >= 0:
            return second + len(run) - cut
    return None


def _runs(text: str) -> list[str]:
    plain = "".join(
        character for character in unicodedata.normalize("NFKD", text) if not unicodedata.combining(character)
    )
    return re.findall(r"[^\W_]+", plain)


def _unseen(tokens: Iterable[Token]) -> Iterable[str]:
    """Yield targets of inline links and images, and languages of code."""
    for token in tokens:
        yield from (str(token.attrs[name]) for name in ("href", "src") if name in token.attrs)
        yield from re.findall(r"^[\w+#.-]{1,20}(?=$| [\w-]+=| \{)", token.info.strip())
        yield from _unseen(token.children or ())


def lost_on_telegram(source: str, parts: Iterable[OutboundPart], *, in_order: bool = True) -> list[str]:
    shown = "\n".join(part.text for part in parts)
    return lost_words(source, shown, _unseen(_STOCK.parse(source)), in_order=in_order)


def lost_on_discord(source: str, parts: Iterable[OutboundPart], *, in_order: bool = True) -> list[str]:
    return lost_words(source, "\n".join(part.text for part in parts), in_order=in_order)


def lost_on_the_web(source: str, max_units: int = 100_000) -> list[str]:
    page = _Page()
    for part in split_parts(source, max_units):
        page.feed(to_html(part))
    page.close()
    return lost_words(source, page.text, page.links)


class _Page(HTMLParser):
    """Text of a page, including the titles of links and the sources of formulas."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.links: list[str] = []
        self._titles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a":
            self.links.append(attributes.get("href") or "")
            self._titles.append(attributes.get("title") or "")
        if tag == "math":
            self.text += f" {attributes.get('alttext')} "  # the source, which has the names of commands

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.text += f" {self._titles.pop()} "

    def handle_data(self, data: str) -> None:
        self.text += data
