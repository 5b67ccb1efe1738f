"""Telegram's HTML formatting: a fixed set of tags. Everything else is an error."""

import html
import re

from tests.fakes.tg_scan import Entities, MarkupError, Scanner

_TAGS = {
    "b": "bold",
    "strong": "bold",
    "i": "italic",
    "em": "italic",
    "u": "underline",
    "ins": "underline",
    "s": "strikethrough",
    "strike": "strikethrough",
    "del": "strikethrough",
    "tg-spoiler": "spoiler",
    "span": "spoiler",
    "code": "code",
    "pre": "pre",
    "a": "text_link",
    "blockquote": "blockquote",
    "tg-emoji": "custom_emoji",
    "tg-time": "date_time",
}
_CHARACTER = re.compile(r"&(?:lt|gt|amp|quot|#\d+|#x[0-9a-fA-F]+);")
_VALUE = r"\"[^\"]*\"|'[^']*'|[^\s>\"']+"
_START = re.compile(rf"<([a-zA-Z0-9-]*)((?:\s+[a-zA-Z0-9-]+(?:\s*=\s*(?:{_VALUE}))?)*)\s*>")
_ATTRIBUTE = re.compile(rf"([a-zA-Z0-9-]+)(?:\s*=\s*({_VALUE}))?")
_END = re.compile(r"</([^\s>]*)\s*>")
_WORD = re.compile(r"<([^\s>]*)")


def parse_html(source: str) -> tuple[str, Entities]:
    """Return the text and entities of a message with HTML formatting. Raises `MarkupError`."""
    scan = Scanner(source)
    while not scan.is_done:
        if scan.ahead(2) == "</":
            _end_tag(scan)
        elif scan.ahead(1) == "<":
            _start_tag(scan)
        elif character := _CHARACTER.match(source, scan.at):
            scan.emit(html.unescape(character[0]), skip=len(character[0]))
        else:
            scan.emit(scan.ahead(1))
    if scan.open:
        raise MarkupError(f'Can\'t find end tag corresponding to start tag "{scan.open[-1]["_tag"]}"')
    text, entities = scan.result()
    return text, [entity for entity in entities if entity["type"] != "text_link" or entity.get("url")]


def _end_tag(scan: Scanner) -> None:
    at = scan.byte(scan.at)
    tag = _END.match(scan.source, scan.at)
    if not tag:
        raise MarkupError(f"Unclosed end tag at byte offset {at}")
    if not scan.open:
        raise MarkupError(f"Unexpected end tag at byte offset {at}")
    expected, found = scan.open[-1]["_tag"], tag[1].lower()
    if found and found != expected:
        raise MarkupError(f'Unmatched end tag at byte offset {at}, expected "</{expected}>", found "</{found}>"')
    scan.end(len(tag[0]))


def _start_tag(scan: Scanner) -> None:
    at = scan.byte(scan.at)
    tag = _START.match(scan.source, scan.at)
    name = _name(scan, tag)
    if tag is None or name not in _TAGS:
        problem = "Unclosed" if tag is None and name in _TAGS else "Unsupported"
        raise MarkupError(f'{problem} start tag "{name}" at byte offset {at}')
    values = {key.lower(): html.unescape(value.strip("\"'")) for key, value in _ATTRIBUTE.findall(tag[2])}
    if name == "span" and values.get("class") != "tg-spoiler":
        raise MarkupError(f'Tag "span" must have class "tg-spoiler" at byte offset {at}')
    language = values.get("class", "")
    if name == "code" and scan.top == "pre" and language.startswith("language-"):
        scan.open[-1]["language"] = language.removeprefix("language-")
    is_expandable = name == "blockquote" and "expandable" in values
    extra = {"url": values.get("href", "")} if name == "a" else {}
    scan.begin("expandable_blockquote" if is_expandable else _TAGS[name], len(tag[0]), _tag=name, **extra)


def _name(scan: Scanner, tag: re.Match[str] | None) -> str:
    word = tag or _WORD.match(scan.source, scan.at)
    return word[1].lower() if word else ""
