"""The set-up page of a new gateway, over HTTP, with the real daemon and fake services."""

import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_console import Visitor, link_for
from tests.e2e.world import TOKEN, World, world_in

KEY = "sk-lab-0123456789abcdef"


async def start_new(world: World) -> None:
    """Start a gateway without any configuration except the addresses of the fakes."""
    for name in [*world.gateway.environ]:
        if name.startswith("HERMES_MODEL__") or name in ("HERMES_TELEGRAM__TOKEN", "HERMES_STORE__URL"):
            del world.gateway.environ[name]
    await world.gateway.start(HERMES_LOCAL__ENABLED="true", HERMES_LOCAL__PORT=str(world.free_port()))


@pytest.fixture
async def world(tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[World]:
    async with world_in(tmp_path, protocol) as made:
        await start_new(made)
        yield made


@pytest.fixture
async def owner(world: World) -> AsyncIterator[Visitor]:
    async with Visitor(await world.gateway.printed_url()) as visitor:
        yield visitor


async def first_page(visitor: Visitor) -> str | None:
    """Return the page that the script of `/` opens for a signed-in browser; None for the chat."""
    status, headers = await visitor.head("POST", "/sign-in")
    assert status == 204
    return headers.get("Hermes-Start")


def modes(home: Path) -> set[int]:
    return {stat.S_IMODE((home / name).stat().st_mode) for name in ("config.yaml", ".env")}


async def test_a_new_gateway_leads_its_owner_to_the_page_until_they_look_around(world: World, owner: Visitor) -> None:
    assert await first_page(owner) == "/console/start"
    assert (await owner.head("GET", "/"))[0] == 200
    async with Visitor(await link_for(world, "Ann")) as ann:
        assert await first_page(ann) is None
    content = await owner.read("start")
    assert "offline model answers now" in content
    assert "BotFather" in content
    assert "Message Content Intent" in content
    assert "offline model answers" in await owner.act("start", "look")
    assert await first_page(owner) is None
    assert (await owner.head("GET", "/"))[0] == 303
    assert not (world.home / "config.yaml").exists()


async def test_a_key_is_tested_saved_and_used_without_a_restart(world: World, owner: Visitor) -> None:
    fields = {"key": KEY, "address": f"{world.llm.url}/v1", "model": "lab-128k"}
    await world.llm.post("config", {"models_status": 401})
    refused = await owner.act("start", "model", **fields)
    assert "rejected the API key" in refused
    assert "Nothing was saved" in refused
    await world.llm.post("config", {"models_status": 200})
    assert "Nothing was saved" in await owner.act("start", "model", **{**fields, "address": "localhost"})
    assert "which provider the key belongs to" in await owner.act("start", "model", key="something")
    assert "Paste an API key" in await owner.act("start", "model")
    assert not (world.home / "config.yaml").exists()
    assert await first_page(owner) == "/console/start"

    said = await owner.act("start", "model", **fields)
    assert "lab-128k now answers" in said
    assert modes(world.home) == {0o600}
    assert "lab-128k" in (world.home / "config.yaml").read_text()
    assert KEY not in (world.home / "config.yaml").read_text()
    assert KEY in (world.home / ".env").read_text()
    assert not list(world.home.glob("setup-*"))
    assert await first_page(owner) is None
    status, _ = await owner.send("POST", "/chat/main/messages", client_id="0" * 32, text="hello")
    assert status == 200
    [asked] = await world.asked(1)
    assert f"Bearer {KEY}" in asked["headers"].values()
    shown = await owner.read("start") + await owner.read("audit") + await owner.read("setup?words=model")
    assert "lab-128k" in shown
    assert KEY not in refused + said + shown + world.gateway.log_text()


async def test_a_bot_token_is_tested_saved_and_used_after_a_restart(world: World, owner: Visitor) -> None:
    assert "rejected this token" in await owner.act("start", "telegram", token="999:WRONG")
    assert "not allowed in a key" in await owner.act("start", "telegram", token=f"{TOKEN} \n/x")
    assert not (world.home / ".env").exists()
    said = await owner.act("start", "telegram", token=f" {TOKEN} ")
    assert "Restart the gateway to connect." in said
    assert modes(world.home) == {0o600}
    content = await owner.read("start")
    assert "Restart the gateway to connect" in content
    assert TOKEN not in said + content + await owner.read("audit") + world.gateway.log_text()
    assert await world.gateway.stop() == 0
    await world.gateway.start()
    async with Visitor(await world.gateway.printed_url()) as again:
        await again.until(
            "overview", lambda shown: re.search(r"Telegram</b> <span class=.soft.>Connected", shown) is not None
        )
        assert "The token is in use" in await again.read("start")
        assert await first_page(again) is None


async def test_the_page_adds_no_token_to_a_list_of_bots(world: World, owner: Visitor) -> None:
    await world.gateway.stop()
    world.configure("telegram: [{name: support}, {name: operations}]\n")
    await world.gateway.start()
    async with Visitor(await world.gateway.printed_url()) as again:
        assert "has a list of bots" in await again.act("start", "telegram", token=TOKEN)
    assert not (world.home / ".env").exists()


async def test_a_variable_of_the_environment_is_not_hidden_by_the_page(world: World, owner: Visitor) -> None:
    await world.gateway.stop()
    await world.gateway.start(HERMES_MODEL__PROTOCOL="offline", HERMES_MODEL__NAME="mine")
    async with Visitor(await world.gateway.printed_url()) as again:
        fields = {"key": KEY, "address": f"{world.llm.url}/v1", "model": "lab-128k"}
        assert "is set outside the configuration files" in await again.act("start", "model", **fields)
        assert not (world.home / "config.yaml").exists()
