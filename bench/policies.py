"""Other policies for keeping a conversation inside a context window, and the figures that are measured for each policy.

It imports nothing of our code, so that `python policies.py FILE` also runs with an interpreter that has hermes-agent
0.19.0. FILE has months as JSON. The output is one JSON list of figures. The stand-ins below replace the model that
writes summaries.
"""

import importlib
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

StandInKind = Literal["shortens", "omits", "invents", "nothing"]
Messages = list[dict[str, Any]]
Turn = Mapping[str, Any]
"""A turn of a month, with `said`, `document`, `calls`, their `results`, `answer`, `facts` and `sentences`."""

TITLES = (
    *("Active Task", "Goal", "Constraints & Preferences", "Completed Actions", "Active State", "In Progress"),
    *("Blocked", "Key Decisions", "Resolved Questions", "Pending User Asks", "Relevant Files", "Remaining Work"),
    "Critical Context",
)
CACHED_PRICE, OUTPUT_PRICE = 0.1, 5.0
"""Price of a cached token and of an output token, as multiples of the input price."""
TARGET_SHARE = 0.9
"""Length of a summary, as a share of the requested length."""
FOCUS_SHARE = 0.65
INVENTED_EVERY = 4
"""The stand-in that invents makes up one in this many lines."""

_NAME = re.compile(r"[\u4e00-\u9fff]{2}\d{4}|[A-Za-z0-9@_./:+-]*\d[A-Za-z0-9@_./:+-]*")
_TARGET = re.compile(r"(?:about|~) ?([\d,]+) tokens")
_MATERIAL = re.compile(
    r"<(earlier_record|conversation)>\n(.*)\n</\1>|(PREVIOUS SUMMARY|NEW TURNS TO INCORPORATE|TURNS TO SUMMARIZE):\n"
    r"(.*?)\n\n(?=NEW TURNS TO INCORPORATE|Update the summary using|Use this exact)",
    re.DOTALL,
)
_FOCUS = re.compile(r'Focus topic: "(.*?)"', re.IGNORECASE)
_PIECE = re.compile(r"\S[^\n。]{1,170}(?:[。\n]|(?<=[.!?]) |\s|$)")


def tokens(text: str) -> int:
    """Return the number of tokens in `text`, as a provider's stand-in counts them."""
    narrow = len(text.encode("ascii", "ignore"))
    return narrow // 4 + (len(text) - narrow) * 3 // 4


@lru_cache(maxsize=60_000)
def names(piece: str) -> frozenset[str]:
    """Return the identifiers in `piece`."""
    return frozenset(match.rstrip(".:/-+") for match in _NAME.findall(piece))


class StandIn:
    """Writes summaries without a model: lines from the prompt, at equal distances, under the usual headings.

    `omits`: the lines lose their identifiers. `invents`: every fourth line has an identifier that nobody ever used.
    `nothing`: the summary consists only of these lines, whatever the prompt contains.
    """

    def __init__(self, kind: StandInKind, lines: Sequence[str] = ()) -> None:
        self.kind = kind
        self.lines = lines
        self.invented: set[str] = set()
        self._chance = random.Random(5)

    def write(self, prompt: str) -> str:
        """Return the summary that a prompt asks for."""
        if self.kind == "nothing":
            return "\n\n".join(f"## {title}\n- {line}" for title, line in zip(TITLES, self.lines, strict=True))
        found = _TARGET.search(prompt)
        room = int(found[1].replace(",", "")) * TARGET_SHARE if found else 900.0
        material = "\n".join(match[2] or match[4] or "" for match in _MATERIAL.finditer(prompt)) or prompt
        pieces = [piece.strip() for piece in _PIECE.findall(material)]
        focus = _FOCUS.search(prompt)
        if focus:
            on_topic = [piece for piece in pieces if focus[1] in piece]
            lines = self._spread(on_topic, room * FOCUS_SHARE)
            lines += self._spread([piece for piece in pieces if focus[1] not in piece], room * (1 - FOCUS_SHARE))
        else:
            lines = self._spread(pieces, room)
        share = -(-len(lines) // len(TITLES))
        parts = [lines[at * share : (at + 1) * share] for at in range(len(TITLES))]
        return "\n\n".join(
            f"## {title}\n" + ("\n".join(f"- {line}" for line in part) or "None.")
            for title, part in zip(TITLES, parts, strict=True)
        )

    def _spread(self, pieces: Sequence[str], room: float) -> list[str]:
        """Return lines at equal distances, with about `room` tokens in total."""
        whole = sum(map(tokens, pieces)) or 1
        count = min(len(pieces), max(1, int(len(pieces) * room / whole)))
        lines = [pieces[at * len(pieces) // count] for at in range(count)] if pieces else []
        if self.kind == "omits":
            return [" ".join(_NAME.sub("that one", re.sub(r"[`\"“”「」]", "", line)).split()) for line in lines]
        if self.kind == "invents":
            return [self._made_up() if at % INVENTED_EVERY == 1 else line for at, line in enumerate(lines)]
        return lines

    def _made_up(self) -> str:
        number = self._chance.randrange(10_000, 99_999)
        made = {f"INV-{number}", f"10.77.{number % 250}.{number // 400}"}
        self.invented |= made
        return f"The rollback {' moved to '.join(sorted(made, reverse=True))} after the second look."


class Meter:
    """Figures of one month: the share of facts that prompts contain, token counts, and the price."""

    def __init__(self, turns: int, *, every: bool = False, keep: Collection[int] = ()) -> None:
        """`turns`: number of turns, of which only the second half is measured. `every`: measure all turns.

        `keep`: numbers of the turns whose prompts are kept.
        """
        self._keep = keep
        self.kept: list[Sequence[str]] = []
        self._from = 0 if every else turns // 2
        self._said: list[tuple[str, str, str]] = []
        self._shown: dict[str, list[float]] = defaultdict(list)
        self._prompts: list[int] = []
        self._before: Sequence[str] = ()
        self.price = 0.0
        self.read = self.read_by_summaries = 0
        self.summaries: list[tuple[int, int]] = []
        """Numbers of tokens that each summary call read and wrote."""

    def say(self, facts: Iterable[Sequence[str]]) -> None:
        """Add a turn's facts. Each has a value, a source and a topic."""
        self._said += [(fact[0], fact[1], fact[2]) for fact in facts]

    def look(self, turn: int, pieces: Sequence[str]) -> None:
        """Measure the prompt of a turn's first call."""
        if turn in self._keep:
            self.kept.append(pieces)
        if turn < self._from:
            return
        shown = frozenset[str]().union(*map(names, pieces))
        groups = defaultdict(list)
        for value, who, topic in self._said:
            for group in ("all", who, topic):
                groups[group].append(value in shown)
        for group, found in groups.items():
            self._shown[group].append(sum(found) / len(found))
        self._prompts.append(sum(map(tokens, pieces)))

    def call(self, pieces: Sequence[str], written: int) -> tuple[int, int]:
        """Count a turn's call. Return its prompt's tokens, and how many of these are cached."""
        same = next((at for at, pair in enumerate(zip(pieces, self._before, strict=False)) if pair[0] != pair[1]), None)
        cached = sum(map(tokens, pieces[: min(len(pieces), len(self._before)) if same is None else same]))
        whole = sum(map(tokens, pieces))
        self._before = pieces
        self.read += whole
        self.price += whole - cached + cached * CACHED_PRICE + written * OUTPUT_PRICE
        return whole, cached

    def summary(self, prompt: str, text: str) -> tuple[int, int]:
        """Count a summary call, whose prompt is never cached."""
        read, written = tokens(prompt), tokens(text)
        self.read_by_summaries += read
        self.price += read + written * OUTPUT_PRICE
        self.summaries.append((read, written))
        return read, written

    def figures(self) -> dict[str, float]:
        """Return the mean share of facts in prompts by group, the mean prompt size, the price, and the summaries."""
        shares = {group: sum(found) / len(found) for group, found in self._shown.items()}
        prompt = sum(self._prompts) / max(1, len(self._prompts))
        return {**shares, "prompt": prompt, "price": self.price, "summaries": len(self.summaries)}


def piece_of(message: dict[str, Any]) -> str:
    """Return all text that a model reads in a message, with calls' arguments as readable JSON."""
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = [_spoken(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return "\n".join([f"{message['role']}: {text}", *calls])


@lru_cache(maxsize=10_000)
def _spoken(arguments: str) -> str:
    return json.dumps(json.loads(arguments), ensure_ascii=False)


# ---- policies


Policy = Callable[[Messages, Meter], Messages]
"""Removes messages before a model call, if necessary."""


def keep_everything(window: int, stand_in: StandIn) -> Policy:
    """Never remove anything, as if the window had no limit."""
    return lambda messages, meter: messages


def drop_oldest(window: int, stand_in: StandIn) -> Policy:
    """When half of the window is used, drop the oldest turns until only a quarter is used."""

    def room(messages: Messages, meter: Meter) -> Messages:
        if _size(messages) < window // 2:
            return messages
        return [messages[0], *messages[_tail_from(messages, window // 4) :]]

    return room


def lean(window: int, stand_in: StandIn) -> Policy:
    """Emulate the newest upstream policy, from its description.

    It runs when 75 % of the window is used. It keeps a tail of 2.5 % of the window (10,000 to 25,000 tokens, but at
    most 20 % of the window). Before the tail come a log of 4,000 tokens, 1,750 tokens of the most frequent identifiers,
    and the newest 6,000 tokens of people's messages. These three are scaled down to at most 20 % of the window. Tool
    results over 1,500 characters become stubs, except in the newest six rounds.
    """
    anchors: Counter[str] = Counter()
    people: list[str] = []
    scale = min(1.0, window / 5 / 11_750)

    def room(messages: Messages, meter: Meter) -> Messages:
        if _size(messages) < window * 3 // 4:
            return messages
        start = _tail_from(messages, min(max(window // 40, 10_000), 25_000, window // 5))
        middle = messages[1:start]
        fresh = [message for message in middle if not message.get("is_record")]
        for message in fresh:
            anchors.update(names(piece_of(message)))
        people.extend(message["content"][:4_000] for message in fresh if message["role"] == "user")
        shown = "\n".join(map(piece_of, middle))[:160_000]
        prompt = f"Write a log of about {4_000 * scale:,.0f} tokens.\n<conversation>\n{shown}\n</conversation>"
        log = stand_in.write(prompt)
        meter.summary(prompt, log)
        index = _within([name for name, _ in anchors.most_common()], 1_750 * scale)
        said = _within(people[::-1], 6_000 * scale)[::-1]
        record = {"role": "user", "content": "\n".join([log, " ".join(index), *said]), "is_record": True}
        return [messages[0], record, *_stubbed(messages[start:])]

    return room


def _size(messages: Messages) -> int:
    return sum(tokens(piece_of(message)) for message in messages)


def _tail_from(messages: Messages, budget: int) -> int:
    """Return the index of the first message to keep, so that at most `budget` tokens are kept.

    The newest turn is always kept, and a tool result never stays without its call.
    """
    start = max(at for at, message in enumerate(messages) if message["role"] == "user")
    used = _size(messages[start:])
    for at in range(start - 1, 0, -1):
        used += tokens(piece_of(messages[at]))
        if used > budget:
            break
        if messages[at]["role"] != "tool":
            start = at
    return start


def _within(texts: Sequence[str], room: float) -> list[str]:
    """Return as many of the first texts as fit into `room` tokens."""
    used = list(accumulate(tokens(text) + 1 for text in texts))
    return [text for text, upto in zip(texts, used, strict=True) if upto <= room]


def _stubbed(tail: Messages) -> Messages:
    rounds = [at for at, message in enumerate(tail) if message.get("tool_calls")]
    upto = rounds[-6] if len(rounds) >= 6 else 0
    return [
        {**message, "content": "[an old result]"}
        if at < upto and message["role"] == "tool" and len(message["content"]) > 1_500
        else message
        for at, message in enumerate(tail)
    ]


def hermes_agent(window: int, stand_in: StandIn) -> Policy:
    """Return hermes-agent's compressor with its default settings.

    This only works in an interpreter that has hermes-agent.
    """
    engine: Any = importlib.import_module("agent.context_compressor")
    compressor = engine.ContextCompressor("bench", quiet_mode=True, config_context_length=window)

    def room(messages: Messages, meter: Meter) -> Messages:
        size = _size(messages)
        if not compressor.should_compress(size):
            return messages

        def call_llm(**call: Any) -> Any:
            prompt = "".join(str(message["content"]) for message in call["messages"])
            text = stand_in.write(prompt)
            meter.summary(prompt, text)
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))], usage=None)

        engine.call_llm = call_llm
        made: Messages = compressor.compress([dict(message) for message in messages], current_tokens=size)
        compressor.update_from_response({"prompt_tokens": _size(made)})
        return made

    return room


REMEDIES = {"keep everything": keep_everything, "drop oldest": drop_oldest, "lean, emulated": lean}


def simulate(
    month: Sequence[Turn],
    system: str,
    window: int,
    make: Callable[[int, StandIn], Policy],
    stand_in: StandIn | None = None,
    meter: Meter | None = None,
) -> dict[str, float]:
    """Return the figures of a month under a policy, by default with the stand-in that shortens."""
    meter, policy = meter or Meter(len(month)), make(window, stand_in or StandIn("shortens"))
    messages: Messages = [{"role": "system", "content": system}]
    for number, turn in enumerate(month):
        meter.say(turn["facts"])
        messages.append({"role": "user", "content": f"{turn['said']}\n{turn['document']}".strip()})
        answer = {"role": "assistant", "content": turn["answer"]}
        replies = [{"role": "assistant", "content": "", "tool_calls": turn["calls"]}] if turn["calls"] else []
        for step, reply in enumerate([*replies, answer]):
            messages = policy(messages, meter)
            pieces = [piece_of(message) for message in messages]
            if step == 0:
                meter.look(number, pieces)
            meter.call(pieces, tokens(piece_of(reply)))
            messages.append(reply)
            for call, result in zip(reply.get("tool_calls", ()), turn["results"], strict=False):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return meter.figures()


def main() -> None:
    found: list[Mapping[str, Any]] = []
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        meter = Meter(len(job["month"]), keep=job.get("keep", ()))
        stand_in = StandIn("nothing", job["lines"]) if "lines" in job else StandIn("shortens")
        figures = simulate(job["month"], job["system"], job["window"], hermes_agent, stand_in, meter)
        found.append({**figures, "kept": meter.kept})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
