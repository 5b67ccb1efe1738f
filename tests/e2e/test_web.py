"""The web tools of a whole gateway: pages and searches reach the model, and nothing private does."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.e2e.protocols import prompt_of
from tests.e2e.world import World
from tests.fakes.labkit import Server

SENTENCE = "The register names every boat, the day on which it came in, and what it brought into the harbour."
PAGE = f"""<!doctype html><html><head><title>Boats of the year</title></head><body>
<nav><a href="/home">Home</a> <a href="/about">About us</a></nav>
<article><h1>Boats</h1>{"".join(f"<p>{number}. {SENTENCE}</p>" for number in range(8))}</article>
<footer>Imprint and cookies</footer></body></html>"""
FOUND = {
    "query": "boats",
    "results": [{"url": "https://example.org/boats", "title": "A list of boats", "content": "Barrels and ropes."}],
    "unresponsive_engines": [],
}


class Site:
    """A web server on loopback, which keeps the paths that it was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.changed = asyncio.Condition()

    async def answer(self, request: web.Request) -> web.Response:
        async with self.changed:
            self.asked.append(request.path)
            self.changed.notify_all()
        match request.path:
            case "/boats":
                return web.Response(text=PAGE, content_type="text/html")
            case "/long":
                return web.Response(text="\n".join(f"{number}. {SENTENCE}" for number in range(1_000)))
            case "/inside":
                raise web.HTTPFound(self.url.replace("127.0.0.1", "localhost") + "/secret")
            case "/search":
                return web.json_response(FOUND)
            case "/hangs":
                await asyncio.sleep(600)
        return web.Response(text="the key of the cellar is under the mat")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made, app = Site(), web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    async with Server(app) as server:
        made.url = server.url
        yield made


async def result_of(world: World, tool: str, **arguments: object) -> str:
    """What the model is shown of one call that it makes."""
    count = len(await world.asked(0, wait=0))
    await world.script_call("do it", tool, **arguments)
    await world.converse("do it")
    return str(prompt_of((await world.asked(count + 2))[-1])[-1])


async def test_a_page_reaches_the_model_as_marked_text_without_what_stands_around_it(world: World, site: Site) -> None:
    await world.gateway.start(HERMES_WEB__PRIVATE_HOSTS="127.0.0.1")
    result = await result_of(world, "web_fetch", url=f"{site.url}/boats")
    assert SENTENCE in result
    assert "Boats of the year" in result
    assert f"{site.url}/boats" in result
    assert "never instructions" in result
    assert "cookies" not in result

    site.asked.clear()
    beginning = await result_of(world, "web_fetch", url=f"{site.url}/long")
    found = re.search(r"persisted-output id=\W*(m\d+)", beginning)
    assert found is not None, beginning[:300]
    part = await result_of(world, "history_open", id=found[1], offset=90_000, limit=2_000)
    assert SENTENCE in part
    assert site.asked == ["/long"], "a long page is stored, and not fetched again"


async def test_private_addresses_are_not_asked_whoever_leads_there(world: World, site: Site) -> None:
    await world.gateway.start()
    assert "private" in await result_of(world, "web_fetch", url=f"{site.url}/secret")
    assert site.asked == []
    world.configure("web:\n  private_hosts: [127.0.0.1]\n")
    await world.reload()
    result = await result_of(world, "web_fetch", url=f"{site.url}/inside")
    assert "private" in result
    assert "cellar" not in result
    assert site.asked == ["/inside"]


@pytest.mark.each_protocol
async def test_no_secret_leaves_in_an_address_and_pages_that_hang_in_one_chat_hold_up_no_other(
    world: World, site: Site
) -> None:
    key, token = "sk-of-the-harbour-1234567890", "hbr7Qm2xLd9vTz4K"
    servers = {"ghost": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": f"Bearer {token}"}}}
    encoded = base64.b64encode(f"ab{token}".encode()).decode()
    await world.gateway.start(
        HERMES_WEB__PRIVATE_HOSTS="127.0.0.1",
        HERMES_TRANSCRIPTION__API_KEY=key,
        HERMES_MCP__SERVERS=json.dumps(servers),
    )
    paths = (f"boats?key={key}", token, f"{token[:7]}/{token[7:]}", f"?q={encoded}", token.swapcase())
    for path in paths:
        result = await result_of(world, "web_fetch", url=f"{site.url}/{path}")
        assert "a secret from the gateway" in result, path
    assert site.asked == []
    hanging = [{"name": "web_fetch", "arguments": {"url": f"{site.url}/hangs"}}] * 20
    await world.script_calls("read them all", *hanging)
    await world.say("read them all", chat_id=43)
    async with asyncio.timeout(15), site.changed:
        await site.changed.wait_for(lambda: len(site.asked) == 8)
    async with asyncio.timeout(8):
        assert "Boats of the year" in await result_of(world, "web_fetch", url=f"{site.url}/boats")
    assert site.asked == ["/hangs"] * 8 + ["/boats"]


async def test_a_search_is_offered_once_it_is_configured(world: World, site: Site) -> None:
    await world.gateway.start()
    await world.converse("hello")
    [first] = await world.asked(1)
    assert "web_fetch" in str(first["body"].get("tools"))
    assert "web_search" not in str(first["body"].get("tools"))
    await world.gateway.stop()
    await world.gateway.start(HERMES_WEB__ENABLED="false")
    await world.converse("/new", "hello again")
    assert "web_" not in str((await world.asked(2))[-1]["body"].get("tools"))
    await world.gateway.stop()
    await world.gateway.start(HERMES_WEB__ENABLED="true", HERMES_WEB__SEARCH="searxng", HERMES_WEB__SEARCH_URL=site.url)
    await world.converse("/new")
    result = await result_of(world, "web_search", query="boats")
    assert "https://example.org/boats" in result
    assert "Barrels and ropes." in result
