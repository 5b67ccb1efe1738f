"""Telegram's two Markdown dialects: MarkdownV2 and the legacy one."""

import re

from tests.fakes.tg_scan import Entities, MarkupError, Scanner

_NAMES = {
    "bold": "Bold",
    "italic": "Italic",
    "underline": "Underline",
    "strikethrough": "Strikethrough",
    "spoiler": "Spoiler",
    "code": "Code",
    "pre": "Pre",
    "text_link": "TextUrl",
    "blockquote": "BlockQuote",
    "custom_emoji": "CustomEmoji",
}
_SPECIAL = frozenset("_*[]()~`>#+-=|{}.!")
_CLOSERS = {"bold": "*", "underline": "__", "strikethrough": "~", "spoiler": "||"}
_OPENERS = (("__", "underline"), ("||", "spoiler"), ("![", "custom_emoji"), ("_", "italic"), ("*", "bold"))
_MORE_OPENERS = (("~", "strikethrough"), ("[", "text_link"))
_LANGUAGE = re.compile(r"([^\s`]+)\n")
_PERSON = re.compile(r"tg://user\?id=(\d+)$")


def parse_markdown_v2(source: str) -> tuple[str, Entities]:
    """Parse MarkdownV2, in which every special character must be escaped or be markup. Raises `MarkupError`."""
    return _MarkdownV2(source).parse()


class _MarkdownV2:
    def __init__(self, source: str) -> None:
        self._scan = Scanner(source)
        self._is_line_start = True

    def parse(self) -> tuple[str, Entities]:
        scan = self._scan
        while not scan.is_done:
            self._step(scan.ahead(1))
        while scan.top == "blockquote":
            scan.end()
        if scan.open:
            raise self._unclosed(scan.open[-1])
        return scan.result()

    def _step(self, character: str) -> None:
        scan = self._scan
        escaped = scan.ahead(2)[1:]
        was_line_start, self._is_line_start = self._is_line_start, False
        if character == "\\" and escaped and 0 < ord(escaped) <= 126:
            scan.emit(escaped, skip=2)
            self._is_line_start = escaped == "\n"
        elif scan.top in ("code", "pre"):
            self._code(character)
        elif character == "\n":
            self._newline()
        elif character not in _SPECIAL:
            scan.emit(character)
        elif not (self._closed() or self._quoted(was_line_start) or self._opened()):
            raise MarkupError(f"Character '{character}' is reserved and must be escaped with the preceding '\\'")

    def _code(self, character: str) -> None:
        scan = self._scan
        fence = "```" if scan.top == "pre" else "`"
        if scan.ahead(len(fence)) == fence:
            scan.end(len(fence))
        elif character == "`":
            raise MarkupError("Character '`' is reserved and must be escaped with the preceding '\\'")
        else:
            scan.emit(character)

    def _newline(self) -> None:
        """Handle a line end. A quote ends with its last line, and no entity in it may stay open."""
        scan = self._scan
        is_quoted = any(entity["type"] == "blockquote" for entity in scan.open)
        if is_quoted and scan.ahead(2)[1:] != ">":
            if scan.top != "blockquote":
                raise self._unclosed(scan.open[-1])
            scan.end()
        scan.emit("\n")
        self._is_line_start = True

    def _closed(self) -> bool:
        scan = self._scan
        two = scan.ahead(2)
        closer = _CLOSERS.get(scan.top or "")
        if closer and scan.ahead(len(closer)) == closer:
            scan.end(len(closer))
        elif scan.top == "italic" and two[:1] == "_" and two != "__":
            scan.end(1)
        elif scan.top == "blockquote" and two == "||" and scan.ahead(3)[2:] in ("", "\n"):
            scan.open[-1]["type"] = "expandable_blockquote"
            scan.end(2)
        elif scan.top in ("text_link", "custom_emoji") and two[:1] == "]":
            self._link()
        else:
            return False
        return True

    def _link(self) -> None:
        """Handle the end of a link's text. `](url)` must follow; without it, only the text is kept."""
        scan = self._scan
        if scan.ahead(2) != "](":
            if scan.top == "custom_emoji":
                raise MarkupError("Custom emoji entity must contain a tg://emoji URL")
            scan.open.pop()
            scan.at += 1
            return
        address, end = _until_paren(scan.source, scan.at + 2)
        if end is None:
            raise MarkupError(f"Can't find end of a URL at byte offset {scan.byte(scan.at + 2)}")
        skip = end + 1 - scan.at
        if person := _PERSON.match(address):
            scan.open[-1]["type"] = "text_mention"
            scan.end(skip, user={"id": int(person[1]), "is_bot": False, "first_name": f"user{person[1]}"})
        else:
            scan.end(skip, url=address)

    def _quoted(self, is_line_start: bool) -> bool:
        scan = self._scan
        if scan.ahead(1) != ">" or not is_line_start:
            return False
        if any(entity["type"] == "blockquote" for entity in scan.open):
            scan.at += 1
        else:
            scan.begin("blockquote", 1)
        return True

    def _opened(self) -> bool:
        scan = self._scan
        if scan.ahead(3) == "```":
            language = _LANGUAGE.match(scan.source, scan.at + 3)
            if language:
                scan.begin("pre", language.end() - scan.at, language=language[1])
            else:
                scan.begin("pre", 4 if scan.ahead(4)[3:] == "\n" else 3)
            return True
        if scan.ahead(1) == "`":
            scan.begin("code", 1)
            return True
        for mark, kind in (*_OPENERS, *_MORE_OPENERS):
            if scan.ahead(len(mark)) == mark:
                scan.begin(kind, len(mark))
                return True
        return False

    @staticmethod
    def _unclosed(entity: dict[str, object]) -> MarkupError:
        name = _NAMES.get(str(entity["type"]), entity["type"])
        return MarkupError(f"Can't find end of {name} entity at byte offset {entity['_byte']}")


def _until_paren(source: str, at: int) -> tuple[str, int | None]:
    """Return the URL up to the next unescaped `)`, and the position of that `)`, or None if it is missing."""
    address = []
    while at < len(source) and source[at] != ")":
        if source[at] == "\\" and at + 1 < len(source):
            at += 1
        address.append(source[at])
        at += 1
    return "".join(address), at if at < len(source) else None


_LEGACY = {"_": "italic", "*": "bold", "`": "code"}
_TARGET = re.compile(r"\(([^)]*)\)")


def parse_markdown(source: str) -> tuple[str, Entities]:
    """Parse legacy Markdown, in which entities cannot be nested and must be closed. Raises `MarkupError`."""
    scan = Scanner(source)
    while not scan.is_done:
        character = scan.ahead(1)
        if character == "\\" and scan.ahead(2)[1:] in tuple("_*`["):
            scan.emit(scan.ahead(2)[1:], skip=2)
        elif character in "_*`[":
            _legacy_entity(scan)
        else:
            scan.emit(character)
    return scan.result()


def _legacy_entity(scan: Scanner) -> None:
    mark = "```" if scan.ahead(3) == "```" else scan.ahead(1)
    closer = "]" if mark == "[" else mark
    start = scan.at
    stop = scan.source.find(closer, start + len(mark))
    if stop < 0:
        raise MarkupError(f"Can't find end of the entity starting at byte offset {scan.byte(start)}")
    kind = "text_link" if mark == "[" else "pre" if mark == "```" else _LEGACY[mark]
    scan.begin(kind, len(mark))
    scan.emit(scan.source[scan.at : stop])
    target = _TARGET.match(scan.source, stop + 1) if mark == "[" else None
    if target:
        scan.end(target.end() - stop, url=target[1])
    elif mark == "[":
        scan.open.pop()
        scan.at += 1
    else:
        scan.end(len(closer))
