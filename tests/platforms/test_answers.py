"""Servers of chat services that redirect their clients or send endless answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import discord
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from discord.http import Route

from platforms.discord import DiscordSettings
from platforms.discord.client import RestClient
from platforms.telegram.transport import MAX_BODY_BYTES, AmbiguousRequestError, BotApiRequest, NotSentError


@asynccontextmanager
async def redirecting() -> AsyncIterator[tuple[str, list[str]]]:
    """Run a server that redirects to another one. Yield its address and the requests to the other one."""
    heard: list[str] = []

    async def listen(asked: web.Request) -> web.Response:
        heard.append(await asked.text())
        return web.json_response({"ok": True, "result": []})

    async def redirect(asked: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(str(there.make_url(asked.path)))

    servers = []
    for handler in (listen, redirect):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        servers.append(TestServer(app, host="127.0.0.1"))
        await servers[-1].start_server()
    there, here = servers
    try:
        yield str(here.make_url("")).rstrip("/"), heard
    finally:
        await here.close()
        await there.close()


@pytest.fixture
async def telegram() -> AsyncIterator[BotApiRequest]:
    request = BotApiRequest(connections=1, connect_seconds=5.0, request_seconds=5.0)
    await request.initialize()
    yield request
    await request.shutdown()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_to_telegram_follows_no_redirect(telegram: BotApiRequest, method: str) -> None:
    async with redirecting() as (url, heard):
        with pytest.raises(NotSentError, match="307"):
            await telegram.do_request(f"{url}/bot1:secret/sendMessage", method)
        assert heard == []


async def test_a_request_to_discord_follows_no_redirect() -> None:
    async with redirecting() as (url, heard), discord.Client(intents=discord.Intents.none()) as client:
        rest = RestClient(client, DiscordSettings(api_url=url))
        with pytest.raises(discord.HTTPException):
            await rest.static_login("lab.secret")
        with pytest.raises(discord.HTTPException):
            await rest.request(Route("POST", "/channels/1/messages"), json={"content": "for you alone"})
        await rest.close()
        assert heard == []


async def test_an_endless_answer_of_telegram_is_given_up(telegram: BotApiRequest) -> None:
    sent = 0

    async def flood(asked: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(asked)
        while sent < 10 * MAX_BODY_BYTES:
            await answer.write(b" " * 1_000_000)
            sent += 1_000_000
        return answer

    app = web.Application()
    app.router.add_post("/{path:.*}", flood)
    async with TestServer(app, host="127.0.0.1") as server:
        with pytest.raises(AmbiguousRequestError, match="too large"):
            await telegram.do_request(str(server.make_url("/bot1:secret/getUpdates")), "POST")
    assert sent < 3 * MAX_BODY_BYTES
