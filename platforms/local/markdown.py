"""Rendering of Markdown as safe HTML, and splitting into parts.

HTML in the source is shown as text. Links lead only to http, https and mailto, and open without access to this page.
Images become links, because the page loads nothing from other hosts. Only the web chat has code colours, formulas,
links without marks and footnotes.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import zip_longest
from urllib.parse import urlsplit

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from platforms.local.formulas import add_formulas
from platforms.local.highlighting import colour
from platforms.local.references import add_references
from platforms.markdown import BLOCKS, BREAK, code_of, parser
from platforms.parts import PartWriter
from platforms.text import utf16_units, with_newlines


@lru_cache(maxsize=128)  # caches HTML that a thread rendered until the page's template needs it
def to_html(text: str) -> Markup:
    """Render `text` as HTML. Tags in the source are escaped."""
    return Markup(_MARKDOWN.render(text))  # the renderer escapes everything; `html` is off


def split_parts(text: str, max_units: int) -> list[str]:
    """Split `text` into pieces of at most `max_units` (at least 200) UTF-16 units, at line ends if possible.

    If a code block is cut, the first piece closes it and the next piece opens it again.
    """
    if utf16_units(text) <= max_units:
        return [text]
    lines = (text := with_newlines(text)).split("\n")
    writer = PartWriter(max_units)
    position = 0
    for token in BLOCKS.parse(text):
        opening = token.markup + token.info
        if token.type == "fence" and token.level == 0 and token.map and utf16_units(opening) <= 60:
            start, end = token.map
            writer.add_prose(lines[position:start])
            writer.add_code(opening, token.content.removesuffix("\n").split("\n"), token.markup)
            position = end
    writer.add_prose(lines[position:])
    return [part for part in writer.finish() if part.strip()] or [text[: max_units // 2]]


def _is_safe_link(url: str) -> bool:
    try:
        return urlsplit(url).scheme.lower() in ("http", "https", "mailto")
    except ValueError:
        return False


def _link(token: Token) -> str:
    if not _is_safe_link(str(token.attrGet("href") or "")):
        return "<a>"  # the parser keeps empty links
    token.attrs.update(target="_blank", rel="noopener noreferrer nofollow")
    return f"<a{RendererHTML.renderAttrs(token)}>"


def _image(token: Token) -> str:
    label = escape(token.content or "image")
    attributes = {"href": str(token.attrGet("src") or ""), "title": str(token.attrGet("title") or "")}
    link = Token("link_open", "a", 1, attrs={name: value for name, value in attributes.items() if value})
    return f"{_link(link)}{label}</a>"


def _code(token: Token) -> str:
    return (
        f'<div class="code"><div class="code-bar"><span>{escape(" ".join(token.info.split()) or "code")}</span>'
        '<button type="button" class="quiet" data-copy>Copy</button></div>'
        f'<pre tabindex="0"><code>{colour(token.content, code_of(token)[0])}</code></pre></div>\n'
    )


def _heading(token: Token) -> str:
    level = min(6, int(token.tag[1]) + 2)  # one level lower, because the page has its own headings
    return f"<h{level}>" if token.nesting > 0 else f"</h{level}>\n"


def _table(token: Token) -> str:
    classes = [
        f' class="{name}"' if name else "" for name in token.meta["alignments"]
    ]  # the content policy forbids style attributes
    lines = []
    for number, row in enumerate(token.meta["rows"]):
        tag, scope = ("td", "") if number else ("th", ' scope="col"')
        texts = (cell if cell.isalnum() else _MARKDOWN.renderInline(cell) for cell in row)
        cells = zip_longest(texts, classes[: len(row)], fillvalue="")
        shown = (f"<{tag}{scope}{style}>{text}</{tag}>" for text, style in cells)
        lines.append(f"<tr>{''.join(shown)}</tr>\n")
    return f'<div class="table" tabindex="0"><table>\n{"".join(lines)}</table></div>\n'


_RULES: Mapping[str, Callable[[Token], str]] = {
    "link_open": _link,
    "image": _image,
    "heading_open": _heading,
    "heading_close": _heading,
    "table": _table,
    "text": lambda token: "<br>\n".join(map(escape, BREAK.split(token.content))),
    "fence": _code,
    "code_block": _code,
}
"""Functions for tokens that this page renders differently from the library."""
_MARKDOWN = parser()
_MARKDOWN.options.update(breaks=True, xhtmlOut=False)
_MARKDOWN.validateLink = _is_safe_link  # type: ignore[method-assign]  # the library documents this way to restrict links
add_formulas(_MARKDOWN)
add_references(_MARKDOWN, _is_safe_link)
for _name, _rule in _RULES.items():
    _MARKDOWN.add_render_rule(_name, lambda _, tokens, at, *rest, rule=_rule: rule(tokens[at]))
