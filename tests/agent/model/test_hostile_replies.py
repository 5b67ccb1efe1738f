"""Malicious or broken providers: limits for replies, and for the hosts that see a conversation."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.model.http import MAX_OTHER_FORMS
from hermes_state.errors import AuthRejected, ModelNotFound, OutputCapExceeded
from tests.agent.model.asking import ask, request
from tests.agent.model.hostile_client import run_client
from tests.agent.model.ways import WAYS, Way
from tests.fakes.hostile_provider import ANSWERS, hostile_provider, kinds
from tests.processes import ForkedProcess
from tests.sampling import every

MAX_MEGABYTES = 32.0


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("protocol", "step"), [("chat_completions", 2), ("transcription", 4), ("responses", 6), ("anthropic", 6)]
)
async def test_no_reply_exceeds_the_memory_limit(protocol: str, step: int, tmp_path: Path) -> None:
    """All protocols share the code that reads bodies, but each has its own for the events of a stream."""
    chosen = every(step, list(ANSWERS)) + [kind for kind in kinds(protocol) if kind not in ANSWERS]
    told = tmp_path / "told"
    async with hostile_provider(protocol) as url:
        client = partial(run_client, protocol, url, chosen, told)
        process = ForkedProcess(client, os.environ, tmp_path / "log")
        assert await process.wait() == 0, (tmp_path / "log").read_text()
    rows = [json.loads(line) for line in told.read_text().splitlines()]
    assert {row["kind"]: row["error"] for row in rows} == {kind: kinds(protocol)[kind].raised for kind in chosen}
    assert all(row["said"] for row in rows), "every error has a sentence for the user"
    assert {row["kind"]: grown for row in rows if (grown := row["peak"] - row["idle"]) > MAX_MEGABYTES} == {}


async def served(answer: Callable[[web.Request], web.Response]) -> tuple[TestServer, list[str]]:
    """Server that records the requested paths."""
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
async def test_redirects_to_another_host_are_not_followed(way: Way, changes: Sequence[str], status: int) -> None:
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
        assert (seen_there, len(seen_here)) == ([], len(changes))
    finally:
        await server.close()
        await other.close()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("hops", "raised"), [(3, AuthRejected), (4, ModelNotFound)])
async def test_redirects_on_the_same_host_are_followed(way: Way, hops: int, raised: type[Exception]) -> None:
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
        assert len(seen) == 4
    finally:
        await server.close()


async def test_retries_in_other_forms_are_limited() -> None:
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
            with pytest.raises(OutputCapExceeded) as raised:
                await ask(model, request(max_output_tokens=None))
        assert len(seen) == MAX_OTHER_FORMS + 1
        assert len(raised.value.refused) == MAX_OTHER_FORMS, "each refusal has its own row in the ledger"
    finally:
        await server.close()
