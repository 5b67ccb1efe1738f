"""The web chat in a real browser, served by the real daemon."""

import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from selenium.webdriver.common.keys import Keys

from tests.e2e.browser.chromium import BROWSER, DRIVER, Chromium
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import World, world_in
from tests.fakes.labkit import Server

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver"),
]

ANSWER = """Here is the plan.

## Steps

1. Rename `conn` to `db`
2. Add a test, as [the guide](https://example.org/guide) asks:

```python
async def test_a_reload_shows_the_same(page: Page) -> None:
    assert await page.texts() == ["hello", "Hello! How can I help you today? This line is long on purpose."]
```

| table | rows | state |
|---|--:|:-:|
| inbox | 12 | settled |
| outbox | 3 | sent |

> Nothing is lost, nothing is answered twice.
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    """The daemon with nothing but the web chat and a model."""
    async with world_in(tmp_path, protocol, telegram=False) as made:
        await made.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=str(free_port()))
        yield made


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Chromium]:
    async with Chromium(tmp_path / "profile") as opened:
        yield opened


def echoed(*texts: str) -> Callable[[list[str]], bool]:
    """Whether there is one answer for each of `texts`, which the fake model says back behind a time stamp."""

    def claim(found: list[str]) -> bool:
        return len(found) == len(texts) and all(
            answer.endswith(text) for answer, text in zip(found, texts, strict=True)
        )

    return claim


async def enter(world: World, browser: Chromium) -> None:
    await browser.open(await world.gateway.printed_url())
    await browser.wait_for("#log", lambda found: found == [""])


async def test_write_see_it_stream_start_anew_and_find_it_all_after_a_reload(world: World, browser: Chromium) -> None:
    await world.script(match="plan", text=ANSWER, chunk_chars=8, pause_after=12)
    await enter(world, browser)
    await browser.write("What is the plan?")
    await browser.wait_for(".person", lambda found: len(found) == 1)

    [partial] = await browser.wait_for(".preview .body", lambda found: found != [] and "Here is the" in found[0])
    assert "Nothing is lost" not in partial
    assert await browser.texts(".answer") == []
    await world.llm.post("resume")
    [answer] = await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    assert "Nothing is lost, nothing is answered twice." in answer
    assert await browser.texts(".preview") == [], "the answer took the preview's place"

    await browser.write("/new")
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    await browser.write("And now?")
    await browser.wait_for(".answer .body", lambda found: len(found) == 3 and found[-1].endswith("And now?"))
    before = await browser.texts(".person .body, .answer .body")
    await browser.reload()
    await browser.wait_for(".divider", lambda found: [line.lower() for line in found] == ["new conversation"])
    assert await browser.texts(".person .body, .answer .body") == before
    assert before[0] == "What is the plan?"
    assert await browser.complaints() == []


async def test_a_page_survives_a_restart_of_the_gateway(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.write("before")
    await browser.wait_for(".answer .body", echoed("before"))
    await world.gateway.stop()
    await browser.wait_for("#connection:not([hidden])", lambda found: found == ["Reconnecting…"])

    await browser.write("while it is away")
    await browser.wait_for("#complaint", lambda found: "does not answer" in found[0])
    assert await browser.run("return document.getElementById('text').value") == "while it is away"

    await world.gateway.start()
    await browser.wait_for("#connection:not([hidden])", lambda found: found == [])
    await browser.press(Keys.ENTER)
    await browser.wait_for(".answer .body", echoed("before", "while it is away"))
    assert await browser.texts(".person .body") == ["before", "while it is away"]


async def test_two_windows_show_the_same(world: World, browser: Chromium, tmp_path: Path) -> None:
    await enter(world, browser)
    async with Chromium(tmp_path / "second") as second:
        await world.gateway.stop()
        await world.gateway.start()
        await second.open(await world.gateway.printed_url())
        await browser.write("from the first")
        await second.wait_for(".answer .body", echoed("from the first"))
        await second.write("from the second")
        await browser.wait_for(".answer .body", lambda found: len(found) == 2)
        assert await browser.texts(".body") == await second.texts(".body")


async def test_the_keyboard_is_enough(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.press("one", Keys.SHIFT + Keys.ENTER, Keys.NULL, "two", Keys.ENTER)
    await browser.wait_for(".person .body", lambda found: found == ["one\ntwo"])
    await browser.press("/st")
    names = await browser.wait_for("#commands li:not([hidden]) .command-name", lambda found: len(found) > 1)
    assert all(name.startswith("/st") for name in names)
    await browser.press("atus", Keys.ENTER)
    await browser.wait_for(".answer .body", lambda found: any("Model:" in text for text in found))
    await browser.press("/he", Keys.TAB)
    assert await browser.run("return document.getElementById('text').value") == "/help"
    assert await browser.texts("#commands:not([hidden])") == []


async def test_a_double_enter_sends_once(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.press("only once", Keys.ENTER, Keys.ENTER, Keys.ENTER)
    await browser.wait_for(".answer .body", echoed("only once"))
    assert await browser.texts(".person .body") == ["only once"]
    assert world.query("SELECT count(*) FROM inbox") == [(1,)]


async def test_a_chosen_file_is_read_into_the_turn(world: World, browser: Chromium, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the password of the garden is trellis")
    await enter(world, browser)
    await browser.choose_file(notes)
    await browser.wait_for("#chosen li", lambda found: found[:1] == ["notes.txt"])
    await browser.write("What is in it?")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    [asked] = await world.asked(1)
    assert "trellis" in str(asked)
    assert await browser.texts(".person .files li") == ["notes.txt"]
    await browser.reload()
    assert await browser.texts(".person .body") == ["What is in it?"]


async def test_a_tool_call_is_a_line_that_opens(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.write('[[tool:history_search {"query": "garden"}]]')
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    await browser.reload()
    [line] = await browser.wait_for(".tool summary", lambda found: len(found) == 1)
    assert line.startswith("history_search")
    await browser.click(".tool summary")
    await browser.wait_for(".tool pre", lambda found: len(found) == 2)


async def test_code_is_selected_where_the_browser_gives_no_clipboard(world: World, browser: Chromium) -> None:
    await world.script(match="plan", text=ANSWER)
    await enter(world, browser)
    await browser.write("What is the plan?")
    await browser.wait_for(".answer [data-copy]", lambda found: len(found) == 1)
    await browser.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    await browser.click(".answer [data-copy]")
    await browser.wait_for(".answer [data-copy]", lambda found: found == ["Selected"])
    selected = await browser.run("return getSelection().toString()")
    assert selected.startswith("async def test_a_reload_shows_the_same")
    assert await browser.complaints() == []


async def test_commands_and_their_replies_stay_over_a_restart(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.write("/whoami")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    before = await browser.texts(".body")
    await world.gateway.stop()
    await browser.wait_for("#connection:not([hidden])", lambda found: found == ["Reconnecting…"])
    await world.gateway.start()
    await browser.wait_for("#connection:not([hidden])", lambda found: found == [])
    assert await browser.texts(".body") == before
    await browser.reload()
    await browser.wait_for(".body", lambda found: found == before)


async def test_nothing_that_a_model_writes_runs(world: World, browser: Chromium) -> None:
    nasty = (
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
        "[x](javascript:document.title='owned') ![p](https://elsewhere.invalid/pixel.png) <hx-partial hx-get='/'>"
    )
    await world.script(match="nasty", text=nasty, chunk_chars=5)
    await enter(world, browser)
    await browser.write("nasty")
    [shown] = await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    assert "<script>document.title='owned'</script>" in shown
    assert await browser.run("return document.title") == "main · Hermes"
    assert await browser.run("return document.querySelectorAll('#log :is(img, script, hx-partial)').length") == 0
    assert await browser.complaints() == []


# ---- other origins ----------------------------------------------------------------------------------------

ATTACK = """<!doctype html><title>waiting</title>
<iframe src="CHAT/chat/main"></iframe>
<form method="post" enctype="multipart/form-data" action="CHAT/chat/main/messages" target="frame">
<input name="text" value="sell everything"><input name="client_id" value="aaaaaaaaaaaaaaaa"></form>
<iframe name="frame"></iframe>
<script>
(async () => {
  const got = [];
  const attempt = async (name, url, options) => {
    try { const answer = await fetch(url, options); got.push([name, answer.type, await answer.text()]); }
    catch (error) { got.push([name, "refused", ""]); }
  };
  await attempt("read", "CHAT/chat/main", {credentials: "include"});
  await attempt("opaque", "CHAT/chat/main", {credentials: "include", mode: "no-cors"});
  await attempt("script", "CHAT/static/app.js", {});
  await attempt("write", "CHAT/chat/main/messages", {method: "POST", mode: "no-cors", credentials: "include",
    body: new URLSearchParams({text: "sell everything", client_id: "bbbbbbbbbbbbbbbb"})});
  await new Promise((done) => {
    const source = new EventSource("CHAT/chat/main/stream?after=", {withCredentials: true});
    source.onmessage = (event) => { got.push(["stream", "open", event.data]); done(); };
    source.onerror = () => { got.push(["stream", "refused", ""]); source.close(); done(); };
  });
  document.forms[0].submit();
  await new Promise((done) => { document.querySelector("[name=frame]").onload = done; setTimeout(done, 2000); });
  const inside = [...document.querySelectorAll("iframe")].map((frame) => {
    try { return frame.contentDocument.body.innerText; } catch (error) { return ""; }
  });
  document.title = JSON.stringify({got, inside});
})();
</script>"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_page_from_another_origin_gets_nothing(world: World, browser: Chromium, host: str) -> None:
    await enter(world, browser)
    await browser.write("the plan for Thursday")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    await browser.complaints()
    chat = (await world.gateway.printed_url()).split("/?")[0]

    async def attack(_: web.Request) -> web.Response:
        return web.Response(text=ATTACK.replace("CHAT", chat), content_type="text/html")

    app = web.Application()
    app.router.add_get("/", attack)
    async with Server(app) as elsewhere:
        await browser.open(elsewhere.url.replace("127.0.0.1", host))
        [title] = await browser.wait_for("title", lambda found: found != ["waiting"])
    assert "Thursday" not in title
    assert "sell" not in title
    assert '"open"' not in title
    assert world.query("SELECT count(*) FROM inbox") == [(1,)]


# ---- how it looks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 860)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone_and_a_desktop(
    world: World, browser: Chromium, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    await world.script(match="plan", text=ANSWER)
    await browser.look(width, height, scheme=scheme)
    await enter(world, browser)
    await browser.write("What is the plan?")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    folder = Path(os.environ.get("HERMES_TEST_SCREENSHOTS") or tmp_path)
    await browser.screenshot(folder / f"chat-{width}-{scheme}.png")

    assert await browser.run("return document.documentElement.scrollWidth") == width
    hidden = await browser.run(
        """return [...document.querySelectorAll(".entry, .entry .body > *, footer, .bar, #composer button")].filter(
        (part) => { const box = part.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth + 0.5; }
        ).map((part) => part.outerHTML.slice(0, 80))"""
    )
    assert hidden == []
    box = await browser.run("return document.getElementById('composer').getBoundingClientRect().toJSON()")
    assert 0 < box["top"] < box["bottom"] <= height
    ground = await browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 80) is (scheme == "dark")
    is_listed = await browser.run("return document.getElementById('chats').getBoundingClientRect().width > 0")
    assert is_listed is (width > 832)
    if not is_listed:
        await browser.click(".menu")
        await browser.wait_for("#chats a", lambda found: found == ["main"])
        await browser.screenshot(folder / f"chats-{width}-{scheme}.png")
    assert await browser.complaints() == []
