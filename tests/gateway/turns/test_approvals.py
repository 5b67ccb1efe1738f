"""Questions that nobody answers expire, and their turns go on with a no."""

from pathlib import Path
from typing import Any

from agent.tools.registry import Tool, ToolContext, tool
from hermes_state.store.writer import Store
from hermes_state.values import Millis, SystemClock, ToolEffect
from tests.gateway.helpers import answer, calls, eventually, serving


class LateClock(SystemClock):
    """The machine's clock, which can be put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now(self) -> Millis:
        return Millis(super().now() + self.ahead_ms)


def writing(ran: list[str]) -> Tool:
    @tool(name="write_down", description="Writes.", parameters={"type": "object"}, effect=ToolEffect.WRITES)
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        ran.append("ran")
        return "written"

    return run


async def test_a_question_expires_and_its_turn_goes_on_with_a_no(store: Store, tmp_path: Path) -> None:
    ran: list[str] = []
    clock, asks = LateClock(), {"approval": {"writes": "ask"}}
    async with serving(store, tmp_path, tools=[writing(ran)], clock=clock, tools_block=asks) as gateway:
        gateway.model.script += [calls("write_down"), answer("then not")]
        await gateway.say("write it down")
        await eventually(lambda: any("May I use" in text for text in gateway.adapter.texts()), "it asks")
        clock.ahead_ms = 61 * 60_000
        gateway.asked.set()
        await eventually(lambda: "then not" in gateway.adapter.texts(), "the turn goes on")
        assert ran == []
        assert await gateway.rows("SELECT state, decided_by FROM approvals") == [("expired", "")]
        assert "nobody answered" in str(gateway.model.requests[-1].transcript[-1].text)
