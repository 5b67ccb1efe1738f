"""Words of a question: its content words, their forms, and the dates that they name.

Forms are searched as prefixes or as lists of words, so the index needs only the words as people wrote them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec

from hermes_state.search.query import Term
from hermes_state.store.segment import ends_in_half_a_pair, folded

Forms: TypeAlias = tuple[Term, ...]
"""Forms of one word. A message contains the word if it contains any of them."""

MIN_STEM = 4
"""Minimum length of a stem. Too many other words begin with a shorter one."""

_WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_STOP_WORDS = {language: frozenset(words.split()) for language, words in _WORDS["stop_words"].items()}
_ENGLISH = _STOP_WORDS.pop("en")
_ENDINGS = re.compile(f"(?:{'|'.join(_WORDS['forms']['endings'].split())})$")
_MONTHS = {
    name: number
    for number, names in enumerate(_WORDS["dates"]["months"].strip().splitlines(), start=1)
    for name in names.split()
}
_AMBIGUOUS = frozenset(_WORDS["dates"]["ambiguous"].split())
_ASKED, _GIVEN = ("|".join(_WORDS["values"][name].splitlines()) for name in ("asked", "given"))
asks_for_value = re.compile(rf"\b(?:{_ASKED})\b", re.IGNORECASE).search
"""Search a query for words that ask for a number or a date."""
has_value = re.compile(rf"\d|\b(?:{_GIVEN}|{'|'.join(_MONTHS)})\b", re.IGNORECASE).search
"""Search a text for a number or a date."""
_TAILS = frozenset(("s", "t", "m", "re", "ve", "ll", "d"))  # after an apostrophe, as in `Ada's`
_ELISIONS = frozenset(("l", "d", "j", "m", "t", "s", "n", "c", "qu"))  # before one, as in `l'eau`


def bare_word(word: str) -> str:
    """Fold a typed word, and remove the punctuation around it, possessives and contractions.

    >>> bare_word("(Ada's)"), bare_word("l'église,"), bare_word("foo_bar.baz")
    ('ada', 'eglise', 'foo_bar.baz')
    """
    bare = folded(word).replace("\u2019", "'").strip(".,:;!?'\"()[]…«»“”„*")
    head, mark, tail = bare.partition("'")
    if mark and tail in _TAILS:
        return head
    return tail if mark and head in _ELISIONS else bare


def content_words(words: Sequence[str]) -> list[str]:
    """Return the words that say what a question is about, or all words if there are no others.

    English stop words are left out. So are the stop words of another language if the question has at least two of them.
    """
    bare = [bare_word(word) for word in words]
    counts = {language: sum(word in known for word in bare) for language, known in _STOP_WORDS.items()}
    language = max(counts, key=lambda name: counts[name])
    stop_words = _ENGLISH | _STOP_WORDS[language] if counts[language] > 1 else _ENGLISH
    return [word for word, one in zip(words, bare, strict=True) if one not in stop_words] or [*words]


@lru_cache(maxsize=1_024)
def forms_of(word: str) -> Forms:
    """Return the forms in which a word can occur.

    >>> [term.text for term in forms_of("dogs")], [term.text for term in forms_of("Ate")]
    (['dogs', 'dog', 'dogged', 'dogging'], ['eat', 'ate', 'eaten', 'eats', 'eating'])
    >>> forms_of("allergies")
    (Term(text='allerg', is_prefix=True),)
    """
    bare = bare_word(word)
    if word.endswith("*") or not re.fullmatch("[a-z\u0430-\u044f]+", bare):
        return (Term(bare or word, word.endswith("*") or ends_in_half_a_pair(bare)),)
    if (group := _irregular().get(bare)) is not None:
        return tuple(Term(one, is_prefix=False) for one in group)
    if (stem := _stem(bare)) is not None:
        return (Term(stem, is_prefix=True),)
    forms = dict.fromkeys((bare, *(_short_forms(bare) if bare.isascii() else ())))
    return tuple(Term(form, is_prefix=False) for form in forms)


@cache
def _irregular() -> Mapping[str, Sequence[str]]:
    """Return the forms of irregular English words by each of their forms. A verb also has regular ones."""
    found: dict[str, Sequence[str]] = {}
    for line in _WORDS["forms"]["irregular"].strip().splitlines():
        base, *others = line.split()
        regular = (form for form in _short_forms(base) if not form.endswith("ed"))
        forms = tuple(dict.fromkeys((base, *others, *regular)))
        found |= {form: forms for form in forms if form not in found}
    return found


def _short_forms(word: str) -> Iterator[str]:
    """Yield the forms of an English word that is too short for a stem.

    >>> [*_short_forms("move")], [*_short_forms("plans")]
    (['move', 'moves', 'moved', 'moving'], ['plan', 'plans', 'planned', 'planning'])
    >>> [*_short_forms("boxes")], [*_short_forms("cities")]
    (['box', 'boxes', 'boxed', 'boxing'], ['city', 'cities', 'citied', 'citying'])
    """
    for base in _bases(word):
        yield base
        if base.endswith("e"):
            yield from (f"{base}s", f"{base}d", f"{base[:-1]}ing")
        elif re.search("[^aeiou]y$", base):
            yield from (f"{base[:-1]}ies", f"{base[:-1]}ied", f"{base}ing")
        else:
            yield f"{base}es" if re.search("(?:[sxz]|[cs]h)$", base) else f"{base}s"
            verb = base + base[-1] * bool(re.search("[^aeiou][aeiou][bdgmnprt]$", base))
            yield from (f"{verb}ed", f"{verb}ing") if len(base) > 2 else ()


def _bases(word: str) -> Sequence[str]:
    """Return the words of which a short word can be a form, such as `mov` and `move` for `moving`."""
    root = re.sub("(?:ing|ed)$", "", word)
    if re.search("[^aeiou]ie[sd]$", word):
        return [f"{word[:-3]}y"]
    if 2 < len(root) < len(word):
        root = root[:-1] if len(root) > 3 and root[-1] == root[-2] else root
        return [root, f"{root}e"]
    if re.search("(?:x|[cs]h)es$", word) and len(word) > 4:
        return [word[:-2]]
    if re.search("[aeiou][^aeiou]ed$", word) or (re.search("[^siu]s$", word) and len(word) > 3):
        return [word[:-1]]
    return [word]


def says_little(forms: Forms) -> bool:
    return frozenset(forms) in _frequent()


@cache
def _frequent() -> frozenset[frozenset[Term]]:
    return frozenset(frozenset(forms_of(word)) for word in _WORDS["meanings"]["frequent"].split())


def similar_to(word: str) -> Forms:
    """Return the forms of the words with a similar meaning, in English.

    >>> [term.text for term in similar_to("couches")], similar_to("sofa*")
    (['sofa', 'sofas', 'sofaed', 'sofaing'], ())
    """
    own = frozenset(forms_of(word))
    return tuple(dict.fromkeys(term for term in _similar().get(own, ()) if term not in own))


@cache
def _similar() -> Mapping[frozenset[Term], Sequence[Term]]:
    found: dict[frozenset[Term], list[Term]] = {}
    for line in _WORDS["meanings"]["similar"].strip().splitlines():
        broad, _, narrow = line.rpartition(":")
        for word in (broad or narrow).split():
            found.setdefault(frozenset(forms_of(word)), []).extend(chain(*map(forms_of, narrow.split())))
    return found


def _stem(word: str) -> str | None:
    """Return the beginning that the forms of a word share, or None if the word is too short."""
    if len(word) <= MIN_STEM:
        return None
    stem = _ENDINGS.sub("", word)
    if len(stem) > MIN_STEM - 1 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
        stem = stem[:-1]  # `shopping`
    if len(word) - len(stem) == 1 and word[-1] != "s" and len(stem) <= MIN_STEM:
        stem = word
    return stem if len(stem) >= MIN_STEM else None


class Dates(msgspec.Struct, frozen=True):
    """Months and years that a query names."""

    months: frozenset[int]
    years: frozenset[int]


def dates_in(words: Sequence[str]) -> Dates:
    bare = [bare_word(word) for word in words]
    months = (
        _MONTHS.get(word)
        for index, word in enumerate(bare)
        if word not in _AMBIGUOUS or (index and words[index][:1].isupper())
    )
    years = (int(word) for word in bare if re.fullmatch(r"(?:19|20)\d\d", word))
    return Dates(frozenset(month for month in months if month is not None), frozenset(years))
