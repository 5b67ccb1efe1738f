"""Side effects of model calls on other chats and earlier steps, and cancelled calls.

Over every protocol, streamed and whole.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hermes_state import journal
from tests.agent.conftest import Chat, Sink
from tests.agent.model.ways import ASKED, WAYS, Talk, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

Json = dict[str, Any]

NOTED = {"name": "note", "arguments": {"text": "done"}}
PARTIAL = "one two "

every_way = pytest.mark.parametrize("way", WAYS, ids=str)


def answers(llm: LLM) -> list[str]:
    """Return the outcome of every request, as seen by the server."""
    return [row["outcome"] for row in llm.requests.rows]


@every_way
async def test_a_requested_pause_is_respected(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    llm.scripts.append({"times": 1, "reply": {"error": {"kind": "429", "retry_after": 0.3}}})
    async with way.dialled(server.url) as model:
        assert (await Talk(chat, model).say("go")).outcomes == ["rate_limited", "ok"]
    first, second = (row["t"] for row in llm.requests.rows)
    assert second - first >= 0.3


@every_way
async def test_a_turn_that_fails_after_a_tool_keeps_the_result(way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    llm.add_scripts([{"last_role": "user", "tool_calls": [NOTED]}, {"last_role": "tool", "error": {"kind": "401"}}])
    async with way.dialled(server.url) as model:
        talk = Talk(chat, model)
        left = await talk.say("go")
        assert left.outcomes == ["ok", "auth"]
        assert [role for role, _ in left.rows] == ["user", "assistant", "tool"]
        again = await talk.say("what have you noted? [[recall:noted]]")
    assert again.outcomes == ["ok"]
    assert "noted" in again.told[0][1]
    assert talk.noted == ["done"]


HANGS: dict[str, Callable[[Way], Json]] = {
    "before anything": lambda way: {"hang": True},
    "after some": lambda way: {"text": PARTIAL * 4, "chunk_chars": 4, "hang_after": way.before_text + 2},
    "in a call": lambda way: {"tool_calls": [NOTED], "chunk_chars": 4, "hang_after": way.before_arguments + 2},
}


class Watching(Sink):
    """Sink that signals when it has received everything that the server sends before it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.has_come = asyncio.Event()

    def show(self, text: str) -> None:
        super().show(text)
        if text == PARTIAL:
            self.has_come.set()


@every_way
@pytest.mark.parametrize("where", HANGS)
async def test_cancelled_calls_are_closed_and_noted(where: str, way: Way, chat: Chat, server: Server, llm: LLM) -> None:
    llm.scripts.append({"times": 1, "reply": HANGS[where](way)})
    async with way.dialled(server.url) as model:
        talk, sink = Talk(chat, model), Watching()
        turn = await chat.start("go")
        asked = asyncio.create_task(talk.agent.run(turn, sink))
        assert await llm.requests.query({"wait": 20}, lambda row: row["outcome"] == "hung")
        if way.streams and where == "after some":
            async with asyncio.timeout(10):
                await sink.has_come.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await gone(llm), "the server sees the closed connection"
        partial = sink.shown[-1] if sink.shown else ""
        assert await chat.store.write(journal.stop_turn, turn, partial, "stopped", chat.clock.now(), notice="(stopped)")

        left = await talk.left(turn)
        assert left.calls == [("cancelled", "estimated")]
        assert left.rows == [ASKED, *([("assistant", PARTIAL.strip())] if partial else [])]
        assert (bool(partial), talk.noted) == (way.streams and where == "after some", [])
        assert (await talk.say("and now?")).outcomes == ["ok"]
    assert answers(llm) == ["client_gone", "ok"]


async def gone(llm: LLM) -> bool:
    return bool(await llm.requests.query({"wait": 20}, lambda row: row["outcome"] == "client_gone"))
