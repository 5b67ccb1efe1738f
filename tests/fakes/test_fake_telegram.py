"""The fake Bot API behaves as the real one where a client could tell the difference."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.fakes.fake_telegram import make_app
from tests.fakes.labkit import Server
from tests.fakes.proc import Proc

TOKEN = "123456:LABTOKEN"


@pytest.fixture
async def server() -> AsyncIterator[aiohttp.ClientSession]:
    async with Server(make_app()) as running, aiohttp.ClientSession(base_url=running.url) as session:
        yield session


async def api(server: aiohttp.ClientSession, method: str, **params: Any) -> dict[str, Any]:
    async with server.post(f"/bot{TOKEN}/{method}", json=params) as answer:
        body: dict[str, Any] = await answer.json()
        assert body["ok"] is (answer.status == 200)
        return body


async def control(server: aiohttp.ClientSession, path: str, **data: Any) -> Any:
    async with server.post(f"/_ctl/{path}", json=data) as answer:
        return await answer.json()


async def test_runs_as_a_process_and_says_where() -> None:
    async with Proc("fake_telegram.py", "--username", "other_bot") as telegram:
        await telegram.post("message", {"chat_id": 42, "text": "hi {n}", "repeat": 3})
        async with telegram.session.post(f"{telegram.url}/bot{TOKEN}/getUpdates") as answer:
            updates = (await answer.json())["result"]
        assert [update["message"]["text"] for update in updates] == ["hi 0", "hi 1", "hi 2"]
        assert [row["method"] for row in await telegram.get("calls")] == ["getUpdates"]


async def test_an_offset_acknowledges_what_lies_before_it(server: aiohttp.ClientSession) -> None:
    for text in ("one", "two"):
        await control(server, "message", chat_id=42, text=text)
    first, second = (await api(server, "getUpdates"))["result"]
    assert len((await api(server, "getUpdates"))["result"]) == 2, "fetched is not acknowledged"
    assert (await api(server, "getUpdates", offset=first["update_id"] + 1))["result"] == [second]


async def test_a_second_poller_throws_out_the_first(server: aiohttp.ClientSession) -> None:
    first = asyncio.create_task(api(server, "getUpdates", timeout=20))
    for _ in range(100):
        if (await (await server.get("/_ctl/state")).json())["bots"][0]["polling"]:
            break
        await asyncio.sleep(0.01)
    second = asyncio.create_task(api(server, "getUpdates", timeout=20))
    assert (await first)["error_code"] == 409
    await control(server, "message", chat_id=42, text="hi")
    assert len((await second)["result"]) == 1


async def test_flood_control_bans_for_its_penalty(server: aiohttp.ClientSession) -> None:
    await control(server, "chat", chat_id=42)
    await control(server, "config", flood={"per_chat_per_sec": 1, "penalty": 30})
    assert (await api(server, "sendMessage", chat_id=42, text="one"))["ok"]
    refused = await api(server, "sendMessage", chat_id=42, text="two")
    assert (refused["error_code"], refused["parameters"]) == (429, {"retry_after": 30})


@pytest.mark.parametrize(
    ("method", "params", "description"),
    [
        ("sendMessage", {"chat_id": 7, "text": "x"}, "Bad Request: chat not found"),
        ("sendMessage", {"chat_id": 42, "text": " "}, "Bad Request: message text is empty"),
        ("sendMessage", {"chat_id": 42, "text": "x" * 4097}, "Bad Request: message is too long"),
        ("sendMessage", {"chat_id": 42, "text": "👋" * 2049}, "Bad Request: message is too long"),
        ("sendMessage", {"chat_id": 42, "text": "x", "message_thread_id": 9}, "Bad Request: message thread not found"),
        ("editMessageText", {"chat_id": 42, "message_id": 9, "text": "x"}, "Bad Request: message to edit not found"),
        (
            "sendMessage",
            {"chat_id": 42, "text": "👋", "entities": [{"type": "bold", "offset": 0, "length": 3}]},
            "Bad Request: can't parse entities: entity ends beyond the text",
        ),
        (
            "sendMessage",
            {"chat_id": 42, "text": "👋", "entities": [{"type": "bold", "offset": 1, "length": 1}]},
            "Bad Request: can't parse entities: entity splits a surrogate pair",
        ),
        ("noSuchMethod", {}, "Not Found: method not found"),
    ],
)
async def test_refusals_are_worded_as_telegram_words_them(
    server: aiohttp.ClientSession, method: str, params: dict[str, Any], description: str
) -> None:
    await control(server, "chat", chat_id=42)
    assert (await api(server, method, **params))["description"] == description
