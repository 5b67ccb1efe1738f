"""The life of a conversation on the pages: dividers, the context meter and the lineage, with the real daemon."""

import asyncio
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.databases import open_store
from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.browser.test_local_chat import enter
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_compression import FILLER, SMALL
from tests.e2e.world import World, world_in
from tests.gateway.console.test_lineage import long_life
from tests.summaries import summary_saying

pytestmark = needs_browser

SETTINGS = SMALL
HOSTILE = """<img src=x onerror="document.title='run'"> "><script>document.title='run'</script> javascript:alert(1)"""
SIZES = [(390, 844, "light"), (390, 844, "dark"), (1280, 860, "light"), (1280, 860, "dark")]


async def talk(browser: Chromium, *texts: str) -> None:
    for text in texts:
        count = len(await browser.texts(".answer .body"))
        await browser.write(text)
        await browser.wait_for(".answer .body", lambda found, count=count: len(found) == count + 1)


async def compressed(world: World, browser: Chromium) -> None:
    """Hold a conversation, and compress it with a hostile focus."""
    await world.script(summary=True, text=f"{summary_saying('The bridge.')}\n- {HOSTILE} [m3]")
    await enter(world, browser)
    await talk(browser, *(f"Message {number}. Always answer in metric units. {FILLER}" for number in range(6)))
    await browser.write(f"/compress {HOSTILE}")
    await browser.wait_for(".condensed > div", lambda found: len(found) == 1)


async def test_a_compression_is_marked_in_the_chat_and_undone_there(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    await compressed(world, browser)
    await talk(browser, "And after that?")
    [live] = await browser.wait_for(".condensed > div", lambda found: found != [] and found[0].endswith("undo"))
    assert live.startswith("Older messages were condensed here: ")
    [meter] = await browser.wait_for("#meter a", lambda found: found != [] and "Compressed 1 time so far." in found[0])
    assert "Compression starts at" in meter
    for width, height, scheme in SIZES:
        await browser.look(width, height, scheme=scheme)
        await browser.run("document.querySelector('.condensed').scrollIntoView({block: 'center'})")
        await browser.screenshot(screenshots(tmp_path) / f"condensed-{width}-{scheme}.png")
        assert await browser.run("return document.documentElement.scrollWidth") == width
    order = "return [...document.querySelectorAll('#log > .entry')].map((entry) => entry.id)"
    shown = await browser.run(order)
    await browser.reload()
    await browser.wait_for(".condensed > div", lambda found: found == [live])
    assert [one for one in await browser.run(order) if one in shown] == [one for one in shown if one != ""]
    await browser.click(".condensed form button")
    await browser.wait_for(".condensed > div", lambda found: "undone" in found[0] and not found[0].endswith("undo"))
    await browser.wait_for(".notice .body", lambda found: "Compression undone" in found[-1])
    assert await browser.complaints() == []


async def test_the_meter_opens_the_lineage_and_a_session_opens_by_keyboard(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    await compressed(world, browser)
    await talk(browser, f"More. {FILLER}", f"Even more. {FILLER}")
    await browser.write("/compress here 2")
    await browser.wait_for(".condensed > div", lambda found: len(found) == 2)
    await browser.click(".condensed:not(:has(~ .condensed)) form button")
    await browser.wait_for(".condensed > div", lambda found: "undone" in found[-1])
    await browser.wait_for("#meter a", lambda found: found != [] and "Compressed 1 time" in found[0])
    await browser.write(f"/title {HOSTILE[:90]}")
    await browser.wait_for("#log .notice .body", lambda found: "img src" in found[-1])
    await browser.click("#meter a")
    await browser.wait_for(".lineage h2", lambda found: found != [] and "4 sessions" in found[0])
    await browser.run("document.querySelectorAll('.tree a')[1].focus()")
    await browser.press(Keys.ENTER)
    await browser.wait_for(".opened h2", lambda found: found != [] and found[0].startswith("Manual"))
    assert "The bridge" in " ".join(await browser.texts(".summary"))
    assert "condensed" in " ".join(await browser.texts(".label"))
    for width, height, scheme in SIZES:
        await browser.look(width, height, scheme=scheme)
        await asyncio.sleep(0.3)  # colours change with a transition
        await browser.screenshot(screenshots(tmp_path) / f"lineage-{width}-{scheme}.png")
        assert await browser.run("return document.documentElement.scrollWidth") == width
    await browser.run("location.search += '&words=bridge'")
    await browser.wait_for(".hits li", lambda found: found != [] and "bridge" in found[0])
    assert "match" in await browser.texts(".label")
    await browser.look(1280, 4_200)
    await browser.screenshot(screenshots(tmp_path) / "lineage-tall.png")
    assert await browser.run("return document.title") == "Lineage · Hermes"
    assert await browser.complaints() == []


async def test_a_lineage_of_a_thousand_sessions_opens_at_its_newest_session(
    tmp_path: Path, protocol: ModelProtocol, browser: Chromium
) -> None:
    async with world_in(tmp_path, protocol, telegram=False) as world:
        world.home.mkdir(parents=True, exist_ok=True)
        store = await open_store(world.home / "state.db")
        await store.write(long_life, 1_000)
        await store.close()
        await world.gateway.start(**world.web_chat())
        await enter(world, browser)
        await browser.run("location.href = '/console/lineage?chat=main'")
        await browser.wait_for(".lineage h2", lambda found: found != [] and "1,000 sessions" in found[0])
        assert await browser.run("return document.querySelectorAll('.tree circle').length") == 1_000
        assert await browser.run("const tree = document.querySelector('.tree'); return tree.scrollLeft > 20000")
        for width, height, scheme in SIZES:
            await browser.look(width, height, scheme=scheme)
            await asyncio.sleep(0.3)
            await browser.screenshot(screenshots(tmp_path) / f"thousand-{width}-{scheme}.png")
            assert await browser.run("return document.documentElement.scrollWidth") == width
        assert await browser.complaints() == []
