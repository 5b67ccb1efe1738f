"""Words with a similar spelling. They replace words of a query that no message contains."""

from collections.abc import Iterator, Sequence
from itertools import islice

from hermes_state.search.query import Term
from hermes_state.search.ranking import MatchReader
from hermes_state.search.words import Forms, bare_word

MAX_MISSPELT, MAX_NEAR_WORDS = 3, 4
"""Maximum number of words to replace in a query (15 to 40 ms each), and of replacements to try for each word."""

MAX_VARIANTS = 6_000
"""Maximum number of spellings to look up for one word. A `tsquery` of PostgreSQL must be shorter than a megabyte."""


def near_words(matches: MatchReader, words: Sequence[str]) -> list[Forms]:
    """Return replacements for misspelt words. Words that occur only in other chats are left out."""
    bare = list(map(bare_word, words))
    # Shorter words resemble too many others; longer words take too long.
    misspelt = [word for word in bare if word.isalpha() and 5 <= len(word) <= 32]
    near: list[Forms] = []
    for word in misspelt[:MAX_MISSPELT]:
        variants, head = set(islice(_variants(word), MAX_VARIANTS)), word[: (len(word) + 1) // 2]
        known = (Term(other, False) for other in matches.known_words(variants, head))
        if found := [term for term in known if any(row_id >= matches.after for row_id in matches.newest(term, 1))]:
            near.append(tuple(found[:MAX_NEAR_WORDS]))
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
