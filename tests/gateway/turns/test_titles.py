"""Titles are written once, in the background, from the beginning of a conversation."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.model.base import ModelReply, ModelRequest
from agent.model.client import MAX_FAILURES
from gateway.models.routes import route_for
from gateway.turns.titles import MAX_CALLS, MAX_CONCURRENT, MAX_WAITING
from hermes_state.errors import ModelTimeout, ModelUnavailable
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey
from tests.gateway.helpers import PLATFORM, Hang, ScriptedModel, TestGateway, answer, eventually, serving, settled

ON = {"auxiliary": {"title": "auto"}}
SMALL = {"model": {"aliases": {"little": "small"}}, "auxiliary": {"title": "little"}}
CALLS = "SELECT outcome FROM model_calls WHERE purpose = 'title' ORDER BY id"


class NamingModel(ScriptedModel):
    """Model that echoes messages and writes titles with `title`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for_titles: list[ModelRequest] = []
        self.naming = self.most_naming = 0
        self.title: Callable[[ModelRequest], Any] = lambda _request: answer("Broken login")  # Any: a reply or a step
        self.respond = self.name_or_echo

    async def name_or_echo(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        if not request.system.startswith("You write titles for conversations"):
            return await self.echo(request, on_text)
        self.asked_for_titles.append(request)
        self.naming += 1
        self.most_naming = max(self.most_naming, self.naming)
        try:
            made = self.title(request)
            if isinstance(made, Exception):
                raise made
            return made if isinstance(made, ModelReply) else await made(request, on_text)
        finally:
            self.naming -= 1


@pytest.fixture
def model() -> NamingModel:
    return NamingModel()


@asynccontextmanager
async def naming(
    store: Store, folder: Path, model: NamingModel, /, **more: Any
) -> AsyncIterator[TestGateway]:  # Any: as `serving`
    async with serving(store, folder, chat_model=model, **{**ON, **more}) as gateway:
        yield gateway


@pytest.fixture
async def gateway(store: Store, tmp_path: Path, model: NamingModel) -> AsyncIterator[TestGateway]:
    async with naming(store, tmp_path, model) as running:
        yield running


async def title_of(gateway: TestGateway) -> str | None:
    [(title,)] = await gateway.rows("SELECT title FROM sessions ORDER BY id DESC LIMIT 1")
    return str(title) if title is not None else None


async def named(gateway: TestGateway) -> None:
    await gateway.until_rows("SELECT 1 FROM sessions WHERE title IS NOT NULL")


async def tried(gateway: TestGateway, count: int) -> None:
    """Wait until `count` titles were requested and none is in progress."""
    await gateway.until_rows(f"SELECT 1 FROM model_calls WHERE purpose = 'title' LIMIT 1 OFFSET {count - 1}")
    await eventually(lambda: not gateway.titles._tasks, "nobody works on a title")


async def test_a_title_is_charged_to_its_conversation(gateway: TestGateway, model: NamingModel) -> None:
    await gateway.ask("hello")
    await named(gateway)
    query = "SELECT purpose, outcome, input_tokens, chat_id, lineage_id, turn_id IS NULL FROM model_calls"
    assert await gateway.rows(f"{query} WHERE purpose = 'title'") == [("title", "ok", 100, 1, 1, 1)]
    assert await gateway.rows("SELECT input_tokens FROM sessions") == [(200,)]


async def test_a_title_set_by_a_person_stays(gateway: TestGateway, model: NamingModel) -> None:
    hang = Hang(text="From the model")
    model.title = lambda _request: hang
    await gateway.ask("one")
    await hang.begun.wait()
    await gateway.ask("/title From a person")
    hang.release()
    await tried(gateway, 1)
    assert await title_of(gateway) == "From a person"
    await gateway.ask("/new Plans")
    await gateway.ask("two")
    await settled()
    assert await title_of(gateway) == "Plans"
    assert len(model.asked_for_titles) == 1
    await gateway.ask("/new")
    await gateway.ask("three")
    await tried(gateway, 2)
    assert await title_of(gateway) == "From the model"


@pytest.mark.parametrize(
    ("failure", "outcome"), [(ModelUnavailable("down"), "unavailable"), (ModelTimeout("slow"), "timeout")]
)
async def test_a_failed_title_is_retried_after_later_answers_then_given_up(
    store: Store, tmp_path: Path, model: NamingModel, failure: Any, outcome: str
) -> None:
    model.title = lambda _request: failure
    async with naming(store, tmp_path, model) as gateway:
        for number in range(1, MAX_CALLS + 1):
            assert await gateway.ask(f"question {number}") == f"echo: question {number}"
            await tried(gateway, number)
        await gateway.ask("one more")
        await settled()
        assert await gateway.rows(CALLS) == [(outcome,)] * MAX_CALLS
        assert await title_of(gateway) is None
    async with naming(store, tmp_path, model) as gateway:
        await gateway.ask("after a restart")
        await settled()
        assert len(model.asked_for_titles) == MAX_CALLS


@pytest.mark.parametrize("said", ["Sure! Here is your title:\n\nBroken login", "Broken login"])
async def test_a_conversation_pays_for_one_title_reply_whatever_its_content(
    store: Store, tmp_path: Path, model: NamingModel, said: str
) -> None:
    model.title = lambda _request: answer(said)
    async with naming(store, tmp_path, model) as gateway:
        await gateway.ask("why does my login fail?")
        await tried(gateway, 1)
        for number in range(3):
            await gateway.ask(f"and now {number}?")
            await settled()
    async with naming(store, tmp_path, model) as gateway:
        await gateway.ask("after a restart")
        await settled()
        assert len(await gateway.rows(CALLS)) == len(model.asked_for_titles) == 1


async def test_failed_titles_do_not_open_the_circuit_of_answers(gateway: TestGateway, model: NamingModel) -> None:
    everybody_is_answered = asyncio.Event()

    async def fail(_request: ModelRequest, _on_text: Callable[[str], None]) -> ModelReply:
        await everybody_is_answered.wait()
        raise ModelUnavailable("down")

    model.title = lambda _request: fail
    for number in range(MAX_FAILURES + 1):
        await gateway.ask("hello", chat=ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref=f"{10 + number}"))
    everybody_is_answered.set()
    await tried(gateway, MAX_FAILURES + 1)
    assert gateway.live.models.configured.client.breaker.open is None


async def test_an_open_circuit_is_not_asked_for_titles(store: Store, tmp_path: Path, model: NamingModel) -> None:
    small = NamingModel()
    small.name = "small"
    async with naming(store, tmp_path, model, others={"small": small}, **SMALL) as gateway:
        config = gateway.live.config
        route = route_for(config, "title", config.model.route)
        assert route is not None
        for _ in range(MAX_FAILURES):
            gateway.live.models.client_of(route).breaker.failed(ModelUnavailable("down"))
        await gateway.ask("hello")
        await settled()
        assert not small.requests
        assert await gateway.rows(CALLS) == []
        gateway.live.models.client_of(route).breaker.succeeded()
        await gateway.ask("again")
        await named(gateway)


async def test_concurrent_and_waiting_titles_are_limited(gateway: TestGateway, model: NamingModel) -> None:
    hang = Hang()
    model.title = lambda _request: hang
    chats = [ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref=f"{10 + number}") for number in range(8)]
    await asyncio.gather(*(gateway.ask("hello", chat=chat) for chat in chats))
    await settled()
    assert model.naming == MAX_CONCURRENT < len(gateway.titles._tasks) <= MAX_WAITING
    hang.release()
    model.title = lambda _request: answer("Greeting")
    await tried(gateway, len(chats))
    assert model.most_naming == MAX_CONCURRENT
    assert await gateway.rows("SELECT count(title) FROM sessions") == [(len(chats),)]


@pytest.mark.parametrize("more", [{"auxiliary": {"title": "off"}}, {"model": {"protocol": "offline", "name": None}}])
async def test_titles_can_be_off_and_the_offline_model_writes_none(
    store: Store, tmp_path: Path, model: NamingModel, more: Any
) -> None:
    async with naming(store, tmp_path, model, **more) as gateway:
        await gateway.ask("hello")
        await settled()
        assert await title_of(gateway) is None
    assert not model.asked_for_titles


@pytest.mark.parametrize(("route", "expected"), [("auto", "fast"), ("main", "scripted")])
async def test_by_default_the_answering_model_writes_the_title(
    store: Store, tmp_path: Path, model: NamingModel, route: str, expected: str
) -> None:
    fast = NamingModel()
    fast.name = "fast"
    async with naming(
        store, tmp_path, model, others={"fast": fast}, model={"aliases": {"quick": "fast"}}, auxiliary={"title": route}
    ) as gateway:
        await gateway.ask("/model quick")
        await gateway.ask("hello")
        await named(gateway)
        query = "SELECT purpose, model FROM model_calls ORDER BY id"
        assert await gateway.rows(query) == [("turn", "fast"), ("title", expected)]


async def test_undone_messages_do_not_shape_the_title(gateway: TestGateway, model: NamingModel) -> None:
    model.title = lambda _request: ModelUnavailable("down")
    await gateway.ask("about herons")
    await tried(gateway, 1)
    await gateway.ask("/undo")
    model.title = lambda _request: answer("Storks")
    await gateway.ask("about storks")
    await named(gateway)
    asked = model.asked_for_titles[-1].transcript[0].text or ""
    assert "storks" in asked
    assert "herons" not in asked


async def test_titles_contain_no_secrets(gateway: TestGateway, model: NamingModel) -> None:
    model.title = lambda _request: answer("Key sk-abcdefghijklmnop1234567890")
    await gateway.ask("my key is sk-abcdefghijklmnop1234567890")
    await tried(gateway, 1)
    assert await title_of(gateway) is None
    assert "sk-abc" not in (model.asked_for_titles[0].transcript[0].text or "")
