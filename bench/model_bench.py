"""Measure the overhead of a model call over the bare SDK, and how floods of text affect the event loop.

The provider is a separate process that replays recorded answers of the fake model (`replay.py`). The bare SDK sends
exactly the gateway's request, through its typed client, and reads the text of the reply.
"""

import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

import aiohttp
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agent.model.base import ChatModel, Endpoint, ModelRequest, Payer
from agent.model.caps import DailyUsage, SpendingCaps, SpendingCapSettings, day_start
from agent.model.catalog import Price
from agent.model.client import ModelClient
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.responses import ResponsesModel
from agent.prompt import DEFAULT_PERSONA
from agent.tools.recall import recall_tools
from bench.compression_bench import heartbeat
from bench.conversation import Conversation
from bench.measure import Measure, NoFailures, percentile
from bench.replay import Recorded, kind_of, replaying
from bench.subjects import gateway, lab, lags_of
from hermes_state import chats
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.models import ledger
from hermes_state.models.ledger import ModelCall
from hermes_state.sessions import ensure_active
from hermes_state.store.writer import Store
from hermes_state.values import CanonicalUsage, ChatKey, ChatKind, MicroUsd, Millis, SystemClock, Tokens
from tests.fakes.labkit import Control
from tests.fakes.proc import Proc

REPLY_CHARACTERS = 1_000
ROWS = (1, 60)
SLACK = 1.0
"""Milliseconds by which a call may exceed the bare SDK's time, if this is more than a tenth of that time."""

FLOODED_CHATS = 20
FLOOD_CHARACTERS = 500_000
"""Number of characters that each chat receives, 10 MB in all."""
FLOOD_CHUNK = 200
FLOODS = 3
LAG_BAR = 50.0
"""Maximum delay of the event loop (99th percentile), in milliseconds."""

EARLIER_CALLS = 2_000
"""Number of the conversation's calls in the ledger, spread over today."""
_PRICE = Price(input=1.0, output=4.0, cache_read=0.1, cache_write=1.25)
_LIMIT = MicroUsd(10**12)

Ask = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How our model and the bare SDK use one protocol."""

    name: str
    path: str
    model: str
    make: Callable[..., ChatModel]
    bare: Callable[[str], Any]
    """Returns the SDK's client for a base URL."""
    say: Callable[[Any, dict[str, Any]], Awaitable[str]]


async def run(quick: bool) -> list[Measure]:
    """Measure every protocol, with and without streaming, with short and longer prompts. Then measure the floods."""
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory(prefix="model-bench-") as name:
        folder = Path(name)
        async with replaying(folder, await recorded(REPLY_CHARACTERS, 24)) as provider:
            for protocol in PROTOCOLS:
                for streams in (True, False):
                    measures += await _calls(protocol, provider.url, streams, folder, 40 if quick else 200)
        async with replaying(folder, await recorded(FLOOD_CHARACTERS, FLOOD_CHUNK)) as provider:
            measures += [await _flood(protocol, provider.url) for protocol in PROTOCOLS]
            measures.append(await _flood_gateway(provider.url, folder))
    return measures


async def recorded(characters: int, chunk: int) -> dict[str, Recorded]:
    """Record the fake model's answer to each kind of request.

    Each answer has `characters` characters, in chunks of `chunk` characters.
    """
    replies = {}
    text = ("The tide comes in twice a day, and with it the boats. " * (characters // 54 + 1))[:characters]
    async with Proc("fake_llm.py") as fake, aiohttp.ClientSession() as http:
        await fake.post("models", {"lab-8000k": {"context": 8_000_000, "max_output": 1_000_000}})
        await fake.post("script", {"text": text, "chunk_chars": chunk, "times": 6})
        for protocol in PROTOCOLS:
            asked = {"role": "user", "content": "How does it go on?"}
            for streams in (True, False):
                body = {"model": "lab-8000k", "stream": streams, "max_tokens": 1_000_000, "messages": [asked]}
                if protocol.name == "chat_completions":
                    body |= {"stream_options": {"include_usage": True}} if streams else {}
                if protocol.name == "responses":
                    body = {"model": "lab-8000k", "stream": streams, "store": False, "input": [asked]}
                headers = {"anthropic-version": "2023-06-01", "x-api-key": "none"}
                async with http.post(f"{fake.url}{protocol.path}", json=body, headers=headers) as answer:
                    said = await answer.text()
                    assert answer.status == 200, said
                frames = [f"{frame}\n\n" for frame in said.split("\n\n") if frame] if streams else [said]
                recording = Recorded(content_type=answer.headers["content-type"], frames=frames)
                replies[kind_of(protocol.path, streams=streams)] = recording
    return replies


# ---- one call


async def _calls(protocol: Protocol, url: str, streams: bool, folder: Path, rounds: int) -> list[Measure]:
    measures = []
    how = "streamed" if streams else "whole"
    for rows in ROWS:
        bare, ours, recording = await _call(protocol, url, streams, rows, folder, rounds)
        name = f"a call against the bare SDK: {protocol.name}, {how}, {rows} message{'s' if rows > 1 else ''}"
        measures.append(Measure(name=name, ours=ours, unit="ms", yardstick=bare, bar=1.1, slack=SLACK))
        name = f"{name}, caps and ledger"
        measures.append(Measure(name=name, ours=recording, unit="ms", yardstick=bare, bar=1.1, slack=SLACK))
    return measures


async def _call(protocol: Protocol, url: str, streams: bool, rows: int, folder: Path, rounds: int) -> tuple[float, ...]:
    """Return a call's median milliseconds: with the bare SDK, with our client, and with caps and ledger too."""
    async with AsyncExitStack() as stack:
        model = _model(protocol, url, streams)
        stack.push_async_callback(model.close)
        client = await stack.enter_async_context(protocol.bare(url))
        store = await SqliteStore.open(folder / f"{protocol.name}-{streams}-{rows}.db")
        stack.push_async_callback(store.close)
        payer = await store.write(_with_earlier_calls)
        request = _request(rows, payer)
        free = ModelClient(model, NoFailures(), price=_PRICE)
        limits = SpendingCapSettings(daily=_LIMIT, chat_daily=_LIMIT, conversation=_LIMIT)
        caps = SpendingCaps(store, limits, DailyUsage(store), SystemClock())
        capped = ModelClient(model, NoFailures(), price=_PRICE, caps=caps)
        await _ask(free, request)
        body = await _last_request(url)
        return await _side_by_side(
            lambda: protocol.say(client, body),
            lambda: _ask(free, request),
            lambda: _ask_and_record(capped, request, store),
            rounds=rounds,
        )


async def _side_by_side(*asks: Ask, rounds: int) -> tuple[float, ...]:
    """Return the median milliseconds of each function. They take turns, and each is equally often the first."""
    [said] = {await ask() for ask in asks for _ in range(5)}  # the first calls open connections
    assert len(said) == REPLY_CHARACTERS
    took: list[list[float]] = [[] for _ in asks]
    gc.collect()
    for number in range(rounds):
        for place in range(len(asks)):
            at = (number + place) % len(asks)
            began = time.perf_counter()
            await asks[at]()
            took[at].append((time.perf_counter() - began) * 1e3)
    return tuple(statistics.median(times) for times in took)


async def _ask(line: ModelClient, request: ModelRequest) -> str:
    shown = _Shown()
    completion = await line.complete(request, shown.show, purpose="turn")
    return completion.reply.text


async def _ask_and_record(line: ModelClient, request: ModelRequest, store: Store) -> str:
    shown = _Shown()
    completion = await line.complete(request, shown.show, purpose="turn")
    await store.write(_record, request.payer, completion.call)
    return completion.reply.text


class _Shown:
    """Sink for text that keeps only the newest text, like a preview."""

    text = ""

    def show(self, text: str) -> None:
        self.text = text


def _record(db: Connection, payer: Payer, call: ModelCall) -> None:
    ledger.record(db, None, payer.lineage_id, call, SystemClock().now())


def _with_earlier_calls(db: Connection) -> Payer:
    """Create a conversation with earlier calls in the ledger."""
    now = SystemClock().now()
    key = ChatKey(platform="local", account="local", chat_ref="bench")
    chat_id = chats.ensure_chat(db, key, ChatKind.LOCAL, None, now)
    session = ensure_active(db, chat_id, now)
    usage = CanonicalUsage(input=1_000, output=100)
    call = ModelCall(
        purpose="turn", route="bench", model="bench", outcome="ok", usage=usage, took_ms=900, cost=MicroUsd(1_400)
    )
    day = day_start(now, UTC)
    for number in range(EARLIER_CALLS):
        ledger.record(db, None, session.lineage_id, call, Millis(day + (now - day) * number // EARLIER_CALLS))
    return Payer(chat_id=chat_id, lineage_id=session.lineage_id)


def _model(protocol: Protocol, url: str, streams: bool) -> ChatModel:
    base = url if protocol.name == "anthropic" else f"{url}/v1"
    return protocol.make(model=protocol.model, api_key="none", base_url=base, streams=streams)


def _request(rows: int, payer: Payer) -> ModelRequest:
    return ModelRequest(
        system=DEFAULT_PERSONA,
        transcript=Conversation().transcript(rows),
        tools=tuple(tool.schema for tool in recall_tools()),
        max_output_tokens=Tokens(1_000),
        payer=payer,
        cache_key="bench",
    )


async def _last_request(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/last") as answer:
        body: dict[str, Any] = json.loads(await answer.read())
        return body


# ---- the bare SDKs


async def _say_chat(client: AsyncOpenAI, body: Mapping[str, Any]) -> str:
    if not body.get("stream"):
        return (await client.chat.completions.create(**body)).choices[0].message.content or ""
    text = ""
    async for chunk in await client.chat.completions.create(**body):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    return text


async def _say_response(client: AsyncOpenAI, body: Mapping[str, Any]) -> str:
    if not body["stream"]:
        return str((await client.responses.create(**body)).output_text)
    text = ""
    async for event in await client.responses.create(**body):
        if event.type == "response.output_text.delta":
            text += event.delta
    return text


async def _say_message(client: AsyncAnthropic, body: Mapping[str, Any]) -> str:
    if not body["stream"]:
        return "".join(block.text for block in (await client.messages.create(**body)).content)
    text = ""
    async for event in await client.messages.create(**body):
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
    return text


def _openai(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)


def _anthropic(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(api_key="none", base_url=url, max_retries=0)


PROTOCOLS: Final = (
    Protocol(
        name="chat_completions",
        path="/v1/chat/completions",
        model="lab-8000k",
        make=lambda **endpoint: ChatCompletionsModel(Endpoint(**endpoint)),
        bare=_openai,
        say=_say_chat,
    ),
    Protocol(
        name="responses",
        path="/v1/responses",
        model="lab-8000k",
        make=lambda **endpoint: ResponsesModel(Endpoint(**endpoint)),
        bare=_openai,
        say=_say_response,
    ),
    Protocol(
        name="anthropic",
        path="/v1/messages",
        model="claude-lab-8000k",
        make=lambda **endpoint: AnthropicModel(Endpoint(**endpoint)),
        bare=_anthropic,
        say=_say_message,
    ),
)


# ---- floods


async def _flood(protocol: Protocol, url: str) -> Measure:
    """Measure how late the event loop is while many chats receive long answers as fast as possible."""
    model = _model(protocol, url, streams=True)
    line = ModelClient(model, NoFailures(), price=_PRICE)
    request = _request(1, Payer())
    try:
        await _ask(line, request)  # the first call loads modules that the HTTP library imports late
        async with heartbeat() as lags:
            for _ in range(FLOODS):
                said = await asyncio.gather(*(_ask(line, request) for _ in range(FLOODED_CHATS)))
    finally:
        await model.close()
    assert {len(text) for text in said} == {FLOOD_CHARACTERS}
    return _lag(f"{protocol.name}: 10 MB in chunks of {FLOOD_CHUNK} bytes to {FLOODED_CHATS} chats", lags)


async def _flood_gateway(url: str, folder: Path) -> Measure:
    """Measure the flood through the whole gateway, which also sends previews, and stores and splits answers."""
    lags_file = folder / "lags.json"
    async with lab() as fakes, aiohttp.ClientSession() as http:
        here = replace(fakes, model=Control(url, http))
        async with gateway(here, folder, command=("bench.watched_gateway", str(lags_file))) as subject:
            await here.say(1, "Go on.")
            await here.answers(1)
            await lags_of(subject, lags_file)  # discard the delays from the start and the first call
            for number in range(FLOODS):
                told, first = await _count(http, url), 100 * (number + 1)
                asking = range(first, first + FLOODED_CHATS)
                await here.write([(chat_id, "Go on.") for chat_id in asking])
                while await _count(http, url) < told + FLOODED_CHATS:  # noqa: ASYNC110  # it does not say when
                    await asyncio.sleep(0.05)
            lags = await lags_of(subject, lags_file)
    return _lag(f"the same through the gateway, {FLOODED_CHATS} chats of Telegram", lags)


async def _count(http: aiohttp.ClientSession, url: str) -> int:
    async with http.get(f"{url}/count") as answer:
        return int(await answer.read())


def _lag(name: str, lags: list[float]) -> Measure:
    half, most = (percentile(lags, share) * 1e3 for share in (0.5, 0.99))
    print(f"{name}: the loop is late by {half:.1f} ms half the time, by {max(lags) * 1e3:.1f} ms at most")
    return Measure(name=f"{name}: lag of the loop, p99", ours=most, unit="ms", bar=LAG_BAR)
