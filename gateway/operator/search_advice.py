"""Suggestions for searches that have no results. The chat command and the search page share them."""

from typing import Unpack

from hermes_state.search.fuzzy import COUNTED_HITS, advise
from hermes_state.search.query import parse_query
from hermes_state.search.ranking import SearchFilter
from hermes_state.store.sql import Connection
from hermes_state.text import counted


def search_advice(db: Connection, words: str, **filters: Unpack[SearchFilter]) -> list[str]:
    """Return sentences with suggestions for a search that has no results. Suggested queries are in backticks."""
    if parse_query(words) is None:
        return ["Type at least one word. Operators alone match nothing."]
    advice = advise(db, words, **filters)
    lines = ["No message matches."]
    if advice is not None and advice.prefix is not None:
        start, count = advice.prefix
        lines.append(f"`{start}` also finds other endings: {_counted_hits(count)}.")
    if advice is not None and advice.others is not None:
        others, count = advice.others
        lines.append(f"Without “{advice.rarest}”, `{others}` has {_counted_hits(count)}.")
    if len(lines) == 1:
        lines.append("Try fewer or other words. A star finds all endings of a word: `framework*`.")
    return lines


def _counted_hits(count: int) -> str:
    return f"{count:,} hits or more" if count >= COUNTED_HITS else counted(count, "hit")
