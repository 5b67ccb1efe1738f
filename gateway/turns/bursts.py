"""Bursts: the waiting rows that become one turn. Pure: rows and the time in, a decision out.

No ordinary message waits. A burst is what already waits when the lane looks: consecutive messages of one
sender within `sessions.merge_seconds`. Only a message that announces another piece (a paste cut at the
platform's limit, an album) holds the lane open for a moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hermes_state.inbox import InboxKind, InboxMode, InboxRow
from hermes_state.values import Millis

ARRIVAL_SLACK_MS = 300
"""Time for the way through the network, in milliseconds, of a piece sent exactly `paste_seconds` after the last one."""

PLATFORM_CLOCK_MS = 1_000
"""Resolution of Telegram's times, in milliseconds: two may look that much further apart than they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """These rows become one turn."""

    rows: tuple[InboxRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCommand:
    """A command has come to its place in the queue."""

    row: InboxRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Another piece is likely to follow before `until`."""

    until: Millis


Work: TypeAlias = Claim | QueuedCommand | Hold | None
"""Next thing that a lane does; None: nothing. Notices alone start no turn; they go along with the next one."""


def next_work(rows: Sequence[InboxRow], *, merge_ms: int, paste_ms: int, now: Millis) -> Work:
    """Decide what a lane does next with `rows`, all that waits in its chat, in platform order."""
    notices = [row for row in rows if row.kind is InboxKind.NOTICE]
    messages = [row for row in rows if row.kind is not InboxKind.NOTICE]
    if not messages:
        return None
    first = messages[0]
    if first.kind is InboxKind.COMMAND:
        return QueuedCommand(row=first)
    burst = _burst(messages, merge_ms, paste_ms)
    last = burst[-1]
    if last.expects_more and len(burst) == len(messages) and paste_ms > 0:
        until = Millis(last.received_at + paste_ms + ARRIVAL_SLACK_MS)
        if now < until:
            return Hold(until=until)
    earlier = [row for row in notices if row.id < last.id]
    return Claim(rows=tuple(sorted([*earlier, *burst], key=lambda row: row.id)))


def _burst(messages: Sequence[InboxRow], merge_ms: int, paste_ms: int) -> list[InboxRow]:
    first = messages[0]
    burst = [first]
    if first.mode is InboxMode.ALONE:
        return burst
    for row in messages[1:]:
        if row.kind is InboxKind.COMMAND or row.mode is InboxMode.ALONE or row.sender_ref != first.sender_ref:
            break
        last = burst[-1]
        is_in_span = merge_ms > 0 and abs(row.sent_at - first.sent_at) <= merge_ms
        is_next_piece = (
            last.expects_more and paste_ms > 0 and row.sent_at - last.sent_at <= paste_ms + PLATFORM_CLOCK_MS
        )
        if not (is_in_span or is_next_piece):
            break
        burst.append(row)
    return burst
