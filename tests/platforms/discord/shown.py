"""Text that Discord's client shows for a message. Its own Markdown rules are tried at every character."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_CODE_BLOCK = re.compile(r"```(?:([a-z0-9_+\-.#]+?)\n)?\n*([^\n].*?)\n*```", re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(r"\\([^0-9A-Za-z\s])")
_URL = re.compile(r"<?(https?://[^\s<>]+[^<>.,:;\"'\]\s])>?")
_LINK = re.compile(r"\[([^\]]+)\]\(<?(https?://[^)>\s]+)>?\)")
_CODE = re.compile(r"(`+)(.*?[^`])\1(?!`)", re.DOTALL)
_SAME_RANK = {
    "bold": re.compile(r"\*\*((?:\\.|[^\\])+?)\*\*(?!\*)", re.DOTALL),
    "italic": re.compile(
        r"_((?:__|\\.|[^\\_])+?)_(?!\w)|\*(?=\S)((?:\*\*|\\.|\s+(?:\\.|[^\s*\\]|\*\*)|[^\s*\\])+?)\*(?!\*)", re.DOTALL
    ),
    "underline": re.compile(r"__((?:\\.|[^\\])+?)__(?!_)", re.DOTALL),
}
_OTHERS = {"struck": re.compile(r"~~(.+?)~~(?!_)", re.DOTALL), "spoiler": re.compile(r"\|\|(.+?)\|\|", re.DOTALL)}
_LINE_START = re.compile(r"(?:^|(?<=\n))(?:#{1,3}[ \t]+|-#[ \t]+|(?:> )+|>>> )")


@dataclass
class Shown:
    text: str = ""
    styles: list[tuple[str, str]] = field(default_factory=list)
    """Style and text of each formatted section."""

    def covered(self, style: str) -> list[str]:
        return [text for name, text in self.styles if name == style]


def shown(message: str) -> Shown:
    found = Shown()
    found.text = "".join(_pieces(message, found))
    return found


def _pieces(text: str, found: Shown) -> Iterator[str]:
    at = 0
    while at < len(text):
        if match := _CODE_BLOCK.match(text, at) or _CODE.match(text, at):
            yield match[2]
        elif (match := _LINE_START.match(text, at)) and (not at or text[at - 1] == "\n"):
            pass
        elif (match := _ESCAPE.match(text, at)) or (match := _URL.match(text, at)):
            yield match[1]
        elif match := _LINK.match(text, at):
            yield from _pieces(match[1], found)
        elif styled := _styled(text, at):
            style, match = styled
            inner = "".join(_pieces(next(group for group in match.groups() if group is not None), found))
            found.styles.append((style, inner))
            yield inner
        else:
            yield text[at]
            at += 1
            continue
        at = match.end()


def _styled(text: str, at: int) -> tuple[str, re.Match[str]] | None:
    for rank in (_SAME_RANK, _OTHERS):
        matches = [(name, match) for name, pattern in rank.items() if (match := pattern.match(text, at))]
        if matches:
            return max(matches, key=lambda one: one[1].end())
    return None
