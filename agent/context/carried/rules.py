"""Standing rules and preferences: requests that apply from now on, withdrawals of rules, and what people prefer.

A rule is quoted with the id of its message. In a shared chat, the quotation also names the speaker, and only the
speaker can withdraw the rule. If it is unclear which rule a sentence withdraws, all rules stay. The sentence is listed
as well, so the model can decide. If a person states several preferences about one subject, only the newest is kept.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from agent.context.carried.phrases import (
    QUESTION,
    WORD,
    Hinted,
    Language,
    choice_words,
    hinted,
    plain,
    sentences,
    subject_words,
)
from agent.context.carried.preferences import preference_in
from agent.context.excerpt import QUOTED_CHARACTERS, Redact, bounded, one_line, person_of
from agent.model.usage import estimated_text_tokens
from hermes_state.transcripts import NOT_SAID_NOW
from hermes_state.values import RECALL_ID, Message, Origin, recall_id

MAX_RULES = 10
"""Maximum number of rules in one message. The same limit applies to preferences."""
MAX_PREFERENCES = 200
"""Maximum number of preferences of one person."""
SENTENCE_CHARACTERS = 400
MIN_COMMON_PERCENT = 60
"""Two preferences have the same subject if they share this percentage of the shorter one's words."""
Kind: TypeAlias = Literal["rule", "take_back", "preference"]
_QUOTED = re.compile(
    r"(?:```|~~~).*?(?:```|~~~|\Z)|^[ \t]*>[^\n]*"
    r"|(?:^|[:\uff1a][ \t]*\n?)[ \t]*\"[^\"]{1,8000}\"(?!\w)|\"[^\"\n]{1,400}\""
    r"|[“„][^“”„]{1,8000}[“”]|«[^«»]{1,8000}»|\u2018[^\u2018\n]{1,400}\u2019(?!\w)|「[^」\n]{1,400}」"
    r"|『[^』\n]{1,400}』|《[^》\n]{1,400}》",
    re.DOTALL | re.MULTILINE,
)
_QUOTE_MARKS = ("```", "~~~", ">", '"', "“", "„", "«", "\u2018", "「", "『", "《")
"""Each quotation contains one of these. The search for quotations is slow."""
_CLAUSE = re.compile(r"[,;:\uff0c\uff1b]")
_BULLET = re.compile(r"\A(?:[-*•\u2013]|\d{1,2}[.)])\s+")
_TAG = re.compile(
    r"[,\uff0c、]?\s*(?:ok|okay|please|alright|right|yes|ja|bitte|klar|gut|d'accord|vale|tudo bem|va bene|хорошо|ладно"
    r"|tá|né|deal|yeah|understood|verstanden|compris|entendido|capito|понял"
    r"|好吗|好嗎|可以吗|行吗|好不好)\s*[?\uff1f]\s*\Z"
)
_DROPPED: Final = "was withdrawn with /rules and no longer applies:"
_DROPPED_BEFORE: Final = "was taken back with /rules and holds no longer:"
"""Wording that earlier versions used in stored notices."""


class Quotation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule or a preference, as a person typed it."""

    id: int
    text: str
    person: str = ""
    """Speaker as named in the record, such as `Ada#3f2a`. Empty in a chat with only one person."""

    @property
    def owner(self) -> str:
        """The digest in `person`, which identifies the speaker. A name is not enough, because names are not unique."""
        return self.person.rpartition("#")[2]

    @property
    def line(self) -> str:
        return f"- [{recall_id(self.id)}{' ' if self.person else ''}{self.person}] {self.text}"


class Rule(Quotation, frozen=True):
    """A standing rule."""


class Preference(Quotation, frozen=True):
    """A preference or a decision."""


_Quoted = TypeVar("_Quoted", bound=Quotation)


def rules_in_force(
    earlier: Iterable[Rule], head: Sequence[Message], rows: Sequence[Message], *, redact: Redact, is_shared: bool
) -> list[Rule]:
    """Return the rules from the earlier record and these rows that are still in force, oldest first.

    `head`: rows that stay in the view before the record. Their rules are left out, because the model still sees them.
    If a sentence withdraws such a rule, the sentence is returned.
    """
    return rules_and_preferences(earlier, (), head, rows, redact=redact, is_shared=is_shared)[0]


def rules_and_preferences(
    earlier: Iterable[Rule],
    preferences: Iterable[Preference],
    head: Sequence[Message],
    rows: Sequence[Message],
    *,
    redact: Redact,
    is_shared: bool,
) -> tuple[list[Rule], list[Preference]]:
    """Return the result of `rules_in_force`, and the newest preference about each subject. Rows are read only once."""
    found = [*preferences]
    listed = {_key(rule): rule for rule in earlier}

    @cache
    def visible() -> Sequence[Rule]:
        said = (one for row in head for _, one in _said(row, redact, is_shared=is_shared))
        return [one for one in said if isinstance(one, Rule)]

    for row in rows:
        dropped = dropped_rule(row)
        if dropped is not None:
            for key in [key for key, rule in listed.items() if rule.id == dropped]:
                del listed[key]
            if any(rule.id == dropped for rule in visible()):
                listed[row.id, ""] = Rule(id=row.id, text=one_line(row.text or "", SENTENCE_CHARACTERS))
        for kinds, rule in _said(row, redact, is_shared=is_shared):
            if isinstance(rule, Preference):
                found.append(rule)
                continue
            if kinds[0] == "take_back":
                own = [one for one in (*listed.values(), *visible()) if one.owner == rule.owner]
                taken, is_near = _taken_back(rule.text, own)
                if taken is not None and taken not in visible():
                    del listed[_key(taken)]
                    continue
                if "rule" not in kinds and not is_near:
                    continue
            listed.pop(_key(rule), None)  # a repeated rule moves to the end
            listed[_key(rule)] = rule
    return sorted(listed.values(), key=lambda rule: rule.id), _newest_of_each_matter(found)


def _newest_of_each_matter(preferences: Iterable[Preference]) -> list[Preference]:
    kept: list[tuple[Preference, frozenset[str]]] = []
    counts = Counter[str]()
    for preference in sorted(preferences, key=lambda one: one.id)[::-1]:  # later sentences of a message are newer
        if counts[preference.owner] == MAX_PREFERENCES:
            continue
        words = subject_words(preference.text) - choice_words()
        newer = (others for one, others in kept if one.owner == preference.owner)
        if not any(_is_same_matter(words, others) for others in newer):
            kept.append((preference, words))
            counts[preference.owner] += 1
    return [preference for preference, _ in kept[::-1]]


def _is_same_matter(words: frozenset[str], others: frozenset[str]) -> bool:
    common = len(words & others)
    is_clear = common > 1 and common * 100 >= MIN_COMMON_PERCENT * min(len(words), len(others))
    return is_clear or (common == 1 and words == others)


def within_room(rules: Sequence[_Quoted], limit: int) -> tuple[_Quoted, ...]:
    """Return the newest rules that fit into `limit` tokens. In a shared chat, one person's rules fill at most half."""
    kept: list[_Quoted] = []
    used = Counter[str]()
    for rule in reversed(rules):
        size = estimated_text_tokens(rule.line) + 1
        if used.total() + size <= limit and used[rule.owner] + size <= (limit // 2 if rule.owner else limit):
            kept.append(rule)
            used[rule.owner] += size
    return tuple(kept[::-1])


def drop_notice(rule_id: int, texts: Sequence[str]) -> str:
    return f"The standing rule {recall_id(rule_id)} {_DROPPED} {' / '.join(texts)}"


def dropped_rule(row: Message) -> int | None:
    """Return the id of the message whose rules this row withdraws, or None if the row is not a withdrawal notice."""
    if row.origin is not Origin.NOTICE or row.sender_ref is not None:  # with a sender, it quotes a person's edit
        return None
    found = re.match(rf"The standing rule {RECALL_ID} (?:{_DROPPED}|{_DROPPED_BEFORE})", row.text or "")
    return None if found is None else int(found[1])


def _key(rule: Rule) -> tuple[object, str]:
    return " ".join(WORD.findall(rule.text.lower())), rule.owner


def _said(row: Message, redact: Redact, *, is_shared: bool) -> Iterator[tuple[tuple[Kind, ...], Rule | Preference]]:
    """Yield the rules, withdrawals and preferences that a person typed in this row. Ignore forwarded or quoted text."""
    if row.origin is not Origin.HUMAN or not NOT_SAID_NOW.isdisjoint(row.body.notes):
        return
    text = (row.text or "")[:QUOTED_CHARACTERS]
    hints = hinted(text)
    found = [*_sentences(text, hints)] if hints else ()
    if not found:
        return
    safe = bounded(row.text or "", redact)
    person = person_of(row) if is_shared else ""
    counts = Counter[type[Rule | Preference]]()
    for kinds, said in found if safe == text else _sentences(safe, hints):
        kind = Preference if kinds[0] == "preference" else Rule
        counts[kind] += 1
        if counts[kind] <= MAX_RULES:
            yield kinds, kind(id=row.id, text=said, person=person)


def _sentences(text: str, hints: Hinted) -> Iterator[tuple[tuple[Kind, ...], str]]:
    unquoted = text
    if any(mark in text for mark in _QUOTE_MARKS):
        unquoted = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)
    lower = plain(unquoted)
    is_aligned = len(lower) == len(text) and "\u0130" not in text  # its lower case is two characters
    hinting = {word for _, *both in hints for words in both for word in words}
    for start, end in sentences(unquoted):
        piece = f" {lower[start:end] if is_aligned else plain(unquoted[start:end])}"
        found = [word for word in hinting if word in piece]
        if not found or not start < end <= start + SENTENCE_CHARACTERS:
            continue
        of_rules = [language for language, words, _ in hints if not words.isdisjoint(found)]
        of_choices = [language for language, _, words in hints if not words.isdisjoint(found)]
        kinds = _kinds(_item(unquoted[start:end]), of_rules) if of_rules else ()
        if kinds:
            yield kinds, _item(text[start:end])
        elif of_choices and (stated := preference_in(unquoted[start:end], of_choices)) is not None:
            at = unquoted.find(stated, start)
            yield ("preference",), _item(text[at : at + len(stated)] if at >= 0 else stated)


def _kinds(sentence: str, found: Sequence[Language]) -> tuple[Kind, ...]:
    """Return the possible kinds of a sentence, most likely first; none for reports, questions and one-off requests."""
    lower = plain(sentence).strip()
    if lower.endswith(("?", "\uff1f")):
        lower = _TAG.sub("", lower)
    kinds: list[Kind] = []
    for language in found:
        if language.either.search(lower) is None or language.is_foreign(lower):
            continue
        if language.take_back.search(lower) is not None:
            kinds.insert(0, "take_back")
        rule = language.rule.search(lower)
        if rule is not None and (_CLAUSE.search(lower, 0, rule.start() + 1) or not language.teller.match(lower)):
            kinds.append("rule")
    if kinds and (QUESTION.search(lower) is not None or any(language.once.search(lower) for language in found)):
        return ()
    return tuple(dict.fromkeys(kinds))


def _item(sentence: str) -> str:
    return _BULLET.sub("", one_line(sentence, SENTENCE_CHARACTERS))


def _taken_back(sentence: str, rules: Sequence[Rule]) -> tuple[Rule | None, bool]:
    """Return the rule that a sentence withdraws (None if unclear), and True if any rule shares a word with it."""
    words = subject_words(sentence)
    others = (subject_words(rule.text) for rule in rules)
    shares = (len(words & other) * 100 // max(1, min(len(words), len(other))) for other in others)
    scored = sorted(((share, index) for index, share in enumerate(shares)), reverse=True)
    if not scored or scored[0][0] == 0:
        return None, False
    (best, index), second = scored[0], scored[1][0] if len(scored) > 1 else 0
    # The best rule must share at least 50 % of the shorter text's words. The second best must share less than 50 % of
    # them, or at least 20 percentage points less than the best rule.
    is_clear = best >= 50 and (second < 50 or best - second >= 20)
    return (rules[index] if is_clear else None), True
