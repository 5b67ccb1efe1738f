"""Ranking for questions: by the words in all their forms, the speaker, the date, and the neighbouring messages.
Words with a similar meaning count less than the words of the question.

An answer often has other words than the question, and is often in the next message. So good matches lend a share of
their score to their neighbours.
"""

import heapq
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from hermes_state.search.query import AllOf, AnyOf, Expression
from hermes_state.search.ranking import RANKED_HITS, Candidate, MatchReader, best_of, scored
from hermes_state.search.words import (
    Dates,
    Forms,
    asks_for_value,
    bare_word,
    content_words,
    dates_in,
    forms_of,
    has_value,
    says_little,
)
from hermes_state.store.segment import folded
from hermes_state.values import Millis

POOL = 300
"""Number of candidates whose texts are read. Those whose words have the highest weights are chosen."""
SPOKEN = 300
"""Number of newest messages of people whose senders are compared with the names in a query."""
LENDERS = 60
"""Number of best candidates that lend a share of their score to their neighbours."""
SHARES = (0.6, 0.4, 0.3, 0.2)
"""Shares of a message's score for the next message on each side, the one after that, and so on."""
PAUSE, AFTER_A_PAUSE = Millis(3 * 60 * 60 * 1_000), 0.5
"""Pause between two messages after which they share less, and factor for their shares."""
LONG_CHARACTERS, AROUND_A_LONG_ONE = 300, 0.7
"""Length of messages that say enough alone, and factor for shares from and to them."""
ANSWERED = 1.5
"""Factor for what a question shares with the messages of others after it."""
LEAST = 0.15
"""Minimum score of a message that contains none of the words, as a share of the best score."""
ALL_WORDS, BY_A_PERSON, BY_THE_NAMED, AT_THE_TIME, HAS_VALUE, NEWEST = 0.1, 0.6, 1.0, 0.5, 0.3, 0.25
"""Bonuses, as shares of the score: all words, a person's message, a named speaker, a named month or year, a number or
date if the query asks for one, and the newest candidate. Older candidates have a smaller part of the last bonus."""
VALUE_CHARACTERS = 1_500
"""Number of characters of a text in which a number or date is looked for."""
NAME_WEIGHT = 0.2
"""Factor for the weight of a speaker's name in a text, because a name in a text often only addresses that person."""
LITTLE_WEIGHT, SIMILAR_WEIGHT = 0.5, 0.8
"""Factors for the weights of words that say little, and of words with a similar meaning."""

# Purpose: load one neighbour of a message in its conversation.
_BESIDE = """(SELECT n.id FROM messages n WHERE n.lineage_id = c.lineage_id AND n.seq > 0 AND n.role <> 'tool'
  AND {} LIMIT 1 OFFSET {})"""


def expression_of(forms: Forms) -> Expression:
    return AnyOf(forms) if len(forms) > 1 else forms[0]


def relevant(
    matches: MatchReader,
    words: Mapping[Forms, Sequence[int]],
    similar: Mapping[Forms, tuple[Forms, Sequence[int]]],
    speakers: Mapping[str, Mapping[int, str]],
    typed: Sequence[str],
    limit: int,
) -> list[tuple[int, float]]:
    """Return the ids and scores of the messages that probably answer a query.

    `words`: the content words, each with the ids of the newest messages that contain it. `similar`: the words with a
    similar meaning for each of them, with their ids. `speakers`: the words that name people, as returned by
    `named_speakers`. `typed`: all words of the query.
    """
    names = {forms: [*speakers[name]] for name in speakers if (forms := forms_of(name)) in words}
    weights = {
        forms: matches.weight(ids) * (NAME_WEIGHT if forms in names else LITTLE_WEIGHT if says_little(forms) else 1)
        for forms, ids in words.items()
    }
    chances, all_words = _chances(matches, words, names, weights), 0.999 * sum(weights.values())
    replaced = {
        own: (forms, SIMILAR_WEIGHT * min(matches.weight(ids), weights.get(own, math.inf)))
        for own, (forms, ids) in similar.items()
    }
    for own, (_, weight) in replaced.items():
        for row_id in {*similar[own][1]}.difference(words.get(own, ())):
            chances[row_id] = chances.get(row_id, 0.0) + weight
    chances = {row_id: chance for row_id, chance in chances.items() if row_id >= matches.after}
    if len(chances) > POOL:
        chances = dict(heapq.nlargest(POOL, chances.items(), key=lambda hit: (hit[1], hit[0])))
    rows = {row.id: row for row in matches.load_candidates([*chances])}
    meanings = {forms: (forms, *(replaced[forms][:1] if forms in replaced else ())) for forms in weights | replaced}
    scores = {
        row.id: [max(by_word.get(forms, 0.0) for forms in some) for some in meanings.values()]
        for row, by_word in scored([*rows.values()], weights | dict(replaced.values()))
    }
    if len(content_words(typed)) > 1 and not matches.has_role:
        scores = _with_neighbours(matches, scores, rows)
    named = {name for said in speakers.values() for name in said.values()}
    dates = dates_in([word for word in typed if word not in speakers])
    is_dated, is_about_names = bool(dates.months or dates.years), 0 < len(words) == len(names)
    asks, oldest = asks_for_value(" ".join(typed)) is not None, min(rows, default=0)
    age = max(1, max(rows, default=0) - oldest)

    def score(row: Candidate) -> float:
        chance = chances.get(row.id, 0.0)
        # A word can be in the part of the text that is not read, and the name of the speaker is not in the text at all.
        best = max(sum(scores[row.id]), chance * (1 if is_about_names else 0.1))
        bonus = 1 + ALL_WORDS * (chance >= all_words and len(words) > 1) + BY_A_PERSON * (row.role == "user")
        if row.sender_name in named:
            bonus *= 1 + BY_THE_NAMED
        if asks and has_value((row.text or "")[:VALUE_CHARACTERS]):
            bonus *= 1 + HAS_VALUE
        if is_dated and _is_at(row, dates):
            bonus *= 1 + AT_THE_TIME
        return best * bonus * (1 + NEWEST * (row.id - oldest) / age)

    ranked = best_of(((row_id, score(rows[row_id])) for row_id in scores), limit)
    least = LEAST * max((score for _, score in ranked), default=0.0)
    return [(row_id, score) for row_id, score in ranked if row_id in chances or score >= least]


def _chances(
    matches: MatchReader,
    words: Mapping[Forms, Sequence[int]],
    names: Mapping[Forms, Sequence[int]],
    weights: Mapping[Forms, float],
) -> dict[int, float]:
    """Return the candidates, each with the sum of the weights of its words.

    A message from a named speaker counts as containing the name if it contains another word of the query. If the query
    has only names, all messages of the speakers are candidates.
    """
    found = {forms: set(ids) for forms, ids in words.items()}
    frequent = [forms for forms, ids in words.items() if len(ids) == RANKED_HITS]
    if len(frequent) > 1:  # older messages can have several frequent words
        both = matches.newest(AllOf(tuple(map(expression_of, frequent))), POOL)
        found |= {forms: found[forms].union(both) for forms in frequent}
    others = {row_id for forms, ids in found.items() if forms not in names for row_id in ids}
    for forms, ids in names.items():
        found[forms].update(others.intersection(ids) if len(names) < len(words) else ids)
    chances: dict[int, float] = {}
    for forms, some in found.items():
        for row_id in some:
            chances[row_id] = chances.get(row_id, 0.0) + weights[forms]
    return chances


def named_speakers(matches: MatchReader, typed: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return the words that name people, each with the ids of their newest messages and the full names."""
    ids = matches.newest(None, SPOKEN) if re.search(r"[^\W\d_]", " ".join(typed)) else []
    query = f"SELECT id, sender_name FROM messages WHERE sender_name IS NOT NULL AND id IN ({_listed(ids)})"
    said: dict[str, list[int]] = {}
    for row_id, name in matches.db.execute(f"{query} ORDER BY id DESC").fetchall():
        said.setdefault(name, []).append(row_id)
    content, named = {*content_words(typed)}, dict[str, dict[int, str]]()
    for name, rows in said.items():
        parts, folded_parts = name.split(), folded(name).split()
        for word in typed:
            # A name that is also a stop word counts only if upper and lower case match.
            if word.strip(".,:;!?") in parts or (word in content and bare_word(word) in folded_parts):
                named.setdefault(word, {}).update(dict.fromkeys(rows, name))
    return named


def _is_at(row: Candidate, dates: Dates) -> bool:
    try:
        said = datetime.fromtimestamp(row.created_at / 1_000, UTC)
    except (OverflowError, OSError, ValueError):  # imported messages can have impossible times
        return False
    return said.month in (dates.months or {said.month}) and said.year in (dates.years or {said.year})


def _with_neighbours(
    matches: MatchReader, scores: Mapping[int, list[float]], rows: dict[int, Candidate]
) -> dict[int, list[float]]:
    """Return the scores of messages and their neighbours. Each word's score is the message's own or the best share.

    Adds the neighbours to `rows`.
    """
    total = {row_id: [*by_word] for row_id, by_word in scores.items()}
    lenders = heapq.nlargest(LENDERS, scores, key=lambda row_id: (sum(scores[row_id]), row_id))
    beside = dict(neighbours(matches, lenders, len(SHARES)))
    missing = {other for others in beside.values() for other in others if other is not None} - rows.keys()
    rows |= {row.id: row for row in matches.load_candidates(sorted(missing), has_bodies=False)}
    for row_id, others in beside.items():
        for share, other in zip((*SHARES, *SHARES), others, strict=True):
            if other in rows:
                factor = share * _closeness(rows[row_id], rows[other])
                lent = [factor * score for score in scores[row_id]]
                total[other] = [*map(max, total.get(other, lent), lent)]
    return total


def _closeness(row: Candidate, other: Candidate) -> float:
    """Return a factor for the share that a message lends to another one."""
    factor = AFTER_A_PAUSE if abs(row.created_at - other.created_at) > PAUSE else 1.0
    factor *= AROUND_A_LONG_ONE if max(row.characters, other.characters) > LONG_CHARACTERS else 1
    is_answer = other.id > row.id and other.sender_name != row.sender_name and (row.text or "").rstrip().endswith("?")
    return factor * (ANSWERED if is_answer else 1)


def neighbours(matches: MatchReader, ids: Sequence[int], reach: int) -> Iterator[tuple[int, list[int | None]]]:
    """Yield each message with its neighbours: `reach` messages before it, nearest first, then as many after it."""
    sides = ("n.id < c.id ORDER BY n.id DESC", f"n.id > c.id AND n.id < {matches.before} ORDER BY n.id")
    columns = ",".join(_BESIDE.format(side, distance) for side in sides for distance in range(reach))
    query = f"SELECT c.id, {columns} FROM messages c WHERE c.id IN ({_listed(ids)})"
    for row_id, *beside in matches.db.execute(query).fetchall():
        yield row_id, beside


def _listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "NULL"
