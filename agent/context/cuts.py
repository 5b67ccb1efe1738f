"""Cuts of a transcript: head and tail stay verbatim, and a handoff replaces the middle. All functions are pure.

A cut never separates a tool call from its results. The newest request from a person and the last answer stay in the
view, either in place or right after the handoff. Rows are referenced, never copied. `agent.model.wire` decides the role
of the handoff.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

import msgspec

from agent.context.limits import CompressorSettings, Limits
from agent.handoff import Handoff, parse_handoff, unframed
from agent.model.wire import is_shown
from hermes_state.compressions import ContextItem
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, MessageRole, Origin, Transcript

MIN_TAIL_ROWS = 3
"""Minimum number of rows in a tail, unless these rows exceed the maximum size of a tail."""
SOFT_CEILING_PERCENT = 150
"""Maximum size of a tail that is extended to the configured number of rows, as a percentage of the tail limit."""
MAX_TAIL_PERCENT = 75
"""Maximum size of a tail, as a percentage of the input window. A larger tail leaves no room for anything else."""
REMADE: Final = frozenset({Origin.SUMMARY, Origin.TODO})
"""Origins of rows that each compression creates again. They do not count as content to compress."""
_Item = TypeVar("_Item")


class SkipReason(StrEnum):
    """Reason why nothing was compressed, other than an error."""

    TOO_FEW = "too_few"
    NOTHING_BETWEEN = "nothing_between"
    """Head and tail meet, so no rows are left between them."""
    NOT_SMALLER = "not_smaller"
    """The handoff would be as large as the rows it replaces."""
    UNCHANGED = "unchanged"
    """The plugin's engine returned the messages unchanged."""
    TOOL_RUNS = "tool_runs"
    NO_PREVIEW = "no_preview"
    MOVED = "moved"
    """The conversation was compressed, reset or edited in the meantime."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Rows `[0, head_end)` and `[tail_start, …)` stay in place. The rows with the indexes `kept` follow the handoff."""

    head_end: int
    tail_start: int
    kept: tuple[int, ...] = ()

    def middle(self, items: Sequence[_Item]) -> tuple[_Item, ...]:
        """Return the items of the rows in the middle, including an earlier handoff. `items` has one item per row."""
        kept = set(self.kept)
        return tuple(items[index] for index in range(self.head_end, self.tail_start) if index not in kept)


def find_cut(
    transcript: Transcript,
    sizes: Sequence[int],
    limits: Limits,
    rules: CompressorSettings,
    *,
    keep_turns: int | None = None,
) -> Cut | SkipReason:
    """Return the cut of a transcript, or the reason why it cannot be cut.

    `sizes`: number of tokens in each row. `keep_turns`: keep exactly this number of the newest human turns, whatever
    their size.
    """
    if has_open_calls(transcript):
        return SkipReason.TOOL_RUNS
    if len(transcript) <= rules.protect_first_n + MIN_TAIL_ROWS + 1 and sum(sizes) < limits.threshold:
        return SkipReason.TOO_FEW  # a few huge rows that reach the threshold are compressed anyway
    exchanges, request = _exchanges(transcript), open_request(transcript)
    if keep_turns is None:
        tail_start = _tail_start(transcript, sizes, exchanges, limits, rules)
    else:
        turns = _turn_starts(transcript)
        if len(turns) <= keep_turns:
            return SkipReason.NOTHING_BETWEEN
        tail_start = _moved_back(exchanges, turns[-keep_turns])
    upto = min([len(transcript) - MIN_TAIL_ROWS, *request[:1]])
    head_end = _head_end(transcript, sizes, exchanges, limits, rules, upto=upto)
    if tail_start <= head_end:  # head and tail contain everything
        if keep_turns is not None:
            return SkipReason.NOTHING_BETWEEN
        tail_start = _forced_tail_start(transcript, exchanges, head_end)

    def cut_behind(head_end: int) -> Cut:
        kept = _kept(transcript, sizes, limits, request, range(head_end, tail_start))
        return Cut(head_end=head_end, tail_start=tail_start, kept=kept)

    cut = cut_behind(head_end)
    if not _people_follow(transcript, cut):
        # In this case, the handoff has the role `user`. After a question, it would stand where the answer belongs.
        # After a tool result, strict templates refuse it. So extend the head to the next answer, or end it earlier.
        further = _end_of_answer(transcript, sizes, exchanges, limits, head_end, min(upto, tail_start))
        cut = cut_behind(further)
        if not _has_news(transcript, cut):
            cut = cut_behind(_end_of_earlier_answer(transcript, exchanges, head_end))
    has_later_handoff = any(row.origin is Origin.SUMMARY for row in transcript[tail_start:])
    return cut if _has_news(transcript, cut) and not has_later_handoff else SkipReason.NOTHING_BETWEEN


def _has_news(transcript: Transcript, cut: Cut) -> bool:
    """Return True if the middle has rows that no handoff replaces yet."""
    return any(row.origin not in REMADE for row in cut.middle(transcript))


def _people_follow(transcript: Transcript, cut: Cut) -> bool:
    behind = (*(transcript[index] for index in cut.kept), *transcript[cut.tail_start :])
    return next((row.role is MessageRole.USER for row in behind if is_shown(row)), False)


_Exchange: TypeAlias = tuple[int, int]
"""Indexes of an assistant row with calls and of the last result for these calls."""


def _exchanges(transcript: Transcript) -> list[_Exchange]:
    """Pair calls and results in the same way as `agent.model.wire`, which ignores a second result for a call."""
    asked_at: dict[str, int] = {}
    ends: dict[int, int] = {}
    for index, row in enumerate(transcript):
        if row.role is MessageRole.ASSISTANT:
            asked_at.update({call.id: index for call in row.body.calls})
        elif row.role is MessageRole.TOOL and row.tool_call_id in asked_at:
            ends[asked_at.pop(row.tool_call_id)] = index
        elif row.origin is Origin.SUMMARY:
            asked_at.clear()
    return sorted(ends.items())


def _moved_back(exchanges: Sequence[_Exchange], index: int) -> int:
    """Return `index`, or the start of an exchange that a cut at `index` would split."""
    for first, last in reversed(exchanges):  # an earlier exchange can contain a later one
        if first < index <= last:
            index = first
    return index


def _moved_forward(exchanges: Sequence[_Exchange], index: int) -> int:
    """Return `index`, or the end of an exchange that a cut at `index` would split."""
    for first, last in exchanges:
        if first < index <= last:
            index = last + 1
    return index


def _head_end(
    transcript: Transcript,
    sizes: Sequence[int],
    exchanges: Sequence[_Exchange],
    limits: Limits,
    rules: CompressorSettings,
    *,
    upto: int,
) -> int:
    """Return the end of the head: the first `protect_first_n` rows that fit its limit, without splitting exchanges."""
    if rules.keeps_head_once and any(row.origin is Origin.SUMMARY for row in transcript):
        return 0
    end = used = 0
    for index in range(min(rules.protect_first_n, upto)):
        if transcript[index].origin is Origin.SUMMARY or used + sizes[index] > limits.head:
            break
        used += sizes[index]
        end = index + 1
    behind = _moved_forward(exchanges, end)
    fits = behind <= upto and used + sum(sizes[end:behind]) <= limits.head
    return behind if fits else _moved_back(exchanges, end)


def _end_of_answer(
    transcript: Transcript,
    sizes: Sequence[int],
    exchanges: Sequence[_Exchange],
    limits: Limits,
    head_end: int,
    upto: int,
) -> int:
    """Extend the head to the next answer or, if that does not fit, shorten it to an earlier one. Return its end."""
    if head_end == 0 or _is_answer(transcript[head_end - 1]):
        return head_end
    used = sum(sizes[:head_end])
    for index in range(head_end, upto):
        row = transcript[index]
        used += sizes[index]
        if row.origin is Origin.SUMMARY or used > limits.head:
            break
        if _is_answer(row) and _moved_back(exchanges, index + 1) == index + 1:
            return index + 1
    return _end_of_earlier_answer(transcript, exchanges, head_end)


def _end_of_earlier_answer(transcript: Transcript, exchanges: Sequence[_Exchange], end: int) -> int:
    while end > 0 and not (_is_answer(transcript[end - 1]) and _moved_back(exchanges, end) == end):
        end -= 1
    return end


def _is_answer(row: Message) -> bool:
    return row.role is MessageRole.ASSISTANT and is_shown(row) and not row.body.calls


def _tail_start(
    transcript: Transcript,
    sizes: Sequence[int],
    exchanges: Sequence[_Exchange],
    limits: Limits,
    rules: CompressorSettings,
) -> int:
    ceiling = limits.tail * SOFT_CEILING_PERCENT // 100
    largest = limits.input_window * MAX_TAIL_PERCENT // 100
    used, start = 0, len(transcript)
    while start > 0:
        used += sizes[start - 1]
        if used > (limits.tail if len(transcript) - start >= MIN_TAIL_ROWS else largest):
            break
        start -= 1
    protected = max(0, len(transcript) - rules.protect_last_n)
    # A part of these rows is not worth the space: the next compression would follow sooner.
    if protected < start and sum(sizes[protected:]) <= ceiling:
        start = protected
    back = _moved_back(exchanges, start)
    if back < start and sum(sizes[back:]) > largest:
        return _moved_forward(exchanges, start)
    return back


def _forced_tail_start(transcript: Transcript, exchanges: Sequence[_Exchange], head_end: int) -> int:
    """Return the start of the smallest tail, or a later index if no rows would be left between head and tail."""
    start = _moved_back(exchanges, max(head_end, len(transcript) - MIN_TAIL_ROWS))
    # If that leaves nothing to compress, begin the tail after the row or exchange that follows the head.
    return start if start > head_end else _moved_forward(exchanges, head_end + 1)


def _turn_starts(transcript: Transcript) -> list[int]:
    starts: list[int] = []
    for index, row in enumerate(transcript):
        if row.origin not in (Origin.HUMAN, Origin.TALK):
            continue
        before = transcript[starts[-1]] if starts else None
        if before is None or row.turn_id is None or before.turn_id != row.turn_id:
            starts.append(index)
    return starts


def open_request(transcript: Transcript) -> list[int]:
    """Return the indexes of the newest request: all rows that people wrote in that turn, and later edits of them."""
    people = [index for index, row in enumerate(transcript) if row.origin is Origin.HUMAN]
    if not people:
        return []
    newest, turn_id = people[-1], transcript[people[-1]].turn_id
    pieces = [index for index in people[:-1] if turn_id is not None and transcript[index].turn_id == turn_id]
    behind = enumerate(transcript[newest + 1 :], newest + 1)
    changes = [index for index, row in behind if row.origin is Origin.NOTICE and row.sender_ref is not None]
    return [*pieces, newest, *changes]


def _kept(
    transcript: Transcript, sizes: Sequence[int], limits: Limits, request: Sequence[int], middle: range
) -> tuple[int, ...]:
    """Return the indexes of middle rows that stay: the request, and the last answer unless it is too large."""
    kept = [index for index in request if index in middle]
    answer = next((index for index in reversed(range(len(transcript))) if _is_answer(transcript[index])), None)
    if answer is not None and answer in middle and sizes[answer] <= limits.tail * SOFT_CEILING_PERCENT // 100:
        kept.append(answer)
    return tuple(sorted(kept))


def has_open_calls(transcript: Transcript) -> bool:
    """Return True if any of the newest tool calls has no result yet."""
    answered: set[str | None] = set()
    since: set[int | None] = set()
    for row in reversed(transcript):
        if row.role is MessageRole.TOOL:
            answered.add(row.tool_call_id)
        elif row.origin is Origin.HUMAN:
            since.add(row.turn_id)
        elif row.role is MessageRole.ASSISTANT:
            # If a text answer or another turn follows, the calls were abandoned.
            return since <= {row.turn_id} - {None} and any(call.id not in answered for call in row.body.calls)
    return False


def middle_of(transcript: Transcript, cut: Cut) -> tuple[Transcript, Handoff | None]:
    """Return the rows of the middle, without handoffs and to-do lists, and the earlier handoffs joined into one."""
    middle = cut.middle(transcript)
    handoffs = [handoff for handoff in map(handoff_in, middle) if handoff is not None]
    return tuple(row for row in middle if row.origin not in REMADE), joined(handoffs)


def handoff_in(row: Message) -> Handoff | None:
    """Return the handoff in a row, even if it was imported with the markers of another gateway."""
    if row.origin is not Origin.SUMMARY:
        return None
    text = row.text or ""
    body = unframed(text)
    return parse_handoff(text if body is None else body)


def handoff_for(rows: Sequence[Message], previous: Handoff | None, text: str) -> Handoff:
    """Return a handoff with this text that replaces the rows and the previous handoff."""
    ids: list[int] = [row.id for row in rows]
    count = len(ids)
    if previous is not None and previous.messages:
        count += previous.messages
        ids += [previous.first_id, previous.last_id]
    return Handoff(text=text, messages=count, first_id=min(ids), last_id=max(ids))


def child_context(transcript: Transcript, cut: Cut, handoff: Handoff) -> list[ContextItem]:
    row = NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=handoff.stored())
    behind = [transcript[index] for index in cut.kept] + list(transcript[cut.tail_start :])
    head = [row.id for row in transcript[: cut.head_end] if row.origin is not Origin.SUMMARY]
    return [*head, row, *(row.id for row in behind if row.origin is not Origin.SUMMARY)]


def joined(handoffs: Sequence[Handoff]) -> Handoff | None:
    if not handoffs:
        return None
    counted = [handoff for handoff in handoffs if handoff.messages]
    return Handoff(
        text="\n\n".join(handoff.text for handoff in handoffs),
        messages=sum(handoff.messages for handoff in counted),
        first_id=min((handoff.first_id for handoff in counted), default=0),
        last_id=max((handoff.last_id for handoff in counted), default=0),
    )
