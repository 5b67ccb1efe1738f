"""Rendering: Markdown as HTML that is safe to show, and as parts that fit.

HTML in the source is text. Links lead to http, https and mailto only, and open elsewhere without a handle on this
page; images become links, because the page loads nothing from other hosts.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup, escape

from platforms.text import longest_prefix, utf16_units

_SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}")
_OPENING_CHARS = 60
"""Most characters repeated of a line that opens a code block; a piece keeps room for it and for its end."""

_BOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@lru_cache(maxsize=32)  # what was made beside the event loop is there when the page's template asks for it
def to_html(text: str) -> Markup:
    """Render `text` as HTML without a single tag or attribute of its author's."""
    return Markup(_MARKDOWN.render(text))  # the renderer escapes everything; `html` is off


def split_parts(text: str, max_units: int) -> list[str]:
    """Split `text` into pieces of at most `max_units` UTF-16 units, at line ends where possible.

    A code block that is cut is closed at the end of its piece and opened again in the next. `max_units` is 200 or more.
    """
    if utf16_units(text) <= max_units:
        return [text]
    pieces: list[str] = []
    piece, opening = "", ""
    for line in _short_lines(text, max_units - 2 * (_OPENING_CHARS + 1)):
        after = _open_fence(opening, line)
        if piece and utf16_units(piece) + utf16_units(line) + utf16_units(_closing(after)) > max_units:
            pieces.append(piece + _closing(opening))
            piece = f"{opening}\n" if opening else ""
        piece += line
        opening = after
    pieces.append(piece)
    return [piece for piece in pieces if piece.strip()] or [text[: max_units // 2]]


def _short_lines(text: str, max_units: int) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        while utf16_units(line) > max_units:
            head = longest_prefix(line, max_units - 1)  # with room for a line end
            if (at := head.rfind(" ")) > 0:
                head = head[: at + 1]
            yield f"{head}\n"
            line = line[len(head) :]
        yield line


def _open_fence(opening: str, line: str) -> str:
    """Fence that is open after `line`, empty for none."""
    found = _FENCE.match(line.rstrip("\n"))
    if found is None:
        return opening
    marker, info = found.groups()
    if not opening:
        return "" if marker[0] == "`" and "`" in info else f"{marker}{info}"[:_OPENING_CHARS]
    is_closing = marker[0] == opening[0] and len(marker) >= len(_marker(opening)) and not info.strip()
    return "" if is_closing else opening


def _closing(opening: str) -> str:
    return f"\n{_marker(opening)}" if opening else ""


def _marker(opening: str) -> str:
    return opening[: len(opening) - len(opening.lstrip(opening[0]))]


def _is_safe_link(url: str) -> bool:
    try:
        return urlsplit(url).scheme.lower() in _SAFE_SCHEMES
    except ValueError:
        return False


def _link(token: Token) -> str:
    if not _is_safe_link(str(token.attrGet("href") or "")):
        return "<a>"  # the parser keeps links to nowhere
    token.attrs.update(target="_blank", rel="noopener noreferrer nofollow")
    return f"<a{RendererHTML.renderAttrs(token)}>"


def _image(token: Token) -> str:
    label = escape(token.content or "image")
    url = str(token.attrGet("src") or "")
    if not _is_safe_link(url):
        return str(label)
    return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer nofollow">{label}</a>'


def _fence(token: Token) -> str:
    found = _LANGUAGE.match(token.info.strip())
    return _code(token.content, found.group() if found else "")


def _code(content: str, language: str) -> str:
    label = escape(language or "code")
    return (
        f'<div class="code"><div class="code-bar"><span>{label}</span>'
        '<button type="button" class="quiet" data-copy>Copy</button></div>'
        f'<pre tabindex="0"><code>{escape(content)}</code></pre></div>\n'
    )


def _heading(token: Token) -> str:
    """Headings of an answer stand below the page's own."""
    return f"h{min(6, int(token.tag[1]) + 2)}"


def _alignment(token: Token) -> str:
    """Alignment of the column as a class: the policy of the page allows no style attributes."""
    for name in ("center", "right"):
        if name in str(token.attrGet("style") or ""):
            return f' class="{name}"'
    return ""


def _show_tasks(state: StateCore) -> None:
    """Show boxes for what begins with `[ ]` or `[x]` in a list, as everywhere where models learned to write it."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type != "list_item_open" or not inline.children:
            continue
        first = inline.children[0]
        if first.type == "text" and first.content[:4] in _BOXES:
            first.content = _BOXES[first.content[:4]] + first.content[4:]


_RULES: Mapping[str, Callable[[Token], str]] = {
    "link_open": _link,
    "image": _image,
    "heading_open": lambda token: f"<{_heading(token)}>",
    "heading_close": lambda token: f"</{_heading(token)}>\n",
    "table_open": lambda _: '<div class="table"><table>\n',
    "table_close": lambda _: "</table></div>\n",
    "th_open": lambda token: f'<th scope="col"{_alignment(token)}>',
    "td_open": lambda token: f"<td{_alignment(token)}>",
    "fence": _fence,
    "code_block": lambda token: _code(token.content, ""),
}
"""The few tokens that this page shows otherwise than the library does."""


def _build() -> MarkdownIt:
    options: Mapping[str, Any] = {"html": False, "breaks": True, "xhtmlOut": False}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    markdown.validateLink = _is_safe_link  # type: ignore[method-assign]  # the library's documented way to restrict links
    markdown.core.ruler.push("tasks", _show_tasks)
    for name, rule in _RULES.items():
        markdown.add_render_rule(name, lambda _, tokens, at, *rest, rule=rule: rule(tokens[at]))
    return markdown


_MARKDOWN = _build()
