"""Every page of the console in a real browser, on a phone and a desktop, in both colour schemes, with much data."""

import os
import re
import time
from pathlib import Path

import msgspec
from selenium.webdriver.common.keys import Keys

from gateway.console.handler import PAGES
from hermes_state.models.ledger import insert_call
from hermes_state.sessions import load_open, set_title
from hermes_state.store.sql import Connection
from hermes_state.values import Millis
from tests.databases import open_store
from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.browser.hostile import CORPUS, DANGER, MARKDOWN
from tests.e2e.browser.test_chat_list import LOAD_MORE, add_chats
from tests.e2e.browser.test_message_actions import DROP
from tests.e2e.world import World
from tests.gateway.console.test_lineage import long_life
from tests.hermes_state.rows import CALL

pytestmark = needs_browser

CHATS, SESSIONS = 2_000, 1_000


def add_everything(db: Connection) -> None:
    """Store many chats, a long lineage, and model calls without known prices, all with hostile names."""
    chat, now = long_life(db, SESSIONS), Millis(int(time.time() * 1000))
    db.execute("DELETE FROM outbox")  # all answers are delivered
    newest = load_open(db, chat)
    assert newest is not None
    set_title(db, newest.id, CORPUS[0])
    for number, text in enumerate(CORPUS):
        insert_call(db, (chat, None, None, None), msgspec.structs.replace(CALL, model=text, route=text), now)
        db.execute(
            """UPDATE compressions SET focus = ?, model = ?, created_at = ?
            WHERE id = (SELECT id FROM compressions ORDER BY id DESC LIMIT 1 OFFSET ?)""",
            (text, text, now, number),
        )
    add_chats(db, CHATS, CORPUS)


async def write_hostile(world: World, browser: Chromium) -> None:
    """Send hostile text and files from the page and from Telegram, under hostile names."""
    await world.script(match="alert", text=MARKDOWN, chunk_chars=60, times=-1)
    for number, text in enumerate(CORPUS[:6]):
        await world.say("may I?", chat_id=100 + number, first_name=text)
    await world.say(f"hello {CORPUS[1]}", first_name=CORPUS[2])
    await world.replies(1)
    await world.say(f"/schedule add 0 8 * * 1 {CORPUS[1]}")
    await world.replies(2)
    for number, text in enumerate(CORPUS[:8]):
        kind = ("csv", "text/csv") if number % 2 else ("iso", "application/octet-stream")
        await browser.run(DROP, f"{text.replace('/', '')}.{kind[0]}", kind[1])
    await browser.run("document.getElementById('text').value = arguments[0]", MARKDOWN)
    await browser.run("document.getElementById('text').focus()")
    await browser.type(Keys.ENTER)
    await browser.wait_for(".answer .body", lambda found: found != [] and "elsewhere.invalid" in found[-1])
    for selector in (".thumbnails li", ".files:not(.thumbnails, #chosen) li"):
        await browser.wait_for(selector, lambda found: len(found) == 4)


async def test_every_page_fits_and_runs_nothing_that_people_write(
    telegram_world: World, browser: Chromium, tmp_path: Path
) -> None:
    folder = screenshots(tmp_path)
    world = telegram_world
    world.home.mkdir(parents=True, exist_ok=True)
    store = await open_store(world.home / "state.db")
    await store.write(add_everything)
    await store.close()
    await world.gateway.start(**world.web_chat())
    link = await world.gateway.printed_url()
    await browser.open(link)
    await browser.wait_for("#chat-list .chat-entry", lambda found: 50 <= len(found) <= 52)
    await browser.wait_for(".condensed", lambda found: found != [])
    assert await browser.run(LOAD_MORE, 400) == 400
    days = await browser.texts(".chat-day")
    assert days[0] in ("Today", "Yesterday"), "seven hours can lead across midnight"
    assert len(days) == len(set(days)), "a group has one heading"
    await write_hostile(world, browser)
    [(own,)] = world.query("SELECT max(id) FROM messages WHERE text LIKE '%hello%' AND role = 'user'")
    queries = {
        "transcript": "?chat=telegram:42",
        "forget": "?what=telegram:42",
        "why": f"?message=m{own}",
        "lineage": "?chat=main&words=alert",
        "message": f"?id=m{own}",
        "search": "?words=alert&all=1",
    }
    names = [page.about.name for page in PAGES if page.about.name not in ("meter", "deletion")]  # parts of others
    root = link.partition("/?")[0]
    for name in ("chat", *names):
        path = "chat/main" if name == "chat" else f"console/{name}{queries.get(name, '')}"
        await browser.open(f"{root}/{path}")
        await browser.wait_for(".answer" if name == "chat" else "#content > *", lambda found: found != [])
        assert await browser.run(DANGER) == [], name
        async for look in browser.every_look():
            if "HERMES_TEST_SCREENSHOTS" in os.environ:
                await browser.screenshot(folder / f"console-{name}-{look}.png")
        title = await browser.run("return document.title")
        assert re.fullmatch(r"[\w ]+ · Hermes", title), name
        assert await browser.complaints() == [], name
        if name == "chat":
            assert len(await browser.texts(".files:not(.thumbnails, #chosen) li")) == 4, (
                "names of files that were not kept"
            )
        if name == "lineage":
            assert await browser.run("return document.querySelectorAll('.tree circle').length") == SESSIONS
            assert await browser.run("const tree = document.querySelector('.tree'); return tree.scrollLeft > 20000")
        if name == "chats":
            assert "unknown" in await browser.texts("td.right")
        if name == "costs":
            assert any("prices of these models are unknown" in line for line in await browser.texts("#content > p"))
            heights = "return [...document.querySelectorAll('.chart rect')].map((bar) => bar.height.baseVal.value)"
            assert min(await browser.run(heights)) == 0.5


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
