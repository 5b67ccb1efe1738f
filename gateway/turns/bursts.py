"""Bursts: consecutive waiting messages of one person, which become a single turn."""

from collections.abc import Sequence

from hermes_state.inbox import InboxKind, InboxMode, InboxRow
from hermes_state.values import Millis

ARRIVAL_SLACK_MS = 300
"""Milliseconds of network delay to allow for a piece that was sent up to `PASTE_MS` after the previous piece."""
PASTE_MS = 1_500
"""Milliseconds to wait for the next piece of a long pasted text. Clients send all pieces within a second."""


def next_burst(rows: Sequence[InboxRow], *, merge_ms: int) -> list[InboxRow]:
    """Return the waiting rows for the next turn, or a single command. Notices alone do not start a turn.

    Consecutive messages of a sender within `merge_ms` become a single turn (a burst).
    """
    messages = [row for row in rows if row.kind is not InboxKind.NOTICE]
    burst = messages[:1]
    if not burst or burst[0].kind is InboxKind.COMMAND:
        return burst
    for row in messages[1:]:
        if not _follows(row, burst, merge_ms):
            break
        burst.append(row)
    notices = [row for row in rows if row.kind is InboxKind.NOTICE and row.id < burst[-1].id]
    return sorted([*notices, *burst], key=lambda row: row.id)


def _follows(row: InboxRow, burst: Sequence[InboxRow], merge_ms: int) -> bool:
    first, last = burst[0], burst[-1]
    if InboxMode.ALONE in (first.mode, row.mode) or row.kind is InboxKind.COMMAND or row.sender_ref != first.sender_ref:
        return False
    is_in_span = merge_ms > 0 and abs(row.sent_at - first.sent_at) <= merge_ms
    is_next_piece = last.expects_more and row.sent_at - last.sent_at <= PASTE_MS + 1_000  # Telegram rounds to seconds
    return is_in_span or is_next_piece


def held_until(burst: Sequence[InboxRow], rows: Sequence[InboxRow]) -> Millis:
    """Return the time until which a burst waits for another piece, or 0 for no wait. A later message ends the wait."""
    last = burst[-1]
    is_newest = all(row.id <= last.id or row.kind is InboxKind.NOTICE for row in rows)
    return Millis(last.received_at + PASTE_MS + ARRIVAL_SLACK_MS if last.expects_more and is_newest else 0)
