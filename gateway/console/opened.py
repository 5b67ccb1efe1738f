"""An opened session of the lineage: the transcript as it was, next to what the model saw after the compression."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from agent.context.carried.sections import Carried, parted
from agent.context.cuts import handoff_in
from gateway.operator.lookups import LOOKUP_SECONDS, SearchRequest, speaker
from hermes_state.admin.lineage_tree import LineageNode
from hermes_state.redaction import Redactor
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_context, load_session_view
from hermes_state.values import (
    RECALL_ID,
    ChatId,
    Message,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    Transcript,
    recall_id,
)

PAGE_ROWS = 100
SHOWN_CHARACTERS = 1_500
MAX_HITS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Views before and after a compression. `after` is empty for a session that no compression created."""

    before: Transcript
    after: Transcript

    @classmethod
    def load(cls, db: Connection, source: SessionId, child: SessionId | None) -> Self:
        return cls(before=load_session_view(db, source), after=() if child is None else load_context(db, child))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """Message that matches the search."""

    id: MessageId
    at: Millis
    who: str
    snippet: str

    @property
    def name(self) -> str:
        return recall_id(self.id)


async def find_hits(
    store: Store, chat_id: ChatId, words: str, nodes: Sequence[LineageNode], redact: Redactor
) -> Sequence[Hit]:
    """Search the chat. Raises `StoreUnavailable` if the search takes too long."""
    if not words:
        return ()
    request = SearchRequest(words=words, limit=MAX_HITS)
    found = await store.read_within(LOOKUP_SECONDS, request.read, chat_id)
    known = {node.id for node in nodes}
    return [
        Hit(
            id=one.message_id,
            at=one.created_at,
            who="Hermes" if one.role is MessageRole.ASSISTANT else speaker(one.role, one.sender_name, "result"),
            snippet=request.redacted(one, redact).snippet,
        )
        for one in found
        if one.session_id in known
    ]


def show(
    compared: Comparison, start: str, wanted: MessageId | None, hits: frozenset[MessageId], redact: Redactor
) -> Mapping[str, object]:
    """Return one page of the comparison without secrets, from row `start` on, or the page with the message `wanted`."""
    before, after = compared.before, compared.after
    record = next((row for row in after if row.origin is Origin.SUMMARY), None)
    summary, carried = _parts(record)
    at = next((index for index, row in enumerate(before) if row.id == wanted), None)
    first = at // PAGE_ROWS * PAGE_ROWS if at is not None else int(start) if re.fullmatch("[0-9]{1,9}", start) else 0
    marks = _marks(compared, summary, carried)
    shown, kept = before[first : first + PAGE_ROWS], [row for row in after if row is not record]

    def line(row: Message, labels: Sequence[str]) -> Mapping[str, object]:
        return {
            "id": recall_id(row.id),
            "who": _who(row),
            "role": row.role.value,
            "at": row.created_at,
            "text": _cut(redact(row.text or "")),
            "calls": [call.name for call in row.body.calls],
            "labels": labels,
            "is_gone": "condensed" in labels,
            "is_hit": row.id in hits,
            "is_wanted": row.id == wanted,
        }

    return {
        "before": [line(row, marks[row.id]) for row in shown],
        "after": [line(row, ()) for row in kept[:PAGE_ROWS]],
        "more_after": max(0, len(kept) - PAGE_ROWS),
        "head": 0 if record is None else after.index(record),
        "rows": len(before),
        "gone": sum("condensed" in labels for labels in marks.values()),
        "first": first,
        "next": first + PAGE_ROWS if first + PAGE_ROWS < len(before) else None,
        "previous": max(0, first - PAGE_ROWS) if first else None,
        "summary": redact(summary),
        "rules": [(recall_id(rule.id), redact(rule.text)) for rule in carried.rules],
        "facts_kept": [(recall_id(fact.id), redact(f"{fact.speaker}: {fact.text}")) for fact in carried.facts],
    }


def _parts(record: Message | None) -> tuple[str, Carried]:
    handoff = handoff_in(record) if record is not None else None
    text, carried = parted(handoff.text if handoff is not None else None)
    return text or "", carried


def _marks(compared: Comparison, summary: str, carried: Carried) -> Mapping[MessageId, Sequence[str]]:
    """Return what happened to each row: kept, shortened or condensed, and where the record still names it."""
    kept = {row.id for row in compared.after}
    stubs = {row.tool_call_id for row in compared.after if row.tool_call_id is not None}
    named = {int(found) for found in re.findall(rf"\b{RECALL_ID}\b", summary)}
    rules, facts = {rule.id for rule in carried.rules}, {fact.id for fact in carried.facts}
    marks: dict[MessageId, list[str]] = {}
    for row in compared.before:
        labels = marks[row.id] = []
        if not compared.after:
            continue
        labels.append("kept" if row.id in kept else "shortened" if row.tool_call_id in stubs else "condensed")
        labels += [
            label
            for label, ids in (("standing rule", rules), ("fact", facts), ("named in the summary", named))
            if row.id in ids
        ]
    return marks


def _who(row: Message) -> str:
    if row.origin is Origin.SUMMARY:
        return "Earlier summary"
    return "Hermes" if row.role is MessageRole.ASSISTANT else speaker(row.role, row.sender_name, row.tool_name)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
