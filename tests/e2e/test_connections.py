"""Connections that ask for nothing: they deafen nobody, hang nothing and fill no log."""

import asyncio
import os
import re
import resource
import socket
from collections.abc import AsyncIterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.e2e.chats import Chat, only_web
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import World, world_in
from tests.processes import run_gateway
from tests.side_by_side import side_by_side

FEW_FILES = 96


def run_with_files(count: int) -> None:
    """The gateway as a process that may open fewer files than somebody opens connections to it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    run_gateway()


async def serve_page(world: World, **changes: str) -> str:
    """Start with the web chat; returns its address."""
    await world.gateway.start(**world.web_chat(), HERMES_LOGGING__LEVEL="info", **changes)
    return (await world.gateway.printed_url()).partition("/?")[0]


async def test_a_thousand_half_open_requests_hold_up_nobody(tmp_path: Path, protocol: ModelProtocol) -> None:
    async with world_in(tmp_path, protocol, program=partial(run_with_files, 512)) as world:
        chat = await serve_page(world)
        host, _, port = chat.removeprefix("http://").partition(":")
        before = len(world.gateway.log_bytes())
        writers = []
        for _ in range(1_000):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            writers.append(writer)
        await world.say("are you there?")
        assert await world.replies(1, wait=10)
        code, output = await world.command_line("status")
        assert (code, "running for" in output) == (0, True)
        async with world.http.get(f"{chat}/chat/main") as answer:
            assert answer.status == 200
        assert len(world.gateway.log_bytes()) - before < 20_000
        for writer in writers:
            writer.close()


async def test_connections_that_cannot_be_accepted_are_told_once_a_minute(
    tmp_path: Path, protocol: ModelProtocol
) -> None:
    """By asyncio's loop; uvloop's turns them away without a word."""
    loops = [name for name in ("asyncio", "uvloop") if find_spec(name) is not None]
    await side_by_side({name: _connect_too_often(tmp_path / name, protocol, name) for name in loops})


async def test_a_start_that_finds_no_file_descriptor_left_goes_on(tmp_path: Path, protocol: ModelProtocol) -> None:
    async with world_in(tmp_path, protocol, program=partial(run_with_files, FEW_FILES)) as world:
        await world.tg.post("faults", {"kind": "delay", "seconds": 2, "match": "getMe"})
        await serve_page(world)  # what the first answer needs is loaded once Telegram is being listened to
        clients = [await asyncio.to_thread(connected, str(world.home / "control.sock")) for _ in range(FEW_FILES + 30)]
        await world.gateway.wait_for_log("daemon.preload_failed")
        for client in clients:
            client.close()
        await world.converse("are you there?")


async def _connect_too_often(tmp_path: Path, protocol: ModelProtocol, event_loop: str) -> None:
    async with world_in(tmp_path, protocol, program=partial(run_with_files, FEW_FILES)) as world:
        await serve_page(world, HERMES_EVENT_LOOP=event_loop)
        before = len(world.gateway.log_bytes())
        descriptor = os.open(world.home, os.O_RDONLY)
        address = f"/proc/self/fd/{descriptor}/control.sock"
        clients = [await asyncio.to_thread(connected, address) for _ in range(FEW_FILES + 30)]
        if event_loop == "asyncio":
            await world.gateway.wait_for_log("socket.accept()", since=before)
        await asyncio.sleep(2.2)  # asyncio tries again every second
        told = world.gateway.log_bytes()[before:]
        assert told.count(b"socket.accept()") == (event_loop == "asyncio")
        assert len(told) < 20_000
        for client in clients:
            client.close()
        os.close(descriptor)
        code, output = await world.command_line("status")
        assert (code, "running for" in output) == (0, True)
        await world.say("are you there?")
        assert await world.replies(1, wait=20)


def connected(address: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(address)
    return client


async def test_a_journal_gets_no_address_that_signs_in(world: World) -> None:
    await world.gateway.start(**world.web_chat(), INVOCATION_ID="3f1c0d5e8a1b4c7f9d2e6a0b4c8d1e5f")
    await world.gateway.wait_for_log("hermes-gateway url")
    assert "token=" not in world.gateway.log_text()
    code, url = await world.command_line("url")
    assert (code, "/?token=" in url) == (0, True)


@only_web
async def test_a_page_that_goes_away_in_the_middle_of_a_form_leaves_no_error_in_the_log(chat: Chat) -> None:
    """It goes away between the fields of the form, and in a file."""
    await chat.start()
    begun = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"beginning " * 10_000
        begun.set()
        await asyncio.Event().wait()

    for name in ("", "notes.txt") * 3:
        sending = asyncio.create_task(chat.page.write("", name=name, content=half()))
        await begun.wait()
        begun.clear()
        sending.cancel()
        await asyncio.wait([sending])
    await chat.ask("are you there?", "echo: .*are you there")
    assert await chat.world.gateway.stop() == 0
    words = ("Traceback", "upload_failed", "Unhandled", "Error handling", '"level":"error"')
    assert [word for word in words if word in chat.world.gateway.log_text()] == []
    assert not [path for path in chat.world.home.rglob("*") if re.fullmatch("[0-9a-f]{32}", path.name)]
