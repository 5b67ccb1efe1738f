"""Advice after a search without results. The chat command, the command line and the search page use it."""

from hermes_state.search.query import parse_query
from hermes_state.search.words import content_words
from hermes_state.text import shortened

MAX_NAMED = 8
"""Maximum number of words that the advice names."""


def search_advice(words: str) -> list[str]:
    """Return sentences that say what was searched without results, and what to try. Example words are in backticks."""
    if (parsed := parse_query(words)) is None:
        return ["Type at least one word. Operators without words match nothing."]
    if not parsed.words:
        return ["No message matches.", "Quotes, `AND`, `OR`, `NOT` and `-` match exactly. Try the words without them."]
    tried = [shortened(word, 40) for word in content_words(parsed.words)[:MAX_NAMED]]
    return [
        "No message matches.",
        f"I searched for each of these words, also with other endings and similar spellings: {', '.join(tried)}.",
        "Try other words. Add a star to find all words with the same beginning: `frame*`.",
    ]
