"""One `network.proxy` for Telegram, Discord, models, web tools and MCP servers, with a whole gateway."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.e2e import test_discord as discord
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_mcp import SERVER, call, connected, listening
from tests.e2e.world import World, world_in
from tests.fakes.labkit import Server
from tests.fakes.outgoing_proxy import OutgoingProxy

PAGE_HOST = "93.184.215.14"
HOSTS = {"telegram.test", "discord.test", "model.test", "mcp.test", PAGE_HOST}
PASSWORD = "harbour-7-pass"
LOGIN = f"boat:{PASSWORD}"
ANY_ADDRESS = "0.0.0.0"
"""Address at which Linux reaches this machine although it is no loopback address."""


class Behind:
    """A world with every kind of service, at addresses that are not loopback addresses."""

    def __init__(self, world: World, proxy: OutgoingProxy, page_port: int, mcp_port: int) -> None:
        self.world, self.proxy = world, proxy
        self._own = {"telegram": world.tg.url, "discord": world.dc.url, "model": world.llm.url}
        self.ports = {name: urlsplit(url).port for name, url in self._own.items()}
        self.ports |= {"page": page_port, "mcp": mcp_port}
        self.is_secure = False
        """True if the services speak TLS at `ports`."""

    async def use_everything(self, host: str = "", page_host: str = PAGE_HOST, **settings: str) -> None:
        """Start the gateway and use each service once. `host` is the host of all; without it, each has its own."""
        world, environ = self.world, self.world.gateway.environ
        letter = "s" if self.is_secure else ""
        for name, url in self._own.items():
            place = f"{letter}://{host or f'{name}.test'}:{self.ports[name]}"
            for key, value in environ.items():
                environ[key] = value.replace(f"://{urlsplit(url).netloc}", place)
        place = f"{letter}://{host or 'mcp.test'}:{self.ports['mcp']}"
        servers = {"harbour": {"url": f"http{place}/mcp", "effects": {"*": "reads"}}}
        await discord.ready(world, HERMES_MCP__SERVERS=json.dumps(servers), **settings)
        await connected(world)
        await discord.say(world, "hello there")
        assert await discord.sent(world, 1)
        url = f"http{letter}://{page_host}:{self.ports['page']}/boats"
        assert "harbour text" in await call(world, "web_fetch", {"url": url}, "read")
        assert "high" in await call(world, "harbour__tides", {}, "tides")


@asynccontextmanager
async def behind_in(folder: Path, protocol: ModelProtocol, **options: Any) -> AsyncIterator[Behind]:
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="harbour text")

    app.router.add_get("/boats", answer)
    port = World.free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SERVER), "http", str(port), ANY_ADDRESS),
        env={**os.environ, "FAKE_MCP_LOG": str(folder / "mcp.log")},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with (
            Server(app) as page,
            world_in(folder / "world", protocol, telegram=True, discord=True, **options) as world,
            OutgoingProxy(login=LOGIN) as proxy,
        ):
            await listening(port)
            yield Behind(world, proxy, int(page.url.rpartition(":")[2]), port)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
async def behind(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[Behind]:
    async with behind_in(tmp_path, protocol) as made:
        yield made


@pytest.mark.parametrize(
    ("variable", "scheme"),
    [("HERMES_NETWORK__PROXY", "http"), ("HERMES_NETWORK__PROXY", "socks5"), ("ALL_PROXY", "socks5h")],
)
async def test_every_service_is_reached_through_the_proxy(behind: Behind, variable: str, scheme: str) -> None:
    world = behind.world
    await behind.use_everything(**{variable: behind.proxy.url(scheme, LOGIN)})
    assert behind.proxy.hosts() == HOSTS
    _, doctor = await world.command_line("doctor", "--online")
    assert "The Telegram token works." in doctor, doctor
    assert "The Discord token works." in doctor
    assert "The model's server answers" in doctor
    _, shown = await world.command_line("config", "show")
    assert PASSWORD not in doctor + shown + world.gateway.log_text()


async def test_hosts_of_no_proxy_are_reached_directly(behind: Behind) -> None:
    await behind.use_everything(
        ANY_ADDRESS,
        ANY_ADDRESS,
        HERMES_NETWORK__PROXY=behind.proxy.url("http", LOGIN),
        NO_PROXY=f"example.org,{ANY_ADDRESS}",
        HERMES_WEB__PRIVATE_HOSTS=ANY_ADDRESS,
    )
    assert behind.proxy.asked == []


async def test_each_service_can_have_its_own_proxy(behind: Behind) -> None:
    address = behind.proxy.url("socks5", LOGIN)
    await behind.use_everything(
        ANY_ADDRESS,
        ALL_PROXY="http://127.0.0.1:9",
        HERMES_NETWORK__PROXY=json.dumps(
            {"telegram": address, "discord": address, "web": address, "default": "direct"}
        ),
    )
    assert behind.proxy.hosts() == {ANY_ADDRESS, PAGE_HOST}


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_does_not_answer_is_named_without_its_password(world: World, scheme: str) -> None:
    port = urlsplit(world.tg.url).port
    await world.gateway.spawn(
        HERMES_NETWORK__PROXY=f"{scheme}://{LOGIN}@127.0.0.1:{World.free_port()}",
        HERMES_TELEGRAM__BASE_URL=f"http://telegram.test:{port}",
        HERMES_MODEL__BASE_URL=f"http://model.test:{port}/v1",
        HERMES_MCP__SERVERS='{"harbour": {"url": "http://mcp.test/mcp"}}',
    )
    for event in ("adapter.failed", "mcp.server_failed"):
        await world.gateway.wait_for_log(event)
    assert "check network.proxy" in world.gateway.log_text()
    _, doctor = await world.command_line("doctor", "--online")
    assert doctor.count("check network.proxy") == 3, doctor
    assert PASSWORD not in doctor + world.gateway.log_text()


@pytest.mark.parametrize("variable", ["HERMES_NETWORK__PROXY", "HTTPS_PROXY"])
async def test_an_invalid_address_of_a_proxy_stops_the_start_with_a_sentence(world: World, variable: str) -> None:
    await world.gateway.spawn(**{variable: f"ftp://{LOGIN}@proxy.test"})
    assert await world.gateway.wait() != 0
    log = world.gateway.log_text()
    assert "network.proxy" in log
    assert variable in log
    assert "must be the address of a proxy, such as http://proxy.example.org:3128" in log
    assert PASSWORD not in log
