"""The web chat in a real browser, served by the real daemon."""

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from aiohttp import web
from selenium.webdriver.common.keys import Keys

from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.with_tools import NOTEBOOK, run_with_tools
from tests.e2e.world import World
from tests.fakes.labkit import Server

pytestmark = needs_browser
PROGRAM = run_with_tools
SETTINGS = {"HERMES_STORE__BUSY_SECONDS": "1"}

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


def echoed(*texts: str) -> Callable[[list[str]], bool]:
    """Whether there is one answer for each of `texts`, which the fake model says back behind a time stamp."""

    def claim(found: list[str]) -> bool:
        return len(found) == len(texts) and all(
            answer.endswith(text) for answer, text in zip(found, texts, strict=True)
        )

    return claim


async def enter(world: World, browser: Chromium) -> None:
    await browser.open(await world.gateway.printed_url())
    await browser.wait_for("#chat-list .chat-name", lambda found: found == ["main"])


async def test_a_token_is_not_lost_while_nothing_can_be_stored(world: World, browser: Chromium) -> None:
    url = await world.gateway.printed_url()
    with contextlib.closing(sqlite3.connect(world.home / "state.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await browser.open(url)
        await browser.wait_for("main p", lambda found: "Reload this page in a moment" in " ".join(found))
        other.execute("ROLLBACK")
    await browser.reload()
    await browser.wait_for("#chat-list .chat-name", lambda found: found == ["main"])


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
    await browser.wait_for(".notice .body", lambda found: len(found) == 1)
    await browser.write("And now?")
    await browser.wait_for(".answer .body", lambda found: len(found) == 2 and found[-1].endswith("And now?"))
    before = await browser.texts(".person .body, .answer .body")
    await browser.reload()
    await browser.wait_for(".divider", lambda found: [line.lower() for line in found] == ["new conversation"])
    assert await browser.texts(".person .body, .answer .body") == before
    assert before[0] == "What is the plan?"
    assert await browser.complaints() == []


@pytest.mark.parametrize("is_composing", [True, False], ids=["within", "after compositionend, as Safari sends it"])
async def test_a_key_of_an_input_method_reaches_no_handler(world: World, browser: Chromium, is_composing: bool) -> None:
    await enter(world, browser)

    async def compose(key: str) -> None:
        """Dispatch a key that belongs to a composition."""
        await browser.run(
            """const [key, isComposing] = arguments;
            const about = {key, isComposing, keyCode: 229, bubbles: true, cancelable: true};
            document.getElementById("text").dispatchEvent(new KeyboardEvent("keydown", about));""",
            key,
            is_composing,
        )

    await browser.click("#text")
    await browser.press("にほ")
    await compose("Enter")
    assert await browser.run("return document.getElementById('text').value") == "にほ", "it is still in the composer"
    await browser.press("んご")
    await browser.press(Keys.ENTER)
    await browser.wait_for(".person .body", lambda found: found == ["にほんご"])

    await browser.press("/")
    await browser.wait_for("#commands [aria-selected=true]", lambda found: len(found) == 1)
    [first] = await browser.texts("#commands [aria-selected=true]")
    for key in ("ArrowDown", "Tab", "Enter", "Escape"):
        await compose(key)
    assert await browser.texts("#commands [aria-selected=true]") == [first]
    assert await browser.run("return document.getElementById('text').value") == "/"


PICTURE = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='30' height='20' onload='document.title=1'>"
    "<script>document.title=2</script></svg>"
)


async def test_a_file_of_the_agent_is_shown_and_saved(world: World, browser: Chromium, tmp_path: Path) -> None:
    await browser.save_to(tmp_path)
    await enter(world, browser)
    world.configure("tools: {approval: {writes: allow}}\n")
    await world.reload()
    await world.script_call("draw", "write_file", path="a <b>.svg", content=PICTURE)
    call = {"name": "send_file", "arguments": {"path": "a <b>.svg", "caption": "a *box*"}}
    await world.script(match_any="Wrote", last_role="tool", times=1, tool_calls=[call])
    await browser.write("draw")
    width = "return document.querySelector('img.sent')?.naturalWidth"
    for is_again in (False, True):
        if is_again:
            await browser.reload()
        await browser.wait_for(".answer button[data-file]", lambda found: found == ["a <b>.svg"])
        while await browser.run(width) != 30:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # a picture tells nobody outside that it has come
    await browser.click("button[data-file]")
    while not (tmp_path / "a _b_.svg").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # another process writes it
    assert (tmp_path / "a _b_.svg").read_text() == PICTURE
    assert await browser.run("return document.title") not in ("1", "2")
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
    await browser.wait_for(".notice .body", lambda found: any("Model:" in text for text in found))
    await browser.press("/he", Keys.TAB)
    assert await browser.run("return document.getElementById('text').value") == "/help "
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
    await browser.wait_for(".person .body", lambda found: found == ["What is in it?"])


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
    await browser.wait_for(".notice .body", lambda found: len(found) == 1)
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
  await attempt("script", "CHAT/static/core.js", {});
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


async def test_a_server_on_another_port_gets_nothing_that_works(world: World, browser: Chromium) -> None:
    """It asks our port first, takes what the browser sends it, and sends the browser wherever it likes."""
    await enter(world, browser)
    await browser.write("the plan for Thursday")
    await browser.wait_for(".answer .body", echoed("the plan for Thursday"))
    chat = (await world.gateway.printed_url()).split("/?")[0]
    cookies: list[str] = []
    got: list[str] = []

    async def replay(headers: dict[str, str]) -> None:
        for method, path in (
            *(("GET", path) for path in ("/", "/chat/main", "/chat/main/stream", "/chat/main/earlier?before=99999")),
            *(("POST", path) for path in ("/sign-in", "/chat/main/messages")),
        ):
            form = {"text": "sell everything", "client_id": "cccccccccccccccc"} if method == "POST" else None
            sent = {"Origin": chat, "HX-Request": "true", "Hermes-Key": "", **headers}
            async with world.http.request(method, chat + path, headers=sent, data=form) as answer:
                got.append(f"{await answer.text()} {answer.headers}")

    async def lead(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        await replay({"Cookie": cookies[-1]})
        where = request.query.get("to")
        headers = {"Location": where} if where else {}
        return web.Response(status=302 if where else 200, text="here", headers=headers)

    app = web.Application()
    app.router.add_get("/", lead)
    async with Server(app) as elsewhere:
        await replay({})
        await browser.open(elsewhere.url)
        for path in ("/chat/main", "/?token=made-up", "/open?name=x", "/static/core.js"):
            await browser.open(f"{elsewhere.url}/?to={quote(chat + path)}")
        await browser.open(elsewhere.url)
        stored = await browser.run("return JSON.stringify([{...localStorage}, document.cookie])")
    assert any("hermes_local_" in cookie for cookie in cookies), "the browser does send it the cookie"
    assert stored == '[{},""]'
    assert "Thursday" not in "".join(got)
    assert world.query("SELECT count(*) FROM inbox") == [(1,)]
    await browser.open(f"{chat}/chat/main")
    await browser.wait_for(".answer .body", echoed("the plan for Thursday"))


async def test_a_browser_that_was_signed_out_is_told_how_to_get_in_again(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.write("the plan for Thursday")
    await browser.wait_for(".answer .body", echoed("the plan for Thursday"))
    code, listed = await world.command_line("url", "--list", "--json")
    [row] = json.loads(listed)
    assert code == 0
    assert "Chrome" in row["agent"]
    assert await world.command_line("url", "--revoke", row["id"]) == (0, "Signed out 1 browser.\n")
    await browser.reload()
    await browser.wait_for("#locked", lambda found: found != [] and "hermes-gateway url" in found[0])
    assert await browser.texts(".body") == []
    _, url = await world.command_line("url")
    await browser.open(url.strip())
    await browser.wait_for(".answer .body", echoed("the plan for Thursday"))


async def test_times_are_the_readers_and_every_day_has_its_date(world: World, browser: Chromium) -> None:
    await browser.live_in("Pacific/Auckland")
    await enter(world, browser)
    await browser.write("hello")
    await browser.wait_for(".answer .body", echoed("hello"))
    read = "return Number(document.querySelector('.person').dataset.at)"
    at = datetime.fromtimestamp(await browser.run(read) / 1000, ZoneInfo("Pacific/Auckland"))
    [date] = await browser.texts("#log .day")
    assert str(at.day) in date
    assert str(at.year) in date
    shown = await browser.run("return document.querySelector('.person time').textContent")
    assert f"{at.minute:02}" in shown
    assert str(at.hour % 12 or 12) in shown or f"{at.hour:02}" in shown
    title = await browser.run("return document.querySelector('.person time').title")
    assert str(at.year) in title
    assert f"{at.second:02}" in title


async def test_what_is_sent_during_an_answer_waits_below_it(world: World, browser: Chromium, tmp_path: Path) -> None:
    await world.script(match="plan", text=ANSWER, chunk_chars=8, pause_after=12)
    await enter(world, browser)
    await browser.write("What is the plan?")
    await browser.wait_for(".preview .body", lambda found: found != [] and "Here is the" in found[0])
    await browser.write("And after that?")
    for _ in range(2):
        await browser.wait_for(".waiting .mark", lambda found: len(found) == 1)
        order = await browser.wait_for(".entry .body", lambda found: len(found) == 3)
        assert order[-1] == "And after that?"
        await browser.screenshot(screenshots(tmp_path) / "waiting.png")
        await browser.reload()
    await world.llm.post("resume")
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    for _ in range(2):
        order = await browser.wait_for(".entry .body", lambda found: len(found) == 4)
        assert order[2] == "And after that?"
        assert await browser.texts(".waiting") == []
        await browser.reload()


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
    folder = screenshots(tmp_path)
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
        await browser.wait_for("#chats .chat-name", lambda found: found == ["main"])
        await browser.screenshot(folder / f"chats-{width}-{scheme}.png")
    assert await browser.complaints() == []


async def test_a_call_that_writes_is_allowed_by_a_button(world: World, browser: Chromium, tmp_path: Path) -> None:
    await world.script_call("write it down", "write_down", line="buy `flour`")
    await enter(world, browser)
    await browser.write("write it down")
    labels = await browser.wait_for(".buttons button", lambda found: len(found) == 4)
    assert labels == ["Yes, once", "This conversation", "Always here", "No"]
    assert not (world.home.parent / NOTEBOOK).exists()
    await browser.screenshot(screenshots(tmp_path) / "approval.png")
    await browser.click(".buttons button")
    await browser.wait_for(".answer .body", lambda found: found != [] and "written: buy flour" in found[-1])
    assert (world.home.parent / NOTEBOOK).read_text() == "buy `flour`\n"
