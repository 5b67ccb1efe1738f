"""Connections to providers: reuse, proxies of the environment, and the system's resolver."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.abc import ResolveResult

from agent.model.base import ChatModel
from tests.agent.model.asking import ask
from tests.agent.model.ways import WAYS, Way

_ANSWERS = {
    "chat_completions": {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]},
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "ok"}]}],
    },
    "anthropic": {"type": "message", "content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn"},
}


class Peer:
    """Server that answers every request and records it."""

    def __init__(self, protocol: str) -> None:
        self._answer = json.dumps(_ANSWERS[protocol]).encode()
        self.connections = 0
        self.targets: list[str] = []
        self.heads: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = b"content-type: application/json\r\nset-cookie: seen=1\r\ncontent-length: %d" % len(self._answer)
        try:
            while True:
                asked = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.lower().split(": ", 1) for line in asked.split("\r\n")[1:] if line)
                await reader.readexactly(int(fields["content-length"]))
                self.heads.append(asked.lower())
                self.targets.append(asked.split(" ", 2)[1])
                writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, self._answer))
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def listening(way: Way) -> AsyncIterator[Peer]:
    peer = Peer(way.protocol)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await server.wait_closed()


async def _said(model: ChatModel) -> str:
    return (await ask(model))[0].text


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_consecutive_calls_reuse_one_connection_without_cookies(way: Way) -> None:
    async with listening(way) as peer, way.dialled(f"http://127.0.0.1:{peer.port}") as model:
        assert [await _said(model) for _ in range(3)] == ["ok"] * 3
    assert (peer.connections, len(peer.heads)) == (1, 3)
    assert not any("\r\ncookie:" in head for head in peer.heads)


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_proxies_of_the_environment_are_used(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(way) as peer:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{peer.port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        async with way.dialled("http://provider.example") as model:
            assert await _said(model) == "ok"
        async with way.dialled(f"http://127.0.0.1:{peer.port}") as model:
            assert await _said(model) == "ok"
    through, direct = peer.targets
    assert through.startswith("http://provider.example/v1/")
    assert direct.startswith("/v1/")


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_system_resolver_is_used(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp's own resolver does not know `.local` names, which home servers have."""
    asked: list[str] = []

    async def resolve(_: object, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        asked.append(host)
        found = ResolveResult(hostname=host, host="127.0.0.1", port=port, family=2, proto=0, flags=0)
        return [found]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    async with listening(way) as peer, way.dialled(f"http://server.local:{peer.port}") as model:
        assert await _said(model) == "ok"
    assert asked == ["server.local"]
