"""The life of a conversation on the pages: dividers, the context meter and the lineage, with the real daemon."""

import asyncio
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.browser.test_local_chat import echoed, enter
from tests.e2e.test_compression import FILLER, SMALL
from tests.e2e.world import World
from tests.summaries import summary_saying

pytestmark = needs_browser

SETTINGS = SMALL
HOSTILE = """<img src=x onerror="document.title='run'"> "><script>document.title='run'</script> javascript:alert(1)"""


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
    async for look in browser.every_look():
        await browser.run("document.querySelector('.condensed').scrollIntoView({block: 'center'})")
        await browser.screenshot(screenshots(tmp_path) / f"condensed-{look}.png")
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
    async for look in browser.every_look():
        await asyncio.sleep(0.3)  # colours change with a transition
        await browser.screenshot(screenshots(tmp_path) / f"lineage-{look}.png")
    await browser.run("location.search += '&words=bridge'")
    await browser.wait_for(".hits li", lambda found: found != [] and "bridge" in found[0])
    assert "match" in await browser.texts(".label")
    await browser.look(1280, 4_200)
    await browser.screenshot(screenshots(tmp_path) / "lineage-tall.png")
    assert await browser.run("return document.title") == "Lineage · Hermes"
    assert await browser.complaints() == []


async def test_five_tasks_need_only_the_keyboard(world: World, browser: Chromium) -> None:
    await world.script(summary=True, text=summary_saying("The parrot."))
    await world.script(match="Message", text=FILLER, times=4)
    await world.script(match="story", text="Once upon a time, there was a boat.", chunk_chars=8, pause_after=2)
    await enter(world, browser)
    await browser.type("The parrot sang.", Keys.ENTER)  # ask
    await browser.wait_for(".answer .body", echoed("The parrot sang."))
    await browser.tab_to(".is-newest [data-act=retry]", is_back=True)  # retry
    await browser.type(Keys.ENTER)
    await browser.wait_for(".undone .body", lambda found: len(found) == 1)
    await browser.wait_for(".answer:not(.undone) .body", echoed("The parrot sang."))
    await browser.wait_for("#text:focus", lambda found: len(found) == 1)

    await browser.type("Tell me a story", Keys.ENTER)  # stop
    await browser.wait_for(".preview .body", lambda found: found != [] and "Once" in found[0])
    await browser.tab_to("#writing button", is_back=True)
    await browser.type(Keys.ENTER)
    await browser.wait_for(".answer .mark", lambda found: "stopped" in found)
    await browser.wait_for("#text:focus", lambda found: len(found) == 1)

    for number in range(4):  # undo a compression
        count = len(await browser.texts(".answer .body"))
        await browser.type(f"Message {number}", Keys.ENTER)
        await browser.wait_for(".answer .body", lambda found, count=count: len(found) == count + 1)
    await browser.type("/compress", Keys.ENTER)
    await browser.wait_for(".condensed > div", lambda found: found != [] and found[0].endswith("undo"))
    await browser.tab_to(".condensed form button", is_back=True)
    await browser.type(Keys.ENTER)
    await browser.wait_for(".condensed > div", lambda found: "undone" in found[0] and not found[0].endswith("undo"))

    await browser.tab_to("#page-menu a[href='/console/search']", is_back=True)  # find an old message
    await browser.type(Keys.ENTER)
    await browser.wait_for("input[name=words]", lambda found: len(found) == 1)
    await browser.tab_to("input[name=words]")
    await browser.type("parrot", Keys.ENTER)
    await browser.wait_for("mark", lambda found: found != [])
    await browser.tab_to(".hits a")
    await browser.type(Keys.ENTER)
    await browser.wait_for("#found", lambda found: len(found) == 1)
    await browser.tab_to("#content .soft a")
    await browser.type(Keys.ENTER)
    await browser.wait_for(".entry.found .body", lambda found: found != [] and "parrot" in found[0])
    assert await browser.complaints() == []
