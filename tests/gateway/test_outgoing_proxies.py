"""Which connections use the proxy of the environment, as docs/how-to/run-behind-a-proxy.md says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from telegram.error import NetworkError

from agent.model.base import Endpoint
from agent.model.protocols.chat_completions import ChatCompletionsModel
from hermes_state import errors
from platforms.telegram.transport import BotApiRequest


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """First lines of the requests to a proxy that refuses all of them; the environment names it."""
    lines: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.decode().splitlines()[0])
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "localhost,127.0.0.1")
    async with server:
        yield lines


async def ask_model(base_url: str) -> None:
    model = ChatCompletionsModel(Endpoint(model="x", api_key="sk-x", base_url=base_url))
    with pytest.raises(errors.ModelUnavailable):
        await model.fetch_json(f"{base_url}/models")
    await model.close()


async def ask_telegram(address: str) -> None:
    request = BotApiRequest(connections=1, connect_seconds=5, request_seconds=5)
    await request.initialize()
    try:
        with pytest.raises(NetworkError):
            await request.do_request(address, "POST")
    finally:
        await request.shutdown()


@pytest.mark.parametrize(
    ("ask", "address", "line"),
    [
        (ask_model, "https://api.example.com/v1", "CONNECT api.example.com:443 HTTP/1.1"),
        (ask_model, "http://models.example.com/v1", "GET http://models.example.com/v1/models HTTP/1.1"),
        (ask_telegram, "https://api.telegram.org/bot1:x/getMe", "CONNECT api.telegram.org:443 HTTP/1.1"),
    ],
    ids=["model-https", "model-http", "telegram"],
)
async def test_telegram_and_models_are_asked_through_the_proxy(
    ask: Callable[[str], Awaitable[None]], address: str, line: str, asked: list[str]
) -> None:
    await ask(address)
    assert asked == [line]


@pytest.mark.parametrize("address", ["https://api.example.com/v1", "http://models.example.com/v1"])
async def test_a_model_behind_a_proxy_that_is_not_there_says_which_setting_to_check(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://me:secret-pass@127.0.0.1:9")
    model = ChatCompletionsModel(Endpoint(model="x", api_key="sk-x", base_url=address))
    with pytest.raises(errors.ModelUnavailable, match=r"the proxy .* cannot be reached.*; check network\.proxy"):
        await model.fetch_json(f"{address}/models")
    await model.close()


@pytest.mark.parametrize("ask", [ask_model, ask_telegram], ids=["model", "telegram"])
async def test_hosts_of_no_proxy_are_asked_directly(ask: Callable[[str], Awaitable[None]], asked: list[str]) -> None:
    await ask("http://127.0.0.1:9")
    assert asked == []
