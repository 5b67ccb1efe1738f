"""What the benchmark of sizes makes of what it has counted."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, cast

from bench.arrivals import Arrivals, arrivals
from bench.nodes import POSTGRESQL
from bench.replay import chat_completions
from bench.scale import MACHINE, Load, table
from bench.subjects import Lab


class Echo:
    """Telegram with a bot that has answered whatever is written when somebody looks."""

    def __init__(self) -> None:
        self.written = 0
        self._answers: list[dict[str, Any]] = []

    async def write(self, messages: Sequence[tuple[int, str]]) -> None:
        self.written += len(messages)
        self._answers += [{"chat_id": chat, "t": time.monotonic()} for chat, _ in messages]

    async def new_answers(self) -> list[dict[str, Any]]:
        answers, self._answers = self._answers, []
        return answers


def load(**shares: float) -> Load:
    """One node, with so many processors' time of each process."""
    used = {"Telegram": 0.0, "model": 0.0, "bench": 0.0, "statements": 600.0, "commits": 40.0, **shares}
    found = Arrivals(waits=[2.0, 2.1], unanswered=0, answered_per_second=10, per_second=used)
    return Load(nodes=1, rate=10, found=found, connections=5, most_connections=100)


def test_what_is_used_most_runs_out_first() -> None:
    used, what = load(**{"node 1": 0.4, POSTGRESQL: 0.1, MACHINE: 0.6}).bottleneck
    assert (used, what) == (0.4, "processor of the bot's node")


def test_a_machine_with_nothing_left_says_nothing_of_what_would_run_out_elsewhere() -> None:
    _, what = load(**{"node 1": 0.4, POSTGRESQL: 0.1, MACHINE: 999.0}).bottleneck
    assert what == "processors of this machine"


def test_messages_without_an_answer_show_in_the_longest_wait() -> None:
    made = load(**{"node 1": 0.4, POSTGRESQL: 0.1, MACHINE: 0.6})
    found = Arrivals(waits=[2.0, 31.0], unanswered=1, answered_per_second=10, per_second=made.found.per_second)
    assert "> 31.0 s" in table([Load(nodes=1, rate=10, found=found, connections=5, most_connections=100)])
    assert ">" not in table([made])


def test_an_answer_that_is_said_in_pieces_is_said_whole() -> None:
    text = "The tide comes in twice every day."
    for pieces in range(1, len(text) + 3):
        streamed, whole = chat_completions(text, pieces=pieces, seconds=2).values()
        events = [line[6:] for line in "".join(streamed.frames).splitlines() if line.startswith("data: {")]
        deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == text
        assert json.loads(whole.frames[0])["choices"][0]["message"]["content"] == text


def test_messages_of_the_warm_up_do_not_count() -> None:
    echo = Echo()
    here = cast(Lab, echo)  # all of it that is asked
    found = asyncio.run(arrivals(here, {}, 50, warm_up=0.1, seconds=0.1, first_chat=1))
    assert 0 < len(found.waits) < echo.written
    assert found.unanswered == 0
