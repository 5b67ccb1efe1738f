"""Two Telegram bots, a Discord bot and three agents in one gateway: what happens to one leaves the others alone."""

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.databases import about_files
from tests.e2e.protocols import ModelProtocol, conversation_of, prompt_of
from tests.e2e.test_accounts import Bots, open_bots
from tests.e2e.test_agents import tools_of
from tests.e2e.test_discord import ready
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.test_discord import sent as sent_on_discord
from tests.e2e.test_upgrade import restored
from tests.e2e.world import Program

FURTHER = "telegram/operations"
AGENTS = """
costs: {prices: {"lab-*": {input: 0.1, output: 15}}}
agents:
  support: {persona: You help customers., tools: {use: {write_file: "off"}}, costs: {daily_cap: 0.01}}
  ops: {persona: You look after servers., model: {name: lab-32k, context_length: 32000}}
  desk: {persona: You are at the desk., model: {name: lab-64k, context_length: 64000}}
routes:
  - {account: telegram, agent: support}
  - {account: telegram/operations, agent: ops}
  - {chat: discord, agent: desk}
"""
PERSONAS = {"support": "You help customers.", "ops": "You look after servers.", "desk": "You are at the desk."}
MODELS = {"support": "lab-128k", "ops": "lab-32k", "desk": "lab-64k", "night": "lab-128k"}


class Team(Bots):
    """A world in which people write to each bot about the agent behind it."""

    async def tell(self, word: str, *agents: str) -> None:
        for agent in agents:
            text = f"{word} to {agent}"
            if agent == "support":
                await self.say(text)
            elif agent == "ops":
                await self.say2(text)
            else:
                await say_on_discord(self, text)

    async def answered(self, word: str, *agents: str) -> None:
        """Wait until each agent has answered on its bot."""
        for agent in agents:
            match = f"echo: .*{word} to {agent}"
            waiting = {"support": self.replies, "ops": self.replies2}.get(agent)
            assert await (waiting(1, match=match) if waiting else sent_on_discord(self, 1, match=match)), (word, agent)

    async def talk(self, word: str, *agents: str) -> None:
        await self.tell(word, *agents)
        await self.answered(word, *agents)

    async def assert_apart(self) -> None:
        """Check that each message has one answer, and each request the persona, model, tools and words of one agent."""
        texts = [
            *await self.replies(0, wait=0),
            *await self.replies2(0, wait=0),
            *await sent_on_discord(self, 0, wait=0),
        ]
        answers = [text.partition("]")[2] for text in texts if text.startswith("echo: ")]
        assert len(answers) == len(set(answers))
        for request in await self.asked(1):
            said = conversation_of(request)
            [agent] = [name for name in MODELS if f" to {name}" in said]
            assert request["body"]["model"] == MODELS[agent]
            assert PERSONAS.get(agent, "You watch at night.") in prompt_of(request)[0].text
            assert ("write_file" in tools_of(request)) is (agent != "support")
        wrong = """SELECT c.account, l.agent FROM model_calls l JOIN chats c ON c.id = l.chat_id
            WHERE (c.account, l.agent) NOT IN (('telegram', 'support'), ('telegram/operations', 'ops'),
              ('discord', 'desk'), ('discord', 'night')) ORDER BY l.id"""
        assert self.query(wrong) == []

    def conversations(self) -> list[tuple[str, int]]:
        return self.query("SELECT agent, count(*) FROM sessions GROUP BY agent ORDER BY agent")


@pytest.fixture
async def team(tmp_path: Path, protocol: ModelProtocol, program: Program) -> AsyncIterator[Team]:
    async for world in open_bots(tmp_path, protocol, program, Team):
        assert isinstance(world, Team)
        yield world


async def test_bots_and_agents_go_on_through_a_restart_a_kill_a_reload_a_cap_and_a_revoked_token(team: Team) -> None:
    world, three = team, ("support", "ops", "desk")
    bots = (world.home / "config.yaml").read_text()
    world.configure(bots + AGENTS)
    await ready(world, HERMES_ACCESS__ADMINS="telegram:42")
    await world.talk("first", *three)
    assert await world.gateway.stop() == 0
    await ready(world)
    await world.talk("second", *three)

    await world.script(match="third", hang=True, times=3)
    await world.tell("third", *three)
    await world.asked(9)
    await world.gateway.kill()
    await world.tell("fourth", *three)
    await ready(world)
    for word in ("third", "fourth"):
        await world.answered(word, *three)
    assert world.conversations() == [("desk", 1), ("ops", 1), ("support", 1)]
    last = [conversation_of(request) for request in await world.asked(15) if "fourth" in str(request["body"])]
    assert [all(f"{word} to" in said for word in ("first", "second", "third")) for said in last] == [True] * 3

    await world.script(match="long to support", text="word " * 1_000, times=1)
    night = AGENTS.replace(
        "  desk: {persona: You are at the desk., model: {name: lab-64k, context_length: 64000}}\n", ""
    )
    night = night.replace("agents:\n", "agents:\n  night: {persona: You watch at night.}\n").replace("desk}", "night}")
    world.configure(bots + night)
    await world.reload()
    await world.talk("fifth", "support", "ops", "night")
    assert await sent_on_discord(world, 1, match="The agent night answers here from now on")
    assert world.conversations() == [("desk", 1), ("night", 1), ("ops", 1), ("support", 1)]

    await world.ask("a long to support", "word word")
    await world.ask("sixth to support", "daily spending cap of this agent has been reached")
    await world.talk("seventh", "ops", "night")

    await world.tg2.post("faults", {"match": ".*", "kind": "status", "status": 401, "times": -1})
    sentence = "Telegram no longer accepts the bot token; check telegram.accounts[2]"
    await world.tell("owed", "ops")
    await world.gateway.wait_for_log(sentence)
    await world.talk("eighth", "night")
    await world.ask("/status", rf"telegram/operations: failed \({re.escape(sentence)}\)")
    assert world.gateway.log_text().count(sentence) == 1
    await world.tg2.delete("faults")
    assert await world.gateway.stop() == 0
    await ready(world)
    await world.answered("owed", "ops")
    await world.talk("ninth", "ops", "night")
    await world.assert_apart()
    assert world.conversations() == [("desk", 1), ("night", 1), ("ops", 1), ("support", 1)]


@about_files
async def test_chats_of_an_earlier_version_stay_with_the_first_bot_and_change_agents_only_by_a_route(
    team: Team,
) -> None:
    world, bots = team, (team.home / "config.yaml").read_text()
    shutil.rmtree(world.home)
    restored(world.home)
    (world.home / ".env").unlink(missing_ok=True)
    world.configure(bots + AGENTS.replace("account: telegram, agent", 'chat: "telegram:43", agent'))
    found = "FROM chats c JOIN sessions a ON a.id = c.active_session_id WHERE c.chat_ref"
    newest = f"SELECT c.account, c.id, c.agent, a.lineage_id {found} = ? ORDER BY c.account"
    before = f"SELECT c.id, a.lineage_id, substr(a.key, 1, 8) {found} IN ('42', '43') ORDER BY c.chat_ref"
    (ann, of_ann, _), (bo, of_bo, key) = world.query(before)
    for chat_id in (42, 43):  # Telegram has used these ids before
        await world.tg.post("message", {"chat_id": chat_id, "user_id": chat_id, "text": "old", "repeat": 100})
    await world.tg.post("expire")
    await ready(world, HERMES_ACCESS__ADMINS="telegram:43")
    await world.ask("what is new?", "what is new")
    await world.ask("hello to support", "hello to support", chat_id=43)
    await world.talk("hello", "ops", "desk")
    assert world.query(newest, "42")[0] == ("telegram", ann, "", of_ann)
    assert [(account, agent) for account, _, agent, _ in world.query(newest, "42")[1:]] == [(FURTHER, "ops")]
    [(account, chat_id, agent, lineage_id)] = world.query(newest, "43")
    assert (account, chat_id, agent) == ("telegram", bo, "support")
    assert lineage_id != of_bo
    assert await world.replies(1, chat_id=43, match=f"The agent support answers here from now on.*/resume {key}")
    await world.ask(f"/resume {key}", "Back in conversation", chat_id=43)
    await world.ask("and now?", "and now", chat_id=43)
    assert world.query(newest, "43") == [("telegram", bo, "", of_bo)]
