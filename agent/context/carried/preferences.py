"""Preferences and decisions: clauses in which people say what they prefer or what they have decided.

People state them inside requests ("I'd rather take the train, can you look up the times?"). Therefore a clause is
quoted, not the whole sentence. `rules.py` collects the clauses together with the rules.
"""

import re
from collections.abc import Sequence

from agent.context.carried.phrases import Language, plain
from hermes_state.imports import late_pattern

CLAUSE_CHARACTERS = 200
_BREAK = late_pattern(r"(?i)[,;:\u2013\u2014\uff0c\uff1b\uff1a、،]\s*|\s(?=(?:because|since|so|but|and) (?:i|we)\b)")
_ASKING = late_pattern(
    r"\W*(?:which|what|how|where|when|why|who|welche\w*|was|wie|wo|wann|quel\w*|qu[e'é]|comment|où|quand|cuál\w*|cómo"
    r"|dónde|cuándo|qua\w+|como|onde|che|cosa|come|dove|как\w*|что|где|когда)\b"
)
"""Pattern for the beginning of a question that is not about the preference behind it."""
_LETTERS = late_pattern(r"[^\W\d_]{3}|[\u3040-\u9fff\uac00-\ud7a3]")


def preference_in(sentence: str, languages: Sequence[Language]) -> str | None:
    """Return the clause of a sentence that states a preference or a decision, or None.

    >>> from agent.context.carried.phrases import hinted
    >>> asked = "I'd rather take the train, can you look up the times?"
    >>> preference_in(asked, [language for language, _, _ in hinted(asked)])
    "I'd rather take the train"
    """
    lower = plain(sentence)
    if len(lower) != len(sentence):  # vowel marks were removed: the positions would differ
        sentence = lower
    for language in languages:
        match = language.choice.search(lower)
        if match is None or language.is_foreign(lower):
            continue
        start, end = _ends_of_clause(lower, match, language)
        # The words before a colon belong to the clause: "She says: …".
        breaks = (one for one in _BREAK.finditer(lower, 0, match.start()) if one[0][0] not in ":\uff1a")
        before = max((one.end() for one in breaks), default=0)
        subject = language.no_subject.sub(" ", lower[start:end])
        is_open = language.no_choice.search(lower[before : min(end, match.end() + 20)]) is not None
        if is_open or _LETTERS.search(subject) is None or _is_for_once(lower, before, match, language):
            continue
        if start < end:
            return sentence[start:end].strip(" \t\n,;:?\uff0c\uff1f、،-\u2013\u2014")
    return None


def _is_for_once(lower: str, start: int, match: re.Match[str], language: Language) -> bool:
    """Return True if a wish applies only once.

    The words that say so are in its clause, which begins at `start`, or next to it ("For this email, I'd prefer a short
    one"). A decision is not a wish, because "today" can be the day when it was made.
    """
    after = _BREAK.search(lower, match.end())
    end = len(lower) if after is None else after.start()
    if language.wish.search(lower, start, end) is None:
        return False
    between = (lower[one.end() : start] + lower[end : one.start()] for one in language.one_time.finditer(lower))
    return any(_BREAK.sub("", words).strip() == "" for words in between)


def _ends_of_clause(lower: str, match: re.Match[str], language: Language) -> tuple[int, int]:
    """Return the part of a sentence to quote: without requests around the match, and not longer than a clause.

    The part is empty if the match itself is in a question.
    """
    breaks = [one.end() for one in _BREAK.finditer(lower, 0, match.start() + 1) if one.end() <= match.start()]
    is_after_request = language.request.search(lower, 0, match.start()) is not None
    asked = language.request.search(lower, match.end())
    end = len(lower) if asked is None else asked.start()
    if asked is None and not is_after_request and re.search(r"[?\u061f\uff1f]\W*\Z|吗\W*\Z", lower) is not None:
        end = max((one.start() for one in _BREAK.finditer(lower, match.end())), default=0)
        if end == 0 and breaks and _ASKING.match(lower) is not None:  # "Which hotel, as I prefer small ones?"
            is_after_request, end = True, len(lower)
    start = 0
    if end > CLAUSE_CHARACTERS or is_after_request:
        start = breaks[-1] if breaks else match.start()
    return start, end
