"""Facts: lines quoted around identifiers, and sentences that say that they matter, with speaker and message.

People's lines stay before answers, those before arguments of calls, those before results and documents; then what says
that it matters, then the newer. Of lines that differ in nothing but a value the newest counts as these; the others,
and lines whose every identifier stands in a better one, fill what room is left. Of results and arguments a shape that
comes up often (heartbeats, request lines) is none at all.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Final

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
    """A text of a row, from which lines are quoted."""

    id: int
    speaker: str
    raw: str
    is_safe: bool = False
    """True: there is no secret in it."""

    @property
    def rank(self) -> int:
        return _rank(self.speaker)

    def facts(self, shapes: Sequence[str], often: Counter[str]) -> Iterator[Fact]:
        lines = self._spoken() if self.rank < _FIRST_MACHINE else self._rare(shapes, often)
        for line in islice(lines, MAX_LINES):
            yield Fact(id=self.id, speaker=self.speaker, text=line)

    def shapes(self) -> list[str]:
        return _shape(self.raw[:ROW_CHARACTERS]).splitlines()

    def _spoken(self) -> Iterator[str]:
        text = self.raw[:ROW_CHARACTERS]
        words, patterns = _weighty(text), _patterns(text, _MARKS)
        if words or patterns:
            for start, end in sentences(text):
                yield from _quoted(text[start:end].strip(), words, patterns)

    def _rare(self, shapes: Sequence[str], often: Counter[str]) -> Iterator[str]:
        text = self.raw[:ROW_CHARACTERS]
        patterns = _patterns(text, _UNQUOTED)
        for line, shape in zip(text.splitlines(), shapes, strict=False):
            if "#" in shape and often[shape] <= MAX_SHAPES:
                yield from _quoted(line.strip(), (), patterns)


def facts_of(
    earlier: Sequence[Fact], rows: Sequence[Message], *, limit: int, redact: Redact, is_shared: bool
) -> tuple[Fact, ...]:
    """The facts of the earlier record and of these rows that stay within so many tokens, oldest first."""
    if limit < MIN_LINE_TOKENS:
        return ()
    texts: list[list[_Text]] = [[], [], [], []]
    known: list[list[Fact]] = [[], [], [], []]
    for fact in earlier:
        known[_rank(fact.speaker)].append(fact)
    for row in rows:
        for text in _texts(row, is_shared=is_shared):
            texts[text.rank].append(text)
    while True:
        chosen = _Choice(limit)
        for rank, some in enumerate(texts):
            if chosen.is_full:
                break
            shapes = [text.shapes() if rank >= _FIRST_MACHINE else () for text in some]
            often = Counter(chain.from_iterable(shapes))
            found = [(fact, text) for text, own in zip(some, shapes, strict=True) for fact in text.facts(own, often)]
            chosen.add([*((fact, None) for fact in known[rank]), *found])
        chosen.fill()
        if chosen.is_safe(redact):
            return tuple(sorted(chosen.kept, key=lambda fact: fact.id))


class _Choice:
    """Facts that stay, the best first."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._later: list[tuple[Fact, _Text | None]] = []
        self._shapes: set[tuple[str, str]] = set()
        self._known: set[str] = set()
        self._sources: dict[int, _Text] = {}
        self.kept: list[Fact] = []

    @property
    def is_full(self) -> bool:
        return self._room < MIN_LINE_TOKENS

    def add(self, facts: list[tuple[Fact, _Text | None]]) -> None:
        """Take facts of one rank as long as there is room."""
        facts.sort(key=lambda found: (not _is_weighty(found[0].text), -found[0].id))
        for fact, text in facts:
            if self.is_full:
                return
            shape = fact.speaker, _shape(fact.text)
            values = set(identifiers(fact.text))
            if shape in self._shapes or (values and values <= self._known):
                self._later.append((fact, text))
            elif self._take(fact, text):
                self._shapes.add(shape)
                self._known |= values

    def fill(self) -> None:
        """Take what was put back."""
        texts = {fact.text for fact in self.kept}
        for fact, text in self._later:
            if self.is_full:
                return
            if fact.text not in texts and self._take(fact, text):
                texts.add(fact.text)

    def _take(self, fact: Fact, text: _Text | None) -> bool:
        size = estimated_text_tokens(fact.line) + 1
        if size > self._room:
            return False
        self._room -= size
        self.kept.append(fact)
        if text is not None and not text.is_safe:
            self._sources[id(text)] = text
        return True

    def is_safe(self, redact: Redact) -> bool:
        """False when a text held a secret; it holds none any more. Of others than those chosen nobody has to know."""
        is_safe = True
        for text in self._sources.values():
            safe = bounded(text.raw, redact)
            is_safe = is_safe and safe == text.raw[:ROW_CHARACTERS]
            text.raw, text.is_safe = safe, True
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


def _rank(speaker: str) -> int:
    """0 for people, then answers, arguments, and at last results and documents."""
    return min(3, SPEAKERS.index(speaker.partition(" ")[0]))


def _shape(text: str) -> str:
    """The text with its digits, hexadecimal numbers and paths replaced."""
    *pieces, last = _VALUE.sub("#", text).split("#")
    return "#".join([*(piece.rstrip(_HEX) for piece in pieces), last])


# ---- lines


def _weighty(text: str) -> list[str]:
    lower = text.lower()
    return [word for word in weighty_words(text) if word in lower]


@lru_cache(maxsize=1_024)  # what stays is asked for again by the next compression
def _is_weighty(line: str) -> bool:
    return bool(_weighty(line))


def _quoted(sentence: str, words: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """The sentence if it holds a fact, an identifier or one of the words; of a long one what is around identifiers."""
    spans = sorted(_identifier_spans(sentence, patterns))
    if len(sentence) <= LINE_CHARACTERS:
        if spans or (words and any(word in sentence.lower() for word in words)):
            yield one_line(sentence, LINE_CHARACTERS)
        return
    done = -1
    for start, end in spans:
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


def _patterns(text: str, marks: Mapping[str, re.Pattern[str]]) -> Sequence[re.Pattern[str]]:
    """Expressions that could match in a text, or in parts of it."""
    found = [pattern for hint, pattern in marks.items() if hint in text]
    return found if _DIGIT.search(text) is None else [*found, _NUMBER]


def _identifier_spans(text: str, patterns: Sequence[re.Pattern[str]]) -> Iterator[tuple[int, int]]:
    for pattern in patterns:
        for match in pattern.finditer(text):
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
