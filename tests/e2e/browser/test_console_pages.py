"""The owner's pages of the console in a real browser, on a phone and a desktop, in both colour schemes."""

import os
import re
from pathlib import Path

import pytest

from gateway.console.handler import PAGES
from tests.e2e.browser.chromium import BROWSER, DRIVER, Chromium
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import world_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver"),
]

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
    tmp_path: Path, protocol: ModelProtocol, width: int, height: int, scheme: str
) -> None:
    folder = Path(os.environ.get("HERMES_TEST_SCREENSHOTS") or tmp_path)
    async with world_in(tmp_path / "world", protocol) as world, Chromium(tmp_path / "profile") as browser:
        await world.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=str(world.free_port()))
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


async def test_a_request_for_access_is_approved_by_keyboard(tmp_path: Path, protocol: ModelProtocol) -> None:
    async with world_in(tmp_path / "world", protocol) as world, Chromium(tmp_path / "profile") as browser:
        await world.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=str(world.free_port()))
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
