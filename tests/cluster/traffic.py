"""People who write to a cluster during failures, and checks that every message is answered as promised."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.inbound.admission import GOES_ON, WAITS
from platforms.telegram.rendering import REPEAT_MARK
from tests.cluster.nodes import Cluster
from tests.cluster.program import lines_of
from tests.fakes.discord_state import ALICE
from tests.fakes.llm_legality import untidy

SETTLED_SECONDS = 60.0

# Purpose: count the rows that are not settled yet.
_OPEN = """
SELECT (SELECT count(*) FROM inbox WHERE state IN ('new','claimed'))
  + (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous'))
  + (SELECT count(*) FROM turns WHERE state IN ('running','waiting'))
"""
# Purpose: find each message and the answer of its turn.
_ANSWERED = """
SELECT m.text, a.text FROM messages m JOIN messages a ON a.turn_id = m.turn_id
WHERE m.inbox_id IS NOT NULL AND a.role = 'assistant' AND a.body IS NULL ORDER BY m.id
"""
# Purpose: find turns that do not have exactly one answer and one reply.
_ODD_TURNS = """
SELECT t.id FROM turns t
WHERE (SELECT count(*) FROM messages a WHERE a.turn_id = t.id AND a.role = 'assistant' AND a.body IS NULL) <> 1
  OR (SELECT count(*) FROM outbox o WHERE o.turn_id = t.id AND o.part = 0) <> 1
"""
# Purpose: find messages that are not in exactly one turn.
_ODD_MESSAGES = """
SELECT i.id, count(m.id) FROM inbox i LEFT JOIN messages m ON m.inbox_id = i.id GROUP BY i.id HAVING count(m.id) <> 1
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A chat: the number of a Telegram chat (negative for a group), or 0 for the direct chat with Alice on Discord."""

    number: int

    @property
    def is_discord(self) -> bool:
        return self.number == 0


@dataclass(slots=True)
class Said:
    """A message, and the time when it was sent."""

    mark: str
    at: float


class Traffic:
    """All messages that people have sent. Each contains a unique mark, which its answer repeats."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._said: dict[Place, list[Said]] = {}
        self._discord_channel: str | None = None

    @property
    def count(self) -> int:
        """Number of messages sent so far."""
        return sum(map(len, self._said.values()))

    async def say(self, place: Place, more: str = "") -> str:
        """Send a message with a new mark, and return the mark. It also replaces `{}` in `more`."""
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
        """Send `count` messages to each chat without waiting for answers."""

        async def write(place: Place, index: int) -> None:
            for number in range(count):
                await self.say(place, more[(index + number) % len(more)])
                await asyncio.sleep(pause)  # people do not write all messages at once

        await asyncio.gather(*(write(place, index) for index, place in enumerate(places)))

    async def settle(self) -> None:
        """Wait until every message has arrived and all work is done."""
        async with asyncio.timeout(SETTLED_SECONDS):
            while not self._is_settled():  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the database belongs to other processes, so there is no event to wait for

    def _is_settled(self) -> bool:
        [(stored,)] = self.cluster.query("SELECT count(*) FROM inbox")
        return bool(stored == self.count and self.cluster.query(_OPEN) == [(0,)])

    async def check(self, faults: int, since: float = 0.0) -> float:
        """Check all promises after this number of `faults`, and return the longest wait for an answer in seconds. The
        wait for messages that were sent before `since` counts from `since`."""
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
        """Check that no tool ran twice, and that every tool with a known outcome ran."""
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
        """Return the longest time from a message, or from `since`, until its answer was first visible."""
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
    """Check that each answer is visible once and in order.

    Each fault allows one more copy, marked as a possible repeat. It also allows a placeholder that its node lost.
    """
    found, where = [], f"in chat {place.number}"
    shown, wanted = Counter(visible), Counter(expected)
    for text, count in wanted.items():
        plain, marked = shown.pop(text, 0), shown.pop(REPEAT_MARK + text, 0)
        if plain > count or plain + marked < count or marked > faults:
            found.append(f"{text!r} is on screen {plain} times and {marked} times as a possible repeat {where}")
    for notice in (WAITS, GOES_ON):  # the database can be unavailable for long enough to show these notices
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
    """Return the marks in a text."""
    return re.findall(r"\bm\d+g?-\d+\b", text) or ["?"]
