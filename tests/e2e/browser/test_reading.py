"""Reading in the web chat: rich answers, unread messages, open pages and reloaded pages, and accessibility."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from gateway.console.handler import PAGES
from tests.e2e.browser.chromium import WAIT_SECONDS, Chromium, needs_browser, screenshots
from tests.e2e.browser.test_local_chat import ANSWER, enter
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World

pytestmark = needs_browser
PROGRAM = run_with_tools
SETTINGS = {"HERMES_STORE__BUSY_SECONDS": "1"}

AXE = Path(__file__).parent / "vendor" / "axe-4.14.1.min.js"
"""The accessibility checker axe-core, from its npm package."""

HOSTILE = "\"><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
RICH = rf"""The energy is $E = mc^2$, and a coffee costs $5 or $6.[^1] See https://example.org/a_(b).

$$
\int_0^1 x^2 \, dx = \frac{{1}}{{3}}, \qquad \sum_{{i=1}}^n i = \frac{{n(n+1)}}{{2}}
$$

```python
@cache
def area(radius: float) -> float:  # of a circle
    return math.pi * radius ** 2 if radius > 0 else print("none")
```

```diff
- old
+ new
```

- [x] done
- [ ] open

| column | another column with a long heading | and a third one | a fourth column that is wide |
|---|--:|:-:|---|
| a | $x_1$ | b | https://example.org/somewhere |

$\text{{{HOSTILE}}}_1$ \(\href{{javascript:title='owned'}}{{y^2}}\) ![{HOSTILE}](https://elsewhere.invalid/x.png)

[^1]: The *price* of 2026. {HOSTILE}
"""
SHOWN = "return [...document.getElementById('log').children].map((entry) => entry.outerHTML)"


async def check(browser: Chromium) -> list[str]:
    """Return the serious and critical findings of axe-core."""
    await browser.run(AXE.read_text())
    script = """return axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
      .filter((one) => ["serious", "critical"].includes(one.impact))
      .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`)))"""
    found: list[str] = await browser.run(script)
    return found


# ---- one rendering ------------------------------------------------------------------------------------------


async def settled(browser: Chromium, is_same: Any) -> list[str]:
    """Return the entries of the page as soon as `is_same` accepts them, or after some seconds."""
    shown: list[str] = []
    for _ in range(int(WAIT_SECONDS * 5)):
        shown = await browser.run(SHOWN)
        if is_same(shown):
            break
        await asyncio.sleep(0.2)  # a page sends no event when it changes
    return shown


async def assert_a_reload_changes_nothing(browser: Chromium) -> None:
    await asyncio.sleep(1)  # the page compares itself with the store shortly after the last event
    live: list[str] = await browser.run(SHOWN)
    await browser.reload()
    reloaded = await settled(browser, lambda shown: shown == live)
    assert reloaded == live


async def test_an_open_page_is_equal_to_a_reloaded_page(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.write("/whoami")
    await browser.wait_for(".notice .body", lambda found: len(found) == 1)
    await browser.write("hello")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    await assert_a_reload_changes_nothing(browser)

    calls = [{"name": "register", "arguments": {"mark": mark, "lines": 3}} for mark in ("a", "b")]
    await world.script(match="read it", last_role="user", text="I look it up.", tool_calls=calls, times=1)
    await browser.write("read it")
    await browser.wait_for(".tool", lambda found: len(found) == 2)
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    await assert_a_reload_changes_nothing(browser)

    await world.script(match="plan", text=ANSWER, chunk_chars=8, pause_after=12)
    await browser.write("What is the plan?")
    await browser.wait_for(".preview .body", lambda found: found != [] and "Here is the" in found[0])
    await browser.write("/status")
    await browser.wait_for(".notice .body", lambda found: len(found) == 2)
    await browser.write("And then?")
    await browser.wait_for(".waiting", lambda found: len(found) == 1)
    await assert_a_reload_changes_nothing(browser)
    await browser.write("/stop")
    await browser.wait_for(".answer .mark", lambda found: found == ["stopped"])
    await browser.wait_for(".waiting", lambda found: found == [])
    await browser.wait_for(".answer .body", lambda found: len(found) == 4)
    await assert_a_reload_changes_nothing(browser)
    order = await browser.texts(".body")
    assert order.index("/stop") > next(at for at, text in enumerate(order) if "Here is the" in text)

    await browser.write("/new")
    await browser.wait_for(".notice .body", lambda found: len(found) == 4)
    await browser.write("Once more")
    await browser.wait_for(".answer .body", lambda found: len(found) == 5)
    await browser.wait_for(".divider", lambda found: len(found) == 1)
    await assert_a_reload_changes_nothing(browser)
    assert await browser.complaints() == []


# ---- rich answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
async def test_a_rich_answer_is_readable_for_everybody(
    world: World, browser: Chromium, tmp_path: Path, width: int, scheme: str
) -> None:
    await world.script(match="rich", text=RICH)
    await browser.look(width, 900, scheme=scheme)
    await enter(world, browser)
    await browser.write("rich")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    assert await browser.run("return document.querySelectorAll('.answer math').length") == 5
    assert await check(browser) == []
    await browser.screenshot(screenshots(tmp_path) / f"rich-end-{width}-{scheme}.png")
    await browser.run("document.getElementById('scroll').scrollTop = 0")
    await browser.wait_for("#to-end:not([hidden])", lambda found: len(found) == 1)
    await browser.screenshot(screenshots(tmp_path) / f"rich-{width}-{scheme}.png")
    assert await check(browser) == []
    assert await browser.run("return document.documentElement.scrollWidth") == width
    assert await browser.run("return document.title") == "main · Hermes"
    assert await browser.run("return document.querySelectorAll('#log :is(img, script)').length") == 0
    colours = await browser.run(
        """return [...new Set([...document.querySelectorAll(".answer code span")].map(
        (part) => getComputedStyle(part).color))].length"""
    )
    assert colours >= 5
    await browser.click("#to-end")
    await browser.wait_for("#to-end:not([hidden])", lambda found: found == [])
    assert await browser.run("return document.activeElement.id") == "text"
    assert await browser.complaints() == []


# ---- unread -------------------------------------------------------------------------------------------------


async def test_an_answer_that_came_meanwhile_is_marked_until_it_was_seen(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    await enter(world, browser)
    await browser.write("first")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    await world.until_rows("SELECT count(*) FROM chats WHERE read_id > 0", (1,))
    await world.script(match="slow", text=ANSWER, chunk_chars=8, pause_after=12)
    await browser.write("slow")
    await browser.wait_for(".preview", lambda found: len(found) == 1)
    chat = (await world.gateway.printed_url()).split("/?")[0]
    await browser.open(f"{chat}/chat/other")
    await browser.wait_for("#chat-list a", lambda found: len(found) == 2)
    await world.llm.post("resume")
    await world.until_rows("SELECT count(*) FROM outbox WHERE kind = 'final' AND state = 'sent'", (2,))
    await browser.reload()
    await browser.wait_for("#chat-list .unread", lambda found: len(found) == 1)
    await browser.screenshot(screenshots(tmp_path) / "unread-list.png")
    await browser.open(f"{chat}/chat/main")
    await browser.wait_for("#unread", lambda found: found == ["New messages"])
    assert await browser.run("return document.getElementById('unread').nextElementSibling.innerText") != ""
    await browser.screenshot(screenshots(tmp_path) / "unread-line.png")
    read = "SELECT read_id = (SELECT max(id) FROM messages) FROM chats WHERE chat_ref = 'main'"
    await world.until_rows(read, (1,))
    await browser.reload()
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    assert await browser.texts("#unread") == []
    assert await browser.texts("#chat-list .unread") == []
    assert await browser.complaints() == []


async def test_a_long_answer_of_a_hidden_page_is_announced_if_the_person_asked(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.run(
        """Notification.requestPermission = async () => "granted";
        Object.defineProperty(Notification, "permission", {value: "granted"});
        ServiceWorkerRegistration.prototype.showNotification = (title, about) => {
          window.announced = [title, about.body]; };"""
    )
    await browser.click("#notify")
    assert await browser.run("return document.getElementById('notify').ariaPressed") == "true"
    await world.script(match="slow", text=ANSWER, chunk_chars=8, pause_after=12)
    await browser.write("slow")
    await browser.wait_for(".preview", lambda found: len(found) == 1)
    await browser.run(
        """Object.defineProperty(document, "hidden", {value: true});
        document.dispatchEvent(new Event("visibilitychange", {bubbles: true}));
        Date.now = () => performance.timeOrigin + performance.now() + 20000;"""
    )
    await world.llm.post("resume")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    for _ in range(50):
        if (announced := await browser.run("return window.announced")) is not None:
            break
        await asyncio.sleep(0.1)
    assert announced == ["The answer is ready", "main"]


# ---- offline and installed ----------------------------------------------------------------------------------


async def test_a_page_says_that_the_gateway_cannot_be_reached_and_comes_back(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    await enter(world, browser)
    await browser.write("hello")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    ready = "return navigator.serviceWorker.ready.then((found) => found.active.state)"
    assert await browser.run(ready) in ("activating", "activated")
    assert await browser.complaints() == []
    await browser.reload()
    await world.gateway.stop()
    await browser.reload()
    await browser.wait_for("h1", lambda found: found == ["The gateway cannot be reached"])
    await browser.screenshot(screenshots(tmp_path) / "offline.png")
    kept = """return caches.open("offline").then((cache) => cache.keys()).then((keys) => keys.map((key) =>
      new URL(key.url).pathname))"""
    kept_paths = await browser.run(kept)
    assert sorted(kept_paths) == ["/offline", "/static/app.css", "/static/icon.svg", "/static/offline.js"]
    await world.gateway.start()
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)


async def test_the_page_can_be_installed(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    manifest = await browser.command("Page.getAppManifest")
    assert manifest["errors"] == []
    assert '"start_url": "/"' in manifest["data"]
    assert (await browser.command("Page.getInstallabilityErrors"))["installabilityErrors"] in (
        [],
        [{"errorId": "in-incognito", "errorArguments": []}],
    )


# ---- accessibility ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
async def test_every_page_passes_axe(telegram_world: World, browser: Chromium, width: int, scheme: str) -> None:
    world = telegram_world
    await world.gateway.start(**world.web_chat())
    await world.say("hello")
    await world.replies(1)
    await world.say("may I?", chat_id=99)
    await world.replies(1, chat_id=99)
    await browser.look(width, 900, scheme=scheme)
    link = await world.gateway.printed_url()
    await browser.open(link)
    await browser.wait_for("#chat-list", lambda found: len(found) == 1)
    await browser.write("/whoami")
    await browser.wait_for(".notice .body", lambda found: len(found) == 1)
    await browser.press("/")
    await browser.wait_for("#commands li", lambda found: len(found) > 3)
    found = {"chat": await check(browser)}
    queries = {"transcript": "?chat=telegram:42", "why": "?message=m1"}
    for page in PAGES:
        if page.about.is_in_menu or page.about.name in queries:
            name = page.about.name
            await browser.open(f"{link.partition('/?')[0]}/console/{name}{queries.get(name, '')}")
            await browser.wait_for("#content", lambda found: found not in ([], [""]))
            found[name] = await check(browser)
    assert {name: findings for name, findings in found.items() if findings} == {}


async def test_the_focus_stays_after_an_element_is_replaced(world: World, browser: Chromium) -> None:
    await world.script(match="plan", text=ANSWER, chunk_chars=8, pause_after=12)
    await enter(world, browser)
    await browser.write("What is the plan?")
    await browser.wait_for("#writing button", lambda found: found == ["Stop"])
    await browser.press(Keys.SHIFT + Keys.TAB)
    await browser.run("document.querySelector('#writing button').focus({focusVisible: true})")
    await browser.press(Keys.ENTER)
    await browser.wait_for("#writing button", lambda found: found == [])
    await browser.wait_for(".notice", lambda found: len(found) == 1)
    assert await browser.run("return document.activeElement.id") == "text"
    assert not re.search("Error", " ".join(await browser.complaints()))
