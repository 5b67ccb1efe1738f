"""The console's pages for the owner and for other people, over HTTP, with the real daemon."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Self

import aiohttp
import pytest
from yarl import URL

from gateway.console.handler import PAGES
from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from tests.e2e.world import GROUP, World

HOSTILE = '<img src=x onerror=alert(1)>"><script>alert(2)</script>'


class Visitor:
    """A browser without a screen, signed in with a link."""

    def __init__(self, link: str) -> None:
        self._link = URL(link)
        self.root = str(self._link.origin())
        self.key = ""

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
        headers = {TOKEN_HEADER: self._link.query["token"], "Origin": self.root}
        async with self._http.post(f"{self.root}/sign-in", headers=headers) as answer:
            assert answer.status == 200
            self.key = await answer.text()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def send(self, method: str, path: str, **fields: str) -> tuple[int, str]:
        headers = {KEY_HEADER: self.key, "Origin": self.root, "HX-Request": "true"}
        data = fields if method == "POST" else None
        async with self._http.request(method, self.root + path, headers=headers, data=data) as answer:
            return answer.status, await answer.text()

    async def head(self, method: str, path: str) -> tuple[int, Mapping[str, str]]:
        """Send a request without following redirects. Return the status and the headers of the response."""
        headers = {KEY_HEADER: self.key, "Origin": self.root}
        async with self._http.request(method, self.root + path, headers=headers, allow_redirects=False) as answer:
            return answer.status, answer.headers

    async def read(self, page: str) -> str:
        """Return the content of a page, such as `costs?days=7`."""
        name, _, query = page.partition("?")
        status, text = await self.send("GET", f"/console/{name}/content{'?' + query if query else ''}")
        assert status == 200, text
        return text

    async def act(self, page: str, action: str, **fields: str) -> str:
        status, text = await self.send("POST", f"/console/{page}/{action}", **fields)
        assert status in (200, 409), text
        return re.sub(r"<[^>]+>", " ", text).strip()

    async def until(self, page: str, claim: Callable[[str], bool]) -> str:
        async with asyncio.timeout(15):
            while not claim(text := await self.read(page)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the page belongs to another process, so there is no event to wait for
            return text


@pytest.fixture
async def owner(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Visitor]:
    """The owner's browser, at a gateway with Telegram, the web chat and the settings of the parameter."""
    await world.gateway.start(**world.web_chat(), **getattr(request, "param", {}))
    async with Visitor(await world.gateway.printed_url()) as visitor:
        yield visitor


async def link_for(world: World, *words: str) -> str:
    code, printed = await world.command_line("url", "--for", *words)
    assert code == 0, printed
    return printed.strip()


async def test_a_user_sees_no_page_of_the_owner_on_any_route(world: World, owner: Visitor) -> None:
    async with Visitor(await link_for(world, "Ann")) as ann:
        assert 'href="/console/overview"' not in (await ann.send("GET", "/chat/main"))[1]
        for page in PAGES:
            if not page.about.is_for_admins:
                continue
            name = page.about.name
            assert (await ann.send("GET", f"/console/{name}/content"))[0] == 404, name
            for action in page.actions:
                assert (await ann.send("POST", f"/console/{name}/{action}"))[0] == 404, (name, action)
    await link_for(world, "Boss", "--role", "admin")
    async with Visitor(await link_for(world, "boss")) as boss:  # a second link keeps the role
        assert "Platforms" in await boss.read("overview")
    for name in ("owner", "!!!"):
        code, printed = await world.command_line("url", "--for", name)
        assert code == 1, printed
    owner.key = ""  # without a key no content is sent
    for page in PAGES:
        assert await owner.send("GET", f"/console/{page.about.name}/content") == (401, "")


async def test_nobody_rates_an_answer_in_the_chat_of_another_person(world: World, owner: Visitor) -> None:
    answers = """SELECT p.ref FROM platform_messages p JOIN messages m ON m.id = p.message_id
    WHERE m.role = 'assistant' ORDER BY m.id"""
    async with Visitor(await link_for(world, "Ann")) as ann:
        for number, one in enumerate((owner, ann), start=1):
            await one.send("POST", "/chat/main/messages", text="hello", client_id=f"{number}" * 32)
            await world.until(lambda number=number: len(world.query(answers)) == number)
        (of_owner,), (of_ann,) = world.query(answers)
        for one, ref in ((ann, of_owner), (owner, of_ann)):
            status, text = await one.send("POST", "/chat/main/rate", ref=ref, thumb="down")
            assert (status, "cannot be rated" in text) == (409, True)
        assert (await ann.send("POST", "/chat/main/rate", ref=of_ann, thumb="up"))[0] == 204
        assert world.query("SELECT person, value FROM ratings") == [("local:ann", 1)]


async def test_the_overview_names_what_needs_attention_and_gives_access(world: World, owner: Visitor) -> None:
    assert "Everything works" in await owner.read("overview")
    await world.say("let me in", chat_id=99, first_name=HOSTILE)
    text = await owner.until("overview", lambda shown: "1 person is waiting for access" in shown)
    assert HOSTILE not in text
    [request] = set(re.findall(r'name="request" value="(\w+)"', text))
    assert "now has access with the role user" in await owner.act("overview", "approve", request=request)
    assert "already used" in await owner.act("overview", "approve", request=request)
    assert any("You now have access" in reply for reply in await world.replies(2, chat_id=99))
    people = await owner.read("people")
    assert "telegram:99" in people
    assert "local:owner" in people, "who approved"
    assert HOSTILE not in people
    assert "no longer has access" in await owner.act("people", "revoke", person="telegram:99")


async def test_a_chat_of_another_person_is_read_with_a_record(world: World, owner: Visitor) -> None:
    await world.script(match="secret plan", text=f"Noted. {HOSTILE}")
    await world.converse("my secret plan is a picnic")
    listed = await owner.read("chats")
    assert "telegram:42" in listed
    shown = await owner.read("transcript?chat=telegram:42")
    assert "my secret plan is a picnic" in shown
    assert HOSTILE not in shown
    assert "telegram:42" in await owner.read("audit")
    assert "No chat matches" in await owner.read("chats?words=nowhere")
    status, text = await owner.send("GET", "/console/transcript/content?chat=telegram:7")
    assert (status, "No chat, session or message" in text) == (409, True)


async def test_an_admin_deletes_a_chat_of_another_person(world: World, owner: Visitor) -> None:
    await world.converse("the gate code is 4711")
    shown = await owner.read("forget?what=telegram:42")
    assert "This removes 2 messages" in shown
    assert 'action="/console/forget/forget"' in shown
    assert "has begun" in await owner.act("forget", "forget", what="telegram:42")
    await world.until_rows("SELECT count(*) FROM messages WHERE text LIKE '%4711%'", (0,))


async def test_what_was_said_in_a_group_has_the_name_of_its_writer(world: World, owner: Visitor) -> None:
    since = len(world.gateway.log_bytes())
    await world.ask_in_group("/groupcontext@lab_gateway_bot on", "I read and store", user_id=1)
    await world.gateway.wait_for_log("access.loaded", since=since)
    await world.say_in_group("lunch at noon?", user_id=77, first_name="Ben")
    await world.until_rows("SELECT text FROM talk", ("lunch at noon?",))
    await world.say_in_group("@lab_gateway_bot when?", first_name="Ann")
    await world.until_rows("SELECT state FROM turns", ("finished",))
    shown = await owner.read(f"transcript?chat=telegram:{GROUP}")
    assert re.findall(r"<b>(Ann|Ben)</b>.*?(overheard)?</span>", shown) == [("Ben", "overheard"), ("Ann", "")]
    for page in ("message?id=m1", "search?words=noon&all=1"):
        assert "Ben" in await owner.read(page)


async def test_an_invited_person_has_a_chat_of_their_own_until_access_ends(world: World, owner: Visitor) -> None:
    said = await owner.act("people", "invite", name="Ann", role="user")
    [link] = re.findall(r"http\S+token=\S+", said)
    async with Visitor(link) as ann:
        assert (await ann.send("POST", "/chat/main/messages", text="hello from Ann", client_id="a" * 32))[0] == 200
        await owner.until("chats", lambda shown: "local:main#ann" in shown)
        await world.asked(1)
        assert "hello from Ann" in await owner.read("transcript?chat=local:main%23ann")
        stored = world.query("SELECT c.user_ref, i.sender_ref FROM inbox i JOIN chats c ON c.id = i.chat_id")
        assert stored == [("ann", "local:ann")]
        assert "no longer has access" in await owner.act("people", "revoke", person="local:ann")
        assert (await ann.send("POST", "/chat/main/messages", text="again", client_id="b" * 32))[0] == 401
    assert "cannot revoke your own access" in await owner.act("people", "revoke", person="local:owner")


async def test_a_running_turn_is_stopped_and_a_schedule_of_another_chat_is_paused(world: World, owner: Visitor) -> None:
    await world.hold(match="long", text="never finished")
    await world.say("a long question")
    await world.turn_runs()
    text = await owner.until("live", lambda shown: "waiting for the model" in shown)
    [turn] = re.findall(r'name="turn" value="(\d+)"', text)
    assert "The turn is stopped" in await owner.act("live", "stop", turn=turn)
    await owner.until("live", lambda shown: "Nothing is running" in shown)
    assert any("Stopped" in reply for reply in await world.replies(1, match="Stopped"))
    assert "already ended" in await owner.act("live", "stop", turn=turn)
    await world.release()
    await world.ask("/schedule add 0 8 * * 1 the weekly plan", "Schedule 1 is set")
    text = await owner.read("setup")
    assert "the weekly plan" in text
    assert "is paused" in await owner.act("setup", "schedule", schedule="1", to="paused")
    await owner.until("setup", lambda shown: "Resume" in shown)
    assert "no longer exists" in await owner.act("setup", "schedule", schedule="77", to="paused")


async def test_one_message_is_explained_alike_on_the_page_and_in_the_terminal(world: World, owner: Visitor) -> None:
    await world.converse("what is new?")
    code, printed = await world.command_line("why", "m1")
    assert code == 0
    assert re.search(r"arrived from .* \(telegram:42\)", printed)
    assert re.search(r"model call for turn to .*: ok in [\d.]+ s", printed)
    assert re.search(r"delivery of the answer, part 1: sent", printed)
    page = await owner.until("why?message=m1", lambda shown: "delivery of the answer" in shown)
    assert all(line.split(": ", 1)[1] in page for line in printed.splitlines()[1:] if "UTC" in line and "'" not in line)
    _, raw = await world.command_line("why", "m1", "--json")
    assert json.loads(raw)["turn"]["state"] == "finished"
    code, refused = await world.command_line("why", "m999")
    assert (code, "There is no message `m999`" in refused) == (1, True)


@pytest.mark.parametrize("owner", [{"HERMES_MODEL__CONTEXT_LENGTH": "16000"}], indirect=True, ids=["small window"])
async def test_costs_compressions_and_settings_are_shown(world: World, owner: Visitor) -> None:
    assert "No conversation was compressed" in await owner.read("compressions")
    await world.converse(*(f"{number}: " + "tell me more about the harbour " * 120 for number in range(6)))
    await world.say("/compress")
    await world.replies(1, match="Compressed: ")
    await owner.until("compressions", lambda shown: "manual" in shown)
    costs = await owner.read("costs?days=7")
    assert "telegram:42" in costs
    assert "prices of these models are unknown" in costs
    settings = await owner.read("setup?words=telegram.token")
    assert "telegram.token" in settings
    assert world.environ["HERMES_TELEGRAM__TOKEN"] not in settings
    assert "No setting has this name" in await owner.read("setup?words=%3Cscript%3E")
    for hostile in ("costs?days=%3Cscript%3E", "chats?from=99999999999999", "compressions?order=x", "why?message=%00"):
        await owner.send("GET", f"/console/{hostile.replace('?', '/content?')}")
    assert "Traceback" not in world.gateway.log_text()
