"""Token counts: estimates for text and rows, and providers' counts in one common form.

No tokenizer is used. Common tokenizers split text at similar places. So each character is replaced by a letter for its
class (lower case, digit, Han, …), and short sequences of these letters are counted. For example, `sl` is a word after a
space, `ddd` is three digits, and `lu` is a capital inside a camelCase name. The weights were fitted to the o200k
tokenizer on prose in many languages, code, JSON, logs, hex and base64. `python -m bench` shows how accurate the
estimates are.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from agent.handoff import framed
from agent.model.base import ModelReply, ModelRequest, ToolSchema
from agent.model.wire import WireStyle
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import CanonicalUsage, EstimatedTokens, Message, MessageRole, MicroUsd, Origin, micro_usd

MESSAGE_TOKENS = 4
"""Estimated number of tokens in a message's role and separators."""
CALL_TOKENS = 10
"""Estimated number of tokens in the id and frame of a tool call or a tool result."""
BLOCK_TOKENS = 14
"""Estimated number of tokens in the tags around a document or quotation, or in the line about a hidden image."""
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
    """Return the estimated number of tokens in `text`, rounded up. It is 0 only for an empty string.

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


def estimated_schema_tokens(schema: ToolSchema) -> EstimatedTokens:
    return EstimatedTokens(8 + cached_text_tokens(schema.text))  # 8 tokens for the frame around a schema


@lru_cache(maxsize=256)
def cached_text_tokens(text: str) -> EstimatedTokens:
    """Return `estimated_text_tokens`, cached because every model call sends the same prompts and schemas again."""
    return estimated_text_tokens(text)


class RowTokenCache:
    """Token sizes of rows, measured once because rows never change. The cache is thread-safe.

    The key contains a row's text, because a row that was shortened for a summary keeps its id.
    """

    def __init__(self, kept: int = 32_768) -> None:
        """Create a cache for the `2 * kept` most recently used rows. The default holds several long conversations."""
        self._kept = kept
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def text_tokens(
        self, row: Message, max_result_characters: int, *, is_shared: bool = False, reasoning_of: str = ""
    ) -> int:
        """Return the estimated number of tokens in a row, without images and not adjusted to the model.

        `reasoning_of`: the model whose reasoning is sent.
        """
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
"""Row token cache that the whole process shares."""


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
    elif row.origin is Origin.TALK:
        total += 20  # its time, its name, and a part of the block around it
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


# ---- usage reported by providers

MAX_TOKENS = 100_000_000
"""Highest plausible token count of one call. A higher count could block a conversation, or overflow the database."""
UsageFormat: TypeAlias = Literal["chat_completions", "responses", "anthropic"]
"""API whose field names a `usage` object uses."""


def normalize_usage(usage: object, format: UsageFormat | None = None) -> CanonicalUsage | None:
    """Convert a provider's `usage`, a mapping or an SDK object. Return None if it has no prompt count.

    If `format` is None, the field names determine the format. In chat completions and responses, the prompt count
    includes tokens read from and written to the cache, so these are subtracted to get `input`. Anthropic, and proxies
    that only rename its fields, do not include them. `output` includes `reasoning`. Counts that are strings, booleans
    or negative are ignored.

    >>> normalize_usage(
    ...     {"prompt_tokens": 900, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 800}}
    ... )
    CanonicalUsage(input=100, output=20, cache_read=800, cache_write=0, reasoning=0)
    """
    if format is None:
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")
        if _field(usage, "prompt_tokens") is not None:  # check first: some servers add the fields of other APIs
            format = "chat_completions"
        elif any(_field(usage, name) is not None for name in cached):
            format = "anthropic"  # without cache counts, its field names equal the Responses API's
    if format == "chat_completions":
        return _openai_usage(usage, prompt="prompt_tokens", output="completion_tokens")
    if format != "anthropic":
        return _openai_usage(usage, prompt="input_tokens", output="output_tokens")
    fresh = _count(usage, "input_tokens")
    read = _count(usage, "cache_read_input_tokens") or 0
    written = _count(usage, "cache_creation_input_tokens") or 0
    if fresh is None or fresh + read + written > MAX_TOKENS:
        return None
    return CanonicalUsage(
        input=fresh,
        output=_bounded(usage, "output_tokens"),
        cache_read=read,
        cache_write=written,
        reasoning=_bounded(_field(usage, "output_tokens_details"), "thinking_tokens"),
    )


_APART = ("cache_creation_input_tokens", "cache_write_input_tokens", "cache_read_input_tokens")
"""Anthropic's names for cache counts. A proxy that uses them may leave these tokens out of its prompt count."""


def _openai_usage(usage: object, *, prompt: str, output: str) -> CanonicalUsage | None:
    """Convert a `usage` whose prompt count includes cached tokens. Servers use different fields for cached tokens."""
    total = _count(usage, prompt)
    if total is None or total > MAX_TOKENS:
        return None
    holders = (usage, _field(usage, "prompt_tokens_details"), _field(usage, "input_tokens_details"))
    read, written = (
        max(min(_count(holder, name) or 0, MAX_TOKENS) for holder in holders if holder is not None for name in names)
        for names in (
            ("cached_tokens", "prompt_cache_hit_tokens", _APART[2]),
            ("cache_creation_tokens", "cache_write_tokens", *_APART[:2]),
        )
    )
    done, cached = _bounded(usage, output), sum(_bounded(usage, name) for name in _APART)
    # If there are more cached tokens than prompt tokens, or the total says so, the prompt count excludes them.
    if cached > total or (cached > 0 and _count(usage, "total_tokens") == total + done + cached):
        total = min(total + read + written, MAX_TOKENS)
    read = min(read, total)
    written = min(written, total - read)
    return CanonicalUsage(
        input=total - read - written,
        output=done,
        cache_read=read,
        cache_write=written,
        reasoning=_bounded(_field(usage, f"{output}_details"), "reasoning_tokens"),
    )


def reported_cost(usage: object) -> MicroUsd | None:
    """Return the cost reported by a provider such as OpenRouter; None for 0, which means that the price is unknown."""
    cost = _amount(_field(usage, "cost"))
    if _field(usage, "is_byok") is True:  # with the user's own key, `cost` is only the reseller's fee
        cost += _amount(_field(_field(usage, "cost_details"), "upstream_inference_cost"))
    return micro_usd(cost) if cost else None


def _amount(value: object) -> float:
    # The highest plausible cost of a call is 10,000 US dollars.
    return float(value) if isinstance(value, int | float) and 0 < value <= 10_000 else 0.0


def _field(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, (dict, Mapping)) else getattr(holder, name, None)


def _bounded(holder: object, name: str) -> int:
    return min(_count(holder, name) or 0, MAX_TOKENS)


def _count(holder: object, name: str) -> int | None:
    """Return a token count as an integer, because some servers send floats; None for any other value."""
    value = _field(holder, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < math.inf else None  # `math.isfinite` would fail on an int of 400 digits


# ---- sizes of prompts


class Size(msgspec.Struct, frozen=True):
    """Size of all or part of a prompt: number of images, and estimated text tokens, not adjusted to the model."""

    text: int
    images: int

    @property
    def tokens(self) -> int:
        """Total tokens. Each image counts as 1,000 tokens, a value between those of small and large images."""
        return self.text + self.images * 1_000

    def __add__(self, other: "Size") -> "Size":
        return Size(self.text + other.text, self.images + other.images)

    def __sub__(self, other: "Size") -> "Size":
        return Size(self.text - other.text, self.images - other.images)


def estimated_prompt_size(request: ModelRequest) -> Size:
    """Return the estimated size of a complete prompt."""
    return Size(fixed_tokens(request), 0) + rows_size(request.transcript, request.style)


def estimated_reply_usage(request: ModelRequest, reply: ModelReply) -> CanonicalUsage:
    """Return the estimated usage of a call, for providers that report none."""
    prompt = estimated_prompt_size(request).tokens
    calls = sum(CALL_TOKENS + estimated_text_tokens(call.name + call.arguments) for call in reply.calls)
    return CanonicalUsage(input=prompt, output=estimated_text_tokens(reply.text) + calls)


def rows_size(rows: Iterable[Message], style: WireStyle, sizes: RowTokenCache = ROW_TOKENS) -> Size:
    """Return the estimated size of rows as sent to a provider. Reads every row, so avoid repeated calls."""
    text_of, limit, is_shared = sizes.text_tokens, style.max_result_characters, style.is_shared
    text, images, maker = 0, 0, style.reasoning_of
    for row in rows:
        text += text_of(row, limit, is_shared=is_shared, reasoning_of=maker)
        if row.body.images:
            urls, notes = style.image_urls, style.image_notes
            seen = sum(
                one.attachment_id in urls and (row.id, one.attachment_id) not in notes for one in row.body.images
            )
            images += seen
            text += (len(row.body.images) - seen) * BLOCK_TOKENS
    return Size(text, images)


def fixed_tokens(request: ModelRequest) -> int:
    """Return the estimated number of tokens in the system prompt and the tool schemas, not adjusted to the model."""
    return cached_text_tokens(request.system) + sum(map(estimated_schema_tokens, request.tools))
