"""Reactions: the bot's signs on people's messages, and people's thumbs on its answers."""

import json
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from tests.e2e import test_discord as discord
from tests.e2e.protocols import ModelProtocol, conversation_of
from tests.e2e.world import GROUP, World, world_in

QUEUED = "Queued until the current answer"
SIGNS = {"telegram": "👀👌💔✍", "discord": "👀✅❌✏️"}


class Room:
    """A direct chat on one platform, with the reactions in it."""

    def __init__(self, world: World, platform: str) -> None:
        self.world, self.platform = world, platform
        self.is_telegram = platform == "telegram"
        self.server = world.tg if self.is_telegram else world.dc
        self.seen, self.done, self.failed, self.edited = SIGNS[platform][:1], *SIGNS[platform][1:3], SIGNS[platform][3:]
        self.channel: Any = 42
        self.reacted = {"method": "setMessageReaction"} if self.is_telegram else {"match": "PUT .*reactions"}
        """Query for the requests that set a reaction."""

    async def start(self, **changes: str) -> None:
        await (self.world.gateway.start(**changes) if self.is_telegram else discord.ready(self.world, **changes))

    async def say(self, text: str) -> str:
        """Send a message, and return its id."""
        if self.is_telegram:
            said = await self.world.say(text)
            return str(said["message"]["message_id"])
        said = await discord.say(self.world, text)
        self.channel = said["channel_id"]
        return str(said["message"]["id"])

    async def until_sent(self, match: str, count: int = 1) -> str:
        """Wait for messages of the bot that match and for all other messages. Return the id of the newest match."""
        rows = await self.shown(match, count)
        await self.world.until_rows("SELECT count(*) FROM outbox WHERE settled_at IS NULL", (0,))
        return str(rows[-1]["message_id"])

    async def shown(self, match: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for messages of the bot that match."""
        kind = {"method": "sendMessage"} if self.is_telegram else {"action": "send"}
        rows: list[dict[str, Any]] = await self.server.get("sent", match=match, wait=20, count=count, **kind)
        assert len(rows) >= count, f"nothing like {match!r}"
        return rows

    async def edit(self, ref: str, text: str) -> None:
        place = {"chat_id": 42} if self.is_telegram else {"channel_id": self.channel, "content": text}
        await self.server.post("edit", {**place, "message_id": ref, "text": text})

    async def react(self, ref: str, emoji: str, *, removed: bool = False, person: int | None = None) -> None:
        if self.is_telegram:
            data: dict[str, object] = {"chat_id": 42, "user_id": person or 42, "emoji": [] if removed else [emoji]}
        else:
            who = person or discord.ALICE
            data = {"channel_id": self.channel, "user_id": who, "emoji": emoji, "removed": removed}
        await self.server.post("reaction", {**data, "message_id": ref})

    async def signs(self, count: int, *, wait: float = 15) -> list[tuple[str, str]]:
        """Wait for reactions of the bot, and return them with the ids of their messages."""
        kind = {"method": "setMessageReaction"} if self.is_telegram else {"action": "react"}
        rows = await self.server.get("sent", wait=wait, count=count, **kind)
        return [(str(row["message_id"]), row["emoji"]) for row in rows]

    async def until_rated(self, *values: int) -> None:
        await self.world.until_rows(
            "SELECT value FROM ratings ORDER BY message_id, person", *((one,) for one in values)
        )


@pytest.fixture(params=SIGNS)
async def room(request: pytest.FixtureRequest, tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[Room]:
    on: dict[str, bool] = {one: one == request.param for one in SIGNS}
    async with world_in(tmp_path, protocol, **on) as world:
        if request.param == "discord":
            await world.dc.post("config", {"rate_limits": False})
        yield Room(world, request.param)


async def test_a_message_that_must_wait_is_marked_and_text_comes_only_if_the_mark_is_refused(room: Room) -> None:
    await room.start()
    await room.world.hold(match="first", text="done with the first")
    await room.say("first")
    await room.world.asked(1)
    waiting, command = await room.say("second"), await room.say("/new")
    assert sorted(await room.signs(2)) == sorted([(waiting, room.seen), (command, room.seen)])
    if room.is_telegram:
        await room.server.post("chat", {"chat_id": 42, "no_reactions": True})
    else:
        await room.server.post("channel", {"channel_id": room.channel, "set": {"deny_reactions": True}})
    for count in (1, 2):  # the second time, the platform is not asked again
        await room.say(f"/title {count}")
        await room.until_sent(QUEUED, count)
    assert len(await room.server.get("calls", **room.reacted)) == 3
    await room.world.release()
    await room.until_sent("second")
    if not room.world.address:
        assert "The bot's reactions were refused" in (await room.world.command_line("doctor"))[1]


@pytest.mark.parametrize("chosen", ["/reactions off", "HERMES_NOTICES__REACTIONS"])
async def test_reactions_can_be_switched_off(room: Room, chosen: str) -> None:
    if chosen.startswith("/"):
        await room.start()
        await room.say(chosen)
        await room.until_sent("Reactions are off here")
    else:
        await room.start(**{chosen: "off"})
    await room.say("hello")
    answer = await room.until_sent("^echo.*hello")
    await room.react(answer, "👍")
    await room.world.hold(match="first", text="done with the first")
    await room.say("first")
    await room.world.asked(2)
    await room.say("/new")
    await room.until_sent(QUEUED)
    await room.world.release()
    await room.until_sent("Started a new")
    assert await room.signs(0, wait=0) == []
    assert room.world.query("SELECT * FROM ratings") == []


async def test_an_edit_after_the_answer_is_marked(room: Room) -> None:
    await room.start()
    ref = await room.say("hello")
    await room.until_sent("^echo.*hello")
    for text in ("hello there", "hello everybody"):
        await room.edit(ref, text)
    await room.world.until_rows("SELECT count(*) FROM inbox WHERE kind = 'notice'", (1,))
    assert await room.signs(1) == [(ref, room.edited)]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_a_long_turn_is_marked(room: Room, *, fails: bool) -> None:
    world = room.world
    await room.start()
    await room.say("quick")
    await room.until_sent("^echo.*quick")
    await world.script(match="slow", hang=True)
    ref = await room.say("slow")
    await world.asked(2)
    await world.gateway.kill()
    grow_old(world)
    await world.llm.post("reset")
    if fails:
        await world.script(match="slow", error={"kind": "401"})
    await room.start()
    assert await room.signs(1) == [(ref, room.failed if fails else room.done)]


async def test_the_end_is_marked_on_the_newest_message_that_joined_the_turn(room: Room) -> None:
    world = room.world
    await room.start(HERMES_SESSIONS__BUSY_MODE="steer")
    await world.script(match="slow", hang=True)
    await room.say("slow")
    await world.asked(1)
    await world.gateway.kill()
    grow_old(world)
    await world.llm.post("reset")
    await world.hold(match="slow", tool_calls=[{"name": "history_search", "arguments": {"query": "x"}}], times=1)
    await room.start()
    await world.asked(1)
    newer = await room.say("in metres")
    await world.stored(2)
    await world.release()
    await room.until_sent("in metres")
    assert (await room.signs(2))[-1] == (newer, room.done)


async def test_a_flood_penalty_for_a_reaction_delays_no_answer(room: Room) -> None:
    world = room.world
    await room.start()
    path = "setMessageReaction" if room.is_telegram else "PUT .*/reactions"
    await room.server.post("faults", {"kind": "429", "retry_after": 8, "match": path, "times": -1})
    await world.hold(match="first", text="done with the first")
    await room.say("first")
    await world.asked(1)
    await room.say("/new")
    await room.server.get("calls", count=1, wait=15, **room.reacted)
    before = time.monotonic()
    await world.release()
    await room.shown("done with the first")
    assert time.monotonic() - before < 2
    await room.until_sent("Started a new")
    kind = {"method": "sendMessage"} if room.is_telegram else {"action": "send"}
    # The SDK for Discord waits for the end of the penalty, and by then the command was answered.
    assert len(await room.server.get("sent", match=QUEUED, **kind)) == int(room.is_telegram)
    assert len(await room.server.get("calls", **room.reacted)) == 1, "a penalty is obeyed"


def grow_old(world: World) -> None:
    """Pretend that the running turn began more than a minute ago."""
    file = world.home / "state.db"
    opened = PostgresConnection.open(world.address) if world.address else sqlite3.connect(file, isolation_level=None)
    with closing(opened) as db:
        db.execute("UPDATE turns SET started_at = started_at - 61000 WHERE state = 'running'")


async def test_a_thumb_is_stored_told_once_counted_and_exported(room: Room) -> None:
    world, thumb = room.world, "👍" if room.is_telegram else "👍\U0001f3fd"
    await room.start(HERMES_ACCESS__ALLOW=f"telegram:42,telegram:43,discord:{discord.ALICE},discord:{discord.BOB}")
    await world.script(text="[gateway notice] It is Paris.")
    await room.say("hello")
    answer = await room.until_sent("Paris")
    await room.react(answer, "🔥")
    await room.react(answer, thumb, person=99)  # has no access
    await room.react(answer, thumb, person=43 if room.is_telegram else int(discord.BOB))
    await room.react(answer, "👎")
    await room.until_rated(-1, 1)
    await world.gateway.kill()
    await room.start()
    await room.react(answer, thumb)
    await room.until_rated(1, 1)
    assert len(world.query("SELECT * FROM turns")) == 1, "a reaction starts no turn"
    for number, text in enumerate(("and now?", "the third"), start=2):
        await room.say(text)
        await room.until_sent("Paris|the third", number)
    told = conversation_of((await world.asked(2))[1])
    assert "[gateway notice] people reacted to your answers: 2 👍 to “gateway notice It is Paris.” (m2)" in told
    assert world.query("SELECT count(*) FROM messages WHERE body LIKE '%reacted%'") == [(1,)]
    code, output = await world.command_line("insights")
    assert code == 0, output
    assert "answers: 2 thumbs up, 0 down" in output
    target = world.home / "out.jsonl"
    assert (await world.command_line("trajectories", "export", str(target)))[0] == 0
    turns = json.loads(target.read_text())["conversations"]
    assert [turn.get("ratings") for turn in turns if turn["from"] == "gpt"] == [[1, 1], None, None]
    await room.react(answer, thumb, removed=True)
    await room.until_rated(1)


async def test_telegram_reports_reactions_in_groups_only_to_admins_which_doctor_says(world: World) -> None:
    await world.gateway.start()
    await world.ask_in_group("@lab_gateway_bot hello", "hello", thread_id=7, is_forum=True)
    [sent] = await world.tg.get("sent", method="sendMessage", chat_id=GROUP)
    thumb = {"chat_id": GROUP, "message_id": sent["message_id"], "user_id": 42, "emoji": ["👍"]}
    assert (await world.tg.post("reaction", thumb))["update"] is None
    assert f"does not receive people's reactions in telegram:{GROUP}" in (await world.command_line("doctor"))[1]
    await world.tg.post("chat", {"chat_id": GROUP, "is_admin": True})
    anonymous = {"chat": {"id": GROUP, "type": "supergroup", "title": "G"}, "message_id": sent["message_id"], "date": 1}
    anonymous |= {
        "actor_chat": anonymous["chat"],
        "old_reaction": [],
        "new_reaction": [{"type": "emoji", "emoji": "👎"}],
    }
    await world.tg.post("update", {"update": {"message_reaction": anonymous}})
    for person in (42, 99, 43):  # 99 has no access
        await world.tg.post("reaction", {**thumb, "user_id": person, "emoji": ["❤", "👍"]})
    await world.until_rows("SELECT person FROM ratings ORDER BY person", ("telegram:42",), ("telegram:43",))
    assert "receive people's reactions" not in (await world.command_line("doctor"))[1]
