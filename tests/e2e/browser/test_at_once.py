"""Several tabs, people and gateways at once, and what a page says when something is not possible."""

import asyncio
import json
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.e2e.browser.chromium import Chromium, needs_browser
from tests.e2e.browser.test_chat_list import open_menu
from tests.e2e.browser.test_local_chat import echoed, enter
from tests.e2e.browser.test_message_actions import act
from tests.e2e.test_console import link_for
from tests.e2e.world import World

pytestmark = needs_browser

STORY = "Once upon a time, there was a boat on the lake."
VALUE = "return document.getElementById('text').value"


async def test_two_tabs_and_two_people_go_on_over_a_restart(world: World, browser: Chromium, tmp_path: Path) -> None:
    await world.script(match="story", text=STORY, chunk_chars=8, pause_after=2, times=-1)
    await enter(world, browser)
    root = await browser.run("return location.origin")
    async with Chromium(tmp_path / "second") as ann:
        await ann.open(await link_for(world, "Ann"))
        await ann.wait_for("#chat-list .chat-name", lambda found: found == ["main"])
        await browser.open_tab(f"{root}/chat/plans")
        await browser.wait_for("#chat-list .chat-name", lambda found: "plans" in found)
        await browser.write("from the second tab")
        await browser.wait_for(".answer .body", echoed("from the second tab"))
        await browser.press("a draft")
        await act(browser, "edit")
        await browser.wait_for("#editing:not([hidden])", lambda found: found != [])
        await browser.press(", edited")

        await browser.show_tab(0)
        await browser.write("a story")
        await browser.wait_for(".preview .body", lambda found: found != [] and "Once" in found[0])
        await ann.write("from Ann")
        await ann.wait_for(".answer .body", echoed("from Ann"))
        await ann.open_tab(f"{root}/console/search?words=story")
        await ann.wait_for("#content .advice", lambda found: found != [])
        assert "Costs" not in await ann.texts("#page-menu a")
        assert await ann.complaints() == []
        assert await browser.complaints() == []

        await world.gateway.kill()
        await ann.show_tab(0)
        await ann.write("while it is away")
        await ann.wait_for("#complaint", lambda found: "does not answer" in found[0])
        assert await ann.run(VALUE) == "while it is away"
        await world.gateway.start()
        await world.release()
        for page in (browser, ann):
            await page.wait_for("#connection:not([hidden])", lambda found: found == [])
        await browser.wait_for(".answer .body", lambda found: [STORY in one for one in found] == [True])
        await ann.press(Keys.ENTER)
        await ann.wait_for(".answer .body", echoed("from Ann", "while it is away"))
        assert await ann.texts(".person .body") == ["from Ann", "while it is away"]

        await browser.show_tab(1)
        assert await browser.run(VALUE) == "from the second tab, edited"
        await browser.press(Keys.ENTER)
        await browser.wait_for(".answer:not(.undone) .body", echoed("from the second tab, edited"))
        assert await browser.run(VALUE) == "a draft"
        assert world.query("SELECT count(*) FROM turns WHERE state <> 'finished'") == [(0,)]


async def test_bad_input_gets_one_sentence_and_keeps_what_was_typed(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    await world.script(match="story", text=STORY, chunk_chars=8, pause_after=2)
    await browser.save_to(tmp_path)
    await enter(world, browser)
    root = await browser.run("return location.origin")
    await browser.write("hello")
    await browser.wait_for(".answer .body", echoed("hello"))
    await browser.write("a story")
    await browser.wait_for(".preview .body", lambda found: found != [] and "Once" in found[0])
    await browser.reload()
    await browser.wait_for("#chat-list .chat-more", lambda found: len(found) == 1)
    await open_menu(browser, "main")
    await browser.click("#chat-menu [data-file$='/jsonl']")  # export during a turn
    async with asyncio.timeout(15):
        while not (tmp_path / "main.jsonl").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # another process writes it
    rows = [json.loads(line) for line in (tmp_path / "main.jsonl").read_text().splitlines()]
    assert "a story" in str(rows)
    assert STORY not in str(rows)
    await browser.press(Keys.ESCAPE)
    await world.release()
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)

    for path, sentence in (  # ids that were deleted, belong to another chat, or never existed
        ("lineage?chat=gone", "There is no conversation in this chat. Open the chat and write a message first."),
        ("lineage?chat=main&session=0123456789abcdef", "This chat has no such session or message. Choose one"),
        ("transcript?chat=telegram:7", "No chat, session or message"),
        ("message?id=m99999", "There is no message"),
        ("why?message=m99999", "There is no message"),
    ):
        await browser.open(f"{root}/console/{path}")
        [said] = await browser.wait_for("#complaint p", lambda found: len(found) == 1)
        assert sentence in said
        assert await browser.texts("#content > *") == []
    await browser.open(f"{root}/console/search?words=AND+OR+-+%22")
    [said] = await browser.wait_for(".advice p", lambda found: len(found) == 1)
    assert "Type at least one word" in said
    assert await browser.run("return document.querySelector('[name=words]').value") == 'AND OR - "'

    await browser.open(f"{root}/chat/main")  # signed out in the middle of an edit
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    await browser.press("a draft")
    await act(browser, "edit")
    await browser.wait_for("#editing:not([hidden])", lambda found: found != [])
    await browser.press(", a long one")
    [row] = json.loads((await world.command_line("url", "--list", "--json"))[1])
    await world.command_line("url", "--revoke", row["id"])
    await browser.press(Keys.ENTER)
    await browser.wait_for("#locked", lambda found: found != [] and "This browser is not signed in" in found[0])
    assert not await browser.run("return document.getElementById('complaint').checkVisibility()")
    _, url = await world.command_line("url")
    await browser.open_tab(url.strip())
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    await browser.show_tab(0)
    await browser.wait_for("#editing:not([hidden])", lambda found: found != [])
    assert await browser.run(VALUE) == "a story, a long one"
    await browser.run("document.getElementById('text').focus()")
    await browser.press(Keys.ENTER)
    await browser.wait_for(".answer:not(.undone) .body", lambda found: len(found) == 2 and "a long one" in found[1])
    assert await browser.run(VALUE) == "a draft"

    await browser.wait_for("#chat-list .chat-more", lambda found: len(found) == 1)
    await open_menu(browser, "main")  # renamed after it was deleted in the other tab
    await browser.run("document.getElementById('chat-new-name').value = 'a name'")
    await browser.show_tab(1)
    await browser.wait_for("#chat-list .chat-more", lambda found: len(found) == 1)
    await open_menu(browser, "main")
    await browser.click("#chat-menu button[hx-get$='/delete']")
    await browser.wait_for("#chat-menu .danger", lambda found: len(found) == 1)
    await browser.click("#chat-menu .danger")
    await browser.wait_for("#heading", lambda found: found == ["New chat"])
    await browser.show_tab(0)
    await browser.click(".chat-rename button")
    await browser.wait_for("#menu-complaint", lambda found: found == ["This chat no longer exists. Reload the page."])
    assert await browser.run("return document.getElementById('chat-new-name').value") == "a name"
