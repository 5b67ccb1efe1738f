"""Searchable text of messages, available in SQL as `fts_row`, `fts_scope` and `fts_text`.

FTS5's `unicode61` tokenizer splits at spaces and punctuation. It finds no words in Chinese or Japanese text and drops
every emoji. So `segment` turns a run of CJK characters into overlapping pairs plus the last character, and an emoji
into a word. `phrase` treats queries in the same way. Both use `folded`, which unifies spelling variants.

>>> folded("Café İSTANBUL Straße مُحَمَّد ٢٠٢٤")
'cafe istanbul strasse محمد 2024'
"""

import json
import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from hermes_state.text import well_formed
from hermes_state.values import MessageBody

SEGMENT_VERSION = 4
"""Version of the index. Increase it when `segment` or `searched_text` changes for any row, to rebuild the index."""

INDEXED_CHARACTERS = 200_000
"""Number of searchable characters at the start of a row. Indexing all of a long tool output would cost too much."""

_MARK_LETTERS, _MARK_PAIRS = 0x13000, 0x12000
"""First letters of the ranges that replace vowel signs, because the tokenizer would treat those as spaces.

Vowel signs of scripts in `CJK` become cuneiform letters (`_MARK_PAIRS`), which are paired. Others become hieroglyphs.
"""

CJK = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\ua960-\ua97f\ud7b0-\ud7ff\U00012000-\U000122ff"
    "\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
"""Characters that are indexed in pairs: Thai, Lao, Burmese, Khmer, Hangul, kana, Han, and replaced vowel signs."""
EMOJI = "\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_REWRITTEN = re.compile(f"(?P<run>[{CJK}]+)|[{EMOJI}]")
_CYRILLIC = re.compile("[\u0438\u0443]\u0306|\u0456\u0308")
"""Cyrillic letters whose mark is part of the letter, not an accent."""
_NASAL = re.compile("[\u0919\u091e\u0923\u0928\u092e]\u094d(?=[\u0915-\u0939])")
"""Hindi consonants that people also write as a dot above the previous letter."""
_SAME = str.maketrans(
    "\u0131\u00f8\u0142\u0111\u00f0\u0127\u0643\u064a\u0649\u0629\u06c1\u02bb\u02bc",
    "iolddh\u06a9\u06cc\u06cc\u0647\u0647''",
    "\u0640\u02be\u02bf\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff",
) | {ord(letter): letters for letter, letters in (("\u00e6", "ae"), ("\u0153", "oe"), ("\u00fe", "th"))}
"""Replacements for letters that people use interchangeably. Tatweel, hamza signs and skin tones are removed."""


class _Folding(dict[int, str | int | None]):
    """Map from characters to folded text: accents to nothing, vowel signs to letters, digits to ASCII digits."""

    def __missing__(self, code: int) -> str | int | None:
        category, is_kept = unicodedata.category(chr(code)), 0x0900 <= code < 0x1AB0 or 0x3000 <= code < 0xFE00
        same: str | int | None = _SAME.get(code, code)
        if category == "Nd":
            same = str(unicodedata.decimal(chr(code)))
        elif category == "Cf" or unicodedata.combining(chr(code)) == 7 or (category == "Mn" and not is_kept):
            same = None
        elif category in ("Mn", "Mc") and not 0x3000 <= code < 0x3100:  # kana marks are composed instead
            is_paired = re.match(f"[{CJK}]", chr(code)) is not None
            same = _MARK_PAIRS + code % 0x300 if is_paired else _MARK_LETTERS + code % 0x400
        self[code] = same
        return same


_folding = _Folding()


def folded(text: str) -> str:
    """Normalise text for comparison: to composed characters in lower case, without accents and full-width forms."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    decomposed = _NASAL.sub("\u0902", decomposed.replace("\u0e40\u0e40", "\u0e41"))  # Thai vowel typed in two parts
    decomposed = _CYRILLIC.sub(lambda letter: unicodedata.normalize("NFC", letter[0]), decomposed)
    return unicodedata.normalize("NFC", decomposed.translate(_folding))


def segment(text: str | None) -> str:
    """Return the text to index. ASCII text stays unchanged."""
    if text is None:
        return ""
    text = text[:INDEXED_CHARACTERS]
    return text if text.isascii() else _rewrite(folded(text)[:INDEXED_CHARACTERS], is_query=False)


def segment_query(text: str) -> str:
    """Prepare a phrase of a query in the same way as `segment` prepares the text to index.

    Unlike `segment`, it does not repeat the last character of a CJK run after the last pair, because another character
    may follow in the text.
    """
    return text if text.isascii() else _rewrite(folded(text), is_query=True)


def phrase(text: str) -> str:
    """Return `text` as a quoted FTS5 phrase."""
    return '"' + segment_query(text.rstrip()).replace('"', '""') + '"'


def ends_in_half_a_pair(text: str) -> bool:
    """Return True if the text ends in a single CJK character, which can be the first half of any indexed pair."""
    return re.search(f"(?:^|[^{CJK}])[{CJK}]$", folded(text.rstrip())) is not None


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


RECALL_TOOLS: Final = ("history_search", "history_open")
"""Tools whose calls contain search words and whose results repeat other messages."""

REPEATS: Final = "recall"  # scope of results that repeat other messages

# An unclosed string extends to the end of the text. Otherwise searching from each quote would take quadratic time.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_decode_string = json.JSONDecoder(strict=False).decode
_decode_body = msgspec.json.Decoder(MessageBody).decode


def fts_row(text: str | None, body: str | None) -> str:
    """Return the searchable text of a row, from its columns."""
    if body is not None:
        with suppress(msgspec.MsgspecError):  # a damaged body is reported when the row is read
            return searched_text(text, _decode_body(body))
    return text or ""


def fts_scope(chat_id: int, lineage_id: int, role: str, tool_name: str | None) -> str:
    return f"c{chat_id} l{lineage_id} r{role}" + (f" {REPEATS}" if tool_name in RECALL_TOOLS else "")


def searched_text(text: str | None, body: MessageBody | None, redact: Callable[[str], str] = str) -> str:
    """Return the searchable text of a row, redacted and cut to `INDEXED_CHARACTERS`."""
    fields = [text or ""]
    if body is not None:
        fields += [body.quote.text] if body.quote is not None else []
        fields += [f"{document.name}\n{document.text}" for document in body.documents]
        calls = ((call.name, redact(call.arguments[:INDEXED_CHARACTERS])) for call in body.calls)
        fields += [f"{name} {unescaped(arguments)}" for name, arguments in calls if name not in RECALL_TOOLS]
    return redact("\n".join(filter(None, fields))[:INDEXED_CHARACTERS])


def unescaped(arguments: str) -> str:
    """Replace the JSON escapes in a tool call's arguments with the characters they stand for. Accepts invalid JSON."""
    return well_formed(_STRING.sub(_meant, arguments)) if "\\" in arguments else arguments


def _meant(found: re.Match[str]) -> str:
    try:
        return f'"{_decode_string(found[0])}"' if "\\" in found[0] else found[0]
    except ValueError:
        return found[0]
