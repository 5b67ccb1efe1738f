"""Facts: lines quoted around identifiers, and sentences that say that they matter, with speaker and message.

People's lines stay before answers, those before arguments of calls, those before results and documents; then what says
that it matters, then the newer. Of lines that differ in nothing but a value the newest counts as these; the others,
and lines whose every identifier stands in a better one, fill what room is left. Of results and arguments a shape that
comes up often (heartbeats, request lines) is none at all.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import orjson

from agent.context.carried.lines import ROW_CHARACTERS, bounded, one_line
from agent.context.carried.phrases import sentences, weighty_words
from agent.context.excerpt import Redact, speaker_name, without_thoughts
from agent.tokens import estimated_text_tokens
from hermes_state.values import Message, MessageRole, Origin, recall_id

LINE_CHARACTERS = 170
MAX_LINES = 12
"""Most lines that are quoted of one text."""
MAX_SHAPES = 2
"""A shape of results and arguments that comes up more often is noise."""
MIN_LINE_TOKENS = 8
SPEAKERS: Final = ("person", "assistant", "call", "result", "document")
_FIRST_MACHINE = 2
"""First rank of texts that programs make."""
_REACH = 60
"""Characters in front of an identifier that are quoted with it."""

_UNQUOTED = {
    "://": re.compile(r"[a-z]{2,10}://[^\s<>\"'`)\]]{4,200}"),
    "@": re.compile(r"(?:(?<![\w.+-])[\w.+-]{1,60})?@[\w-]{1,60}(?:\.[\w-]{1,30}){1,4}"),
    "/": re.compile(r"/[\w.@+-]{1,80}(?:/[\w.@+-]{1,80}){1,16}"),
}
_MARKS = _UNQUOTED | {
    "`": re.compile(r"`[^`\n]{2,80}`"),
    '"': re.compile(r'"[^"\n]{2,60}"'),
    "“": re.compile(r"“[^“”\n]{2,60}[”“]"),
    "„": re.compile(r"„[^“”\n]{2,60}[”“]"),
    "«": re.compile(r"«[^»\n]{2,60}»"),
    "「": re.compile(r"「[^」\n]{1,60}」"),
}
"""By a character that each of them begins with or holds."""
_DIGIT = re.compile("[0-9]")
_NUMBER = re.compile(r"[0-9](?:[0-9A-Za-z_]|[.,:/+-](?=[0-9A-Za-z])|[ ](?=[0-9]{2})){0,60}")
_BEFORE = re.compile(r"(?:[A-Za-z0-9_#$€£¥+][-./]?|[($€£¥] ?){1,24}\Z")
_JOINED = re.compile(r"[A-Za-z0-9_#$€£¥+./(-]|(?<=[($€£¥]) ")
"""The last character of that; most numbers stand alone."""
_UNIT = re.compile(
    r"\.?\s?(?:[€%$£¥₽°]|eur|usd|chf|gbp|\u0440\u0443\u0431|元|円|圆|块|원|kg|km|kwh|[kmgt]b\b|uhr|点|時|시|号|號|月|日|年|월|일"
    r"|jan|feb|fév|fev|mär|mar|apr|avr|abr|ma[iyg]|ju[nil]|jui|giu|lug|aug|aoû|ago|se[pt]|o[ckut]t|out|nov|de[cz]|dic|déc|gen|ene"
    r"|янв|фев|мар|апр|мая|июн|июл|авг|сен|окт|ноя|дек)",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[0-9/][\w.:,+/@-]*")
_HEX = "abcdefABCDEF"
_Patterns: TypeAlias = Sequence[tuple[str, re.Pattern[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line of a message."""

    id: int
    speaker: str
    """One of `SPEAKERS`, with the name of a person, tool or file behind it."""
    text: str

    @property
    def line(self) -> str:
        """The line of the record."""
        return f"- [{recall_id(self.id)} {self.speaker}] {self.text}"


@dataclass(slots=True)
class _Text:
    """A text of a row, from which lines are quoted, or a fact of the earlier record; what was found is kept."""

    id: int
    speaker: str
    raw: str
    is_safe: bool = False
    """True: there is no secret in it."""
    known: Fact | None = None
    _words: Collection[str] | None = None
    _shapes: Sequence[str] | None = None
    _facts: "tuple[Sequence[str], Sequence[_Found]] | None" = None

    @property
    def rank(self) -> int:
        """0 for people, then answers, arguments, and at last results and documents."""
        return min(3, SPEAKERS.index(self.speaker.partition(" ")[0]))

    def hold(self, safe: str) -> None:
        """Holds no secret any more."""
        if safe != self.raw[:ROW_CHARACTERS]:
            self._words = self._shapes = self._facts = None
        self.raw, self.is_safe = safe, True

    @property
    def words(self) -> Collection[str]:
        """Words that say that it matters, one of which is in each of its facts that does."""
        if self._words is None:
            self._words = weighty_words(self.raw[:ROW_CHARACTERS])
        return self._words

    @property
    def shapes(self) -> Sequence[str]:
        """The shapes of its lines, if a program made it."""
        if self._shapes is None:
            is_noisy = self.known is None and self.rank >= _FIRST_MACHINE
            self._shapes = _shape(self.raw[:ROW_CHARACTERS]).splitlines() if is_noisy else ()
        return self._shapes

    def facts(self, often: Counter[str]) -> "Sequence[_Found]":
        lines = self.raw[:ROW_CHARACTERS].splitlines() if self.shapes else ()
        rare = [
            line for line, shape in zip(lines, self.shapes, strict=False) if "#" in shape and often[shape] <= MAX_SHAPES
        ]
        if self._facts is None or self._facts[0] != rare:
            quoted = self._rare(rare) if self.rank >= _FIRST_MACHINE else self._spoken()
            found = (Fact(id=self.id, speaker=self.speaker, text=line) for line in islice(quoted, MAX_LINES))
            self._facts = rare, [_Found(fact, self) for fact in (found if self.known is None else [self.known])]
        return self._facts[1]

    def _spoken(self) -> Iterator[str]:
        text = self.raw[:ROW_CHARACTERS]
        words, patterns = self.words, _patterns(text, _MARKS)
        if words or patterns:
            for start, end in sentences(text):
                yield from _quoted(text[start:end].strip(), words, patterns)

    def _rare(self, lines: Sequence[str]) -> Iterator[str]:
        patterns = _patterns(self.raw[:ROW_CHARACTERS], _UNQUOTED)
        for line in lines:
            yield from _quoted(line.strip(), (), patterns)


class _Found:
    """A fact, and what it is chosen by, as far as anybody has asked for it."""

    def __init__(self, fact: Fact, text: _Text) -> None:
        self.fact = fact
        self.source = text

    @cached_property
    def is_weighty(self) -> bool:
        return _holds(self.fact.text, self.source.words)

    @cached_property
    def size(self) -> int:
        return estimated_text_tokens(self.fact.line) + 1

    @cached_property
    def shape(self) -> tuple[str, str]:
        return self.fact.speaker, _shape(self.fact.text)

    @cached_property
    def values(self) -> frozenset[str]:
        return frozenset(identifiers(self.fact.text))


def facts_of(
    earlier: Sequence[Fact], rows: Sequence[Message], *, limit: int, redact: Redact, is_shared: bool
) -> tuple[Fact, ...]:
    """The facts of the earlier record and of these rows that stay within so many tokens, oldest first."""
    if limit < MIN_LINE_TOKENS:
        return ()
    texts: list[list[_Text]] = [[], [], [], []]
    known = (_Text(fact.id, fact.speaker, fact.text, is_safe=True, known=fact) for fact in earlier)
    for text in chain(known, *(_texts(row, is_shared=is_shared) for row in rows)):
        texts[text.rank].append(text)
    while True:
        chosen = _Choice(limit)
        for some in texts:
            if chosen.is_full:
                break
            chosen.add(_best_first(some))
        chosen.fill()
        if chosen.is_safe(redact):
            return tuple(sorted(chosen.kept, key=lambda fact: fact.id))


def _best_first(texts: Sequence[_Text]) -> Iterator[_Found]:
    """Facts of one rank: those that say that they matter, then the others, each from the newest on.

    Where no word says so, no more is read than there is room for.
    """
    often = Counter(chain.from_iterable(text.shapes for text in texts))
    newest = sorted(texts, key=lambda text: text.id, reverse=True)
    for text in newest:
        if text.words:
            yield from (found for found in text.facts(often) if found.is_weighty)
    for text in newest:
        yield from (found for found in text.facts(often) if not found.is_weighty)


class _Choice:
    """Facts that stay, the best first."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._later: list[_Found] = []
        self._shapes: set[tuple[str, str]] = set()
        self._known: set[str] = set()
        self._sources: dict[int, _Text] = {}
        self.kept: list[Fact] = []

    @property
    def is_full(self) -> bool:
        return self._room < MIN_LINE_TOKENS

    def add(self, facts: Iterable[_Found]) -> None:
        """Take facts of one rank as long as there is room."""
        for found in facts:
            if self.is_full:
                return
            if found.shape in self._shapes or (found.values and found.values <= self._known):
                self._later.append(found)
            elif self._take(found):
                self._shapes.add(found.shape)
                self._known |= found.values

    def fill(self) -> None:
        """Take what was put back."""
        texts = {fact.text for fact in self.kept}
        for found in self._later:
            if self.is_full:
                return
            if found.fact.text not in texts and self._take(found):
                texts.add(found.fact.text)

    def _take(self, found: _Found) -> bool:
        if found.size > self._room:
            return False
        self._room -= found.size
        self.kept.append(found.fact)
        if not found.source.is_safe:
            self._sources[id(found.source)] = found.source
        return True

    def is_safe(self, redact: Redact) -> bool:
        """False when a text held a secret; it holds none any more. Of others than those chosen nobody has to know."""
        is_safe = True
        for text in self._sources.values():
            safe = bounded(text.raw, redact)
            is_safe = is_safe and safe == text.raw[:ROW_CHARACTERS]
            text.hold(safe)
        return is_safe


# ---- texts of rows


def _texts(row: Message, *, is_shared: bool) -> Iterator[_Text]:
    text = row.text or ""
    if row.role is MessageRole.TOOL:
        yield _Text(row.id, f"result {speaker_name(row.tool_name) or 'tool'}", text)
    elif row.role is MessageRole.ASSISTANT:
        yield _Text(row.id, "assistant", without_thoughts(text))
        for call in row.body.calls:
            yield _Text(row.id, f"call {speaker_name(call.name) or 'tool'}", "\n".join(arguments_of(call.arguments)))
    elif row.origin is Origin.HUMAN:
        yield _Text(row.id, f"person {speaker_name(row.sender_name)}" if is_shared else "person", text)
        for document in row.body.documents:
            yield _Text(row.id, f"document {speaker_name(document.name)}", document.text)


def arguments_of(arguments: str) -> list[str]:
    """The values of a call's arguments, each with its name in front; what is no JSON as it stands."""
    try:
        return list(_leaves("", orjson.loads(arguments)))
    except (ValueError, RecursionError):
        return [arguments]


def _leaves(name: str, value: Any) -> Iterator[str]:  # `Any` because that is what JSON is
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(key, one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(name, one)
    else:
        yield f"{name}: {value}" if name else str(value)


def _shape(text: str) -> str:
    """The text with its digits, hexadecimal numbers and paths replaced."""
    *pieces, last = _VALUE.sub("#", text).split("#")
    return "#".join([*(piece.rstrip(_HEX) for piece in pieces), last])


# ---- lines


def _holds(text: str, words: Collection[str]) -> bool:
    if not words:
        return False
    lower = text.lower()
    return any(word in lower for word in words)


def _quoted(sentence: str, words: Collection[str], patterns: _Patterns) -> Iterator[str]:
    """The sentence if it holds a fact, an identifier or one of the words; of a long one what is around identifiers."""
    if len(sentence) <= LINE_CHARACTERS:
        if _holds(sentence, words) or any(True for _ in _identifier_spans(sentence, patterns)):
            yield one_line(sentence, LINE_CHARACTERS)
        return
    done = -1
    for start, end in sorted(_identifier_spans(sentence, patterns)):
        if end > done:
            first = sentence.find(" ", max(0, start - _REACH), start) + 1 if start > _REACH else 0
            first = first or max(0, start - _REACH)
            done = max(end, first + LINE_CHARACTERS - 2)
            cut = sentence.rfind(" ", end, done) if done < len(sentence) else -1
            piece = sentence[first : cut if cut > 0 else done]
            yield one_line(f"{'…' if first else ''}{piece}", LINE_CHARACTERS)


def identifiers(text: str) -> Iterator[str]:
    """Identifiers of a text: numbers, amounts, dates, paths, addresses, tickets, versions, quoted words."""
    return (text[start:end] for start, end in _identifier_spans(text, _patterns(text, _MARKS)))


def _patterns(text: str, marks: Mapping[str, re.Pattern[str]]) -> _Patterns:
    """Expressions that could match in a text, or in parts of it."""
    found = [(hint, pattern) for hint, pattern in marks.items() if hint in text]
    return found if _DIGIT.search(text) is None else [*found, ("", _NUMBER)]


def _identifier_spans(text: str, patterns: _Patterns) -> Iterator[tuple[int, int]]:
    for hint, pattern in patterns:
        for match in pattern.finditer(text) if hint in text else ():
            start, end = match.span()
            if pattern is _NUMBER:
                if start and _JOINED.match(text, start - 1) is not None:
                    before = _BEFORE.search(text, max(0, start - 24), start)
                    start = start if before is None else before.start()
                if not _is_identifier(text, start, end):
                    continue
            yield start, end


def _is_identifier(text: str, start: int, end: int) -> bool:
    token = text[start:end]
    digits = sum(map(str.isdigit, token))
    if digits >= 4 or _UNIT.match(text, end) is not None or not token[0].isalnum():
        return True
    return len(token) >= 4 and len(token) > digits  # `db-01`, `15.4`, `18:30`
