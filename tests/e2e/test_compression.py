"""Compression as people meet it: the command, the layers that act by themselves, and what is said about them."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from yarl import URL

from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.test_discord import ALICE, ready
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.world import World
from tests.platforms.local.harness import Listener, Screen, Shown
from tests.sampling import every
from tests.summaries import summary_saying

FILLER = "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. " * 12
SMALL = {
    "HERMES_MODEL__NAME": "lab-32k",
    "HERMES_MODEL__CONTEXT_LENGTH": "32768",
    "HERMES_MODEL__MAX_OUTPUT_TOKENS": "8192",
    "HERMES_COMPRESSION__MODE": "blocking",
}
WORKING = "Compressing this conversation"
REPORTED = "SELECT reported_prompt_tokens FROM sessions ORDER BY id DESC LIMIT 1"
LAYERS = "SELECT layer, outcome FROM compressions ORDER BY id"


def system_and_rest(request: dict[str, Any]) -> tuple[str, str]:
    """The system prompt of a request, and the rest of its messages as text."""
    [system] = [said.text for said in prompt_of(request) if said.role == "system"]
    return system, conversation_of(request)


async def talk(world: World, count: int, *, words: str = FILLER) -> None:
    await world.converse(*(f"Message {number}: TICKET-{number}. {words}" for number in range(count)))


async def summaries(world: World) -> list[dict[str, Any]]:
    return await world.asked(0, wait=0, summary="true")


async def turns(world: World) -> list[dict[str, Any]]:
    return await world.asked(0, wait=0, summary="false")


def seconds_until(rows: list[dict[str, Any]], since: float) -> float:
    """How long after `since` the first of these rows of a journal was there."""
    return float(rows[0]["t"]) - since


# ---- by hand, on each platform


@pytest.mark.each_protocol
async def test_compress_shortens_what_the_model_sees_and_keeps_what_was_said(world: World) -> None:
    await world.gateway.start(**SMALL)
    await talk(world, 20)
    await world.ask("/compress", f"^{WORKING}")
    [told] = await world.replies(1, match="^Compressed: ")
    before, after = map(int, re.findall(r"(\d+) → (\d+) messages", told)[0])
    assert after < before == 40
    assert re.search(r"Next prompt \(estimate\): about [\d,]+ → [\d,]+ tokens", told)
    assert "Summary written by lab-32k" in told
    [(key,)] = world.query("SELECT key FROM sessions ORDER BY id DESC LIMIT 1")
    assert key[:8] in told
    await world.ask("and now?", "echo: .*and now")
    last = (await world.asked(22))[-1]
    system, rest = system_and_rest(last)
    assert rest.count("CONTEXT COMPACTION — REFERENCE ONLY") == 1
    assert "compaction" in system
    assert "TICKET-0." in rest
    assert len(prompt_of(last)) < 25
    await world.say("/history 50")
    assert "Message 5:" in "".join(await world.replies(1, match="Message 5:"))


async def test_while_a_summary_takes_long_commands_are_answered_messages_wait_and_stop_ends_it(world: World) -> None:
    await world.gateway.start(**SMALL)
    await talk(world, 20)
    await world.script(summary=True, hang=True, times=1)
    await world.say("/compress")
    await world.asked(1, summary="true")
    await world.ask("/stop", "^Stopped")
    assert await world.replies(1, match="Compression cancelled")
    await world.converse("and then?")
    assert world.query(LAYERS) == []
    await world.hold(summary=True)
    begins = await world.tg.get("sent", method="sendMessage", match=WORKING, count=1)
    await world.say("/compress")
    count = len(begins) + 1
    begun = await world.tg.get("sent", method="sendMessage", match=WORKING, wait=15, count=count)
    await world.say("/status")
    assert await world.replies(1, match="Conversation", since=begun[-1]["seq"])
    await world.say("said meanwhile")
    assert await world.replies(0, wait=0, match="^Compressed: |said meanwhile") == []
    await world.release()
    assert await world.replies(1, match="echo: .*said meanwhile")
    shown_texts = await world.replies(0, wait=0)
    places = [
        next(at for at, text in enumerate(shown_texts) if words in text) for words in ("Compressed: ", "meanwhile")
    ]
    assert places == sorted(places)
    assert "CONTEXT COMPACTION" in system_and_rest((await turns(world))[-1])[1]


async def test_compress_as_a_slash_command_on_discord(discord_world: World) -> None:
    world = discord_world
    await ready(world, **SMALL)
    await world.gateway.wait_for_log("discord.menu_published")
    for number in range(20):
        await say_on_discord(world, f"Message {number}: TICKET-{number}. {FILLER}")
        assert await world.dc.get("sent", action="send|edit", match=f"TICKET-{number}\\.", wait=20, count=1)
    await world.script(summary=True, delay=1)
    given_at = time.monotonic()
    given = {"name": "compress", "options": {"topic": "focus: the bridge"}, "dm_user_id": ALICE}
    await world.dc.post("interaction", given)
    [deferred] = await world.dc.get("sent", action="interaction_defer", wait=15, count=1)
    assert seconds_until([deferred], given_at) < 3, "Discord waits no longer"
    await say_on_discord(world, "said meanwhile")
    [told] = await world.dc.get("sent", action="interaction_(edit|followup)", match="Compressed: ", wait=20, count=1)
    assert "with the focus “the bridge”" in told["text"]
    assert re.search(r"Focus topic: \W?the bridge", conversation_of((await summaries(world))[0]))
    assert await world.dc.get("sent", action="send|edit", match="said meanwhile", since=told["seq"], wait=20, count=1)


class Page:
    """The web chat as a browser without a screen uses it."""

    def __init__(self, root: str, key: str, browser: aiohttp.ClientSession) -> None:
        self._root, self._browser = root, browser
        self._headers = {"HX-Request": "true", "Origin": root, KEY_HEADER: key}

    async def write(
        self,
        text: str,
        *,
        name: str = "",
        content: bytes | AsyncIterator[bytes] = b"",
        mime: str = "",
        chat: str = "main",
    ) -> None:
        """Send a text, and with a `name` a file."""
        form = aiohttp.FormData({"text": text, "client_id": secrets.token_hex(16)}, quote_fields=False)
        form.add_field("files", content, filename=name, content_type=mime or "application/octet-stream")
        url = f"{self._root}/chat/{chat}/messages"
        async with self._browser.post(url, data=form, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()

    async def until(self, words: str, seconds: float = 20) -> None:
        """Until something on the page has `words`."""
        await self._until(lambda shown: any(words in entry.text for entry in shown), seconds)

    async def until_answered(self, count: int) -> None:
        await self._until(lambda shown: sum(entry.kind in ("answer", "notice") for entry in shown) >= count, 20)

    async def html(self) -> str:
        """All that the page shows."""
        async with self._browser.get(f"{self._root}/chat/main/stream", headers=self._headers) as answer:
            return (await Listener(answer).next()).data

    async def entries(self) -> list[Shown]:
        return Screen(await self.html()).entries

    async def fetch(self, path: str, *, has_key: bool = True) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers of something that is asked for with the cookie, and with the key or without."""
        headers = self._headers if has_key else {"Origin": self._root}
        async with self._browser.get(URL(f"{self._root}{path}", encoded=True), headers=headers) as answer:
            return answer.status, await answer.read(), answer.headers

    async def _until(self, claim: Callable[[list[Shown]], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while True:
                if claim(await self.entries()):
                    return
                await asyncio.sleep(0.05)  # a page of another process has no event to wait for


@asynccontextmanager
async def page_of(world: World) -> AsyncIterator[Page]:
    root, _, token = (await world.gateway.printed_url()).partition("/?token=")
    headers = {"Origin": root, TOKEN_HEADER: token}
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.post(f"{root}/sign-in", headers=headers) as answer:
            assert answer.status == 200
            key = await answer.text()
        yield Page(root, key, browser)


async def test_compress_in_the_web_chat(world: World) -> None:
    await world.gateway.start(**SMALL, **world.web_chat())
    async with page_of(world) as page:
        for number in range(20):
            await page.write(f"Message {number}: {FILLER} TICKET-{number}.")
            await page.until_answered(number + 1)
        await page.write("/compress preview")
        await page.until("Nothing was changed")
        assert await summaries(world) == []
        await world.hold(summary=True)
        await page.write("/compress here 3")
        await page.until(WORKING)
        await page.write("said meanwhile")
        await world.release()
        await page.until("Compressed: ")
        await world.asked(22)
        assert "CONTEXT COMPACTION" in system_and_rest((await turns(world))[-1])[1]


# ---- waiting


async def test_a_conversation_goes_on_while_its_summary_is_written(world: World) -> None:
    await world.script(summary=True, text=summary_saying("The tickets were told apart."), pause_after=1, times=-1)
    world.configure("compression: {threshold: 0.2}\n")
    await world.gateway.start(**{**SMALL, "HERMES_COMPRESSION__MODE": "background"})
    await talk(world, 14)
    assert len(await world.asked(1, summary="true")) == 1
    assert world.query(LAYERS) == [], "nobody waits"
    await world.llm.post("resume")
    async with asyncio.timeout(60):
        while not world.query(LAYERS):
            await world.converse("and then?")
    assert world.query(LAYERS) == [("preflight", "compressed")]
    [seen] = [row["body"] for row in (await turns(world))[-1:]]
    assert "CONTEXT COMPACTION" in str(seen)
    assert "TICKET-13." in str(seen), "what was said meanwhile stands behind the summary"


async def test_who_waits_long_for_a_compression_is_told_on_each_platform(both: World) -> None:
    world = both
    why = "I am compressing it before I continue"
    await world.dc.post("config", {"rate_limits": False})
    world.configure("compression: {threshold: 0.5}\n")
    await ready(world, **SMALL, **world.web_chat())
    async with page_of(world) as page:

        async def say_everywhere(text: str) -> None:
            await asyncio.gather(world.say(text), say_on_discord(world, text), page.write(text))

        async def seen_everywhere(words: str, count: int) -> None:
            assert await world.replies(1, match=words)
            assert await world.dc.get("sent", action="send|edit", match=words, wait=20, count=1)
            await page.until_answered(count)

        for number in range(12):
            await say_everywhere(f"TICKET-{number}. {FILLER}")
            await seen_everywhere(f"TICKET-{number}\\.", number + 1)
        world.configure("compression: {threshold: 0.2}\n")
        await world.reload()
        await world.script(summary=True, pause_after=1, times=-1)
        said_at = time.monotonic()
        await say_everywhere("and now?")
        await seen_everywhere(why, 13)
        await page.until(why)
        assert time.monotonic() - said_at >= 5
        assert world.query(LAYERS) == []
        await world.llm.post("resume")
        await seen_everywhere("echo: .*and now", 14)
    assert world.query(LAYERS) == [("preflight", "compressed")] * 3
    assert len(await world.replies(0, wait=0, match=why)) == 1
    assert all(why not in str(request["body"]) for request in await world.asked(0, wait=0))


# ---- windows that change


async def lowered(world: World, share: float) -> int:
    """A context length in whose input window the conversation stands at `share`; the model has no more than that."""
    [(reported,)] = world.query(REPORTED)
    length = int(reported / share / 0.75)  # a quarter is reserved for the output
    await world.llm.post("models", {"lab-32k": {"context": length, "max_output": length // 4}})
    return length


async def test_a_window_lowered_while_the_daemon_rests_is_met_by_hygiene_alone(world: World) -> None:
    await world.gateway.start(**SMALL)
    await talk(world, 17)
    assert world.query(LAYERS) == []
    assert await world.gateway.stop() == 0
    length = await lowered(world, 0.98)  # full also without the tools that it then lists no more
    output = str(length // 4)
    await world.gateway.start(HERMES_MODEL__CONTEXT_LENGTH=str(length), HERMES_MODEL__MAX_OUTPUT_TOKENS=output)
    await world.converse("and now?")
    assert (await world.replies(1, match="and now"))[0].startswith("echo: ")
    assert world.query(LAYERS) == [("hygiene", "compressed")]
    assert len(await summaries(world)) == 1
    assert await world.outcomes() == {"ok"}

    await world.say("/compress undo")
    [refused] = await world.replies(1, match="The restored prompt would use about")
    assert "Nothing was changed" in refused
    assert await world.gateway.stop() == 0
    await world.llm.post("models", {"lab-32k": {"context": 32_768, "max_output": 8_192}})
    await world.gateway.start(**SMALL)
    await world.ask("/compress undo", "^Compression undone: I see 36 messages again")
    await world.ask("what was the first ticket?", "first ticket")
    seen = (await turns(world))[-1]
    assert "CONTEXT COMPACTION" not in conversation_of(seen)
    assert all(f"TICKET-{number}." in conversation_of(seen) for number in range(17))


async def test_a_reload_to_a_smaller_window_compresses_before_the_first_call(world: World) -> None:
    del world.gateway.environ["HERMES_MODEL__CONTEXT_LENGTH"]
    world.configure("model: {context_length: 32768, max_output_tokens: 8192}\n")
    await world.gateway.start(HERMES_MODEL__NAME="lab-32k", HERMES_COMPRESSION__MODE="blocking")
    await talk(world, 17)
    length = await lowered(world, 0.80)  # the threshold stands at two thirds, hygiene at nine tenths
    world.configure(f"model: {{context_length: {length}, max_output_tokens: {length // 4}}}\n")
    await world.reload()
    await world.converse("and now?")
    assert world.query(LAYERS) == [("preflight", "compressed")]
    requests = await world.asked(0, wait=0)
    assert [row["summary"] for row in requests[-2:]] == [True, False]
    assert requests[-1]["prompt_tokens"] < length // 2


async def test_a_reload_applies_thresholds_from_the_next_turn_on_and_clears_cooldowns(world: World) -> None:
    world.configure("compression: {threshold: 0.5}\n")
    await world.gateway.start(**SMALL)
    await talk(world, 12)
    await world.script(summary=True, times=-1, error={"kind": "401"})
    world.configure("compression: {threshold: 0.2}\n")
    await world.reload()
    await world.converse("first")
    [told] = await world.replies(1, match="could not compress")
    assert "Nothing was changed" in told
    assert world.query(LAYERS) == [("preflight", "aborted")]
    asked = len(await summaries(world))
    await world.ask("second", "echo: .*second")
    assert len(await summaries(world)) == asked, "it cools down"

    await world.llm.delete("script")
    world.configure("compression: {threshold: 0.21}\n")
    await world.reload()
    await world.ask("third", "echo: .*third")
    assert world.query(LAYERS) == [("preflight", "aborted"), ("preflight", "compressed")]


# ---- languages

LANGUAGES = {
    "English": "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. ",
    "Chinese": "我们看了港口、旧桥和市场，并记下了每一样东西的价格，明天再去问一次。",
    "Japanese": "港と古い橋と市場を見て、それぞれの値段を書き留めました。明日もう一度聞きに行きます。",
    "Korean": "우리는 항구와 오래된 다리와 시장을 둘러보고 각각의 가격을 적어 두었습니다. ",
    "Arabic": "نظرنا إلى الميناء والجسر القديم والسوق وكتبنا ما يكلفه كل منها. ",
    "emoji": "⛵🌉🏪 👉💰 ✍️📒 👩‍👩‍👧‍👦 🇪🇺 🧑🏽‍🚀 ",
    "code": "def price(boat: Boat, *, day: int = 3) -> float:\n    return round(boat.base * 1.07 ** day, 2)  # tax\n",
}


@pytest.mark.fuzz
@pytest.mark.parametrize("bytes_per_token", every(2, [4.0, 2.5]))
async def test_every_language_is_kept_in_its_window(world: World, bytes_per_token: float) -> None:
    """The same number of tokens is said in each, in chats of their own, on a tokenizer that is usual or dense."""
    await world.llm.post("config", {"bytes_per_token": bytes_per_token})
    await world.script(summary=True, times=-1, text=summary_saying("- as before:"))
    chats = {name: 101 + place for place, name in enumerate(LANGUAGES)}
    await world.gateway.start(
        **SMALL,
        HERMES_TOOLS__USE='{"*": "off"}',  # nor are schemas: who is one compression ahead is so by how much they take
        HERMES_ACCESS__ALLOW=",".join(f"telegram:{chat_id}" for chat_id in chats.values()),
    )

    async def live(name: str) -> None:
        words = LANGUAGES[name]
        one = words * round(700 * bytes_per_token / len(words.encode()))
        for number in range(30):
            await world.ask(f"TICKET-{number} {one}", f"TICKET-{number} ", chat_id=chats[name])

    await asyncio.gather(*(live(name) for name in LANGUAGES))
    counts = dict(
        world.query(
            """SELECT c.chat_ref, count(*) FROM compressions e JOIN sessions s ON s.id = e.parent_id
            JOIN chats c ON c.id = s.chat_id WHERE e.outcome = 'compressed' AND e.summary_kind = 'model' GROUP BY 1"""
        )
    )
    done = {name: counts.get(str(chat_id), 0) for name, chat_id in chats.items()}
    assert min(done.values()) >= 2, done
    assert max(done.values()) <= min(done.values()) + 1, done
    assert world.query("SELECT state FROM turns WHERE state <> 'finished'") == []
    assert await world.outcomes() == {"ok"}, "no prompt was too long"
