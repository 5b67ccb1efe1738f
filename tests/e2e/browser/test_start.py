"""The set-up page of a new gateway in a real browser, on a phone and a desktop, in both colour schemes."""

from pathlib import Path

from aiohttp import web

from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.test_start import start_new
from tests.e2e.world import World

pytestmark = needs_browser

HOSTILE = "\"><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


async def serve_hostile_models() -> web.AppRunner | None:
    """Serve a list of models on the port of llama.cpp; None if another program uses this port."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": HOSTILE}, {"id": "qwen3:8b"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 8080).start()
    except OSError:
        await runner.cleanup()
        return None
    return runner


async def test_a_new_owner_chooses_a_model(telegram_world: World, browser: Chromium, tmp_path: Path) -> None:
    folder = screenshots(tmp_path)
    world = telegram_world
    await start_new(world)
    server = await serve_hostile_models()
    try:
        await browser.open(await world.gateway.printed_url())
        await browser.wait_for("#content h3", lambda found: found[:1] == ["Use an API key"])
        assert "/console/start" in await browser.run("return location.pathname")
        async for look in browser.every_look():
            await browser.screenshot(folder / f"start-{look}.png")
        await browser.run("document.getElementById('scroll').scrollTo(0, 99999)")
        await browser.screenshot(folder / "start-end-1280.png")
        if server is not None:
            assert await browser.texts("#content option") == [HOSTILE, "qwen3:8b"]
        assert await browser.run("return document.querySelectorAll('#content :is(img, script)').length") == 0
        assert await browser.complaints() == []

        await fill(browser, key="sk-lab-0123456789", address=f"{world.llm.url}/none", model=HOSTILE)
        await browser.wait_for("#complaint", lambda found: "Nothing was saved" in found[0])
        assert await browser.run("return document.querySelector('[name=key]').value") == "sk-lab-0123456789"
        async for look in browser.every_look():
            await browser.screenshot(folder / f"start-refused-{look}.png")
        await fill(browser, key="sk-lab-0123456789", address=f"{world.llm.url}/v1", model="lab-128k")
        await browser.wait_for("#said", lambda found: "lab-128k now answers" in found[0])
        await browser.wait_for(".lead", lambda found: found[0].startswith("lab-128k at 127.0.0.1 answers"))
        assert await browser.run("return document.querySelector('[name=key]').value") == ""
        async for look in browser.every_look():
            await browser.screenshot(folder / f"start-done-{look}.png")
        assert "sk-lab-0123456789" not in await browser.run("return document.documentElement.outerHTML")
        assert await browser.run("return document.title") != "owned"
        refused = [line for line in await browser.complaints() if "409" not in line]
        assert refused == []
    finally:
        if server is not None:
            await server.cleanup()


async def test_looking_around_opens_the_chat_by_keyboard(telegram_world: World, browser: Chromium) -> None:
    world = telegram_world
    await start_new(world)
    link = await world.gateway.printed_url()
    await browser.open(link)
    await browser.wait_for("#content h3", lambda found: "Look around first" in found)
    await browser.run("document.querySelector('[data-then] button').focus()")
    await browser.press("\ue007")
    await browser.wait_for("#log", lambda found: found != [])
    assert await browser.run("return location.pathname") == "/chat/main"
    await browser.open(link.partition("?")[0])
    await browser.wait_for("#log", lambda found: found != [])
    assert await browser.complaints() == []


async def fill(browser: Chromium, **fields: str) -> None:
    """Fill in the form for a key, and send it."""
    await browser.run(
        """const form = document.querySelector("[name=key]").form;
        for (const [name, value] of Object.entries(arguments[0])) form.elements[name].value = value;
        form.requestSubmit();""",
        fields,
    )
