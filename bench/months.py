"""Synthetic months of chat: messages, answers, tool calls with results, documents, and the facts in them.

A fact is an identifier that only one sentence contains, next to a made-up name. People also state rules, revoke some of
them, make one-time wishes, and use a rule's words in casual sentences.
"""

import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.policies import Turn, tokens

SPEAKERS = {"people": 30, "answers": 25, "arguments": 15, "results": 20, "documents": 10}
"""Where facts are stated, in percent."""
USUAL, DENSE = 0.8, 3.4
"""Facts per 1,000 tokens."""
_SENTENCES = Path(__file__).parents[1] / "tests" / "agent" / "context" / "carried"
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ro", "su", "ta", "ver", "zin")
_HAN = "青岚松石柳湖云山海风竹梅兰桥塔灯河沙雪雁枫桐泉岩溪川岸峰林谷"


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """Words for one kind of chat."""

    language: str
    prose: tuple[tuple[str, ...], ...]
    """Parts of a sentence. One alternative of each part is chosen."""
    nouns: tuple[str, ...]
    topics: tuple[str, ...]
    said: tuple[str, ...]
    """Templates of sentences with a fact."""
    noise: tuple[str, ...]
    """Templates of lines in tool results, whose numbers change."""
    rules: tuple[str, ...]
    taken_back: tuple[tuple[str, str], ...]
    once: tuple[str, ...]


DOMAINS = msgspec.toml.decode((Path(__file__).with_suffix(".toml")).read_bytes(), type=dict[str, Domain])


def month(domain: str, turns: int, density: float, *, length: int = 1, seed: int = 3) -> list[Turn]:
    """Return the turns of a month in the form that `policies.simulate` needs.

    `length`: factor for the length of messages. 0 means small talk.
    """
    return list(_Month(DOMAINS[domain], random.Random(f"{domain} {seed}"), density, length).turns(turns))


class _Month:
    def __init__(self, words: Domain, chance: random.Random, density: float, length: int) -> None:
        self._words, self._chance, self._density, self._length = words, chance, density, length
        self._due, self._number = 0.0, 0

    def turns(self, count: int) -> Iterator[Turn]:
        wanted = self._sentences(count)
        for number in range(count):
            yield self._turn(number, wanted.get(number, []))

    def _sentences(self, count: int) -> dict[int, list[tuple[str, str]]]:
        """Return rule sentences by the number of their turn.

        Rules are stated in the first quarter of the month and revoked in the second.
        """
        words, placed = self._words, dict[int, list[tuple[str, str]]]()

        def place(share: float, kind: str, text: str) -> None:
            placed.setdefault(int(count * share), []).append((kind, text))

        for at, rule in enumerate(words.rules):
            place(0.25 * at / len(words.rules), "rule", rule)
        for at, (rule, back) in enumerate(words.taken_back):
            place(0.05 + 0.1 * at, "taken back", rule)
            place(0.3 + 0.1 * at, "take-back", back)
        for at, text in enumerate(words.once):
            place(0.1 + 0.2 * at, "once", text)
        traps = [one["text"] for one in sentences() if one["kind"] == "trap" and one["language"] == words.language]
        for at, text in enumerate(traps):
            place(0.8 * at / len(traps), "trap", text)
        return placed

    def _turn(self, number: int, wanted: Sequence[tuple[str, str]]) -> Turn:
        chance, length = self._chance, self._length
        parts = {
            "people": [self._prose() for _ in range(chance.randint(1, 1 + 4 * length))],
            "answers": [self._prose() for _ in range(chance.randint(1, 1 + 8 * length))],
            "arguments": [self._prose() for _ in range(chance.choice((0, 1, 1, 2)) * length)],
        }
        if parts["arguments"]:
            parts["results"] = [self._noise() for _ in range(chance.randint(8, 30 * length))]
        if number % 9 == 4:
            parts["documents"] = [self._prose() for _ in range(6 * length)]
        facts = []
        self._due += sum(tokens(line) for lines in parts.values() for line in lines) * self._density / 1_000
        while self._due >= 1:
            self._due -= 1
            who = chance.choices(list(SPEAKERS), list(SPEAKERS.values()))[0]
            if parts.get(who):
                fact, line = self._fact(who)
                facts.append(fact)
                self._due += tokens(line) * self._density / 1_000
                parts[who].insert(chance.randrange(len(parts[who]) + 1), line)
            else:
                self._due += 0.999
        joint = "" if self._words.language == "zh" else " "
        parts["people"] += [text for _, text in wanted]
        count = min(3, len(parts["arguments"]))
        calls = [self._call(joint.join(parts["arguments"][at::count])) for at in range(count)]
        results = parts.get("results", [])
        share = -(-len(results) // max(1, len(calls)))
        return {
            "said": f"{self._name()}: {joint.join(parts['people'])}",
            "document": "\n".join(parts.get("documents", [])),
            "calls": calls,
            "results": ["\n".join(results[at * share : (at + 1) * share]) for at in range(len(calls))],
            "answer": joint.join(parts["answers"]),
            "facts": facts,
            "sentences": wanted,
        }

    def _call(self, line: str) -> dict[str, Any]:
        self._number += 1
        arguments = json.dumps({"step": self._number, "note": line})
        function = {"name": "run", "arguments": arguments}
        return {"id": f"call_{self._number}", "number": self._number, "type": "function", "function": function}

    def _prose(self) -> str:
        return "".join(map(self._chance.choice, self._words.prose))

    def _noise(self) -> str:
        line = self._chance.choice(self._words.noise)
        while "{n}" in line:
            line = line.replace("{n}", str(self._chance.randint(10, 59)), 1)
        return line

    def _name(self) -> str:
        if self._words.language == "zh":
            return "".join(self._chance.choices(_HAN, k=2))
        return "".join(self._chance.choices(_SYLLABLES, k=4)).capitalize()

    def _fact(self, who: str) -> tuple[tuple[str, str, str, str, str], str]:
        """Return a fact (value, source, topic, name, noun) and the sentence that states it."""
        chance, words = self._chance, self._words
        number = chance.randrange(10_000, 99_999)
        forms = [
            *(
                f"OPS-{number}",
                f"/srv/{self._number}/k{number}.conf",
                f"10.{number % 250}.{number // 400}.{number % 9}",
            ),
            *(
                f"{number}{number % 7}",
                f"k{number}@example.org",
                f"{number % 31}.{number % 97}.{number}",
                f"030-{number}7",
            ),
            f"{number // 100}.{number % 90 + 10}",
        ]
        if words.language == "zh":
            forms.append(f"{self._name()}{number % 9_000 + 1_000}")
        value, key = chance.choice(forms), self._name()
        topic, noun = chance.choice(words.topics), chance.choice(words.nouns)
        line = chance.choice(words.said).format(key=key, noun=noun, value=value, topic=topic)
        return (value, who, topic, key, noun), line


def sentences() -> list[dict[str, str]]:
    """Return the corpus of rule sentences, each with its half.

    The blind half was written by someone who had not seen the patterns that detect rules.
    """
    halves = {"open": _SENTENCES / "rule_sentences.toml", "blind": _SENTENCES / "rule_sentences_blind.toml"}
    return [
        {**one, "half": half}
        for half, path in halves.items()
        if path.exists()
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["sentence"]
    ]
