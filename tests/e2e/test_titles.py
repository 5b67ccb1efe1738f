"""Conversations get a name by themselves, over any protocol, and nothing else notices."""

import asyncio
import json

import pytest

from tests.e2e.protocols import PROTOCOLS, ModelProtocol
from tests.e2e.world import World

ON = {"HERMES_AUXILIARY__TITLE": "auto"}
WANTED = "Write the title now"
CALLS = "SELECT outcome FROM model_calls WHERE purpose = 'title' ORDER BY id"


async def named(world: World, title: str) -> None:
    """Wait until the newest session has this title."""
    await world.until_rows("SELECT title FROM sessions ORDER BY id DESC LIMIT 1", (title,))


async def test_a_conversation_is_named_once_and_keeps_its_name_through_a_compression(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script(match=WANTED, text='"Broken login."')
    await world.converse("why does my login fail?")
    await named(world, "Broken login")
    await world.converse(*(f"more {number} " + "words " * 400 for number in range(8)))
    await world.ask("/compress", "Compressed")
    await named(world, "Broken login")
    assert len(world.query("SELECT 1 FROM sessions")) == 2
    for number, command in enumerate(("/title", "/sessions", "/status"), start=1):
        await world.say(command)
        assert len(await world.replies(number, match="Broken login")) == number, command
    assert world.query(CALLS) == [("ok",)]
    requests = [request for request in await world.asked(0, wait=0) if WANTED in str(request["body"])]
    assert len(requests) == 1


@pytest.mark.parametrize("other", PROTOCOLS.values(), ids=str)
async def test_a_model_of_its_own_writes_titles_over_any_protocol(world: World, other: ModelProtocol) -> None:
    await world.llm.post("config", {"api_key": "", "strict_keys": False})
    address = {"protocol": other.name, "base_url": world.llm.url + other.root}
    aliases = json.dumps({"small": {"name": "lab-32k", "api_key": "key-for-titles", **address}})
    await world.gateway.start(HERMES_MODEL__ALIASES=aliases, HERMES_AUXILIARY__TITLE="small")
    await world.script(match=WANTED, text="Broken login")
    await world.converse("why does my login fail?")
    await named(world, "Broken login")
    rows = world.query("SELECT purpose, route, model, outcome, input_tokens > 0 FROM model_calls ORDER BY id")
    assert [(row[0], row[2], row[3], row[4]) for row in rows] == [
        ("turn", "lab-128k", "ok", 1),
        ("title", "lab-32k", "ok", 1),
    ]
    assert rows[1][1].startswith(other.name)


async def test_an_answer_does_not_wait_and_an_end_does_not_either(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script(match=WANTED, hang=True)
    await world.converse("one")
    await world.asked(2)
    await world.converse("two")
    async with asyncio.timeout(10):
        assert await world.gateway.stop() == 0
    assert world.query(CALLS) == [("cancelled",)]
    assert world.query("SELECT title FROM sessions") == [(None,)]
    assert "Traceback" not in world.gateway.log_text()


async def test_after_a_kill_the_next_answer_brings_the_title_and_an_idle_gateway_asks_nobody(world: World) -> None:
    await world.gateway.start(**ON)
    await world.script(match=WANTED, hang=True, times=1)
    await world.converse("about herons")
    await world.asked(2)
    await world.gateway.kill()
    await world.llm.delete("script")
    await world.script(match=WANTED, text="Herons")
    await world.gateway.start(**ON)
    assert len(await world.asked(0, wait=0)) == 2, "an idle gateway asks nobody"
    await world.converse("and storks?")
    await named(world, "Herons")
    assert "about herons" in str((await world.asked(4))[-1]["body"])


async def test_a_cap_holds_for_titles_too(world: World) -> None:
    await world.gateway.start(
        **ON, HERMES_COSTS__PRICES='{"lab-*": {"input": 3, "output": 15}}', HERMES_COSTS__DAILY_CAP="0.0001"
    )
    await world.converse("hello")
    await world.gateway.wait_for_log("title.failed")
    assert world.query("SELECT purpose FROM model_calls WHERE outcome = 'ok'") == [("turn",)]
    assert len(await world.asked(0, wait=0)) == 1


async def test_titles_can_be_switched_off_and_on_by_a_reload(world: World) -> None:
    world.configure("auxiliary: {title: off}\n")
    world.gateway.environ.pop("HERMES_AUXILIARY__TITLE")
    await world.gateway.start()
    await world.script(match=WANTED, text="Broken login")
    await world.converse("one")
    world.configure("auxiliary: {title: main}\n")
    await world.reload()
    assert len(await world.asked(0, wait=0)) == 1
    await world.converse("two")
    await named(world, "Broken login")
