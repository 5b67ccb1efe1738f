"""Providers that mean harm, or are out of their mind: what a reply may cost, and where a conversation may go."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.model.bodies import MAX_REDIRECTS
from agent.model.http import MAX_WAYS
from hermes_state.errors import AuthRejected, ModelNotFound, OutputCapTooLarge
from tests.agent.model.asking import ask, request
from tests.agent.model.ways import WAYS, Way
from tests.fakes.hostile_provider import hostile_provider, kinds

MAX_MEGABYTES = 32.0
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("protocol", ["chat_completions", "responses", "anthropic", "transcription"])
async def test_no_reply_takes_more_memory_than_it_may(protocol: str) -> None:
    module = "tests.agent.model.hostile_client"
    async with hostile_provider(protocol) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, protocol, url), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        told, _ = await process.communicate()
    rows = [json.loads(line) for line in told.splitlines()]
    expected = {kind: answer.raised for kind, answer in kinds(protocol).items()}
    assert {row["kind"]: row["error"] for row in rows} == expected
    assert all(row["said"] for row in rows), "there is a sentence for the person"
    assert {row["kind"]: grown for row in rows if (grown := row["peak"] - row["idle"]) > MAX_MEGABYTES} == {}
    assert process.returncode == 0


async def served(answer: Callable[[web.Request], web.Response]) -> tuple[TestServer, list[str]]:
    """A server, and the paths that it was asked for."""
    paths: list[str] = []

    async def handle(asked: web.Request) -> web.Response:
        paths.append(asked.path)
        return answer(asked)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    return server, paths


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("changes", [("port",), ("host",), ("scheme",), ("path", "port")], ids=" then ".join)
@pytest.mark.parametrize("status", [302, 307])
async def test_a_conversation_is_sent_to_no_other_address(way: Way, changes: Sequence[str], status: int) -> None:
    other, seen_there = await served(lambda asked: web.Response(status=401))
    turns = iter(changes)

    def redirected(asked: web.Request) -> web.Response:
        here = asked.url
        match next(turns):
            case "port":
                target = here.with_port(other.port)
            case "host":
                target = here.with_host("localhost")
            case "scheme":
                target = here.with_scheme("https")
            case _:
                target = here.with_path("/elsewhere")
        return web.Response(status=status, headers={"Location": str(target)})

    server, seen_here = await served(redirected)
    try:
        async with way.dialled(str(server.make_url("")).rstrip("/")) as model:
            with pytest.raises(ModelNotFound):
                await ask(model)
        assert seen_there == []
        assert len(seen_here) == len(changes)
    finally:
        await server.close()
        await other.close()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("hops", "raised"), [(MAX_REDIRECTS, AuthRejected), (MAX_REDIRECTS + 1, ModelNotFound)])
async def test_a_few_redirects_at_the_same_address_are_followed(way: Way, hops: int, raised: type[Exception]) -> None:
    def redirected(asked: web.Request) -> web.Response:
        hop = int(asked.query.get("hop", 0))
        if hop == hops:
            return web.json_response({"error": {"message": "Incorrect API key"}}, status=401)
        return web.Response(status=307, headers={"Location": str(asked.rel_url.with_query(hop=hop + 1))})

    server, seen = await served(redirected)
    try:
        async with way.dialled(str(server.make_url("")).rstrip("/")) as model:
            with pytest.raises(raised):
                await model.complete(request(), lambda text: None)
        assert len(seen) == MAX_REDIRECTS + 1
    finally:
        await server.close()


async def test_a_provider_that_finds_ever_new_faults_is_not_asked_for_ever() -> None:
    limit = 30_000

    def refused(asked: web.Request) -> web.Response:
        nonlocal limit
        limit -= 1
        message = f"max_tokens: {limit + 1} > {limit}, which is the maximum allowed number of output tokens"
        return web.json_response({"type": "error", "error": {"message": message}}, status=400)

    server, seen = await served(refused)
    way = next(way for way in WAYS if way.protocol == "anthropic")
    try:
        async with way.dialled(str(server.make_url("")).rstrip("/")) as model:
            with pytest.raises(OutputCapTooLarge) as raised:
                await ask(model, request(max_output_tokens=None))
        assert len(seen) == MAX_WAYS + 1
        assert len(raised.value.refused) == MAX_WAYS, "and each of them has its row in the ledger"
    finally:
        await server.close()
