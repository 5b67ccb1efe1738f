from pathlib import Path

import orjson
import pytest

from gateway.config import LoadedConfig
from gateway.health import Heartbeat
from gateway.operator.handlers import OperatorHandler
from gateway.outbound.adapters import AdapterRegistry
from hermes_state.errors import AuthRejected, CommandError
from hermes_state.files.folder import AttachmentFolder
from platforms.local import LocalAdapter, LocalSettings
from platforms.local.access import BrowserAccessControl
from tests.databases import IS_POSTGRES
from tests.gateway.helpers import EVE, Serve, TestGateway, hanging
from tests.platforms.contract import RecordingIntake, running


def operator(gateway: TestGateway, adapters: AdapterRegistry | None = None) -> OperatorHandler:
    loaded = LoadedConfig(config=gateway.live.config, home=Path("/nowhere"), warnings=(), sources={})
    return OperatorHandler(
        loaded=lambda: loaded,
        runtime=gateway.live,
        store=gateway.store,
        access=gateway.access,
        adapters=adapters or gateway.adapters,
        lanes=gateway.lanes,
        servers=gateway.servers,
        delivery=gateway.delivery,
        heartbeat=Heartbeat(gateway.store, gateway.adapters, {}),
        clock=gateway.clock,
        forgetter=gateway.forgetter,
        started_at=gateway.clock.now(),
    )


async def test_status_shows_the_state_of_the_daemon(gateway: TestGateway) -> None:
    hang = await hanging(gateway)
    await gateway.say("hi", sender=EVE)
    said = await operator(gateway).handlers()["status"]({})
    orjson.dumps(said)
    assert (said["turns_running"], said["model"]) == (1, "scripted")
    assert said["platforms"]["telegram"]["state"] == "running"
    assert said["not_stored"] == {"unaddressed": 0, "bot": 0, "stranger": 1, "denied": 0}
    assert said["vitals"]["is_ready"]
    gateway.adapters.is_certain = lambda: False  # a node without a seat
    assert not (await operator(gateway).handlers()["status"]({}))["vitals"]["is_ready"]
    gateway.adapters.is_certain = lambda: True
    hang.release()
    await gateway.quiet()


async def test_status_and_doctor_show_paused_models(gateway: TestGateway) -> None:
    ask = operator(gateway).handlers()
    assert (await ask["status"]({}))["routes"] == [{"model": "scripted", "route": "scripted"}]
    checks = ["database", "cluster" if IS_POSTGRES else "search", "context", "platforms"]
    assert [finding.check for finding in await ask["doctor"]({})] == checks
    for _ in range(3):
        gateway.live.models.configured.client.breaker.failed(AuthRejected("x"))
    [route] = (await ask["status"]({}))["routes"]
    assert (route["paused_seconds"], route["reason"]) == (30, "rejects our API key")
    [finding] = [finding for finding in await ask["doctor"]({}) if finding.check == "route"]
    assert finding.verdict == "warning"
    assert finding.text == "scripted (scripted) rejects our API key; it is paused for 30 s."


async def test_access_is_approved_and_revoked_from_the_command_line(gateway: TestGateway) -> None:
    ask = operator(gateway).handlers()
    code = (await gateway.ask("hi", sender=EVE)).split("`")[1]
    [waiting] = await ask["pair.list"]({})
    assert (waiting["user"], waiting["state"]) == (EVE.ref, "pending")
    with pytest.raises(CommandError, match="role"):
        await ask["pair.approve"]({"code": code, "role": "king"})
    approved = await ask["pair.approve"]({"code": code})
    orjson.dumps(approved)
    assert (approved["user"], approved["role"], approved["state"]) == (EVE.ref, "user", "approved")
    assert len(await gateway.replies(2)) == 2, "the code and the welcome"
    assert await gateway.ask("hi", sender=EVE) == "echo: hi"
    await ask["pair.revoke"]({"user": EVE.ref})
    assert gateway.access.role_of(EVE.ref) is None
    with pytest.raises(CommandError):
        await ask["pair.revoke"]({"user": EVE.ref})
    with pytest.raises(CommandError):
        await ask["pair.approve"]({})


async def test_look_ups_hide_configured_secrets(serve: Serve) -> None:
    async with serve(model={"api_key": "plainwordsecret"}) as gateway:
        await gateway.ask("the door opens with plainwordsecret")
        ask = operator(gateway).handlers()
        found = await ask["search"]({"words": "door", "role": "user"})
        orjson.dumps(found)
        assert [row["snippet"] for row in found] == ["the door opens with [redacted]"]
        (chain,) = await ask["lineage"]({"place": found[0]["session_key"]})
        assert (chain["chat"]["chat_ref"], chain["message_count"]) == ("1", 2)
        said = await ask["history"]({"place": f"m{found[0]['message_id']}"})
        assert [row["role"] for row in said] == ["user", "assistant"]
        assert [row["tip"]["key"] for row in await ask["sessions"]({})] == [found[0]["session_key"]]


def web_chat(gateway: TestGateway, folder: Path) -> LocalAdapter:
    files = AttachmentFolder(folder)
    settings, clock = LocalSettings(port=0), gateway.clock
    return LocalAdapter(settings, store=gateway.store, files=files, menu=(), clock=clock, state_dir=folder)


async def test_the_link_to_the_web_chat_is_returned(gateway: TestGateway, tmp_path: Path) -> None:
    local = web_chat(gateway, tmp_path)
    ask = operator(gateway, AdapterRegistry({"local": local})).handlers()["local.url"]
    assert await ask({}) == {"url": None}
    async with running(local, RecordingIntake()):
        assert (await ask({}))["url"].startswith(f"{local.url}?token=")
    with pytest.raises(CommandError, match="disabled"):
        await operator(gateway).handlers()["local.url"]({})


async def test_signed_in_browsers_are_listed_and_signed_out(gateway: TestGateway, tmp_path: Path) -> None:
    access = BrowserAccessControl(gateway.store, gateway.clock)
    for agent in ("Firefox \x1b[2J", "Chrome"):
        assert await access.exchange(await access.mint(), agent) is not None
    local = web_chat(gateway, tmp_path)
    async with running(local, RecordingIntake()):
        ask = operator(gateway, AdapterRegistry({"local": local})).handlers()
        newest, oldest = await ask["local.browsers"]({})
        assert (newest["agent"], oldest["agent"]) == ("Chrome", "Firefox [2J")
        assert await ask["local.revoke"]({"id": oldest["id"]}) == {"signed_out": 1}
        assert await ask["local.browsers"]({}) == [newest]
        assert await ask["local.revoke"]({}) == {"signed_out": 1}
        assert await ask["local.browsers"]({}) == []
