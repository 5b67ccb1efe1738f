"""Rendering of Markdown as safe HTML, and splitting into parts.

HTML in the source is shown as text. Links lead only to http, https and mailto, and the opened page has no access to
this page. Images become links, because the page loads nothing from other hosts. Only the web chat supports syntax
highlighting, formulas, footnotes, and URLs that are links without any markup.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup, escape

from platforms.formulas import add_formulas
from platforms.markdown import BLOCKS, BREAK, code_of, parser
from platforms.text import PartWriter, utf16_units, with_newlines

_ADDRESS = re.compile(r"(?<![\w/])https?://[^\s<>\"'`|\\^{}\[\]\u3000-\u303f\uff00-\uffef]{1,2000}", re.I)
_NOTE = re.compile(r"\[\^([A-Za-z0-9_-]{1,20})\](:?)")

_MAX_CODE = 10_000
"""Maximum length of code with syntax highlighting, in characters. Previews are rendered several times per second."""
_MAX_LINE = 1_000
_LANGUAGES = re.compile(
    r"bash|c|c\+\+|clojure|cmake|console|cpp|cs|csharp|css|dart|diff|docker|dockerfile|elixir|"
    r"erlang|go|golang|graphql|groovy|haskell|hcl|html|ini|java|javascript|js|json|jsx|julia|"
    r"kotlin|latex|lua|make|makefile|markdown|md|nginx|nix|objective-c|ocaml|perl|php|postgresql|"
    r"powershell|proto|protobuf|ps1|py|python|python3|r|rb|rs|ruby|rust|scala|scss|sh|shell|"
    r"sql|sqlite|swift|terraform|tex|toml|ts|tsx|typescript|vim|xml|yaml|yml|zig|zsh"
)
"""Languages with syntax highlighting. Other lexers are not used, because some have very slow regular expressions."""
_KINDS = {
    "comment": "Comment",
    "keyword": "Keyword Operator.Word Name.Tag",
    "mark": "Comment.Preproc Name.Attribute Name.Decorator",
    "name": "Name.Class Name.Function Generic.Heading Generic.Subheading",
    "number": "Keyword.Constant Literal.Number",
    "string": "Literal.String",
    "type": "Keyword.Type Name.Builtin Name.Exception",
    "deleted": "Generic.Deleted",
    "inserted": "Generic.Inserted",
}
_CLASSES = {kind: name for name, kinds in _KINDS.items() for kind in kinds.split()}
"""CSS classes by Pygments token type. A more specific type has the class of the type that contains it."""


@lru_cache(maxsize=128)  # keeps the HTML that a thread rendered until the page's template needs it
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
        f'<pre tabindex="0"><code>{_coloured(token.content, code_of(token)[0])}</code></pre></div>\n'
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


# ---- colours in code


@lru_cache(maxsize=64)  # while an answer grows, only its last code block changes
def _coloured(code: str, language: str) -> Markup:
    """Return `code` as HTML, with syntax highlighting if the language is known and the code is not too long."""
    language = language.lower()
    if not _LANGUAGES.fullmatch(language) or len(code) > _MAX_CODE or max(map(len, code.split("\n"))) > _MAX_LINE:
        return escape(code)
    from pygments.lexers import get_lexer_by_name  # imported when needed, which takes 35 ms and 2 MB

    pieces: list[tuple[str | None, str]] = []
    for kind, text in get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(code):
        name = _class_of(str(kind).removeprefix("Token.")) if text.strip() else None
        if pieces and pieces[-1][0] == name:
            pieces[-1] = name, pieces[-1][1] + text
        else:
            pieces.append((name, text))
    if "".join(text for _, text in pieces) != code:  # a lexer changes line ends and other control characters
        return escape(code)
    return Markup().join(
        escape(text) if name is None else Markup('<span class="code-{}">{}</span>').format(name, text)
        for name, text in pieces
    )


@lru_cache(maxsize=256)
def _class_of(kind: str) -> str | None:
    while kind and kind not in _CLASSES:
        kind = kind.rpartition(".")[0]
    return _CLASSES.get(kind)


# ---- addresses and footnotes: links that need no marks. The text of a footnote stays where it was written


def _add_references(markdown: MarkdownIt, is_safe: Callable[[str], bool]) -> None:
    """Make the parser turn URLs and footnote labels into links."""

    def link(state: StateCore) -> None:
        inlines = [token for token in state.tokens if token.type == "inline"]
        notes = _linked_notes(inlines)
        digest = f"{zlib.crc32(state.src.encode(errors='replace')):x}"
        seen: set[str] = set()
        for inline in inlines:
            depth, made = 0, list[Token]()
            for child in inline.children or ():
                depth += {"link_open": 1, "link_close": -1}.get(child.type, 0)
                if child.type != "text" or depth:
                    made.append(child)
                    continue
                is_first = not made or made[-1].type in ("softbreak", "hardbreak")
                made += _pieces(child.content, is_first, notes, digest, seen)
            inline.children = made

    def _pieces(text: str, is_first: bool, notes: frozenset[str], digest: str, seen: set[str]) -> Iterator[Token]:
        position = 0
        for found in re.finditer(f"{_NOTE.pattern}|{_ADDRESS.pattern}", text, re.I):
            start, end = found.span()
            if (label := found[1]) is not None:
                is_definition = is_first and start == 0 and bool(found[2])
                if label not in notes:
                    continue
                made = [_note(label, digest, is_definition, is_named=is_definition or label not in seen)]
                end -= 0 if is_definition else len(found[2])
                seen |= set() if is_definition else {label}
            else:
                end = start + len(_without_end(found[0]))
                if not is_safe(text[start:end]):
                    continue
                address = markdown.normalizeLink(text[start:end])
                made = [Token("link_open", "a", 1, attrs={"href": address}), _text(text[start:end])]
                made.append(Token("link_close", "a", -1))
            if start > position:
                yield _text(text[position:start])
            yield from made
            position = end
        if position < len(text):
            yield _text(text[position:])

    markdown.core.ruler.before("inline", "footnotes", _keep_notes)
    markdown.core.ruler.push("references", link)
    markdown.add_render_rule("footnote", lambda _, tokens, at, *rest: str(tokens[at].meta["html"]))


def _keep_notes(state: StateCore) -> None:
    """Remove the link definitions that the library makes from footnotes such as `[^1]: https://e.example`."""
    for label in [label for label in state.env.get("references", {}) if label.startswith("^")]:
        del state.env["references"][label]


def _linked_notes(inlines: list[Token]) -> frozenset[str]:
    """Return the labels of footnotes that have both a text and a reference."""
    defined, used = set[str](), set[str]()
    for inline in inlines:
        is_first = True
        for child in inline.children or ():
            for found in _NOTE.finditer(child.content if child.type == "text" else ""):
                (defined if is_first and found.start() == 0 and found[2] else used).add(found[1])
            is_first = child.type in ("softbreak", "hardbreak")
    return frozenset(defined & used)


def _note(label: str, digest: str, is_definition: bool, is_named: bool) -> Token:
    names = [f"note-{digest}-{escape(label)}", f"ref-{digest}-{escape(label)}"]
    name, target = names if is_definition else reversed(names)
    named = f' id="{name}"' if is_named else ""
    shown = f'<a class="note"{named} href="#{target}">{escape(label)}</a>'
    token = Token("footnote", "", 0)
    token.meta = {"html": shown if is_definition else f"<sup>{shown}</sup>"}
    return token


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _without_end(address: str) -> str:
    """Return a URL without the punctuation at its end that belongs to the sentence around it.

    >>> _without_end("https://e.example/a_(b))."), _without_end("https://e.example/?q=1,")
    ('https://e.example/a_(b)', 'https://e.example/?q=1')
    """
    while address and (address[-1] in ".,;:!?*_~" or (address[-1] == ")" and address.count("(") < address.count(")"))):
        address = address[:-1]
    return address


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
_add_references(_MARKDOWN, _is_safe_link)
for _name, _rule in _RULES.items():
    _MARKDOWN.add_render_rule(_name, lambda _, tokens, at, *rest, rule=_rule: rule(tokens[at]))
