"""Sections that code carries past every summary: standing rules and facts, behind a record's text.

They are read back from the earlier record and joined with what the rows that leave the view say, so that a record is
all there is to keep: undo, splits and restarts need nothing. What does not parse, to the letter, is prose.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.context.carried.facts import SPEAKERS, Fact, facts_of
from agent.context.carried.rules import Rule, rules_in_force, within_room
from agent.context.cuts import handoff_in
from agent.context.excerpt import Redact
from agent.handoff import CARRIED_HEADINGS
from hermes_state.values import RECALL_ID, Message

_RULES, _FACTS = (f"## {heading}\n" for heading in CARRIED_HEADINGS)
_RULE = re.compile(rf"- \[{RECALL_ID}(?: ([^\[\]\n]*#[0-9a-f]{{4}}))?\] ([^\n]+)")
_FACT = re.compile(rf"- \[{RECALL_ID} ((?:{'|'.join(SPEAKERS)})(?: [^\[\]\n]*)?)\] ([^\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Rules and facts of a record."""

    rules: Sequence[Rule] = ()
    facts: Sequence[Fact] = ()

    def behind(self, text: str) -> str:
        """The record of a summary and these."""
        sections = ((_RULES, self.rules), (_FACTS, self.facts))
        made = (heading + "\n".join(one.line for one in lines) for heading, lines in sections if lines)
        return "\n\n".join((text.strip(), *made))


NOTHING: Final = Carried()


def parted(record: str | None) -> tuple[str | None, Carried]:
    """The summary of a record, and what it carries; all of it is summary where the sections are none of ours."""
    text, rules, facts = record or "", list[Rule](), list[Fact]()
    before, heading, section = text.rpartition(f"\n\n{_FACTS}")
    if heading:
        for line in section.splitlines():
            found = _FACT.fullmatch(line)
            if found is None:
                return record, NOTHING
            facts.append(Fact(id=int(found[1]), speaker=found[2], text=found[3]))
        text = before
    before, heading, section = text.rpartition(f"\n\n{_RULES}")
    if heading:
        for line in section.splitlines():
            found = _RULE.fullmatch(line)
            if found is None:
                return record, NOTHING
            rules.append(Rule(id=int(found[1]), person=found[2] or "", text=found[3]))
        text = before
    return None if record is None else text, Carried(rules=tuple(rules), facts=tuple(facts))


def carried(
    earlier: Carried,
    head: Sequence[Message],
    rows: Sequence[Message],
    *,
    rules_limit: int,
    facts_limit: int,
    redact: Redact,
    is_shared: bool,
) -> Carried:
    """Rules and facts of the next record, from these rows and an earlier one. `head`: rows in front; limits: tokens."""
    rules = rules_in_force(earlier.rules, head, rows, redact=redact, is_shared=is_shared)
    return Carried(
        rules=within_room(rules, rules_limit),
        facts=facts_of(earlier.facts, rows, limit=facts_limit, redact=redact, is_shared=is_shared),
    )


def rules_in_view(view: Sequence[Message], *, redact: Redact, is_shared: bool) -> Sequence[Rule]:
    """The standing rules of a conversation now: those of its record, and those that stand in view."""
    records = [parted(handoff.text)[1] for handoff in map(handoff_in, view) if handoff is not None]
    earlier = [rule for record in records for rule in record.rules]
    return rules_in_force(earlier, (), view, redact=redact, is_shared=is_shared)
