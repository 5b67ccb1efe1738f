"""Chats written message by message, with questions and the words that answer them.

`bench/recall/` has two halves. Each has a chat between two people, a chat between a person and an assistant, and
questions with the ids of the messages that answer them. The author of the blind half had not seen the code.
"""

import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.handoff import END_MARKER
from agent.tools.registry import ToolContext
from bench.policies import Turn, tokens
from hermes_state.chats import ensure_chat
from hermes_state.sessions import ensure_active, reset
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatKey, ChatKind, MessageRole, Millis, Origin, TurnId, UserRef

FOLDER = Path(__file__).with_name("recall")
TYPED, WHOLE = 11_000, 150_000
"""Tokens that the person with an assistant types, and tokens of the whole chat, after filler was added."""
FILLER = tomllib.loads((FOLDER / "filler.toml").read_text("utf-8"))
_STOP = frozenset(FILLER["stop_words"].split())
_WORD = re.compile(r"\d(?:[\d.,:/-]*\d)?|[^\W\d_]+(?:'[^\W\d_]+)?|[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n+")


class Key(NamedTuple):
    """Words of a sentence that answers a question."""

    words: frozenset[str]
    answer: frozenset[str]
    """Words that are also in the answer."""
    is_line: bool
    """True if the sentence is very short, so that a whole line must be shown."""


class Said(msgspec.Struct, frozen=True):
    """A message of a corpus."""

    id: str
    at: str
    who: str
    text: str

    @property
    def is_answer(self) -> bool:
        return self.who == "assistant"

    @property
    def sent_at(self) -> Millis:
        return Millis(int(datetime.fromisoformat(self.at).replace(tzinfo=UTC).timestamp() * 1_000))


class Question(msgspec.Struct, frozen=True):
    """A question, with the ids of messages that answer it, and of those with an outdated answer."""

    id: str
    corpus: str
    kind: str
    question: str
    answer: str
    evidence: list[str]
    old: list[str] = []

    @property
    def newest(self) -> list[str]:
        """Return the evidence without outdated messages."""
        return [name for name in self.evidence if name not in self.old] or self.evidence


@dataclass(slots=True)
class Talk:
    """A conversation and the questions about it."""

    half: str
    name: str
    rows: Sequence[Said]
    questions: Sequence[Question]
    typed: Mapping[str, Said] = field(default_factory=dict)
    """The written messages, without filler."""

    def keys(self, ids: Iterable[str], question: Question) -> list[Key]:
        """Return what must be in a prompt, so that a model can read these messages."""
        return [_key(question, self.typed[one].text) for one in ids]

    def vague(self, count: int) -> list[str]:
        """Return lines of the filler, for a summary that says nothing."""
        answers = [line for row in self.rows if row.is_answer for line in row.text.splitlines()[-1:]]
        return [answers[at * len(answers) // count] for at in range(count)]

    def turns(self) -> list[list[Said]]:
        """Return the messages in groups. Each has a message of a person and the answers to it."""
        groups: list[list[Said]] = []
        for row in self.rows:
            if row.is_answer and groups:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def script(self) -> list[Turn]:
        """Return the turns in the form that the runs of the quality bench need."""
        empty: Turn = {"document": "", "calls": (), "results": (), "facts": (), "sentences": ()}
        texts = [(turn[0].text, "\n\n".join(row.text for row in turn[1:])) for turn in self.turns()]
        return [{**empty, "said": said, "answer": answer} for said, answer in texts]


def load(folder: Path = FOLDER, *, is_lengthened: bool = True) -> list[Talk]:
    """Return the conversations of all halves. Those with an assistant are lengthened with filler."""
    found = []
    for half in sorted(path.parent for path in folder.glob("*/questions.jsonl")):
        questions = _lines(half / "questions.jsonl", Question)
        for name in sorted({one.corpus for one in questions}):
            rows = _lines(half / f"{name}.jsonl", Said)
            asked = [one for one in questions if one.corpus == name]
            talk = Talk(half.name, name, rows, asked, {row.id: row for row in rows})
            if is_lengthened and any(row.is_answer for row in rows):
                talk.rows = [*_lengthened(talk, FILLER)]
            found.append(talk)
    return found


def _lines(path: Path, kind: Any) -> list[Any]:
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines() if line.strip()]


def _lengthened(talk: Talk, filler: Mapping[str, Sequence[str]]) -> Iterator[Said]:
    """Add requests until the person has typed `TYPED` tokens. Then lengthen all answers, up to `WHOLE` tokens."""
    chance, turns = random.Random(7), talk.turns()
    typed = sum(tokens(row.text) for row in talk.rows if not row.is_answer)
    topics = {id(turn): _pairs(turn[0].text) or ["it"] for turn in turns}
    while typed < TYPED:
        subject, place = chance.choice(filler["subjects"]), chance.randrange(len(turns))
        pieces = [chance.choice(filler[part]) for part in ("openings", "details", "closings")]
        text = f"{pieces[0]} It's about {subject}. {' '.join(pieces[1:])}"
        turns.insert(place + 1, [Said(f"filler {len(turns)}", turns[place][0].at, turns[place][0].who, text)])
        topics[id(turns[place + 1])] = [subject]
        typed += tokens(text)
    room = WHOLE - sum(tokens(row.text) for turn in turns for row in turn)
    for number, turn in enumerate(turns, 1):
        asked, answers = turn[0], turn[1:] or [Said(f"{turn[0].id} answer", turn[0].at, "assistant", "")]
        share, texts = room / (len(turns) - number + 1), [answers[-1].text]
        for line in cycle(chance.sample(filler["answers"], len(filler["answers"]))):
            if share <= 0:
                break
            texts.append(line.format(topic=chance.choice(topics[id(turn)])))
            share, room = share - tokens(texts[-1]) - 1, room - tokens(texts[-1]) - 1
        yield from (asked, *answers[:-1], msgspec.structs.replace(answers[-1], text=_paragraphs(texts)))


def _pairs(text: str) -> list[str]:
    """Return pairs of neighbouring words, as subjects of filler. Code and short words are left out."""
    words = [word for word in content("".join(text.split("```")[::2])) if word.isalpha() and len(word) > 3]
    return [" ".join(pair) for pair in pairwise(words)]


def _paragraphs(texts: Sequence[str]) -> str:
    rest = [" ".join(texts[at : at + 4]) for at in range(1, len(texts), 4)]
    return "\n\n".join(piece for piece in (texts[0], *rest) if piece)


# ---- words


def content(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower().replace("\u2019", "'")) if word not in _STOP]


@lru_cache(maxsize=40_000)
def _parts(piece: str, are_lines: bool) -> tuple[frozenset[str], ...]:
    """Return the words of each line, or of each sentence."""
    parts = piece.splitlines() if are_lines else _SENTENCE.split(piece)
    return tuple(frozenset(content(part)) for part in parts)


@lru_cache(maxsize=20_000)
def runs(text: str) -> frozenset[tuple[str, ...]]:
    """Return all runs of four words."""
    words = _WORD.findall(text.lower())
    return frozenset(tuple(words[at : at + 4]) for at in range(len(words) - 3))


def _key(question: Question, text: str) -> Key:
    answer = frozenset(content(question.answer))
    wanted = answer | frozenset(content(question.question))
    best = max(_parts(text, False), key=lambda one: (len(one & answer), len(one & wanted), len(one)))
    if len(best) > 1:
        return Key(best, best & answer, is_line=False)
    return Key(max(_parts(text, True), key=lambda line: len(line & (best | wanted))), best & answer, is_line=True)


@lru_cache(maxsize=1_000_000)
def _holds(piece: str, key: Key) -> bool:
    """Return True if a sentence of the text has the answer's words, and half of the words of the original sentence."""
    least = max(len(key.words) / 2, min(3, len(key.words)))
    return any(key.answer <= one and len(key.words & one) >= least for one in _parts(piece, key.is_line))


def shows(pieces: Sequence[str], keys: Sequence[Key]) -> bool:
    return all(any(_holds(piece, key) for piece in pieces) for key in keys)


def section(title: str, text: str) -> list[str]:
    """Return the lines of a section that code has added to the record in a prompt."""
    before = text.rpartition(END_MARKER)[0]
    return [
        line
        for line in before.partition(f"\n## {title}\n")[2].partition("\n## ")[0].splitlines()
        if line.startswith("- [")
    ]


def quote(line: str) -> str:
    """Return the words of a listed line, without its recall id."""
    return re.sub(r"^- \[[^\]]*\] ", "", line).rstrip("…").strip()


# ---- store


async def stored(store: Store, talk: Talk, *, is_reset: bool) -> tuple[ToolContext, dict[str, int]]:
    """Store a conversation as the gateway does. Return the place to search, and the row ids of the messages."""
    people = sorted({row.who for row in talk.rows if not row.is_answer})
    kind = ChatKind.GROUP if len(people) > 1 else ChatKind.DIRECT
    key = ChatKey(platform="telegram", account="telegram", chat_ref=f"{talk.half} {talk.name} {is_reset}")

    def fill(db: Connection) -> tuple[ToolContext, dict[str, int]]:
        chat_id = ensure_chat(db, key, kind, None, Millis(0))
        session, ids = ensure_active(db, chat_id, Millis(0)), {}
        for row in talk.rows:
            role, origin = (
                (MessageRole.ASSISTANT, Origin.ASSISTANT) if row.is_answer else (MessageRole.USER, Origin.HUMAN)
            )
            sender = (
                {} if row.is_answer else {"sender_ref": f"telegram:{people.index(row.who)}", "sender_name": row.who}
            )
            new = NewMessage(role=role, origin=origin, text=row.text, **sender)
            ids[row.id] = int(append(db, session.id, new, row.sent_at))
        if is_reset:
            session = reset(db, chat_id, talk.rows[-1].sent_at)
        place: dict[str, Any] = {"chat_id": chat_id, "lineage_id": session.lineage_id, "turn_id": TurnId(0), "epoch": 0}
        chat = {"chat": key, "chat_kind": kind, "started_by": UserRef("telegram:0")}
        return ToolContext(**place, **chat, store=store), ids

    return await store.write(fill)
