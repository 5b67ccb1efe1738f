"""Links in the text of answers that need no marks: addresses, and footnotes.

A footnote's text stays where it was written, so nothing is moved or lost.
"""

import re
import zlib
from collections.abc import Callable, Iterator

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import escape

_ADDRESS = re.compile(r"(?<![\w/])https?://[^\s<>\"'`|\\^{}\[\]\u3000-\u303f\uff00-\uffef]{1,2000}", re.I)
_NOTE = re.compile(r"\[\^([A-Za-z0-9_-]{1,20})\](:?)")


def add_references(markdown: MarkdownIt, is_safe: Callable[[str], bool]) -> None:
    """Make the parser link addresses and footnotes."""

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
    """Undo that a footnote with nothing but an address defines a link."""
    for label in [label for label in state.env.get("references", {}) if label.startswith("^")]:
        del state.env["references"][label]


def _linked_notes(inlines: list[Token]) -> frozenset[str]:
    """Return the labels of footnotes that have both a text and a place that refers to it."""
    defined, used = set[str](), set[str]()
    for inline in inlines:
        is_first = True
        for child in inline.children or ():
            for found in _NOTE.finditer(child.content if child.type == "text" else ""):
                (defined if is_first and found.start() == 0 and found[2] else used).add(found[1])
            is_first = child.type in ("softbreak", "hardbreak")
    return frozenset(defined & used)


def _note(label: str, digest: str, is_definition: bool, is_named: bool) -> Token:
    name, target = (f"note-{digest}-{escape(label)}", f"ref-{digest}-{escape(label)}")
    if not is_definition:
        name, target = target, name
    named = f' id="{name}"' if is_named else ""
    shown = f'<a class="note"{named} href="#{target}">{escape(label)}</a>'
    token = Token("footnote", "", 0)
    token.meta = {"html": shown if is_definition else f"<sup>{shown}</sup>"}
    return token


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _without_end(address: str) -> str:
    """Return the address without punctuation that belongs to the sentence.

    >>> _without_end("https://e.example/a_(b))."), _without_end("https://e.example/?q=1,")
    ('https://e.example/a_(b)', 'https://e.example/?q=1')
    """
    while address and (address[-1] in ".,;:!?*_~" or (address[-1] == ")" and address.count("(") < address.count(")"))):
        address = address[:-1]
    return address
