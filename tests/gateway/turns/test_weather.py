"""Random faults: every message is answered once and nothing is lost, whatever people, platforms and power do."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from hermes_state.errors import ModelUnavailable, PlatformUnavailable, RateLimited, SendAmbiguous
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, InboundMessage, ToolEffect
from tests.databases import IS_POSTGRES
from tests.gateway.helpers import ANN, BOB, BOSS, DIRECT, GROUP, Hang, MemoryAdapter, Step, TestGateway, calls, serving
from tests.gateway.turns.test_lanes import tool

CHATS = (DIRECT, GROUP, ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="5"))
LINES = (
    *("/stop", "/new", "/undo", "/retry", "/status", "/steer hurry", "/queue later", "/stop all", "/approve all"),
    *("/deny all", "/title x", "/nonsense"),
)


class Weather:
    """A random run. `seed` determines everything except task scheduling."""

    def __init__(self, store: Store, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.folder = folder
        self.adapter = MemoryAdapter(max_part_units=20)
        self.runs: list[str] = []
        self.accepted: list[InboundMessage] = []
        self.mode = self.random.choice(["queue", "steer", "interrupt"])
        self.policy = self.random.choice(["allow", "ask"])

    async def run(self) -> None:
        for _ in range(3):
            await self._live_and_crash()
        self.adapter.troubles.clear()
        async with self._serving() as gateway, asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer_questions(gateway))
            async with asyncio.timeout(30):
                while await gateway.rows("SELECT 1 FROM turns WHERE state IN ('running', 'waiting')"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # rows have no event
            for chat in CHATS:
                await gateway.quiet(chat)
            answering.cancel()
            await self._check(gateway)

    async def _answer_questions(self, gateway: TestGateway) -> None:
        """Approve every open request once."""
        answered = set[int]()
        pending = """SELECT a.id, c.chat_ref, c.thread_ref FROM approvals a
          JOIN turns t ON t.id = a.turn_id JOIN chats c ON c.id = t.chat_id
          WHERE a.state = 'pending' AND t.state = 'waiting'"""
        while True:
            for number, ref, thread in await gateway.rows(pending):
                if number not in answered:
                    answered.add(number)
                    [chat] = [one for one in CHATS if (one.chat_ref, one.thread_ref) == (ref, thread)]
                    self.accepted.append(await gateway.say(f"/approve a{number}", chat=chat, sender=BOSS))
            await asyncio.sleep(0.01)

    def _serving(self) -> AbstractAsyncContextManager[TestGateway]:
        tools = [tool("look"), tool("pay", lambda: self.runs.append("pay"), ToolEffect.WRITES)]
        sessions = {"busy_mode": self.mode, "merge_seconds": 0.02, "max_turns": 2}
        block = {"approval": {"writes": self.policy}}
        return serving(self.store, self.folder, adapter=self.adapter, tools=tools, sessions=sessions, tools_block=block)

    async def _live_and_crash(self) -> None:
        async with self._serving() as gateway:
            for _ in range(self.random.randint(3, 12)):
                await self._happen(gateway)
                await asyncio.sleep(self.random.choice([0, 0, 0.002, 0.01]))
        # A process takes the writes with it that it has begun.
        while (pulse := self.store.pulse).waiting or pulse.busy:  # noqa: ASYNC110 - they have no event
            await asyncio.sleep(0.001)

    async def _happen(self, gateway: TestGateway) -> None:
        kind = self.random.choice(
            ["say"] * 5 + ["line"] * 3 + ["again", "edit", "delete", "trouble", "script", "script"]
        )
        if kind in ("say", "line"):
            text = f"message {len(self.accepted)}" if kind == "say" else self.random.choice(LINES)
            chat = self.random.choice(CHATS)
            sender = ANN if chat is DIRECT else self.random.choice([ANN, BOB])
            self.accepted.append(await gateway.say(text, chat=chat, sender=sender))
        elif kind == "trouble":
            troubles = [PlatformUnavailable("x"), SendAmbiguous("x"), RateLimited(0.01), KeyError("bug"), None]
            self.adapter.troubles.append(self.random.choice(troubles))
        elif kind == "script":
            hang = Hang(says="growing")
            asyncio.get_running_loop().call_later(0.05, hang.release)
            steps: list[Step] = [
                calls("look", "pay"),
                calls("pay", text="hm"),
                hang,
                ValueError("b"),
                ModelUnavailable("x"),
            ]
            gateway.model.script.append(self.random.choice(steps))
        elif self.accepted:
            message = self.random.choice(self.accepted)
            if kind == "again":
                await gateway.intake.accept(message)
            elif kind == "edit":
                await gateway.edit(message, message.text + " edited")
            else:
                await gateway.delete(message)

    async def _check(self, gateway: TestGateway) -> None:
        rows = gateway.rows
        if not IS_POSTGRES:  # which checks each row as it comes, and has no files of ours
            assert await rows("PRAGMA integrity_check") == [("ok",)]
            assert await rows("PRAGMA foreign_key_check") == []
        assert (await rows("SELECT count(*) FROM inbox WHERE kind <> 'notice'"))[0][0] == len(self.accepted)
        undecided = "SELECT * FROM inbox WHERE state IN ('new','claimed') AND kind <> 'notice'"
        assert await rows(undecided) == []
        unheard = """SELECT i.id FROM inbox i LEFT JOIN messages m ON m.inbox_id = i.id AND m.turn_id = i.turn_id
          WHERE i.kind = 'message' AND i.state = 'done' AND m.id IS NULL"""
        assert await rows(unheard) == []
        order = "SELECT inbox_id FROM messages WHERE origin = 'human' AND chat_id = ? ORDER BY id"
        for (chat,) in await rows("SELECT id FROM chats"):
            ids = [row[0] for row in await rows(order, chat)]
            if self.mode != "steer":
                steered = {row[0] for row in await rows("SELECT id FROM inbox WHERE mode = 'steer'")}
                assert [one for one in ids if one not in steered] == sorted(set(ids) - steered)
        untold = """SELECT t.id, t.state FROM turns t LEFT JOIN outbox o ON o.dedupe_key = 'turn:' || t.id
          WHERE t.state IN ('finished','failed') AND o.id IS NULL"""
        assert await rows(untold) == []
        unsent = "SELECT * FROM outbox WHERE state <> 'sent' AND coalesce(error, '') <> 'stopped with /stop'"
        assert await rows(unsent) == []
        open_calls = "SELECT * FROM tool_runs WHERE state = 'started'"
        assert await rows(open_calls) == []
        paid = (await rows("SELECT count(*) FROM tool_runs WHERE tool_name = 'pay'"))[0][0]
        assert len(self.runs) <= paid
        tips = """SELECT lineage_id FROM sessions WHERE ended_at IS NULL GROUP BY lineage_id HAVING count(*) > 1
          UNION SELECT chat_id FROM sessions WHERE ended_at IS NULL GROUP BY chat_id HAVING count(*) > 1"""
        assert await rows(tips) == []


@pytest.mark.parametrize("seed", range(12))
async def test_every_message_is_in_one_turn_and_every_answer_arrives(store: Store, tmp_path: Path, seed: int) -> None:
    await Weather(store, tmp_path, seed).run()
