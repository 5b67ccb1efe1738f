"""Advice after a search without results. The chat command, the command line and the search page use it."""

from hermes_state.search.full_text import Order, tried_words
from hermes_state.search.query import parse_query


def search_advice(words: str, order: Order = "best") -> list[str]:
    """Return sentences that say what was searched without results, and what to try. Example words are in backticks."""
    if parse_query(words) is None:
        return ["Type at least one word. Operators without words match nothing."]
    if (tried := tried_words(words, order)) is None:
        return ["No message matches.", "Quotes, `AND`, `OR`, `NOT` and `-` match exactly. Try the words without them."]
    return [
        "No message matches.",
        tried,
        "Try other words. Add a star to find all words with the same beginning: `frame*`.",
    ]
