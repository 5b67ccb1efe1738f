"""An opened session of the lineage: the transcript as it was, next to what the model saw after the compression."""

import re
from collections.abc import Mapping, Sequence

from agent.context.carried.sections import Carried, parted
from agent.context.cuts import handoff_in
from gateway.operator.lookups import LOOKUP_SECONDS, SearchRequest, speaker
from hermes_state.admin.lineage_tree import LineageNode
from hermes_state.redaction import Redactor
from hermes_state.store.writer import Store
from hermes_state.text import whole_number
from hermes_state.values import RECALL_ID, ChatId, Message, MessageId, MessageRole, Origin, Transcript, recall_id
from platforms.console import Values

PAGE_ROWS = 100
SHOWN_CHARACTERS = 1_500
MAX_HITS = 30


async def find_hits(
    store: Store, chat_id: ChatId, words: str, nodes: Sequence[LineageNode], redact: Redactor
) -> Sequence[Values]:
    """Search the chat. Raises `StoreUnavailable` if the search takes too long."""
    if not words:
        return ()
    request = SearchRequest(words=words, limit=MAX_HITS)
    found = await store.read_within(LOOKUP_SECONDS, request.read, chat_id)
    known = {node.id for node in nodes}
    return [
        {
            "id": one.message_id,
            "name": recall_id(one.message_id),
            "at": one.created_at,
            "who": _who(one.role, one.sender_name, "result"),
            "snippet": request.redacted(one, redact).snippet,
        }
        for one in found
        if one.session_id in known
    ]


def _who(role: MessageRole, sender: str | None, tool: str | None) -> str:
    return "Hermes" if role is MessageRole.ASSISTANT else speaker(role, sender, tool)


def show(
    before: Transcript,
    after: Transcript,
    start: str,
    wanted: MessageId | None,
    hits: frozenset[MessageId],
    redact: Redactor,
) -> Values:
    """Return one page of the comparison, without secrets. It begins at row `start` or contains the message `wanted`."""
    record = next((row for row in after if row.origin is Origin.SUMMARY), None)
    handoff = handoff_in(record) if record is not None else None
    summary, carried = parted(handoff.text if handoff is not None else None)
    at = next((index for index, row in enumerate(before) if row.id == wanted), None)
    first = at // PAGE_ROWS * PAGE_ROWS if at is not None else whole_number(start, 9) or 0
    marks = _marks(before, after, summary or "", carried)
    shown, kept = before[first : first + PAGE_ROWS], [row for row in after if row is not record]

    def line(row: Message, labels: Sequence[str]) -> Values:
        text, who = redact(row.text or ""), _who(row.role, row.sender_name, row.tool_name)
        return {
            "id": recall_id(row.id),
            "who": "Earlier summary" if row.origin is Origin.SUMMARY else who,
            "role": row.role.value,
            "at": row.created_at,
            "text": text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…",
            "calls": [call.name for call in row.body.calls],
            "labels": labels,
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
        "summary": redact(summary or ""),
        "rules": [(recall_id(rule.id), redact(rule.text)) for rule in carried.rules],
        "preferences": [(recall_id(one.id), redact(one.text)) for one in carried.preferences],
        "facts_kept": [(recall_id(fact.id), redact(f"{fact.speaker}: {fact.text}")) for fact in carried.facts],
    }


def _marks(before: Transcript, after: Transcript, summary: str, carried: Carried) -> Mapping[MessageId, Sequence[str]]:
    """Return labels for each row: `kept`, `shortened` or `condensed`, and the parts of the summary that refer to it."""
    if not after:
        return {row.id: () for row in before}
    kept = {row.id for row in after}
    stubs = {row.tool_call_id for row in after if row.tool_call_id is not None}
    where = {
        "standing rule": {rule.id for rule in carried.rules},
        "preference": {one.id for one in carried.preferences},
        "fact": {fact.id for fact in carried.facts},
        "mentioned in the summary": {int(found) for found in re.findall(rf"\b{RECALL_ID}\b", summary)},
    }
    marks: dict[MessageId, list[str]] = {}
    for row in before:
        fate = "kept" if row.id in kept else "shortened" if row.tool_call_id in stubs else "condensed"
        marks[row.id] = [fate, *(label for label, ids in where.items() if row.id in ids)]
    return marks
