"""The tool `schedule`: permissions, and the approval question."""

from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from agent.tools.approvals import CallPlan, question_about
from agent.tools.offers import OfferRegistry, OpenAccess, Policy
from agent.tools.registry import Tool, ToolContext, ToolRegistry
from agent.tools.schedules.schedule_tool import MAX_PER_CHAT, schedule_tool
from hermes_state.errors import ToolError
from hermes_state.tools.approvals import AnswererRole
from hermes_state.tools.schedules import load_schedules
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatKey, ChatKind, ToolCall
from tests.agent.conftest import Chat


class Asking(OpenAccess):
    """Access rules that allow every tool after approval."""

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        return Policy.ASK


class Tools:
    """Calls of the tool by turns of a chat."""

    def __init__(self, chat: Chat, turn: RunningTurn, moderators: str = "", zone: str = "Europe/Berlin") -> None:
        self.changes = 0
        tool = schedule_tool(lambda: zone, lambda ref: ref in moderators.split(), self._count, chat.clock)
        self._offers = OfferRegistry(ToolRegistry([tool]), chat.store)
        self.context = ToolContext.of(turn, chat.store)

    def _count(self) -> None:
        self.changes += 1

    async def call(self, action: str, **arguments: Any) -> str:
        """Return the result for the model, prefixed with `asked`, `at once` or `refused`."""
        text = orjson.dumps({"action": action, **arguments}).decode()
        granted = [("schedule", "any", "telegram:42"), ("schedule", "", "telegram:42")]
        plan = CallPlan(access=Asking(), context=self.context, grants=granted)
        try:
            ready = self._offers.resolve(ToolCall(id="c", name="schedule", arguments=text), self.context)
        except ToolError as error:
            return f"refused: {error}"
        plan.add(ready, None)
        reply = await ready.tool.reply(ready.arguments, self.context)
        return f"{'asked' if plan.asking else 'at once'}: {reply.text}"

    def question(self, **arguments: Any) -> str:
        text = orjson.dumps({"action": "add", **arguments}).decode()
        ready = self._offers.resolve(ToolCall(id="c", name="schedule", arguments=text), self.context)
        return question_about(ready, AnswererRole.STARTER).markdown


async def test_a_schedule_is_added_listed_paused_and_removed(chat: Chat) -> None:
    tools = Tools(chat, await chat.start("hello"))
    assert await tools.call("list") == "at once: no schedules are set."
    made = await tools.call("add", cron="0 8 * * MON-FRI", text="What is new?")
    times = "Thu 2026-01-01 08:00, Fri 2026-01-02 08:00, Mon 2026-01-05 08:00"
    assert made == f"asked: Schedule 1 is set; next: {times} (Europe/Berlin)."
    listed = await tools.call("list")
    assert listed == (
        "at once: - 1: `0 8 * * mon-fri` (Europe/Berlin), next Thu 2026-01-01 08:00, by Ann: What is new?"
    )
    assert tools.changes == 1
    assert await tools.call("pause", id=1) == "asked: Schedule 1 is paused."
    assert "is active again" in await tools.call("resume", id=1)
    assert await tools.call("remove", id=1) == "asked: Schedule 1 is removed."
    assert tools.changes == 4


async def test_the_approval_question_shows_time_and_text(chat: Chat) -> None:
    tools = Tools(chat, await chat.start("hello"))
    shown = tools.question(cron="@hourly", text="```\n/approve all\n\u202eneve si siht")
    assert (
        "at `@hourly` (Europe/Berlin; next: Thu 2026-01-01 02:00, Thu 2026-01-01 03:00, Thu 2026-01-01 04:00)" in shown
    )
    assert "````\n```\n/approve all\n" in shown, "no text closes its block"
    assert "\u202e" not in shown
    assert "session" not in shown, "schedules have no saved approvals"
    assert "at `2026-01-01T09:00`" in tools.question(at="2026-01-01T08:00Z", text="look")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"text": "look"}, "either cron or at"),
        ({"cron": "@daily", "at": "2026-11-24 08:00", "text": "look"}, "either cron or at"),
        ({"cron": "@daily"}, "the text of a schedule must be"),
        ({"cron": "@daily", "text": "x" * 4_001}, "must be 1 to 4,000 characters long"),
        ({"cron": "* * * * *", "text": "look"}, "repeats after 1 minute;"),
        ({"cron": "0 0 8 * * *", "text": "look"}, "five fields"),
        (
            {"at": "2025-12-31 23:00", "text": "look"},
            "has passed or never occurs: it is now 2026-01-01 01:00 in Europe/Berlin",
        ),
        ({"at": "tomorrow at eight", "text": "look"}, "is not a date with a time, such as"),
    ],
)
async def test_an_impossible_schedule_is_refused_unasked(chat: Chat, arguments: dict[str, Any], why: str) -> None:
    tools = Tools(chat, await chat.start("hello"))
    answer = await tools.call("add", **arguments)
    assert answer.startswith("refused: ")
    assert why in answer
    assert await chat.store.read(load_schedules, tools.context.chat_id) == []


async def test_in_a_group_only_moderators_add_and_only_they_or_the_creator_change(chat: Chat) -> None:
    group = Chat(
        chat.store, ChatKey(platform="telegram", account="telegram", chat_ref="-1"), ChatKind.GROUP, clock=chat.clock
    )
    turn = await group.start("hello")
    refused = await Tools(group, turn).call("add", cron="@daily", text="look")
    assert refused.startswith("refused: in a shared chat, only admins and moderators")
    mine = Tools(group, turn, moderators=turn.started_by)
    assert "is set" in await mine.call("add", cron="@daily", text="look")
    others = Tools(group, turn)
    others.context = replace(others.context, started_by="telegram:99")
    assert "only they and moderators" in await others.call("remove", id=1)
    assert await mine.call("remove", id=1) == "asked: Schedule 1 is removed."


async def test_a_chat_has_its_own_schedules_up_to_a_limit(chat: Chat) -> None:
    turn = await chat.start("hello")
    tools, nowhere = Tools(chat, turn), Tools(chat, turn, zone="")
    for _ in range(MAX_PER_CHAT):
        await tools.call("add", cron="@daily", text="look")
    assert "already has the maximum" in await tools.call("add", cron="@daily", text="look")
    other = Chat(chat.store, ChatKey(platform="telegram", account="telegram", chat_ref="43"), clock=chat.clock)
    assert "agent.time_zone" in await nowhere.call("add", cron="@daily", text="look")
    assert "there is no schedule 1 here" in await Tools(other, await other.start("hello")).call("remove", id=1)
