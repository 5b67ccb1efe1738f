"""Excerpts of conversations for summary models: a bounded part, sampled evenly, without secrets.

Every message is one entry; its further lines are indented, so that no text can pass itself off as another message, and
it stands inside tags that no text can close. Where there is more than fits, long messages are cut in their middle
first, then every so many are left out; the first and the last stay, and people's messages have half of the room.

A summary that came out too long is made to fit by rule (`fitted`), for models take a length in words for a wish, and a
handoff that is as long as what it stands for would have the next compression follow at once. The longest sections give
way first, line by line, and each says so.
"""

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

import structlog

from agent.tokens import ROW_TOKENS, estimated_text_tokens
from hermes_state.redaction import MARK, seam
from hermes_state.text import both_ends, left_out
from hermes_state.values import Message, MessageRole, Millis, Origin, Tokens, Transcript, recall_id

log = structlog.get_logger()

SECRET_MARK: Final = "[REDACTED]"
MAX_ROW_CHARACTERS = 6_000
"""Most characters of one message, its two ends, once anything has to be left out."""
MIN_ROW_CHARACTERS = 240
"""Shorter pieces say nothing; messages are left out before."""
ENTRY_TOKENS = 18
"""Number, time and speaker in front of a message."""
CUT_TOKENS = 10
"""The note inside a message whose middle is left out."""
AIM_PERCENT = 95
"""Share of the limit, in percent, when the length of messages is chosen: what they really take is seen only then."""
GAP_TOKENS = 8
"""The line that says how many messages are not shown."""
BYTES_PER_TOKEN = 3
"""At least, of stubs and arguments."""
BATCH_CHARACTERS = 10_000
"""Looked at together for secrets."""
RECORD_CHARACTERS = 100_000
RECORD_LINES = 1_000
"""An earlier record beyond these was not written here: its middle is left out."""
NOTE_TOKENS = 10
"""The line that says how many lines were left out."""

_WHOLE = 1 << 40
_OPENING = re.compile(r"^[ \t]*<(?:think|thinking|thought|reasoning)>", re.MULTILINE | re.IGNORECASE)
CLOSING_THOUGHT: Final = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_TAG = re.compile(r"<(?=\s{0,8}/?\s{0,8}(?:conversation|earlier_record|focus)\b)", re.IGNORECASE)
_HEADING = re.compile(r"^#{1,4}\s+\S.*$", re.MULTILINE)
_NAME_BRACKETS = str.maketrans("[]<>", "()()")

Redact = Callable[[str], str]


def excerpt(rows: Transcript, limit: Tokens, *, redact: Redact, zone: tzinfo = UTC, has_names: bool = False) -> str:
    """The rows as text of about `limit` estimated tokens at most, whatever its language."""
    costs = [_row_tokens(row) + ENTRY_TOKENS for row in rows]
    if sum(costs) <= limit:
        return "\n".join(_entries(rows, redact, zone, _WHOLE, has_names=has_names))
    lengths = [_length(row) for row in rows]
    max_characters = _row_characters(costs, lengths, limit * AIM_PERCENT // 100)
    costs = [_cost(cost, length, max_characters) for cost, length in zip(costs, lengths, strict=True)]
    kept: Sequence[int] = range(len(rows))
    if sum(costs) > limit:
        costs = [cost + GAP_TOKENS for cost in costs]
        kept = _sample(rows, kept, costs, limit)
    shown = _entries([rows[index] for index in kept], redact, zone, max_characters, has_names=has_names)
    entries = dict(zip(kept, shown, strict=True))
    for index in kept:
        if lengths[index] > max_characters:  # its ends may be of another script than the whole
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
    return "\n".join(_with_gaps(kept, entries, len(rows)))


def bounded_record(text: str, limit: Tokens, redact: Redact) -> str:
    """An earlier record, its longest sections shortened to about `limit` tokens."""
    safe = both_ends(clean(text, redact), RECORD_CHARACTERS)
    lines = safe.splitlines()
    if len(lines) > RECORD_LINES:
        half = RECORD_LINES // 2
        safe = "\n".join([*lines[:half], f"[{len(lines) - 2 * half} lines left out for length]", *lines[-half:]])
    return fitted(safe, limit)


def clean(text: str, redact: Redact) -> str:
    """`text` without secrets and unable to close the tags around it. Cut only what is clean: half a secret is none
    that could be recognised."""
    return _untagged(redact(text))


def _untagged(text: str) -> str:
    text = text.replace(MARK, SECRET_MARK)
    return _TAG.sub("(", text) if "<" in text else text


def without_thoughts(text: str) -> str:
    """`text` without blocks of thinking. One that begins a text and never ends is all of it; tags that are only
    spoken of, inside a line or without an end, stay."""
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
    """Day and minute; imported rows may hold a time that no calendar has."""
    try:
        return datetime.fromtimestamp(at / 1_000, zone).isoformat(" ", "minutes")[: len("2026-01-01 00:00")]
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def said(row: Message) -> Iterator[str]:
    """Everything a row says, piece by piece, with its attachments named."""
    body, text = row.body, row.text or ""
    text = text if body.words_by is None else f"(passed on from {body.words_by or 'somebody'}: {text})"
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


# ---- one message


def _entries(
    rows: Sequence[Message], redact: Redact, zone: tzinfo, max_characters: int, *, has_names: bool
) -> Iterator[str]:
    """The rows' entries, of texts of about `max_characters`. Most hold no secret, and many are looked at together:
    only where one is found, each is."""
    batch: list[str] = []
    limits: list[int] = []
    size = 0
    for row in rows:
        text = " ".join(piece for piece in said(row) if piece)
        short = _shortened(text, max_characters)
        speaker = _speaker(row, has_names=has_names)
        batch.append(f"[{recall_id(row.id)} {moment(row.created_at, zone)} {speaker}] {short}")
        limits.append(max_characters if short is text else _WHOLE)
        size += len(short)
        if size >= BATCH_CHARACTERS:
            yield from map(both_ends, _cleaned(batch, redact), limits)
            batch, limits, size = [], [], 0
    yield from map(both_ends, _cleaned(batch, redact), limits)


def _shortened(text: str, max_characters: int) -> str:
    """`text` without its middle, which nobody has to read then. Where it cannot be cut before secrets are out of it,
    it stays whole."""
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
    if row.origin is not Origin.HUMAN:
        return "gateway"
    return f"person {speaker_name(row.sender_name) if has_names else ''}".strip()


def speaker_name(text: str | None) -> str:
    """A name on one line, unable to end its brackets."""
    return " ".join((text or "").split())[:64].translate(_NAME_BRACKETS)


def _row_tokens(row: Message) -> int:
    """Tokens of a row. One that pruning may have shortened was not measured before: of it, what is likely."""
    if row.role is not MessageRole.TOOL and not row.body.calls:
        return ROW_TOKENS.text_tokens(row, _WHOLE)
    texts = [row.text or "", *(call.arguments for call in row.body.calls)]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // BYTES_PER_TOKEN


def _length(row: Message) -> int:
    """About as many characters as the entry has."""
    body = row.body
    length = len(row.text or "") + sum(len(document.text) for document in body.documents) + sum(map(len, body.notes))
    length += sum(len(call.name) + len(call.arguments) for call in body.calls)
    return length + (len(body.quote.text) if body.quote is not None else 0)


# ---- which messages


def _row_characters(costs: Sequence[int], lengths: Sequence[int], limit: int) -> int:
    """The length to which long messages are cut so that all of them fit, if that leaves them worth reading."""

    def total(max_characters: int) -> int:
        return sum(_cost(cost, length, max_characters) for cost, length in zip(costs, lengths, strict=True))

    low, high = MIN_ROW_CHARACTERS, MAX_ROW_CHARACTERS
    if total(low) > limit:
        return low
    while low < high:
        middle = (low + high + 1) // 2
        if total(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _cost(cost: int, length: int, max_characters: int) -> int:
    """Tokens of a message that is cut to `max_characters`."""
    if length <= max_characters:
        return cost
    return ENTRY_TOKENS + CUT_TOKENS + (cost - ENTRY_TOKENS) * max_characters // length


def _sample(rows: Transcript, indexes: Sequence[int], costs: Sequence[int], limit: int) -> list[int]:
    """The indexes that fit, in order and spread over the whole; the first and the last are always among them."""
    ends = {indexes[0], indexes[-1]}
    people = [index for index in indexes if index not in ends and rows[index].origin is Origin.HUMAN]
    others = [index for index in indexes if index not in ends and rows[index].origin is not Origin.HUMAN]
    room = limit - sum(costs[index] for index in ends)
    of_people = _evenly(people, costs, max(room // 2, room - sum(costs[index] for index in others)))
    of_others = _evenly(others, costs, room - sum(costs[index] for index in of_people))
    return sorted({*ends, *of_people, *of_others})


def _evenly(indexes: Sequence[int], costs: Sequence[int], limit: int) -> list[int]:
    """As many of the indexes as fit, at equal distances."""
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


def _with_gaps(kept: Sequence[int], entries: dict[int, str], count: int) -> Iterator[str]:
    before = -1
    for index in (*kept, count):
        missing = index - before - 1
        if missing:
            yield f"[{missing} message{'s are' if missing > 1 else ' is'} not shown]"
        if index < count:
            yield entries[index]
        before = index


# ---- length


class _Section:
    """A heading and its lines; each line is looked at once, however many there are."""

    def __init__(self, heading: str, lines: list[str]) -> None:
        self.heading = heading
        self._lines = lines
        self._sizes = [int(estimated_text_tokens(line)) + 1 for line in lines]
        self._dropped: set[int] = set()
        # The largest line goes first; the first line of a section stays to the end.
        self._order = sorted(range(len(lines)), key=lambda index: (index > 0, self._sizes[index]))
        self.tokens = sum(self._sizes)

    @property
    def has_lines(self) -> bool:
        return bool(self._order)

    def drop(self) -> int:
        """Leave out the next line and return what that frees."""
        index = self._order.pop()
        self.tokens -= self._sizes[index]
        freed = self._sizes[index] - (0 if self._dropped else NOTE_TOKENS)
        self._dropped.add(index)
        return freed

    def text(self) -> str:
        kept = [line for index, line in enumerate(self._lines) if index not in self._dropped]
        note = [f"[{len(self._dropped)} lines left out for length]"] if self._dropped else []
        return "\n".join([line for line in (self.heading, *kept, *note) if line])


def fitted(text: str, limit: Tokens) -> str:
    """`text` with lines left out until it takes about `limit` tokens. One that fits comes back as it is."""
    if estimated_text_tokens(text) <= limit:
        return text
    sections = _sections(text)
    total = sum(section.tokens + int(estimated_text_tokens(section.heading)) + 1 for section in sections)
    longest = [(-section.tokens, index) for index, section in enumerate(sections) if section.has_lines]
    heapq.heapify(longest)
    while total > limit and longest:
        _, index = heapq.heappop(longest)
        total -= sections[index].drop()
        if sections[index].has_lines:
            heapq.heappush(longest, (-sections[index].tokens, index))
    return "\n\n".join(section.text() for section in sections)


def _sections(text: str) -> list[_Section]:
    starts = [0, *(match.start() for match in _HEADING.finditer(text))]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    lines = [[line for line in piece.splitlines() if line.strip()] for piece in pieces]
    sections = [_Section("", lines[0]), *(_Section(own[0], own[1:]) for own in lines[1:])]
    return [section for section in sections if section.heading or section.has_lines]
