"""Putting a compressed view together: head, handoff, what stays open, tail.

Rows are referenced, never copied. The cut has seen to it that no exchange of call and results is in two pieces and that
the handoff can stand behind the head; which role it speaks in is decided on the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.context.cuts import Cut
from agent.handoff import Record, body_of, parse_record
from hermes_state.lineage import ContextItem
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, Origin, Role, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """What a compression takes out of view."""

    rows: Transcript
    """Without the earlier handoff."""
    previous: Record | None
    """The earlier handoff, which the new one takes up."""

    @property
    def stands_for(self) -> tuple[int, int, int]:
        """How many messages the new handoff stands for, those of the earlier one included, and its first and last."""
        ids: list[int] = [row.id for row in self.rows]
        count = len(ids)
        if self.previous is not None and self.previous.messages:
            count += self.previous.messages
            ids += [self.previous.first_id, self.previous.last_id]
        return count, min(ids), max(ids)


def middle_of(transcript: Transcript, cut: Cut) -> Middle:
    """The rows between head and tail. Several handoffs (an import may hold them) count as one, oldest first."""
    rows: list[Message] = []
    earlier: list[Record] = []
    for row in cut.middle(transcript):
        record = handoff_in(row)
        if record is None:
            rows.append(row)
        else:
            earlier.append(record)
    return Middle(rows=tuple(rows), previous=joined(earlier))


def handoff_in(row: Message) -> Record | None:
    """The record of a handoff row, also of one that was imported with another gateway's markers."""
    if row.origin is Origin.SUMMARY:
        text = row.text or ""
        body = body_of(text)
        return parse_record(text if body is None else body)
    return None


def record_for(middle: Middle, text: str) -> Record:
    """The handoff's record: its text, and what it stands for."""
    count, first, last = middle.stands_for
    return Record(text=text, messages=count, first_id=first, last_id=last)


def child_context(transcript: Transcript, cut: Cut, record: Record) -> list[ContextItem]:
    """The view that a child starts with, in order. No other handoff than this one is in it."""
    handoff = NewMessage(role=Role.USER, origin=Origin.SUMMARY, text=record.stored())
    behind = [transcript[place] for place in cut.kept] + list(transcript[cut.tail_start :])
    head = [row.id for row in transcript[: cut.head_end] if row.origin is not Origin.SUMMARY]
    return [*head, handoff, *(row.id for row in behind if row.origin is not Origin.SUMMARY)]


def joined(records: Sequence[Record]) -> Record | None:
    """Several handoffs as one, oldest first."""
    if not records:
        return None
    counted = [record for record in records if record.messages]
    return Record(
        text="\n\n".join(record.text for record in records),
        messages=sum(record.messages for record in counted),
        first_id=min((record.first_id for record in counted), default=0),
        last_id=max((record.last_id for record in counted), default=0),
    )
