"""Actions on messages in a real browser: copy, edit, undo, retry, another model, stop, and files."""

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.e2e.browser.chromium import Chromium, needs_browser, screenshots
from tests.e2e.browser.test_local_chat import echoed, enter
from tests.e2e.protocols import conversation_of
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import World
from tests.pictures import picture

pytestmark = needs_browser
PROGRAM = run_with_tools
SETTINGS = {"HERMES_MODEL__ALIASES": '{"small": "lab-32k"}', "HERMES_MODEL__IMAGES": "true"}


NASTY = "<img src=x onerror=\"document.title='owned'\">"

DROP = """const transfer = new DataTransfer();
transfer.items.add(new File(["a,b"], arguments[0], {type: arguments[1] ?? "text/csv"}));
for (const name of ["dragover", "drop"]) {
  document.body.dispatchEvent(new DragEvent(name, {dataTransfer: transfer, bubbles: true, cancelable: true}));
}"""
SHOWN = """return [...document.querySelectorAll('.actions button')].filter(
  (one) => one.checkVisibility({opacityProperty: true})).map((one) => one.ariaLabel ?? one.textContent)"""

SHOWN_BUTTONS = ["Copy", "Edit", "Undo", "Copy", "Good answer", "Bad answer", "Retry", "Ask again with …"]


async def act(browser: Chromium, name: str) -> None:
    """Focus an action of the newest message with the keyboard, and press it."""
    await browser.wait_for(f".is-newest [data-act={name}]", lambda found: found != [])
    await browser.run(f"document.querySelector('.is-newest [data-act={name}]').focus()")
    await browser.press(Keys.ENTER)


async def test_a_message_is_edited_retried_and_undone(world: World, browser: Chromium, tmp_path: Path) -> None:
    folder = screenshots(tmp_path)
    await enter(world, browser)
    await browser.write(f"a slip {NASTY}")
    await browser.wait_for(".answer .body", echoed(f"a slip {NASTY}"))
    async for look in browser.every_look():
        assert (await browser.run(SHOWN))[:8] == SHOWN_BUTTONS
        await browser.screenshot(folder / f"actions-{look}.png")

    await browser.press("a draft")
    await act(browser, "edit")
    await browser.wait_for("#editing:not([hidden])", lambda found: found != [])
    assert await browser.run("return document.getElementById('text').value") == f"a slip {NASTY}"
    async for look in browser.every_look():
        await browser.screenshot(folder / f"edit-{look}.png")
    await browser.look(390, 844)
    await browser.press(Keys.ESCAPE)
    assert await browser.run("return document.getElementById('text').value") == "a draft"
    await act(browser, "edit")
    await browser.wait_for("#editing:not([hidden])", lambda found: found != [])
    await browser.press(" and more", Keys.ENTER)
    await browser.wait_for(".answer:not(.undone) .body", echoed(f"a slip {NASTY} and more"))
    assert await browser.run("return document.getElementById('text').value") == "a draft"
    await browser.wait_for(".undone .body", lambda found: len(found) == 2)

    await browser.look(1280, 860)
    await act(browser, "retry")
    await browser.wait_for(".undone .body", lambda found: len(found) == 3)
    await browser.wait_for(".answer:not(.undone) .body", echoed(f"a slip {NASTY} and more"))
    await act(browser, "undo")
    await browser.wait_for(".undone .body", lambda found: len(found) == 5)
    async for look in browser.every_look():
        await browser.screenshot(folder / f"undone-{look}.png")
    live = await browser.texts(".entry:not(.notice, .command) .body")
    await browser.reload()
    await browser.wait_for(".undone .body", lambda found: len(found) == 5)
    assert await browser.texts(".entry:not(.notice, .command) .body") == live
    assert await browser.run("return document.title") != "owned"
    assert await browser.complaints() == []


async def test_another_model_answers_again(world: World, browser: Chromium, tmp_path: Path) -> None:
    await enter(world, browser)
    await browser.write("who are you?")
    await browser.wait_for(".answer .body", echoed("who are you?"))
    await act(browser, "models")
    names = await browser.wait_for("#models button", lambda found: len(found) == 2)
    await browser.screenshot(screenshots(tmp_path) / "models.png")
    await browser.press(Keys.ESCAPE)
    assert await browser.run("return document.querySelector(':popover-open')") is None
    await act(browser, "models")
    await browser.wait_for("#models:popover-open button", lambda found: len(found) == 2)
    await browser.run("document.querySelectorAll('#models button')[arguments[0]].focus()", names.index("small"))
    await browser.press(Keys.ENTER)
    await browser.wait_for(".notice .body", lambda found: any("this conversation uses small" in line for line in found))
    await browser.wait_for(".answer:not(.undone) .body", echoed("who are you?"))
    [*_, asked] = await world.asked(2)
    assert asked["body"]["model"] == "lab-32k"
    assert await browser.complaints() == []


async def test_an_answer_is_rated_by_keyboard_and_the_model_is_told(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    async def pressed(up: int, down: int) -> None:
        await browser.wait_for("[value=up][aria-pressed=true]", lambda found: len(found) == up)
        await browser.wait_for("[value=down][aria-pressed=true]", lambda found: len(found) == down)

    async def press(value: str) -> None:
        await browser.wait_for(".is-newest [value=up]", lambda found: found != [])
        await browser.run(f"document.querySelector('.is-newest [value={value}]').focus()")
        await browser.press(Keys.ENTER)

    await enter(world, browser)
    await browser.write("how high?")
    await browser.wait_for(".answer .body", echoed("how high?"))
    await press("up")
    await pressed(up=1, down=0)
    await press("down")
    await pressed(up=0, down=1)
    assert await browser.run("return document.activeElement.value") == "down", "the focus stays"
    async for look in browser.every_look():
        await browser.screenshot(screenshots(tmp_path) / f"thumbs-{look}.png")
    await browser.reload()
    await pressed(up=0, down=1)
    assert world.query("SELECT value FROM ratings") == [(-1,)]
    await browser.write("and now?")
    await browser.wait_for(".answer .body", lambda found: len(found) == 2)
    assert "people reacted to your answers: 1 👎 to" in conversation_of((await world.asked(2))[1])
    await press("up")
    await pressed(up=1, down=1)
    await press("up")
    await pressed(up=0, down=1)
    await browser.write("/reactions off")
    await browser.wait_for(".reply .body", lambda found: len(found) == 1)
    await browser.run("document.querySelector('[value=up]').click()")
    await browser.wait_for("#complaint p", lambda found: found != [] and "send /reactions on" in found[0])
    assert world.query("SELECT value FROM ratings") == [(-1,)]


async def test_escape_stops_the_answer_but_first_closes_the_list(world: World, browser: Chromium) -> None:
    await world.script(match="story", text="Once upon a time, there was a boat.", chunk_chars=8, pause_after=2)
    await enter(world, browser)
    await browser.write("a story")
    await browser.wait_for(".preview .body", lambda found: found != [] and "Once" in found[0])
    await browser.press("/st")
    await browser.wait_for("#commands", lambda found: found != [""])
    await browser.press(Keys.ESCAPE)
    assert await browser.texts(".preview .body") != []
    await browser.press(Keys.ESCAPE)
    await browser.wait_for(".reply .body", lambda found: found == ["Stopped."])
    await browser.wait_for(".preview", lambda found: found == [])


async def test_an_error_has_a_retry_button(world: World, browser: Chromium, tmp_path: Path) -> None:
    await world.script(match="fragile", times=-1, error={"kind": "401"})
    await enter(world, browser)
    await browser.write("something fragile")
    await browser.wait_for(".failure [data-act=retry]", lambda found: len(found) == 1)
    await browser.screenshot(screenshots(tmp_path) / "error.png")
    await browser.click(".failure [data-act=retry]")
    await browser.wait_for(".failure", lambda found: len(found) == 2)
    assert (await browser.run(SHOWN)).count("Retry") == 1, "the earlier error has no button"


async def test_dropped_files_are_sent_and_uploaded_pictures_are_shown(
    world: World, browser: Chromium, tmp_path: Path
) -> None:
    name = f"{NASTY.replace('/', '')}.png"
    (tmp_path / "cat.png").write_bytes(picture((160, 120)))
    await browser.save_to(tmp_path / "saved")
    await enter(world, browser)
    await browser.choose_file(tmp_path / "cat.png")
    await browser.run(DROP, name.replace(".png", ".csv"))
    await browser.wait_for("#chosen li", lambda found: len(found) == 3)
    await browser.write("look at these")
    for _ in range(2):
        await browser.wait_for(".answer .body", lambda found: len(found) == 1)
        await browser.wait_for(".thumbnails button", lambda found: len(found) == 2)
        await browser.wait_for("img.thumbnail", lambda found: len(found) == 1)
        await browser.screenshot(screenshots(tmp_path) / "thumbnails.png")
        await browser.reload()
    await browser.wait_for(".thumbnails button", lambda found: len(found) == 2)
    await act(browser, "edit")
    await browser.wait_for("#chosen li", lambda found: found[:1] == ["cat.png"])
    assert await browser.run("return document.title") != "owned"
    assert await browser.complaints() == []


async def test_a_phone_has_a_button_for_commands(world: World, browser: Chromium) -> None:
    await browser.look(390, 844)
    await browser.open(await world.gateway.printed_url())
    await browser.wait_for("#slash", lambda found: found == ["/"])
    await browser.click("#slash")
    await browser.wait_for("#commands li:not([hidden])", lambda found: len(found) > 10)


async def test_questions_commands_and_reasoning_are_told_apart(world: World, browser: Chromium, tmp_path: Path) -> None:
    calls = [{"name": "write_down", "arguments": {"line": f"buy {NASTY}"}}]
    await world.script(match="write it down", last_role="user", tool_calls=calls, times=1, reasoning=f"Paper? {NASTY}")
    await enter(world, browser)
    await browser.write("write it down")
    await browser.wait_for(".question .buttons button", lambda found: len(found) == 4)
    await browser.screenshot(screenshots(tmp_path) / "question.png")
    await browser.click(".buttons button")
    await browser.wait_for(".question .body", lambda found: found != [] and "by Owner at" in found[0])
    await browser.wait_for(".answer .body", lambda found: len(found) == 1)
    assert await browser.texts(".question .buttons") == []
    await browser.write("/whoami")
    await browser.wait_for(".reply .body", lambda found: len(found) == 2)
    await browser.screenshot(screenshots(tmp_path) / "kinds.png")
    if await browser.texts(".reasoning"):
        await browser.click(".reasoning summary")
        await browser.wait_for(".reasoning .body", lambda found: found == [f"Paper? {NASTY}"])
    assert await browser.run("return document.title") != "owned"
    assert await browser.complaints() == []
