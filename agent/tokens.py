"""Token estimates for text and stored rows that no provider has counted yet.

No tokenizer is used. Common tokenizers split text at similar places. So each character is replaced by a letter for its
class (lower case, digit, Han, …), and short sequences of these letters are counted. For example, `sl` is a word after a
space, `ddd` is three digits, and `lu` is a capital inside a camelCase name. The weights were fitted to the o200k
tokenizer on prose in many languages, code, JSON, logs, hex and base64. `python -m bench` shows how accurate the
estimates are.
"""

from collections.abc import Mapping
from functools import lru_cache

import orjson

from agent.handoff import framed
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import EstimatedTokens, Message, MessageRole, Origin

MESSAGE_TOKENS = 4
"""Estimated tokens of a message's role and separators."""
CALL_TOKENS = 10
"""Estimated tokens of the id and frame of a tool call or a tool result."""
BLOCK_TOKENS = 14
"""Estimated tokens of the tags around a document or quotation, or of the line about an image that is not shown."""
_WEIGHTS = {
    # words, by the character before them, and capitals; long words count more
    **{b"sl": 0.845, b"pl": 1.138, b"ul": 0.824, b"dl": 0.8, b"nl": 0.86, b"llllll": 0.345},
    **{b"lu": 0.623, b"pu": 0.839, b"du": 0.538, b"u": 0.212},
    # numbers: about one token per three digits, and one more at the start of a number
    **{b"d": 0.05, b"ddd": 0.75, b"sd": 2.0, b"ld": 1.162, b"pd": 1.772, b"ud": 1.065},
    **{b"p": 0.188, b"sp": 0.843, b"s": 0.064, b"n": 0.738, b"t": 1.236},
}
_WEIGHTS_BEYOND_ASCII = {
    **{b"y": 1.078, b"w": 0.694, b"g": 0.415, b"V": 0.5, b"i": 0.417, b"o": 1.5},
    **{b"r": 0.229, b"sr": 0.488, b"a": 0.393},
    **{b"k": 0.651, b"h": 0.786, b"hk": 0.363, b"K": 0.198, b"KK": 0.955, b"sK": 0.523},
    **{b"x": 1.107, b"f": 0.409, b"e": 1.987},
}
_RARE_LETTERS = {b"q": 0.577, b"x": 0.336, b"z": 1.867, b"j": 1.165, b"v": 0.256, b"w": 0.371}
"""Weights of letters that are typical of rare words and of random text (base64, keys)."""

# Class of a character by the first byte of its UTF-8 form. The other bytes are ignored.
_RANGES = {
    **{"p": (0x00, 0x80), "l": (0x61, 0x7B), "u": (0x41, 0x5B), "d": (0x30, 0x3A), "s": (0x20, 0x21)},
    **{"y": (0xC2, 0xC3), "w": (0xC3, 0xCA), "g": (0xCE, 0xD0), "r": (0xD0, 0xD4), "a": (0xD6, 0xDC)},
    # Latin signs, accented Latin, Greek, Cyrillic, Hebrew and Arabic; then Indic and Thai, Vietnamese, symbols,
    # kana, Han, Hangul, full-width forms, emoji
    **{"i": (0xE0, 0xE1), "V": (0xE1, 0xE2), "x": (0xE2, 0xE3), "k": (0xE3, 0xE4), "h": (0xE4, 0xEA)},
    **{"K": (0xEA, 0xEE), "f": (0xEF, 0xF0), "e": (0xF0, 0xF8)},
}


def _class_table() -> bytes:
    table = bytearray([ord("o")]) * 256
    for letter, (start, end) in _RANGES.items():
        table[start:end] = letter.encode() * (end - start)
    table[ord("\n")] = table[ord("\r")] = ord("n")
    table[ord("\t")] = ord("t")
    return bytes(table)


_CLASSES = _class_table()


def estimated_text_tokens(text: str) -> EstimatedTokens:
    """Return the estimated number of tokens of a text, rounded up. It is 0 only for an empty string.

    >>> estimated_text_tokens("Please remind me tomorrow at ten.")
    8
    """
    if not text:
        return EstimatedTokens(0)
    raw = text.encode("utf-8", "surrogatepass")
    total = 0.675  # for the first word, which has no space before it
    for letter, weight in _RARE_LETTERS.items():
        total += weight * raw.count(letter)
    if len(raw) == len(text):
        classes = raw.translate(_CLASSES)
    else:
        classes = raw.translate(_CLASSES, bytes(range(0x80, 0xC0)))
        for sequence, weight in _WEIGHTS_BEYOND_ASCII.items():
            total += weight * classes.count(sequence)
    for sequence, weight in _WEIGHTS.items():
        total += weight * classes.count(sequence)
    return EstimatedTokens(int(total) + 1)


def estimated_schema_tokens(name: str, description: str, parameters: Mapping[str, object]) -> EstimatedTokens:
    schema = f"{name} {description} {orjson.dumps(parameters).decode()}"
    return EstimatedTokens(8 + cached_text_tokens(schema))  # 8 tokens for the frame around a schema


@lru_cache(maxsize=256)
def cached_text_tokens(text: str) -> EstimatedTokens:
    """Return `estimated_text_tokens`, cached because every model call sends the same prompts and schemas again."""
    return estimated_text_tokens(text)


class RowTokenCache:
    """Token sizes of rows, measured once because rows never change. The cache is thread-safe.

    The key contains a row's text, because a row that was shortened for a summary keeps its id.
    """

    def __init__(self, kept: int = 32_768) -> None:
        """Create a cache of the newest rows, at most 2 * `kept`. The default holds several long conversations."""
        self._kept = kept
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def text_tokens(
        self, row: Message, max_result_characters: int, *, is_shared: bool = False, reasoning_of: str = ""
    ) -> int:
        """Estimate a row's tokens, unscaled and without images. `reasoning_of`: the model whose reasoning is sent."""
        key = _key(row, max_result_characters)
        size = self._young.get(key)
        if size is None:
            size = self._old.get(key)
            if size is None:
                size = _row_tokens(row, max_result_characters)
            if len(self._young) >= self._kept:
                # Drop whole generations, not single entries: no thread may iterate over a dict that another changes.
                self._old, self._young = self._young, {}
            self._young[key] = size
        if reasoning_of and row.body.reasoning is not None and row.body.reasoning.made_by == reasoning_of:
            blocks = row.body.reasoning.blocks
            # Most reasoning is encrypted and cannot be measured, so assume four characters per token, as in prose.
            size += len(blocks) // 4 if blocks.isascii() else estimated_text_tokens(blocks)
        if is_shared and row.role is MessageRole.USER and row.sender_name:
            return size + cached_text_tokens(row.sender_name) + 1
        return size

    def has(self, row: Message, max_result_characters: int) -> bool:
        key = _key(row, max_result_characters)
        return key in self._young or key in self._old


ROW_TOKENS = RowTokenCache()
"""Cache that the whole process shares."""


def _key(row: Message, max_result_characters: int) -> int:
    """Return a hash of a row's id and content. A tuple would need five times as much memory."""
    text, body = row.text or "", row.body
    return hash((row.id, _shown(row, max_result_characters), hash(text), 0 if body is EMPTY_BODY else hash(body)))


def _shown(row: Message, max_result_characters: int) -> int:
    length = len(row.text or "")
    return min(length, max_result_characters) if row.role is MessageRole.TOOL else length


def _row_tokens(row: Message, max_result_characters: int) -> int:
    text, body = row.text or "", row.body
    total = MESSAGE_TOKENS + estimated_text_tokens(text[: _shown(row, max_result_characters)])
    if row.role is MessageRole.TOOL:
        total += CALL_TOKENS
    elif row.origin is Origin.HUMAN:
        total += 12  # the timestamp before a person's message
    elif row.origin is Origin.SUMMARY:
        total += cached_text_tokens(framed(""))
    if body is EMPTY_BODY:
        return total
    total += sum(CALL_TOKENS + estimated_text_tokens(call.name + call.arguments) for call in body.calls)
    total += sum(BLOCK_TOKENS + estimated_text_tokens(part.name + part.text) for part in body.documents)
    if body.words_by is not None:
        total += BLOCK_TOKENS + estimated_text_tokens(body.words_by)
    if body.quote is not None:
        total += BLOCK_TOKENS + estimated_text_tokens(body.quote.author + body.quote.text)
    return total + sum(MESSAGE_TOKENS + estimated_text_tokens(note) for note in body.notes)
