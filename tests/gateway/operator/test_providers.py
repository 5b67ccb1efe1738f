"""Providers by their keys, and model servers on this machine."""

import asyncio
import socket

import pytest
from aiohttp import web

from gateway.operator.providers import LocalServer, find_local_servers, recognise
from tests.fakes import fake_llm
from tests.fakes.labkit import Server


@pytest.mark.parametrize(
    ("key", "address", "name"),
    [
        ("sk-ant-api03-x", "", "Anthropic"),
        ("sk-or-v1-x", "", "OpenRouter"),
        ("sk-proj-x", "", "OpenAI"),
        ("sk-" + "0a" * 16, "", "DeepSeek"),
        ("AIzaSyx", "", "Gemini"),
        ("gsk_x", "", "Groq"),
        ("sk-x", "https://api.anthropic.com", "Anthropic"),
        ("sk-ant-x", "https://elsewhere.example/v1", None),
        ("hello", "", None),
    ],
)
def test_a_provider_is_recognised_by_its_address_or_the_form_of_the_key(
    key: str, address: str, name: str | None
) -> None:
    found = recognise(key, address)
    assert (found and found.name) == name


async def test_only_servers_with_a_list_of_models_are_found() -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(text="<h1>My other program</h1>", content_type="text/html")

    plain = web.Application()
    plain.router.add_get("/v1/models", other)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Server(fake_llm.make_app()) as llm, Server(plain) as wrong:
            port = int(llm.url.rpartition(":")[2])
            ports = {"A": port, "B": int(wrong.url.rpartition(":")[2]), "C": silent.getsockname()[1]}
            [found] = await asyncio.to_thread(find_local_servers, ports)
    assert isinstance(found, LocalServer)
    assert (found.name, found.base_url) == ("A", f"http://127.0.0.1:{port}/v1")
    assert "lab-128k" in found.models
