"""Explanation of searches that have no results. The chat command, the command line and the search page share it."""

from hermes_state.search.query import parse_query
from hermes_state.search.words import content_words
from hermes_state.text import shortened

MAX_NAMED = 8
"""Maximum number of words that the explanation names."""


def search_advice(words: str) -> list[str]:
    """Return sentences that say what a search without results has tried. Suggested queries are in backticks."""
    if (parsed := parse_query(words)) is None:
        return ["Type at least one word. Operators alone match nothing."]
    if not parsed.words:
        return ["No message matches.", "Quotes, `AND`, `OR`, `NOT` and `-` are exact. Try the words without them."]
    tried = [shortened(word, 40) for word in content_words(parsed.words)[:MAX_NAMED]]
    return [
        "No message matches.",
        f"I searched for each of these words, also with other endings and similar spellings: {', '.join(tried)}.",
        "Try other words. A star finds everything that begins with a word: `frame*`.",
    ]
