"""Choice of the facts and sentences that are carried past a compression, within a limit of tokens."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from types import MappingProxyType

from agent.context.carried.facts import LINE_CHARACTERS, Fact, FactLine, FactSource, known_line, sources_of
from agent.context.carried.phrases import stems
from agent.context.excerpt import QUOTED_CHARACTERS, Redact, bounded, one_line
from hermes_state.values import Message

MIN_LINE_TOKENS = 8
MAX_MISSES = 8
"""Number of successive lines that do not fit before the choice ends. This avoids reading all texts in vain."""
SAID_PERCENT = 12
"""Additional room for other sentences of people, as a percentage of the room for facts."""
MIN_SAID_TOKENS = 16
INFORMATIVE_WORDS = 5
EXCERPTS, EXCERPT_PERCENT, MIN_RARE_WORDS = 3, 30, 3
"""Maximum number of other sentences of each answer, and their room as a percentage of the room for facts."""
MIN_EXCERPT_LIMIT = 6_000
"""Minimum room for facts, in tokens, with other sentences of answers. In less room, they cost more than they help."""
MAX_NEAR = 40
"""Maximum number of lines with the same word to compare with a new line."""


def facts_of(
    earlier: Sequence[Fact],
    rows: Sequence[Message],
    *,
    limit: int,
    redact: Redact,
    is_shared: bool,
    apart: Mapping[int, Collection[str]] = MappingProxyType({}),
) -> tuple[Fact, ...]:
    """Choose facts from the earlier record and from these rows, up to `limit` tokens. Return them oldest first.

    `apart`: sentences by message id that are quoted elsewhere or no longer apply. An empty sentence means all of them.
    """
    if limit < MIN_LINE_TOKENS:
        return ()
    texts: list[list[FactSource]] = [[], [], [], []]
    for text in chain(map(FactSource.earlier, earlier), *(sources_of(row, is_shared=is_shared) for row in rows)):
        texts[text.rank].append(text)
    while True:
        chosen = _Choice(limit)
        said = (one for one in _said_first(texts[0]) if not _is_apart(one[0].fact, apart))
        for some in texts:
            if chosen.is_full:
                break
            chosen.add(_best_first(some))
            if some is texts[0]:
                chosen.add_said(said, limit * SAID_PERCENT // 100)
        chosen.fill()
        chosen.add_said(said)
        if limit >= MIN_EXCERPT_LIMIT and not chosen.is_full:
            chosen.add_said(_excerpts(texts[1], limit * EXCERPT_PERCENT // 100))
        if chosen.remove_secrets(redact):
            return tuple(sorted(chosen.kept, key=lambda fact: fact.id))


def _best_first(texts: Sequence[FactSource]) -> Iterator[tuple[FactLine, FactSource]]:
    """Yield the lines of one rank: weighty lines first, then the others, both from newest to oldest."""
    often = Counter(chain.from_iterable(text.shapes for text in texts))
    newest = sorted(texts, key=lambda text: text.id, reverse=True)
    for text in newest:
        text.sift(often)
    for is_weighty in (True, False):
        for text in newest:
            for line in text.lines if text.words or not is_weighty else ():
                if line.is_weighty == is_weighty:
                    yield line, text


def _said_first(texts: Sequence[FactSource]) -> Iterator[tuple[FactLine, FactSource]]:
    """Yield people's sentences that are not facts: long statements, then short ones and questions, newest first."""
    newest = sorted(texts, key=lambda text: text.id, reverse=True)
    for is_informative in (True, False):
        for text in newest:
            for line in text.said:
                has_words = len(line.matter) >= INFORMATIVE_WORDS and not line.fact.text.endswith(("?", "\uff1f"))
                if has_words is is_informative:
                    yield line, text


def _excerpts(texts: Sequence[FactSource], room: int) -> Iterator[tuple[FactLine, FactSource]]:
    """Yield up to `EXCERPTS` sentences of each answer, up to `room` tokens: the best of each first, newest first.

    The best sentences have the most words that no other answer contains.
    """
    newest = sorted(texts, key=lambda text: text.id, reverse=True)[: room // (2 * MIN_SAID_TOKENS)]
    found = [text.words_of for text in newest]
    often = Counter(chain.from_iterable(frozenset().union(*words.values()) for words in found))
    rare = {word for word, count in often.items() if count == 1}
    rated = [{one: len(some & rare) for one, some in words.items()} for words in found]
    best = [nlargest(EXCERPTS, counts, key=counts.__getitem__) for counts in rated]
    for number in range(EXCERPTS):
        for text, counts, some in zip(newest, rated, best, strict=True):
            for one in some[number : number + 1]:
                line = known_line(text.id, text.speaker, one_line(one, LINE_CHARACTERS))
                if counts[one] >= MIN_RARE_WORDS and line.size <= room:
                    room -= line.size
                    yield line, text


def _is_apart(said: Fact, apart: Mapping[int, Collection[str]]) -> bool:
    """Return True if little of a statement is left without the sentences that are quoted elsewhere."""
    sentences, rest = apart.get(said.id, ()), said.text
    for sentence in sentences:
        rest = rest.replace(sentence, " ")
    return "" in sentences or (len(rest) < len(said.text) and len(stems(rest)) < INFORMATIVE_WORDS)


class _Choice:
    def __init__(self, limit: int) -> None:
        self._room, self._misses = limit, 0
        self._later: list[tuple[FactLine, FactSource]] = []
        self._unfit: list[tuple[FactLine, FactSource]] = []
        self._shapes: set[tuple[str, str]] = set()
        self._known: set[str] = set()
        self._sources: dict[int, FactSource] = {}
        self._matters: dict[str, list[FactLine]] = {}
        self._changed: set[str] = set()
        self.kept: list[Fact] = []

    @property
    def is_full(self) -> bool:
        return self._room < MIN_LINE_TOKENS or self._misses >= MAX_MISSES

    def add(self, lines: Iterable[tuple[FactLine, FactSource]]) -> None:
        for line, text in lines:
            if self.is_full:
                return
            if line.shape in self._shapes or (line.values and line.values <= self._known):
                self._later.append((line, text))
            elif not self._is_outdated(line) and self._take(line, text):
                self._shapes.add(line.shape)
                self._known |= line.values
                for word in line.matter:
                    self._matters.setdefault(word, []).append(line)
                self._changed |= line.matter if line.is_change else frozenset()

    def _is_outdated(self, line: FactLine) -> bool:
        """Return True if a chosen line replaces this one. If this one replaces a chosen line, remove that line."""
        words = line.matter if line.is_change else line.matter & self._changed
        near = {id(one): one for word in words for one in self._matters.get(word, ())[-MAX_NEAR:]}
        for other in near.values():
            if other.fact.id > line.fact.id and other.replaces(line):
                return True
            fits = line.size <= self._room + other.size
            if other.fact.id < line.fact.id and fits and other.fact in self.kept and line.replaces(other):
                self.kept.remove(other.fact)
                self._room += other.size
        return False

    def add_said(self, lines: Iterator[tuple[FactLine, FactSource]], extra: int = 0) -> None:
        """Add lines that are not facts. They use `extra` tokens of room if given, otherwise the room that is left."""
        before, least = self._misses, self._room if extra else 0
        self._room, self._misses = self._room + extra, 0
        lines, self._unfit = chain(self._unfit, lines), []
        while self._room - least >= MIN_SAID_TOKENS and self._misses < MAX_MISSES:
            line, text = next(lines, (None, None))
            if line is None or text is None:
                break
            if line.shape in self._shapes:
                continue
            if self._room - line.size < least:
                self._misses += 1
                self._unfit.append((line, text))  # there may be room later
            elif self._take(line, text):
                self._shapes.add(line.shape)
        self._room, self._misses = min(self._room, least) if extra else self._room, before

    def fill(self) -> None:
        texts = {fact.text for fact in self.kept}
        for line, text in self._later:
            if self.is_full:
                return
            if line.fact.text not in texts and self._take(line, text):
                texts.add(line.fact.text)

    def _take(self, line: FactLine, text: FactSource) -> bool:
        if line.size > self._room:
            self._misses += 1
            return False
        self._misses = 0
        self._room -= line.size
        self.kept.append(line.fact)
        if not text.is_safe:
            self._sources[id(text)] = text
        return True

    def remove_secrets(self, redact: Redact) -> bool:
        """Remove secrets from the chosen texts. Return True if there was nothing to remove."""
        is_safe = True
        for text in self._sources.values():
            safe = bounded(text.raw, redact)
            is_safe = is_safe and safe == text.raw[:QUOTED_CHARACTERS]
            text.use_safe(safe)
        return is_safe
