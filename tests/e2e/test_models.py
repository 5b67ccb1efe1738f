"""Two providers behind one gateway: choosing between them, and one standing in for the other."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.e2e.protocols import PROTOCOLS, ModelProtocol
from tests.e2e.world import Control, World
from tests.fakes import fake_llm
from tests.fakes.labkit import Server

KEY, OTHER_KEY = "lab-key-of-the-first", "lab-key-of-the-other"


@asynccontextmanager
async def other_provider(world: World) -> AsyncIterator[Control]:
    """A second model server."""
    async with Server(fake_llm.make_app()) as server:
        yield Control(server.url, world.http)


def spare_at(other: Control, protocol: ModelProtocol) -> str:
    block = {"name": "lab-64k", "protocol": protocol.name, "base_url": other.url + protocol.root, "api_key": OTHER_KEY}
    return json.dumps([block])


async def keys_seen(llm: Control) -> set[str]:
    """The credentials that have reached a server."""
    requests: list[dict[str, Any]] = await llm.get("requests", full=1)
    return {
        str(value).removeprefix("Bearer ")
        for request in requests
        for name, value in request["headers"].items()
        if name.lower() in ("authorization", "x-api-key")
    }


async def test_a_provider_that_is_down_is_stood_in_for_and_told_once(world: World) -> None:
    async with other_provider(world) as other:
        await world.gateway.start(
            HERMES_MODEL__API_KEY=KEY,
            HERMES_MODEL__NAME="lab-128k",
            HERMES_MODEL__FALLBACKS=spare_at(other, world.protocol),
        )
        await world.script(error={"kind": "401"}, times=99)
        await world.say("one")
        [first] = await world.replies(1)
        assert re.match(r"echo: \S+ \S+ one", first)
        assert "lab-64k answers for now because lab-128k rejects our API key" in first
        await world.say("two")
        [_, second] = await world.replies(2)
        assert re.fullmatch(r"echo: \S+ \S+ two", second)
        assert await keys_seen(world.llm) == {KEY}
        assert await keys_seen(other) == {OTHER_KEY}
        await world.ask("/status", "The last answer came from lab-64k because lab-128k failed")
        rows = world.query("SELECT model, outcome FROM model_calls ORDER BY id")
        assert rows[:2] == [("lab-128k", "auth"), ("lab-64k", "ok")]
        assert await other.get("violations") == []


async def test_a_conversation_chooses_and_its_choice_survives_a_restart(world: World) -> None:
    async with other_provider(world) as other:
        alias = json.dumps({"other": json.loads(spare_at(other, world.protocol))[0]})
        settings = {"HERMES_MODEL__API_KEY": KEY, "HERMES_MODEL__NAME": "lab-128k", "HERMES_MODEL__ALIASES": alias}
        await world.gateway.start(**settings)
        await world.ask("/model other", "conversation uses other: lab-64k")
        await world.ask("hello", "^echo: .*hello")
        assert len(await other.get("requests")) == 1
        assert await world.gateway.stop() == 0
        await world.gateway.start(**settings)
        await world.ask("again", "^echo: .*again")
        assert len(await other.get("requests")) == 2
        assert await world.asked(0, wait=0) == []
        await world.ask("/model default", "configured model answers")
        await world.ask("back", "^echo: .*back")
        assert len(await world.asked(1)) == 1


async def test_half_an_answer_of_a_broken_stream_is_replaced_by_the_other_one(world: World) -> None:
    async with other_provider(world) as other:
        await world.gateway.start(
            HERMES_MODEL__API_KEY=KEY,
            HERMES_MODEL__NAME="lab-128k",
            HERMES_MODEL__FALLBACKS=spare_at(other, world.protocol),
        )
        await world.script(text="HALF " * 200, truncate=20, chunk_delay=0.05, times=99)
        await other.post("script", [{"text": "the whole answer", "times": 99}])
        await world.say("go")
        [said] = await world.replies(1)
        assert said.startswith("the whole answer")
        assert "HALF" not in "".join(await world.visible())
        assert world.query("SELECT text FROM messages WHERE role = 'assistant'") == [("the whole answer",)]


@pytest.mark.each_protocol
async def test_another_protocol_takes_up_a_turn_behind_the_tool_calls_of_one(world: World) -> None:
    others = [*PROTOCOLS.values()] * 2
    spare = others[others.index(world.protocol) + 1]
    async with other_provider(world) as other:
        await world.gateway.start(
            HERMES_MODEL__API_KEY=KEY, HERMES_MODEL__NAME="lab-128k", HERMES_MODEL__FALLBACKS=spare_at(other, spare)
        )
        await world.script(last_role="tool", error={"kind": "402"}, times=99)
        await world.say('look [[tool:history_search {"query": "harbour"}]]')
        [said] = await world.replies(1)
        assert said.startswith("tool said: ")
        assert "lab-64k answers for now because lab-128k has no credit left" in said
        assert len(await world.asked(0, wait=0)) == 2, "one step, and one refusal"
        [request] = await other.get("requests")
        assert request["path"] == spare.path
        assert await other.get("violations") == []
        assert world.query("SELECT count(*) FROM tool_runs") == [(1,)], "what was done is not done again"


async def test_a_reload_that_takes_a_chosen_model_away_says_so(world: World) -> None:
    world.configure("model: {aliases: {small: lab-32k}}")
    await world.gateway.start(HERMES_MODEL__NAME="lab-128k")
    await world.ask("/model small", "conversation uses small: lab-32k")
    await world.converse("one")
    world.configure("model: {aliases: {}}")
    await world.reload()
    await world.ask("two", "“small” is no longer configured, so lab-128k answers here again")
    assert await world.replies(1, match="^echo: .*two")
    assert [request["body"]["model"] for request in await world.asked(2)] == ["lab-32k", "lab-128k"]
