"""Nothing is imported on the event loop while a turn runs, however early the first message comes."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.protocols import ModelProtocol
from tests.e2e.with_import_log import LOG
from tests.e2e.world import World, world_in

pytestmark = pytest.mark.each_protocol

WARM = ("encodings.", "stringprep", "idna")
"""Codecs of the standard library, which are found by name when they are used first."""


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    async with world_in(tmp_path, protocol, program=("-m", "tests.e2e.with_import_log")) as made:
        yield made


def imported(world: World, since: float) -> list[str]:
    lines = [line.split() for line in (world.home.parent / LOG).read_text().splitlines()]
    return [module for moment, module in lines if float(moment) >= since and not module.startswith(WARM)]


async def test_the_first_turn_imports_nothing_on_the_event_loop(world: World) -> None:
    await world.say("hello")
    await world.gateway.start()
    started = time.time()
    assert await world.replies(1, match="^echo: .*hello", wait=60)
    await world.script(match="refuse", error={"kind": "402"}, times=1)
    await world.say("refuse")
    assert await world.replies(1, match="no credit", wait=40)
    await world.say('look [[tool:history_search {"query": "hello"}]]')
    assert await world.replies(1, match="tool said: ", wait=40)
    assert imported(world, started) == []
