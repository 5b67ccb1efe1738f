"""Sections that follow the summary in a record: standing rules, preferences and facts.

They are stored only in the record, so undo, splits and restarts need no extra code. A section that cannot be parsed is
treated as part of the summary.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from agent.context.carried.choice import facts_of
from agent.context.carried.facts import SPEAKERS, Fact
from agent.context.carried.rules import (
    Preference,
    Rule,
    dropped_rule,
    rules_and_preferences,
    rules_in_force,
    within_room,
)
from agent.context.cuts import handoff_in
from agent.context.excerpt import Redact
from agent.handoff import CARRIED_HEADINGS
from hermes_state.values import RECALL_ID, Message

_RULES, _PREFERENCES, _FACTS = (f"## {heading}\n" for heading in CARRIED_HEADINGS)
_RULE = re.compile(rf"- \[{RECALL_ID}(?: ([^\[\]\n]*#[0-9a-f]{{4}}))?\] ([^\n]+)")
_FACT = re.compile(rf"- \[{RECALL_ID} ((?:{'|'.join(SPEAKERS)})(?: [^\[\]\n]*)?)\] ([^\n]+)")


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    rules: Sequence[Rule] = ()
    preferences: Sequence[Preference] = ()
    facts: Sequence[Fact] = ()

    def behind(self, text: str) -> str:
        sections = ((_RULES, self.rules), (_PREFERENCES, self.preferences), (_FACTS, self.facts))
        made = (heading + "\n".join(one.line for one in lines) for heading, lines in sections if lines)
        return "\n\n".join((text.strip(), *made))


def parted(record: str | None) -> tuple[str | None, Carried]:
    """Split a record into summary and sections. If a section has an unknown format, all text belongs to the summary."""
    if record is None:
        return None, Carried()
    text, parsed = record, list[list[re.Match[str]]]()
    for title, pattern in ((_FACTS, _FACT), (_PREFERENCES, _RULE), (_RULES, _RULE)):
        before, heading, section = text.rpartition(f"\n\n{title}")
        found = [pattern.fullmatch(line) for line in (section.splitlines() if heading else ())]
        if None in found:
            if title == _PREFERENCES:  # a model wrote this heading before it was ours
                parsed.append([])
                continue
            return record, Carried()
        parsed.append([match for match in found if match is not None])
        text = before if heading else text
    facts = tuple(Fact(id=int(found[1]), speaker=found[2], text=found[3]) for found in parsed[0])
    preferences = tuple(Preference(id=int(one[1]), person=one[2] or "", text=one[3]) for one in parsed[1])
    rules = tuple(Rule(id=int(found[1]), person=found[2] or "", text=found[3]) for found in parsed[2])
    return text, Carried(rules=rules, preferences=preferences, facts=facts)


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
    """Return the sections of the next record. `head`: rows that stay before the record. The limits are in tokens."""
    rules, preferences = rules_and_preferences(
        earlier.rules, earlier.preferences, head, rows, redact=redact, is_shared=is_shared
    )
    apart = defaultdict[int, set[str]](set)
    for one in (*rules, *preferences):
        apart[one.id].add(one.text)
    for dropped in filter(None, map(dropped_rule, rows)):
        apart[dropped].add("")  # otherwise, the model would read the rule again
    return Carried(
        rules=within_room(rules, rules_limit),
        preferences=within_room(preferences, rules_limit),
        facts=facts_of(earlier.facts, rows, limit=facts_limit, redact=redact, is_shared=is_shared, apart=apart),
    )


def rules_in_view(view: Sequence[Message], *, redact: Redact, is_shared: bool) -> Sequence[Rule]:
    """Return the current standing rules of a conversation, from its record and its view."""
    records = [parted(handoff.text)[1] for handoff in map(handoff_in, view) if handoff is not None]
    earlier = [rule for record in records for rule in record.rules]
    return rules_in_force(earlier, (), view, redact=redact, is_shared=is_shared)
