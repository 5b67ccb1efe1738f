"""The list of chats in a real browser: its order, its menu, and its archive."""

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.store.sql import Connection, scalar
from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.world import World

pytestmark = needs_browser

LOAD_MORE = """const [list, wanted] = [document.getElementById("chat-list"), arguments[0]];
return new Promise((done) => {
  const load = () => {
    const count = list.querySelectorAll(".chat-more").length;
    list.scrollTop = 1e9;
    if (count < wanted) setTimeout(load, 20); else done(count);
  };
  load();
})"""
"""Script that scrolls to the end of the list until it shows a number of chats."""

HOSTILE = """"><script>document.title="hacked"</script><img src=x onerror='document.title="hacked"'>"""


def make_chats(world: World, count: int) -> None:
    """Store chats while the gateway is running."""
    with contextlib.closing(sqlite3.connect(world.home / "state.db")) as db, db:
        db.execute("PRAGMA busy_timeout = 10000")
        register_functions(db)
        add_chats(db, count, ())


def add_chats(db: Connection, count: int, titles: Sequence[str]) -> None:
    """Store chats, the newest first, some hours apart. The newest ones have the given titles."""
    now = int(time.time() * 1000)
    for number in range(count):
        at, name = now - number * 7 * 3_600_000, f"chat-{number:08x}"
        title = titles[number] if number < len(titles) else f"Question number {number}"
        values: dict[str, object] = {"name": name, "at": at, "key": f"{number:018d}", "title": title}
        insert = """INSERT INTO chats (platform, account, chat_ref, kind, created_at, updated_at)
        VALUES ('local', 'local', :name, 'local', :at, :at) RETURNING id"""
        values["chat"] = scalar(db, int, insert, values)
        insert = """INSERT INTO sessions (key, chat_id, lineage_id, title, started_at, last_human_at)
        VALUES (:key, :chat, 0, :title, :at, :at) RETURNING id"""
        session = scalar(db, int, insert, values)
        db.execute("UPDATE sessions SET lineage_id = id WHERE id = ?", (session,))
        db.execute("UPDATE chats SET active_session_id = ? WHERE id = ?", (session, values["chat"]))


async def enter(world: World, browser: Chromium) -> None:
    await browser.open(await world.gateway.printed_url())
    await browser.wait_for("#chat-list .chat-name", lambda found: "main" in found)


async def look_at(browser: Chromium, tmp_path: Path, name: str) -> None:
    """Check that the page fits in every look, and take screenshots."""
    folder = screenshots(tmp_path)
    async for look in browser.every_look():
        if look.startswith("390"):
            await browser.run("document.getElementById('chats').showPopover()")
        await browser.screenshot(folder / f"{name}-{look}.png")
        if look.startswith("390"):
            await browser.run("document.getElementById('chats').hidePopover()")


async def open_menu(browser: Chromium, name: str) -> None:
    await browser.run(
        """const entry = [...document.querySelectorAll(".chat-entry")].find(
          (one) => one.querySelector(".chat-name").textContent === arguments[0]);
        entry.querySelector(".chat-more").click();""",
        name,
    )
    await browser.wait_for("#chat-menu:popover-open button", lambda found: len(found) >= 3)


async def test_a_chat_is_renamed_pinned_and_archived(world: World, browser: Chromium, tmp_path: Path) -> None:
    make_chats(world, 4)
    await enter(world, browser)
    await open_menu(browser, "Question number 2")
    await look_at(browser, tmp_path, "menu")
    await open_menu(browser, "Question number 2")
    for given, sentence in (("x" * 10_000, "at most 100 characters. Yours has 10,000"), ("a\u0007b", "control char")):
        await browser.run("document.getElementById('chat-new-name').value = arguments[0]", given)
        await browser.click(".chat-rename button")
        await browser.wait_for("#menu-complaint", lambda found, sentence=sentence: sentence in found[0])
        assert await browser.run("return document.getElementById('chat-new-name').value") == given
    await browser.run("document.getElementById('chat-new-name').value = arguments[0]", HOSTILE)
    await browser.click(".chat-rename button")
    await browser.wait_for("#chat-list .chat-name", lambda found: HOSTILE in found)
    await browser.wait_for("#chat-menu:popover-open", lambda found: found == [])

    await open_menu(browser, HOSTILE)
    await browser.click("form[action$='/pin'] button")
    await browser.wait_for(".chat-day", lambda found: found[0] == "Pinned")
    await open_menu(browser, "Question number 1")
    await browser.click("form[action$='/archive'] button")
    await browser.wait_for("#chat-list .chat-name", lambda found: "Question number 1" not in found)
    await browser.click("#show-archived")
    await browser.wait_for("#chat-list .chat-name", lambda found: found == ["Question number 1"])
    await look_at(browser, tmp_path, "archived")
    await open_menu(browser, "Question number 1")
    await browser.press(Keys.ESCAPE)
    await browser.wait_for(".chat-more:focus", lambda found: len(found) == 1)
    await open_menu(browser, "Question number 1")
    await browser.click("form[action$='/restore'] button")
    await browser.wait_for(".chat-day", lambda found: found == ["No archived chats"])
    await browser.click("#show-archived")
    await browser.wait_for("#chat-list .chat-name", lambda found: "Question number 1" in found)
    assert await browser.run("return document.title") != "hacked"
    refused = [line for line in await browser.complaints() if "409" not in line]
    assert refused == []


async def test_a_new_chat_takes_one_click_and_console_pages_show_the_list(world: World, browser: Chromium) -> None:
    await enter(world, browser)
    await browser.click(".new-chat")
    await browser.wait_for("#heading", lambda found: found == ["New chat"])
    await browser.write("hello")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    await browser.open(await world.gateway.printed_url())
    await browser.wait_for(".chat-entry", lambda found: len(found) == 2)
    root = await browser.run("return location.origin")
    await browser.open(f"{root}/console/overview")
    await browser.wait_for(".chat-entry", lambda found: len(found) == 1)
    assert await browser.complaints() == []


async def test_an_old_message_is_found_and_opened(world: World, browser: Chromium, tmp_path: Path) -> None:
    await enter(world, browser)
    await browser.write(f"the parrot sang {HOSTILE}")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    root = await browser.run("return location.origin")
    await browser.open(f"{root}/console/search")
    await browser.wait_for("#page-menu", lambda found: "Search" in found[0])
    await browser.click("input[name=words]")
    await browser.press("parrot", Keys.ENTER)
    await browser.wait_for("mark", lambda found: found[:1] == ["parrot"])
    await look_at(browser, tmp_path, "search")
    await browser.click(".hits li:last-child a")
    await browser.wait_for("#found", lambda found: len(found) == 1)
    await look_at(browser, tmp_path, "message")
    await browser.click("#content .soft a")
    await browser.wait_for(".entry.found .body", lambda found: found != [] and "parrot" in found[0])
    await browser.open(f"{root}/console/search?words=zebra+walrus")
    await browser.wait_for(".advice", lambda found: len(found) == 1)
    await look_at(browser, tmp_path, "advice")
    assert await browser.run("return document.title") != "hacked"
    assert await browser.complaints() == []


async def test_a_chat_is_deleted_after_one_question(world: World, browser: Chromium, tmp_path: Path) -> None:
    await enter(world, browser)
    await browser.write("the parrot sang 7a3f99e1c2d4")
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    make_chats(world, 2)
    await browser.reload()
    await browser.wait_for("#chat-list .chat-more", lambda found: len(found) == 3)
    await open_menu(browser, "main")
    await browser.click("#chat-menu button[hx-get$='/delete']")
    await browser.wait_for("#chat-menu .danger", lambda found: len(found) == 1)
    assert "This removes 2 messages since" in (await browser.texts("#chat-menu"))[0]
    await look_at(browser, tmp_path, "delete")
    await open_menu(browser, "main")
    await browser.click("#chat-menu button[hx-get$='/delete']")
    await browser.wait_for("#chat-menu .danger", lambda found: len(found) == 1)
    await browser.click("#chat-menu .danger")
    await browser.wait_for("#heading", lambda found: found == ["New chat"])
    assert "main" not in await browser.texts("#chat-list .chat-name")
    await world.until(lambda: world.query("SELECT 1 FROM chats WHERE removed_at IS NOT NULL"))
    content = b"".join(path.read_bytes() for path in world.home.glob("state.db*"))
    assert b"e1c2d4" not in content
    root = await browser.run("return location.origin")
    await browser.open(f"{root}/chat/chat-00000000")
    await browser.wait_for(".notice .body", lambda found: "completely removed from the database" in " ".join(found))
    await browser.open(f"{root}/chat/main")
    await browser.wait_for("#chat-list .chat-name", lambda found: found[:1] == ["main"])
    assert await browser.texts(".entry") == []
