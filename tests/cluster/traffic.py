"""People who write to a cluster, whatever happens to it, and what must hold when everything is answered."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.inbound.offline import GOES_ON, WAITS
from platforms.telegram.rendering import REPEAT_MARK
from tests.cluster.nodes import Cluster
from tests.cluster.program import lines_of
from tests.fakes.discord_state import ALICE
from tests.fakes.llm_legality import untidy

SETTLED_SECONDS = 60.0

# Purpose: what is not settled yet.
_OPEN = """
SELECT (SELECT count(*) FROM inbox WHERE state IN ('new','claimed'))
  + (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous'))
  + (SELECT count(*) FROM turns WHERE state IN ('running','waiting'))
"""
# Purpose: each message, and what its turn has answered.
_ANSWERED = """
SELECT m.text, a.text FROM messages m JOIN messages a ON a.turn_id = m.turn_id
WHERE m.inbox_id IS NOT NULL AND a.role = 'assistant' AND a.body IS NULL ORDER BY m.id
"""
# Purpose: turns without their one answer and its one reply.
_ODD_TURNS = """
SELECT t.id FROM turns t
WHERE (SELECT count(*) FROM messages a WHERE a.turn_id = t.id AND a.role = 'assistant' AND a.body IS NULL) <> 1
  OR (SELECT count(*) FROM outbox o WHERE o.turn_id = t.id AND o.part = 0) <> 1
"""
# Purpose: messages that are not in exactly one turn.
_ODD_MESSAGES = """
SELECT i.id, count(m.id) FROM inbox i LEFT JOIN messages m ON m.inbox_id = i.id GROUP BY i.id HAVING count(m.id) <> 1
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A chat in which somebody writes: on Telegram a number, below 0 for a group, or the one with Alice on Discord."""

    number: int

    @property
    def is_discord(self) -> bool:
        return self.number == 0


@dataclass(slots=True)
class Said:
    """A message, and when it was sent."""

    mark: str
    at: float


class Traffic:
    """Messages that somebody has written, each with a mark of its own that its answer repeats."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._said: dict[Place, list[Said]] = {}
        self._discord_channel: str | None = None

    @property
    def count(self) -> int:
        """Messages so far."""
        return sum(map(len, self._said.values()))

    async def say(self, place: Place, more: str = "") -> str:
        """Somebody writes; `{}` in `more` becomes the mark, which is returned."""
        said = self._said.setdefault(place, [])
        mark = f"m{abs(place.number)}{'g' * (place.number < 0)}-{len(said)}"
        text = f"{mark} {more.replace('{}', mark)}".strip()
        said.append(Said(mark, time.monotonic()))
        if place.is_discord:
            made = await self.cluster.dc.post("message", {"user_id": ALICE, "dm_user_id": ALICE, "content": text})
            self._discord_channel = str(made["channel_id"])
        elif place.number < 0:
            group = {"chat_id": place.number, "chat_type": "supergroup", "user_id": 42}
            await self.cluster.tg.post("message", {**group, "text": f"@lab_gateway_bot {text}"})
        else:
            await self.cluster.say(text, chat_id=place.number)
        return mark

    async def run(self, places: Sequence[Place], count: int, pause: float, more: Sequence[str] = ("",)) -> None:
        """In each chat somebody writes `count` messages without waiting for an answer."""

        async def write(place: Place, index: int) -> None:
            for number in range(count):
                await self.say(place, more[(index + number) % len(more)])
                await asyncio.sleep(pause)  # people take their time

        await asyncio.gather(*(write(place, index) for index, place in enumerate(places)))

    async def settle(self) -> None:
        """Wait until every message has come in and nothing is open."""
        async with asyncio.timeout(SETTLED_SECONDS):
            while not self._is_settled():  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # a database of other processes has no event to wait for

    def _is_settled(self) -> bool:
        [(stored,)] = self.cluster.query("SELECT count(*) FROM inbox")
        return bool(stored == self.count and self.cluster.query(_OPEN) == [(0,)])

    async def check(self, faults: int, since: float = 0.0) -> float:
        """Everything that was promised holds, after so many `faults`; returns the longest wait for an answer, in
        seconds, counted from `since` for what was said before."""
        await self.settle()
        found = [*self._stored_problems(), *self._tool_problems()]
        found += [f"the model was sent {row}" for row in untidy(await self.cluster.violations())]
        for place in self._said:
            expected = self._answers(place)
            found += problems_on_screen(place, await self._visible(place), expected, faults)
        assert not found, "\n".join(found)
        return max([await self.longest_wait(place, since) for place in self._said])

    def _stored_problems(self) -> list[str]:
        query = self.cluster.query
        found = [f"turn {turn_id} has not one answer" for (turn_id,) in query(_ODD_TURNS)]
        found += [f"inbox row {row_id} is in {count} transcript rows" for row_id, count in query(_ODD_MESSAGES)]
        for table, settled in (("inbox", "done"), ("outbox", "sent"), ("turns", "finished")):
            states = query(f"SELECT state, count(*) FROM {table} WHERE state <> ? GROUP BY state", settled)
            found += [f"{count} rows of {table} are {state}" for state, count in states]
        stored = [marks_in(text)[0] for text, _ in query(_ANSWERED)]
        for said in self._said.values():
            marks = [one.mark for one in said]
            if (order := [mark for mark in stored if mark in marks]) != marks:
                found.append(f"{marks} were answered as {order}")
        return found

    def _tool_problems(self) -> list[str]:
        """No tool that writes has run twice; one whose outcome is known has run."""
        found, written = [], Counter(lines_of(self.cluster.notebook))
        found += [f"{line!r} was written {count} times" for line, count in written.items() if count > 1]
        runs = Counter(state for (state,) in self.cluster.query("SELECT state FROM tool_runs"))
        if set(runs) - {"done", "unknown"} or not runs["done"] <= len(written) <= runs.total():
            found.append(f"tools are {dict(runs)}, and {len(written)} lines were written")
        return found

    def _answers(self, place: Place) -> list[str]:
        by_mark = {marks_in(text)[0]: answer for text, answer in self.cluster.query(_ANSWERED)}
        return [by_mark.get(one.mark, f"(none for {one.mark})") for one in self._said[place]]

    async def _visible(self, place: Place) -> list[str]:
        if not place.is_discord:
            return await self.cluster.visible(place.number)
        rows = await self.cluster.dc.get("messages", channel_id=self._discord_channel)
        return [row["content"] for row in rows if row["author"].get("bot")]

    async def longest_wait(self, place: Place, since: float = 0.0) -> float:
        """Most seconds from a message, or from `since`, to the first sight of its answer."""
        if place.is_discord:
            rows = await self.cluster.dc.get("sent", channel_id=self._discord_channel)
        else:
            rows = await self.cluster.tg.get("sent", chat_id=place.number)
        seen: dict[str, float] = {}
        for row in rows:
            seen.setdefault((row["text"] or "").removeprefix(REPEAT_MARK), row["t"])
        said = zip(self._said[place], self._answers(place), strict=True)
        return max(seen[answer] - max(one.at, since) for one, answer in said)


def problems_on_screen(place: Place, visible: Sequence[str], expected: Sequence[str], faults: int) -> list[str]:
    """Each answer once and in order; another copy only with the mark of a possible repeat, one for each fault.

    A placeholder whose id was lost with its node may be left above its answer.
    """
    found, where = [], f"in chat {place.number}"
    shown, wanted = Counter(visible), Counter(expected)
    for text, count in wanted.items():
        plain, marked = shown.pop(text, 0), shown.pop(REPEAT_MARK + text, 0)
        if plain > count or plain + marked < count or marked > faults:
            found.append(f"{text!r} is on screen {plain} times and {marked} times as a possible repeat {where}")
    for notice in (WAITS, GOES_ON):  # a database may be away for as long as that
        shown.pop(notice, None)
    left = [text for text in shown if not any(answer.startswith(text.rstrip(" ▌…")) for answer in expected)]
    found += [f"nobody expects {text[:80]!r} {where}" for text in left]
    if shown.total() > faults:
        found.append(f"{shown.total()} placeholders are left {where}: {list(shown)}")
    answers = (text.removeprefix(REPEAT_MARK) for text in visible)
    order = list(dict.fromkeys(text for text in answers if text in wanted))
    if order != list(dict.fromkeys(expected)):
        found.append(f"the order is {order} {where}")
    return found


def marks_in(text: str) -> list[str]:
    """Marks of messages."""
    return re.findall(r"\bm\d+g?-\d+\b", text) or ["?"]
