"""Segmenter: cuts text into search tokens; SQL knows it as `fts_text(text)`.

The index uses FTS5's `unicode61` tokenizer, which splits at spaces and punctuation. It therefore finds no word
inside running Chinese or Japanese and drops every emoji. So the text is rewritten before it is indexed: a run of
CJK characters becomes overlapping pairs (the last character also stands alone) and an emoji becomes a word of its
own. Queries go through `phrase`, which cuts the same way; `tests/hermes_state/store/test_segment.py` holds the two
together.
"""

import re

SEGMENT_VERSION = 2
"""Raise it when `segment` or what `store.searched` gives to it is other for any row: the index is then made anew in the
background."""

INDEXED_CHARACTERS = 200_000
"""Only the first so many characters of a row are searchable: long tool output would cost more than it helps."""

CJK = (
    "\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
EMOJI = "\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_REWRITTEN = re.compile(f"(?P<run>[{CJK}]+)|[{EMOJI}]")
_LONE_CJK_AT_END = re.compile(f"(?:^|[^{CJK}])[{CJK}]$")


def segment(text: str | None) -> str:
    """The text as the index sees it; `None` is the empty text. ASCII text comes back as it is."""
    if text is None:
        return ""
    text = text[:INDEXED_CHARACTERS]
    return text if text.isascii() else _rewrite(text, is_query=False)


def segment_query(text: str) -> str:
    """Like `segment`, for the text of one quoted phrase.

    A CJK run that ends the phrase loses its lone last character: in the indexed text that character may be followed by
    another one, and its pair already stands in the phrase.
    """
    return text if text.isascii() else _rewrite(text, is_query=True)


def phrase(text: str) -> str:
    """One FTS5 phrase, quoted, of what stands in an indexed row for `text`."""
    return '"' + segment_query(text.rstrip()).replace('"', '""') + '"'


def ends_in_half_a_pair(text: str) -> bool:
    """True for a single CJK character at the end, whose word goes on where another one follows."""
    return _LONE_CJK_AT_END.search(text.rstrip()) is not None


def _rewrite(text: str, *, is_query: bool) -> str:
    end = len(text)

    def tokens(match: re.Match[str]) -> str:
        run = match["run"]
        if run is None:
            return f" xe{ord(match[0]):x} "
        cut = [run[i : i + 2] for i in range(len(run) - 1)]
        if not (is_query and match.end() == end and len(run) > 1):
            cut.append(run[-1])
        return f" {' '.join(cut)} "

    return _REWRITTEN.sub(tokens, text)
