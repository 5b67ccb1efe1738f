"""Excerpts of conversations for summary models: limited in size, sampled evenly, without secrets.

Each message is one entry, whose lines after the first are indented. No text can close the tags around an excerpt. The
middle of a long answer is left out. If there is still too much text, all long messages are cut in the middle, and then
some messages are left out. At least half of the room is reserved for messages from people.

`fitted` shortens summaries, because models exceed the requested length and a long summary would soon cause the next
compression.
"""

import heapq
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from hashlib import blake2s
from itertools import repeat
from typing import Final

import structlog

from agent.model.usage import ROW_TOKENS, estimated_text_tokens
from hermes_state.redaction import MARK, seam
from hermes_state.text import both_ends, left_out
from hermes_state.values import Message, MessageRole, Millis, Origin, Tokens, Transcript, recall_id

log = structlog.get_logger()

SECRET_MARK: Final = "[REDACTED]"
ENTRY_TOKENS = 18
"""Estimated number of tokens in the id, time and speaker that precede a message."""
GAP_TOKENS = 8
"""Estimated number of tokens in the line that says how many messages are not shown."""
ANSWER_CHARACTERS = 1_000
"""Maximum number of characters of an answer. An answer begins and ends with what matters, and facts are carried."""
RECORD_LINES = 1_000
"""Maximum number of lines of an earlier record. A longer record is not from this gateway, so its middle is removed."""
QUOTED_CHARACTERS = 20_000
"""Maximum number of characters in one message that are searched for facts, rules and findings."""
_WHOLE = 1 << 40
_OPENING = re.compile(r"^[ \t]*<(?:think|thinking|thought|reasoning)>", re.MULTILINE | re.IGNORECASE)
CLOSING_THOUGHT: Final = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_UNSEEN = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+"
)
Redact = Callable[[str], str]


def excerpt(rows: Transcript, limit: Tokens, *, redact: Redact, zone: tzinfo = UTC, has_names: bool = False) -> str:
    """Return the rows as text, shortened to about `limit` estimated tokens if it is longer."""
    lengths = [_length(row) for row in rows]
    costs = [
        _cost(_row_tokens(row) + ENTRY_TOKENS, length, _most(row)) for row, length in zip(rows, lengths, strict=True)
    ]
    if sum(costs) <= limit:
        return "\n".join(_entries(rows, redact, zone, _WHOLE, has_names=has_names))
    lengths = list(map(min, lengths, map(_most, rows)))
    max_characters = _row_characters(costs, lengths, limit * 95 // 100)  # a margin, because the estimate is rough
    costs = list(map(_cost, costs, lengths, repeat(max_characters)))
    kept: Sequence[int] = range(len(rows))
    if sum(costs) > limit:
        costs = [cost + GAP_TOKENS for cost in costs]
        kept = _sample(rows, kept, costs, limit)
    shown = _entries([rows[index] for index in kept], redact, zone, max_characters, has_names=has_names)
    entries = dict(zip(kept, shown, strict=True))
    for index in kept:
        if lengths[index] > max_characters:  # count again: the two kept ends can be in another script than the rest
            costs[index] = GAP_TOKENS + estimated_text_tokens(entries[index])
    if sum(costs[index] for index in kept) > limit:
        kept = _sample(rows, kept, costs, limit)
    log.info(
        "summary.input_sampled",
        messages=len(rows),
        shown=len(kept),
        tokens=sum(costs[index] for index in kept),
        limit=limit,
        row_characters=max_characters,
    )
    lines, before = list[str](), -1
    for index in (*kept, len(rows)):
        if missing := index - before - 1:
            lines.append(f"[{missing} message{'s are' if missing > 1 else ' is'} not shown]")
        lines += [entries[index]] if index < len(rows) else []
        before = index
    return "\n".join(lines)


def bounded_record(text: str, limit: Tokens, redact: Redact) -> str:
    """Return an earlier record, shortened to about `limit` tokens by cutting its longest sections."""
    safe = both_ends(clean(text, redact), 100_000)
    lines = safe.splitlines()
    if len(lines) > RECORD_LINES:
        half = RECORD_LINES // 2
        safe = "\n".join([*lines[:half], f"[{len(lines) - 2 * half} lines left out for length]", *lines[-half:]])
    return fitted(safe, limit)


def clean(text: str, redact: Redact) -> str:
    """Return `text` without secrets and tags. Call this before you cut the text: half a secret is not recognised."""
    return _untagged(redact(text))


def _untagged(text: str) -> str:
    text = text.replace(MARK, SECRET_MARK)
    return (
        re.sub(r"<(?=\s{0,8}/?\s{0,8}(?:conversation|earlier_record|focus)\b)", "(", text, flags=re.IGNORECASE)
        if "<" in text
        else text
    )


def without_thoughts(text: str) -> str:
    """Return `text` without blocks of reasoning. If the text begins with an unclosed block, return an empty string."""
    if "<" not in text:
        return text
    kept: list[str] = []
    start = 0
    while (opening := _OPENING.search(text, start)) is not None:
        closing = CLOSING_THOUGHT.search(text, opening.end())
        if closing is None:
            if not text[: opening.start()].strip():
                return ""
            break
        kept.append(text[start : opening.start()])
        start = closing.end()
    return "".join((*kept, text[start:]))


def moment(at: Millis, zone: tzinfo) -> str:
    """Return the date and time to the minute, or a phrase if the time is impossible, as in some imported rows."""
    try:
        return datetime.fromtimestamp(at / 1_000, zone).isoformat(" ", "minutes")[: len("2026-01-01 00:00")]
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def said(row: Message) -> Iterator[str]:
    """Yield all texts of a row, including its documents, notes and calls."""
    body, text = row.body, row.text or ""
    text = text if body.words_by is None else f"(forwarded from {body.words_by or 'somebody'}: {text})"
    yield without_thoughts(text) if row.role is MessageRole.ASSISTANT else text
    if body.quote is not None:
        yield f"(in reply to: {body.quote.text})"
    for document in body.documents:
        yield f"(document {document.name}: {document.text})"
    if body.images:
        yield f"({len(body.images)} image{'s' if len(body.images) > 1 else ''})"
    for note in body.notes:
        yield f"(note: {note})"
    for call in body.calls:
        yield f"(calls {call.name} {call.arguments})"
    if body.was_interrupted:
        yield "(interrupted here)"


def _entries(
    rows: Sequence[Message], redact: Redact, zone: tzinfo, max_characters: int, *, has_names: bool
) -> Iterator[str]:
    """Yield an entry of about `max_characters` for each row. Entries are searched for secrets in large batches."""
    batch: list[str] = []
    limits: list[int] = []
    size = 0
    for row in rows:
        text, most = " ".join(piece for piece in said(row) if piece), min(max_characters, _most(row))
        short = _shortened(text, most)
        speaker = _speaker(row, has_names=has_names)
        batch.append(f"[{recall_id(row.id)} {moment(row.created_at, zone)} {speaker}] {short}")
        limits.append(most if short is text else _WHOLE)
        size += len(short)
        if size >= 10_000:
            yield from map(both_ends, _cleaned(batch, redact), limits)
            batch, limits, size = [], [], 0
    yield from map(both_ends, _cleaned(batch, redact), limits)


def _most(row: Message) -> int:
    """Return the maximum number of characters to show of a row, whatever the room."""
    return ANSWER_CHARACTERS if row.role is MessageRole.ASSISTANT and not row.body.calls else _WHOLE


def _shortened(text: str, max_characters: int) -> str:
    if len(text) <= max_characters:
        return text
    half, play = max_characters // 2, max_characters // 8
    head = seam(text, half - play, half + play)
    tail = seam(text, len(text) - half, len(text) - half + 2 * play) if head is not None else None
    if head is None or tail is None or tail <= head:
        return text
    return f"{text[:head]}{left_out(tail - head)}{text[tail:]}"


def _cleaned(entries: Sequence[str], redact: Redact) -> Iterator[str]:
    together = "\n".join(entries)
    has_secrets = redact(together) != together
    for entry in entries:
        lines = _untagged(redact(entry) if has_secrets else entry).splitlines()
        yield entry if lines == [entry] else "\n  ".join(lines)


def _speaker(row: Message, *, has_names: bool) -> str:
    if row.role is MessageRole.TOOL:
        return f"result of {speaker_name(row.tool_name) or 'a tool'}"
    if row.role is MessageRole.ASSISTANT:
        return "assistant"
    if row.origin is Origin.TALK:
        return f"overheard {speaker_name(row.sender_name)}".strip()
    if row.origin is not Origin.HUMAN:
        return "gateway"
    return f"person {speaker_name(row.sender_name) if has_names else ''}".strip()


def speaker_name(text: str | None) -> str:
    """Return a speaker's name on one line, without brackets."""
    return " ".join((text or "").split())[:64].translate(str.maketrans("[]<>", "()()"))


def person_of(row: Message) -> str:
    """Return a sender's name for the record. It ends with a digest of the id, because names are not unique."""
    digest = blake2s((row.sender_ref or "").encode(), digest_size=2).hexdigest()
    return f"{speaker_name(row.sender_name)}#{digest}"


def _row_tokens(row: Message) -> int:
    """Return the estimated number of tokens in a row.

    A pruned row counts one token per three bytes, because its size is not cached.
    """
    if row.role is not MessageRole.TOOL and not row.body.calls:
        return ROW_TOKENS.text_tokens(row, _WHOLE)
    texts = [row.text or "", *(call.arguments for call in row.body.calls)]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // 3


def _length(row: Message) -> int:
    body = row.body
    length = len(row.text or "") + sum(len(document.text) for document in body.documents) + sum(map(len, body.notes))
    length += sum(len(call.name) + len(call.arguments) for call in body.calls)
    return length + (len(body.quote.text) if body.quote is not None else 0)


def _row_characters(costs: Sequence[int], lengths: Sequence[int], limit: int) -> int:
    """Return the largest length per message (240 to 6,000 characters) at which all rows fit; 240 if they never fit."""
    sizes = range(240, 6_001)
    count = bisect_right(sizes, limit, key=lambda size: sum(map(_cost, costs, lengths, repeat(size))))
    return sizes[max(0, count - 1)]


def _cost(cost: int, length: int, max_characters: int) -> int:
    if length <= max_characters:
        return cost
    return ENTRY_TOKENS + 10 + (cost - ENTRY_TOKENS) * max_characters // length


def _sample(rows: Transcript, indexes: Sequence[int], costs: Sequence[int], limit: int) -> list[int]:
    """Return evenly spread indexes of rows that fit together, always including the first and the last."""
    ends = {indexes[0], indexes[-1]}
    people = [index for index in indexes if index not in ends and rows[index].origin is Origin.HUMAN]
    others = [index for index in indexes if index not in ends and rows[index].origin is not Origin.HUMAN]
    room = limit - sum(costs[index] for index in ends)
    of_people = _evenly(people, costs, max(room // 2, room - sum(costs[index] for index in others)))
    of_others = _evenly(others, costs, room - sum(costs[index] for index in of_people))
    return sorted({*ends, *of_people, *of_others})


def _evenly(indexes: Sequence[int], costs: Sequence[int], limit: int) -> list[int]:
    total = sum(costs[index] for index in indexes)
    if total <= limit or not indexes:
        return list(indexes)
    count = len(indexes) * max(0, limit) // total
    while count > 0:
        chosen = [indexes[(2 * number + 1) * len(indexes) // (2 * count)] for number in range(count)]
        if sum(costs[index] for index in chosen) <= limit:
            return chosen
        count = count * 19 // 20
    return []


class _Section:
    def __init__(self, heading: str, lines: list[str]) -> None:
        self.heading = heading
        self._lines = lines
        self._sizes = [int(estimated_text_tokens(line)) + 1 for line in lines]
        self._dropped: set[int] = set()
        # Drop the largest line first, and the first line of a section last.
        self._order = sorted(range(len(lines)), key=lambda index: (index > 0, self._sizes[index]))
        self.tokens = sum(self._sizes)

    @property
    def has_lines(self) -> bool:
        return bool(self._order)

    def drop(self) -> int:
        """Drop the next line and return the number of tokens freed: 10 fewer the first time, as a note is added."""
        index = self._order.pop()
        self.tokens -= self._sizes[index]
        freed = self._sizes[index] - (0 if self._dropped else 10)
        self._dropped.add(index)
        return freed

    def text(self) -> str:
        kept = [line for index, line in enumerate(self._lines) if index not in self._dropped]
        note = [f"[{len(self._dropped)} lines left out for length]"] if self._dropped else []
        return "\n".join([line for line in (self.heading, *kept, *note) if line])


def fitted(text: str, limit: Tokens) -> str:
    """Return `text`, shortened to about `limit` tokens by dropping lines of its longest sections."""
    if estimated_text_tokens(text) <= limit:
        return text
    starts = [0, *(match.start() for match in re.finditer(r"^#{1,4}\s+\S.*$", text, re.MULTILINE))]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    lines = [[line for line in piece.splitlines() if line.strip()] for piece in pieces]
    sections = [_Section("", lines[0]), *(_Section(own[0], own[1:]) for own in lines[1:])]
    sections = [section for section in sections if section.heading or section.has_lines]
    total = sum(section.tokens + int(estimated_text_tokens(section.heading)) + 1 for section in sections)
    longest = [(-section.tokens, index) for index, section in enumerate(sections) if section.has_lines]
    heapq.heapify(longest)
    while total > limit and longest:
        _, index = heapq.heappop(longest)
        total -= sections[index].drop()
        if sections[index].has_lines:
            heapq.heappush(longest, (-sections[index].tokens, index))
    return "\n\n".join(section.text() for section in sections)


def bounded(text: str, redact: Redact) -> str:
    """Return the beginning of `text` without secrets and tags. If possible, no secret is cut in two."""
    if len(text) > QUOTED_CHARACTERS:
        cut = seam(text, QUOTED_CHARACTERS - 4_000, QUOTED_CHARACTERS)
        text = text if cut is None else text[:cut]
    return clean(text, redact)[:QUOTED_CHARACTERS]


def without_unseen(text: str) -> str:
    """Replace each run of whitespace, and of characters that hide or reorder others, with one space."""
    return _UNSEEN.sub(" ", text) if "  " in text or not text.isprintable() else text


def one_line(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters. Call `clean` first: the cut could split a secret."""
    line = without_unseen(text[: limit * 4]).strip()
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[: limit - 1]}…"
