"""Search for messages that contain only some of the query's words, or words with a similar spelling."""

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

from hermes_state.search.full_text import FoundMessage, load_found, match_reader, ranked
from hermes_state.search.query import parse_query
from hermes_state.search.ranking import MatchReader, SearchFilter
from hermes_state.store.segment import folded
from hermes_state.store.sql import Connection

COUNTED_HITS = 1_000
"""Maximum number of hits that are counted for each suggested query."""

MAX_MISSPELT, MAX_NEAR_WORDS = 3, 4
"""Maximum number of words to replace in a query (15 to 40 ms each), and of replacements to try for each word."""


def search_in_other_words(
    db: Connection, query: str, *, limit: int = 20, **filters: Unpack[SearchFilter]
) -> tuple[list[FoundMessage], tuple[str, ...]]:
    """Return the best rows that match `query`. If none match, return rows with some of its words, and the words used.

    Unknown words are replaced with known words that differ in one letter. Then words are dropped until rows match:
    first the replacements, then the most common words.
    """
    parsed, matches = parse_query(query), match_reader(db, **filters)
    hits = ranked(matches, parsed, "best", limit) if parsed is not None else []
    if parsed is None or hits or not parsed.words:
        return load_found(matches, hits, parsed.wanted if parsed is not None else ()), ()

    counts = {word: _count(matches, word) for word in parsed.words}
    near = _near_words(matches, [word for word in counts if not counts[word]])
    known = sorted(filter(counts.get, counts), key=lambda word: -counts[word])
    order = [*near, *known]
    left_out = bisect_left(range(len(order)), True, key=lambda first: _count(matches, " ".join(order[first:]), 1) > 0)
    kept = " ".join(word for word in (*counts, *near) if word in order[left_out:])
    # The kept words may be the wrong ones, so half of the results come from searches for other rare words.
    rare = [*near, *(word for word in reversed(known) if counts[word] <= 10)]
    asked = [found for words in (kept, *rare) if (found := parse_query(words)) is not None]
    best = [matches.best(one.expression, one.terms, limit) for one in asked if one.expression is not None]
    first, *others = best or [[]]
    further = dict([*first[: limit // 2], *itertools.chain(*others), *first])
    terms = dict.fromkeys(term for one in asked for term in one.wanted)
    return load_found(matches, [*further.items()][:limit], [*terms]), tuple(term.text for term in terms)


@dataclass(frozen=True, slots=True)
class SearchAdvice:
    """Suggested queries after a query that matched nothing, each with its number of hits (at most `COUNTED_HITS`)."""

    rarest: str
    others: tuple[str, int] | None
    """The query without its rarest word."""
    prefix: tuple[str, int] | None
    """The start of the rarest word, such as `framework*`."""


def advise(db: Connection, query: str, **filters: Unpack[SearchFilter]) -> SearchAdvice | None:
    """Suggest queries to try instead. Return None if the query has no words or uses quotes or operators."""
    parsed, matches = parse_query(query), match_reader(db, **filters)
    if parsed is None or not parsed.words:
        return None
    counts = {word: _count(matches, word) for word in parsed.words}
    rarest = min(counts, key=lambda word: counts[word])
    others = " ".join(word for word in counts if word != rarest)
    found = _count(matches, others) if others else 0
    bare, prefix = rarest.rstrip("*"), None
    for cut in range(4 if bare.isalpha() and not counts[rarest] else 0):  # `frameworks` also as `framework*`
        start = bare[: len(bare) - cut]
        if len(start) >= 4 and (number := _count(matches, f"{start}*")):
            prefix = (f"{start}*", number)
            break
    return SearchAdvice(rarest, (others, found) if found else None, prefix)


def _count(matches: MatchReader, words: str, limit: int = COUNTED_HITS) -> int:  # takes about a millisecond
    parsed = parse_query(words)
    return matches.count(parsed.expression, limit) if parsed is not None and parsed.expression else 0


def _near_words(matches: MatchReader, words: list[str]) -> list[str]:
    """Return replacements for misspelt words. Words that occur only in other chats are left out."""
    bare = {word: folded(word).strip(".,:;!?'") for word in words}
    # Shorter words resemble too many others; longer words take too long.
    misspelt = [word for word in words if bare[word].isalpha() and 5 <= len(bare[word]) <= 32]
    near: list[str] = []
    for word in misspelt[:MAX_MISSPELT]:
        variants, head = set(_variants(bare[word])), bare[word][: (len(bare[word]) + 1) // 2]
        if found := [other for other in matches.known_words(variants, head) if _count(matches, other, 1)]:
            near.append(f"({' OR '.join(found[:MAX_NEAR_WORDS])})")
    return near


def _variants(word: str) -> Iterator[str]:
    """Yield words that differ from `word` in one letter: removed, added, replaced, or swapped with the next."""
    blocks = {ord(letter) & ~127 for letter in word}
    letters = (letter for first in blocks for letter in map(chr, range(first, first + 128)) if letter.isalpha())
    alphabet = [letter for letter in letters if letter == letter.lower()]
    for index in range(len(word) + 1):
        before, behind = word[:index], word[index:]
        yield before + behind[1:]
        yield before + behind[1:2] + behind[:1] + behind[2:]
        for letter in alphabet:
            yield before + letter + behind
            yield before + letter + behind[1:]
