"""A disk that is full, of bytes or of files: people are told soon, and the gateway starts and says so."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.databases import about_files
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_discord import say, sent
from tests.e2e.world import World, world_in
from tests.sandboxes import small_disk

pytestmark = about_files

BOB = 100000000000000002
DISKS = {"bytes": "size=24m", "files": "size=256m,nr_inodes=300"}


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    is_telegram = request.param == "telegram"
    async with world_in(tmp_path, protocol, telegram=is_telegram, discord=not is_telegram) as made:
        made.home.mkdir(mode=0o700)
        yield made


def fill(folder: Path) -> Path:
    """Use up the disk of a folder; returns what to remove for room."""
    filler = folder / "filler"
    filler.mkdir()
    try:
        for number in range(10_000):
            with open(filler / str(number), "wb", buffering=0) as file:
                if os.statvfs(folder).f_favail > 1_000:
                    while file.write(bytes(1 << 16)):
                        pass
    except OSError:
        pass
    return filler


def empty(filler: Path) -> None:
    for path in filler.iterdir():
        path.unlink()


async def start(world: World) -> None:
    since = len(world.gateway.log_bytes())
    await world.gateway.start(HERMES_ACCESS__ALLOW_ALL="true")
    await world.gateway.wait_for_log(f"{'telegram' if is_telegram(world) else 'discord'} running", since=since)


def is_telegram(world: World) -> bool:
    return hasattr(world, "tg")


async def speak(world: World, text: str, **place: Any) -> None:
    await (world.say(text, **place) if is_telegram(world) else say(world, text, **place))


async def heard(world: World, count: int, match: str, wait: float) -> bool:
    if is_telegram(world):
        rows = await world.tg.get("sent", method="sendMessage", wait=wait, count=count, match=match)
        return len(rows) >= count
    return len(await sent(world, count, match=match, wait=wait)) >= count


async def write_until_full(world: World) -> None:
    """Use up what is left in the pages of the database."""
    for number in range(60):
        await speak(world, f"{number} " + "many words " * 300)
    await world.gateway.wait_for_log("the disk is full", seconds=20)


@pytest.mark.parametrize("world", ["discord"], indirect=True)
async def test_whoever_writes_while_the_disk_is_full_is_told_within_ten_seconds(world: World) -> None:
    """Also who writes long after it was full, when the gateway has failed to store for a while."""
    with small_disk(world.home, DISKS["bytes"]):
        await start(world)
        await speak(world, "hello")
        assert await heard(world, 1, "hello", 15)
        filler = fill(world.home)
        await write_until_full(world)
        assert await heard(world, 1, "its disk is full. Your message is not lost", 10)
        await asyncio.sleep(15)  # the time for which it fails is what is tried
        other = {"chat_id": 43} if is_telegram(world) else {"dm_user_id": BOB, "user_id": BOB}
        await speak(world, "are you there", **other)
        assert await heard(world, 2, "its disk is full. Your message is not lost", 10)
        empty(filler)
        assert await heard(world, 2, "can save messages again", 20)
        await world.gateway.kill()


@pytest.mark.parametrize(("world", "kind"), [("telegram", "bytes"), ("discord", "files")], indirect=["world"])
async def test_a_gateway_starts_with_a_full_disk_and_says_so(world: World, kind: str) -> None:
    with small_disk(world.home, DISKS[kind]):
        await start(world)
        await speak(world, "hello")
        assert await heard(world, 1, "hello", 15)
        filler = None
        for end in (world.gateway.stop, world.gateway.kill, world.gateway.stop):
            await end()
            filler = filler or fill(world.home)
            await start(world)
            assert b"disk.full" in world.gateway.log_bytes()[world.gateway.started_from :]
        code, status = await world.command_line("status")
        assert code == 0
        assert re.search(r"disk.*full", status)
        _, report = await world.command_line("doctor")
        assert re.search(r"XX +disk .*no message can be stored", report), report
        if kind == "bytes":
            await write_until_full(world)
            assert await heard(world, 1, "its disk is full. Your message is not lost", 10)
        empty(filler)
        await speak(world, "are you there")
        assert await heard(world, 1, "can save messages again" if kind == "bytes" else "are you there", 30)
        await world.gateway.kill()
