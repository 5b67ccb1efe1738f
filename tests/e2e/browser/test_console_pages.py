"""The owner's pages of the console in a real browser, on a phone and a desktop, in both colour schemes."""

import re
from pathlib import Path

import pytest

from gateway.console.handler import PAGES
from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.world import World

pytestmark = needs_browser

HOSTILE = "\"><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
QUERIES = {
    "transcript": "?chat=telegram:42",
    "why": "?message=m1",
    "meter": "?chat=telegram:42",
    "lineage": "?chat=telegram:42",
    "message": "?id=m1",
}

OUTSIDE = """return [...document.querySelectorAll("#content > *, .bar")].filter((part) => {
  const box = part.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth + 0.5; }
).map((part) => part.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 860, "light"), (390, 844, "dark")])
async def test_every_page_fits_and_runs_nothing_that_people_write(
    telegram_world: World, browser: Chromium, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    world = telegram_world
    folder = screenshots(tmp_path)
    await world.gateway.start(**world.web_chat())
    await world.script(match="hello", text=f"Answer {HOSTILE}")
    await world.say(f"hello {HOSTILE}", first_name=HOSTILE)
    await world.replies(1)
    await world.say("may I?", chat_id=99, first_name=HOSTILE)
    await world.replies(1, chat_id=99)
    await browser.look(width, height, scheme=scheme)
    link = await world.gateway.printed_url()
    await browser.open(link)
    await browser.wait_for("#page-menu a", lambda found: found != [])
    for page in PAGES:
        if page.about.name in ("meter", "deletion"):  # parts of other pages
            continue
        name = page.about.name
        await browser.open(f"{link.partition('/?')[0]}/console/{name}{QUERIES.get(name, '')}")
        await browser.wait_for("#content > *", lambda found: found != [])
        await browser.screenshot(folder / f"console-{name}-{width}-{scheme}.png")
        assert await browser.run("return document.documentElement.scrollWidth") == width, name
        assert await browser.run(OUTSIDE) == [], name
        assert re.fullmatch(r"[\w ]+ · Hermes", await browser.run("return document.title")), name
        assert await browser.run("return document.querySelectorAll('#content :is(img, script)').length") == 0
    assert await browser.complaints() == []


async def test_a_request_for_access_is_approved_by_keyboard(telegram_world: World, browser: Chromium) -> None:
    world = telegram_world
    await world.gateway.start(**world.web_chat())
    await world.say("may I?", chat_id=99)
    await world.replies(1, chat_id=99)
    link = await world.gateway.printed_url()
    await browser.open(link)
    await browser.wait_for("#page-menu a", lambda found: found != [])
    await browser.open(f"{link.partition('/?')[0]}/console/overview")
    await browser.wait_for("#content button", lambda found: "Approve" in found)
    await browser.run("document.querySelector('#content button').focus()")
    await browser.press("\ue007")
    await browser.wait_for("#said", lambda found: found != [] and "now has access with the role user" in found[0])
    await browser.wait_for(".attention", lambda found: found == [])
    assert len(await world.replies(2, chat_id=99)) == 2
    assert await browser.complaints() == []
