"""Facts: quoted lines with identifiers, and sentences marked as important, each with its speaker and message.

Lines from people are chosen first, then answers, then arguments of tool calls, then tool results and documents. Within
each kind, important ("weighty") lines come first, and newer lines before older ones. If several lines differ only in a
value, the newest is chosen. A line that tells of a change replaces older lines of the same person about the same
subject. Any room left is filled with lines that differ in a value, and with lines whose identifiers are listed.

Other sentences of people get their own room, and any room that is left: newest first, short lines and questions last.
Room that is still left in large windows is filled with the sentences of answers that have most words of their own.
In tool results and arguments, lines with a frequent pattern (heartbeats, request lines) are ignored as noise. Code that
people paste is ignored, too.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from operator import methodcaller
from typing import Any, Final, TypeAlias

import msgspec
import orjson

from agent.context.carried.phrases import any_of, sentences, stems, weighty_words
from agent.context.excerpt import QUOTED_CHARACTERS, one_line, person_of, speaker_name, without_thoughts
from agent.model.usage import estimated_text_tokens
from hermes_state.imports import late_pattern
from hermes_state.values import Message, MessageRole, Origin, recall_id

LINE_CHARACTERS = 170
SAME_MATTER_PERCENT = 60
SAID_CHARACTERS = 300
MIN_SAID_STEMS, MIN_SAID_WORDS = 2, 5
"""A statement that is not a fact has at least so many stems, or so many words. Short ones are greetings."""
SPEAKERS: Final = {"person": 0, "assistant": 1, "call": 2, "result": 3, "document": 3}
"""Rank of each kind of speaker. Lines with a lower rank are chosen first."""
_FIRST_MACHINE = 2
"""Lowest rank in `SPEAKERS` of text that a program wrote."""
_REACH = 60
"""Number of characters to quote before an identifier."""
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
"""Regular expressions for identifiers. Each key is a string that every match contains."""
_SIGN = re.compile(r"[0-9@/`\"“„«「]")
"""Quick test of a sentence. If it does not match, the sentence contains no identifier."""
_NUMBER = re.compile(r"[0-9](?:[0-9A-Za-z_]|[.,:/+-](?=[0-9A-Za-z])|[ ](?=[0-9]{2})){0,60}")
_BEFORE = re.compile(r"(?:[A-Za-z0-9_#$€£¥+][-./]?|[($€£¥] ?){1,24}\Z")
_JOINED = re.compile(r"[A-Za-z0-9_#$€£¥+./(-]|(?<=[($€£¥]) ")
"""Quick test of the character before a number. If it does not match, the slower `_BEFORE` cannot match either."""
_UNIT = late_pattern(
    r"(?i)\.?\s?(?:[€%$£¥₽°]|eur|usd|chf|gbp|\u0440\u0443\u0431|元|円|圆|块|원|kg|km|kwh|[kmgt]b\b|uhr|点|時|시|号|號|月|日|年|월|일"
    r"|jan|feb|fév|fev|mär|mar|apr|avr|abr|ma[iyg]|ju[nil]|jui|giu|lug|aug|aoû|ago|se[pt]|o[ckut]t|out|nov|de[cz]|dic|déc|gen|ene"
    r"|янв|фев|мар|апр|мая|июн|июл|авг|сен|окт|ноя|дек)"
)
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_CODE_SIGN, _IMPORT = re.compile(r"[{}();=<>@#\"]"), re.compile(r"\bimport ")
_CODE_LINE = late_pattern(
    r"(?m)^(?=.{0,200}$)[ \t]*(?:(?:[}\])]+|</?[a-zA-Z!][^<>\n]*>|//|/\*|\*/|#(?:include|define|!/|\s*TODO)|--\s"
    r"|@\w+(?:[.(]|$)).*"
    r"|(?:(?:export|async|public|private|static) )*(?:(?:def|class|function|void|struct|interface) +\w+ *[({:<]"
    r"|(?:const|let|var) +[\w{, }]+=).*|(?:from +[\w.]+ +)?import +[\w.{*, }]+"
    r"|(?:if|for|while|elif|else|try|except|catch|switch|return)\b.*(?:\)|\w):|(?:return|await)\b.*[(;].*"
    r"|(?:SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|FROM|WHERE|VALUES|PRIMARY|FOREIGN)\b.*[(=*;,].*"
    r"|[\w.\[\]]+ *(?:[-+*/:]?=|=>) *(?:[\"'\[{(]|[\w.]+\(|[A-Za-z_]\w*\.[a-z]).*|[\"'][\w. -]+[\"'] *:.*"
    r"|[\w.]*\w\([^()\n]*\)[;:,]?|.*(?:\{|[(=\"'].*;|=> *[\w({].*))[ \t]*$"
)
"""Lines of programs. Longer lines are not tested, because the time grows with the square of their length."""
_NAME = late_pattern(
    r"\b(?!(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(?:Mon|Diens|Donners|Frei|Sams|Sonn)tag|Mittwoch|Jan(?:uary?)?"
    r"|Feb(?:ruary?)?|Mar(?:ch)?|März|Apr(?:il)?|May|Mai|Jun[ei]?|Jul[yi]?|Aug(?:ust)?|Sept?(?:ember)?|O[ck]t(?:ober)?"
    r"|Nov(?:ember)?|De[cz](?:ember)?)\b)(?=[^\W\d_a-z])[^\W_]{3,}"
)
"""Names, except weekdays and months. A line about one person or thing does not replace a line about another."""
_without_hex = methodcaller("rstrip", "abcdefABCDEF")
_Patterns: TypeAlias = Sequence[tuple[str, re.Pattern[str]]]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A quoted line of a message."""

    id: int
    speaker: str
    """A key of `SPEAKERS`, followed by a person (such as `Ada#3f2a`), or by the name of a tool or file."""
    text: str

    @property
    def owner(self) -> str:
        """The digest of the person. For other speakers, and in records of earlier versions, the whole speaker."""
        return self.speaker.rpartition("#")[2]

    @property
    def line(self) -> str:
        return f"- [{recall_id(self.id)} {self.speaker}] {self.text}"


@dataclass(frozen=True)
class FactLine:
    """A quoted line with what decides on its choice. Most lines are never chosen, so the rest is found on first use."""

    fact: Fact
    is_weighty: bool

    @cached_property
    def size(self) -> int:
        return estimated_text_tokens(self.fact.line) + 1

    @cached_property
    def shape(self) -> tuple[str, str]:
        return self.fact.owner, _shape(self.fact.text)

    @cached_property
    def values(self) -> frozenset[str]:
        return frozenset(identifiers(self.fact.text))

    @cached_property
    def matter(self) -> frozenset[str]:
        """Stems of the words in a person's line. Empty for other speakers."""
        return stems(self.fact.text) if self.fact.speaker.startswith("person") else frozenset()

    @cached_property
    def is_change(self) -> bool:
        """True if the line reports a change."""
        return any_of("changed").search(self.fact.text) is not None

    @property
    def is_said(self) -> bool:
        """True if the line is from a person and is not a fact."""
        return bool(self.matter) and not self.is_weighty and not self.values

    def replaces(self, older: "FactLine") -> bool:
        """Return True if this line reports a change of something that an older line of the same speaker says."""
        if not self.is_change or self.fact.owner != older.fact.owner or older.values <= self.values:
            return False
        both, fewer = self.matter & older.matter, min(len(self.matter), len(older.matter))
        if len(both) < 2 or len(both) * 100 < SAME_MATTER_PERCENT * fewer:
            return False
        ours, theirs = self.fact.text, older.fact.text
        lower = (theirs.lower(), ours.lower())
        return all(
            name.lower() in text for one, text in zip((ours, theirs), lower, strict=True) for name in _NAME.findall(one)
        )


@lru_cache(maxsize=1_024)  # cached, because each record repeats lines of the previous record
def known_line(row_id: int, speaker: str, text: str) -> FactLine:
    return FactLine(Fact(id=row_id, speaker=speaker, text=text), is_weighty=bool(weighty_words(text)))


class FactSource(msgspec.Struct):
    """Source text of facts: part of a row, or a line of the earlier record. Caches the lines that are worth quoting."""

    id: int
    speaker: str
    raw: str
    is_safe: bool = False
    _shapes: Sequence[str] | None = None
    _rare: Sequence[str] = ()
    _words: Collection[str] | None = None
    _lines: Sequence[FactLine] | None = None
    _said: Sequence[FactLine] | None = None

    @classmethod
    def earlier(cls, fact: Fact) -> "FactSource":
        line = known_line(fact.id, fact.speaker, fact.text)
        words = (fact.text,) if line.is_weighty else ()
        if line.is_said:
            return cls(fact.id, fact.speaker, fact.text, is_safe=True, _shapes=(), _words=(), _lines=(), _said=(line,))
        if fact.speaker == "assistant" and not line.is_weighty and not line.values:
            return cls(fact.id, fact.speaker, fact.text, is_safe=True, _shapes=(), _words=(), _lines=())
        return cls(fact.id, fact.speaker, fact.text, is_safe=True, _shapes=(), _words=words, _lines=(line,))

    @property
    def rank(self) -> int:
        return SPEAKERS[self.speaker.partition(" ")[0]]

    def use_safe(self, safe: str) -> None:
        """Replace the text with `safe`, a version without secrets."""
        if safe != self.raw[:QUOTED_CHARACTERS]:
            self._shapes, self._rare, self._words, self._lines, self._said = None, (), None, None, None
        self.raw, self.is_safe = safe, True

    @property
    def shapes(self) -> Sequence[str]:
        if self._shapes is None:
            self._shapes = _shape(self.raw[:QUOTED_CHARACTERS]).splitlines() if self.rank >= _FIRST_MACHINE else ()
        return self._shapes

    def sift(self, often: Counter[str]) -> None:
        """Ignore lines without a number, and lines of which more than two are the same except for their numbers."""
        if self.shapes:
            lines = zip(self.raw[:QUOTED_CHARACTERS].splitlines(), self.shapes, strict=False)
            rare = [line for line, shape in lines if "#" in shape and often[shape] <= 2]
            if rare != self._rare:
                self._rare, self._words, self._lines = rare, None, None

    @property
    def words(self) -> Collection[str]:
        """Words in this text that mark a line as important. Each weighty line contains at least one."""
        if self._words is None:
            text = "\n".join(self._rare) if self.rank >= _FIRST_MACHINE else self.raw[:QUOTED_CHARACTERS]
            self._words = weighty_words(text)
        return self._words

    @property
    def lines(self) -> Sequence[FactLine]:
        if self._lines is None:
            self._lines = [known_line(self.id, self.speaker, line) for line in islice(self._quoted(), 12)]
        return self._lines

    @property
    def said(self) -> Sequence[FactLine]:
        """Sentences of a person that are not facts. Neighbouring sentences are joined to one line."""
        if self._said is None:
            found = (one_line(piece, SAID_CHARACTERS) for piece in self._pieces() if piece)
            pieces = (known_line(self.id, self.speaker, piece) for piece in found)
            self._said = [line for line in pieces if line.is_said and _says_something(line)]
        return self._said

    @property
    def words_of(self) -> Mapping[str, frozenset[str]]:
        """Words of each sentence of an answer, except facts."""
        known = {line.fact.text for line in self.lines}
        text = _FENCED.sub("\n", self.raw[:QUOTED_CHARACTERS])
        found = (text[start:end].strip() for start, end in sentences(text))
        return {one: frozenset(one.lower().split()) for one in found if one not in known}

    def _pieces(self) -> Iterator[str]:
        text, piece = _without_code(self.raw[:QUOTED_CHARACTERS]), ""
        patterns = _patterns(text, _MARKS)
        for sentence in (text[start:end].strip() for start, end in sentences(text)):
            is_fact = _holds(sentence, self.words) or any(True for _ in _identifier_spans(sentence, patterns))
            if is_fact or len(piece) + len(sentence) >= SAID_CHARACTERS:
                yield piece
                piece = ""
            piece = piece if is_fact else f"{piece} {sentence}"
        yield piece

    def _quoted(self) -> Iterator[str]:
        text, is_spoken = self.raw[:QUOTED_CHARACTERS], self.rank < _FIRST_MACHINE
        words, patterns = (self.words, _patterns(text, _MARKS)) if is_spoken else ((), _patterns(text, _UNQUOTED))
        if words or patterns:
            text = _without_code(text) if self.rank == 0 else text
            pieces = (text[start:end] for start, end in sentences(text) if words or _SIGN.search(text, start, end))
            for piece in pieces if is_spoken else self._rare:
                yield from _quoted(piece.strip(), words, patterns)


def sources_of(row: Message, *, is_shared: bool) -> Iterator[FactSource]:
    text = row.text or ""
    if row.role is MessageRole.TOOL:
        yield FactSource(row.id, f"result {speaker_name(row.tool_name) or 'tool'}", text)
    elif row.role is MessageRole.ASSISTANT:
        yield FactSource(row.id, "assistant", without_thoughts(text))
        for call in row.body.calls:
            yield FactSource(
                row.id, f"call {speaker_name(call.name) or 'tool'}", "\n".join(arguments_of(call.arguments))
            )
    elif row.origin is Origin.HUMAN:
        speaker = f"person {person_of(row)}" if is_shared else "person"
        yield FactSource(row.id, speaker if row.body.words_by is None else "document quoted", text)
        for document in row.body.documents:
            yield FactSource(row.id, f"document {speaker_name(document.name)}", document.text)


def arguments_of(arguments: str) -> list[str]:
    """Return the arguments of a tool call as strings such as `name: value`. Return invalid JSON unchanged."""
    try:
        return list(_leaves("", orjson.loads(arguments)))
    except (ValueError, RecursionError):
        return [arguments]


def _leaves(name: str, value: Any) -> Iterator[str]:  # `value` is any JSON
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(key, one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(name, one)
    else:
        yield f"{name}: {value}" if name else str(value)


def _says_something(line: FactLine) -> bool:
    return len(line.matter) >= MIN_SAID_STEMS or line.fact.text.count(" ") >= MIN_SAID_WORDS - 1


def _without_code(text: str) -> str:
    signs = _CODE_SIGN.search(text) or "//" in text or "--" in text or ("import " in text and _IMPORT.search(text))
    if not signs:
        return text
    return _CODE_LINE.sub("", _FENCED.sub("\n", text))


def _shape(text: str) -> str:
    *pieces, last = re.sub(r"[0-9/][\w.:,+/@-]*", "#", text).split("#")
    return "#".join([*map(_without_hex, pieces), last])


def _holds(text: str, words: Collection[str]) -> bool:
    if not words:
        return False
    lower = text.lower()
    return any(word in lower for word in words)


def _quoted(sentence: str, words: Collection[str], patterns: _Patterns) -> Iterator[str]:
    """Yield a sentence with an identifier or one of `words`. Of a long sentence, yield the parts with identifiers."""
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
    """Yield the identifiers in `text`: numbers, amounts, dates, paths, addresses, ticket numbers, versions, quotes."""
    return (text[start:end] for start, end in _identifier_spans(text, _patterns(text, _MARKS)))


def _patterns(text: str, marks: Mapping[str, re.Pattern[str]]) -> _Patterns:
    found = [(hint, pattern) for hint, pattern in marks.items() if hint in text]
    return found if re.search("[0-9]", text) is None else [*found, ("", _NUMBER)]


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
