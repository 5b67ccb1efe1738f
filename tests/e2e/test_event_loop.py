"""Nothing is imported on the event loop while a turn runs, however early the first message comes."""

import time

import pytest

from tests.e2e.chats import Chat
from tests.e2e.with_import_log import LOG
from tests.e2e.world import World

pytestmark = pytest.mark.each_protocol
PROGRAM = ("-m", "tests.e2e.with_import_log")

WARM = ("encodings.", "stringprep", "idna")
"""Codecs of the standard library, which are found by name when they are used first."""


def imported(world: World, since: float) -> list[str]:
    lines = [line.split(maxsplit=1) for line in (world.home.parent / LOG).read_text().splitlines()]
    return [module for moment, module in lines if float(moment) >= since and not module.startswith(WARM)]


async def test_the_first_turn_imports_nothing_on_the_event_loop(chat: Chat) -> None:
    world = chat.world
    if chat.platform == "telegram":
        await world.say("before it started")
    await chat.start()
    started = time.time()
    await chat.ask("hello", "^echo: (.|\n)*hello")
    await world.script(match="refuse", error={"kind": "402"}, times=1)
    await chat.ask("refuse", "out of credit")
    await chat.ask('look [[tool:history_search {"query": "hello"}]]', "tool said: ")
    assert imported(world, started) == []


async def test_the_platforms_are_imported_by_another_thread(chat: Chat) -> None:
    await chat.start()
    libraries = {"aiohttp", f"platforms.{chat.platform}", chat.platform}
    assert libraries & {module.strip() for module in imported(chat.world, 0.0)} == set()
