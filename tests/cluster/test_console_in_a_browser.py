"""The web console in a real browser over PostgreSQL: one node serves the pages, and another node answers."""

from pathlib import Path

import pytest

from gateway.console.handler import PAGES
from tests.cluster.nodes import Cluster
from tests.cluster.test_workers import STORY, start_with_page
from tests.e2e.browser.chromium import Chromium, needs_browser
from tests.summaries import summary_saying

pytestmark = [*needs_browser, pytest.mark.cluster]


async def test_a_chat_and_every_page_work_while_another_node_answers(cluster: Cluster, tmp_path: Path) -> None:
    worker = await start_with_page(cluster, HERMES_MODEL__CONTEXT_LENGTH="32768", HERMES_COMPRESSION__MODE="blocking")
    await cluster.script(summary=True, text=summary_saying("The parrot."))
    await cluster.script(match="Message", text="The parrot sang, and we listened. " * 120, times=5)
    async with Chromium(tmp_path / "profile") as browser:
        link = await cluster.gateway.printed_url()
        root = link.partition("/?")[0]
        await browser.open(link)
        await browser.wait_for("#chat-list .chat-name", lambda found: found == ["main"])
        for number in range(5):
            await browser.write(f"Message {number}: the parrot sang")
            await browser.wait_for(".answer .body", lambda found, number=number: len(found) == number + 1)
        await browser.write("/compress")
        await browser.wait_for(".condensed > div", lambda found: found != [] and found[0].endswith("undo"))
        queries = {
            "transcript": "?chat=local:main",
            "forget": "?what=local:main",
            "lineage": "?chat=main",
            "search": "?words=parrot&all=1",
            "message": "?id=m1",
            "why": "?message=m1",
        }
        for name in (page.about.name for page in PAGES if page.about.name not in ("meter", "deletion")):
            await browser.open(f"{root}/console/{name}{queries.get(name, '')}")
            await browser.wait_for("#content > *", lambda found: found != [])
            if name == "search":
                assert "parrot" in await browser.texts("mark")
            assert await browser.texts("#complaint p") == [], name
            assert await browser.complaints() == [], name

        await browser.open(f"{root}/chat/main")
        await browser.wait_for(".condensed > div", lambda found: found != [] and found[0].endswith("undo"))
        await browser.click(".condensed form button")
        await browser.wait_for(".condensed > div", lambda found: "undone" in found[0])
        await cluster.script(match="a story", text=STORY, chunk_chars=20, pause_after=4)
        await browser.write("tell me a story")
        await browser.wait_for(".preview .body", lambda found: found != [] and "once upon a time" in found[0])
        await cluster.gateway.kill()
        await browser.wait_for("#connection:not([hidden])", lambda found: found == ["Reconnecting…"])
        await browser.press("a draft")
        await cluster.release()
        await cluster.gateway.start()
        await browser.wait_for("#connection:not([hidden])", lambda found: found == [])
        await browser.wait_for(".answer .body", lambda found: sum(STORY.strip() in one for one in found) == 1)
        assert await browser.run("return document.getElementById('text').value") == "a draft"
    assert "turn.finished" in worker.log_text()
