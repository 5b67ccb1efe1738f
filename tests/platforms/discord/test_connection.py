"""Connecting to Discord: fatal and retryable errors, and connections that stop answering."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import discord
import pytest
from discord.gateway import DiscordWebSocket
from discord.http import Route
from pydantic import SecretStr

from hermes_state.errors import PlatformError, PlatformUnavailable, StoreUnavailable, TokenRejected
from platforms.base import AdapterState, PlatformAdapter, ReceivedEvent
from platforms.discord.errors import connection_errors
from tests.platforms.contract import RecordingIntake, eventually, request, running
from tests.platforms.discord.harness import TOKEN, DiscordHarness

MESSAGE_CONTENT = 1 << 15


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DiscordHarness]:
    async with DiscordHarness(tmp_path, token=TOKEN) as harness:
        yield harness


async def failure(adapter: PlatformAdapter, seconds: float = 20) -> PlatformError:
    """Return the error that `run` raises."""
    with pytest.raises(PlatformError) as caught:
        await asyncio.wait_for(adapter.run(RecordingIntake()), seconds)
    assert not adapter.health().is_ready
    return caught.value


async def running_task(adapter: PlatformAdapter, intake: RecordingIntake | None = None) -> asyncio.Task[None]:
    """Run the adapter, and return its task once it is ready."""
    task = asyncio.create_task(adapter.run(intake or RecordingIntake()))
    await eventually(lambda: adapter.health().is_ready, "ready")
    return task


async def test_a_wrong_token_is_fatal_and_says_what_to_do(harness: DiscordHarness) -> None:
    adapter = harness.another_adapter(token=SecretStr("wrong"))
    error = await failure(adapter)
    assert isinstance(error, TokenRejected)
    assert "discord.token" in str(error)
    assert adapter.health().state is AdapterState.FAILED


@pytest.mark.parametrize(
    ("fault", "changes", "error"),
    [
        ({"match": "IDENTIFY", "kind": "close", "code": 4004}, {}, TokenRejected),
        ({"match": "GET /users/@me", "kind": "status", "status": 503}, {}, PlatformUnavailable),
        (
            {"match": "nothing"},
            {"api_url": "http://127.0.0.1:9", "gateway_url": "ws://127.0.0.1:9"},
            PlatformUnavailable,
        ),
    ],
    ids=["token", "login", "server"],
)
async def test_a_failed_start_says_whether_another_attempt_helps(
    harness: DiscordHarness, fault: dict[str, Any], changes: dict[str, str], error: type[PlatformError]
) -> None:
    await harness.fault(**fault)
    assert isinstance(await failure(harness.another_adapter(**changes)), error)


async def test_a_token_revoked_while_connected_is_fatal(harness: DiscordHarness) -> None:
    task = await running_task(harness.adapter)
    await harness.post("gateway", {"action": "close", "code": 4004})
    with pytest.raises(TokenRejected):
        await asyncio.wait_for(task, 10)


async def test_a_missing_intent_is_fatal_and_named(harness: DiscordHarness) -> None:
    await harness.post("config", {"disallowed_intents": MESSAGE_CONTENT})
    error = await failure(harness.adapter)
    assert isinstance(error, TokenRejected)
    assert "MESSAGE CONTENT" in str(error)
    assert "developer portal" in str(error)
    assert harness.adapter.health().state is AdapterState.FAILED
    assert "developer portal" in harness.adapter.health().detail


async def test_only_the_needed_intents_are_requested(harness: DiscordHarness) -> None:
    async with running(harness.adapter, RecordingIntake()):
        [session] = (await harness.get("state"))["sessions"]
    wanted = discord.Intents.none()
    wanted.guilds = wanted.guild_messages = wanted.dm_messages = wanted.message_content = True
    wanted.guild_reactions = wanted.dm_reactions = True
    assert session["intents"] == wanted.value


@pytest.mark.parametrize("trouble", [{"kind": "status", "status": 503}, {"kind": "reset"}])
async def test_a_failed_first_connect_is_retryable(harness: DiscordHarness, trouble: dict[str, object]) -> None:
    await harness.fault(match="GATEWAY connect", times=-1, **trouble)
    assert isinstance(await failure(harness.adapter), PlatformUnavailable)
    assert harness.adapter.health().state is AdapterState.BACKING_OFF
    harness.discord.faults.clear()
    intake = RecordingIntake()
    async with running(harness.adapter, intake):
        await harness.write("hello")
        await intake.wait_for(1)


async def test_an_unreachable_database_is_retryable(harness: DiscordHarness) -> None:
    await harness.store.close()
    error = await failure(harness.adapter)
    assert isinstance(error, PlatformUnavailable)
    assert isinstance(error.__cause__, StoreUnavailable)


async def test_our_own_bug_is_not_reported_as_an_outage() -> None:
    client = discord.Client(intents=discord.Intents.none())
    client.ws = object()  # type: ignore[assignment]  # any: there was a connection
    with pytest.raises(AttributeError), connection_errors(client):
        raise AttributeError("typo")


async def test_unanswered_heartbeats_end_the_connection(harness: DiscordHarness) -> None:
    await harness.post("config", {"heartbeat_ms": 100, "enforce_heartbeat": False})
    impatient = harness.another_adapter(stale_seconds=1.2)
    task = await running_task(impatient)
    await asyncio.sleep(1.4)
    assert impatient.health().is_ready, "answered heartbeats are progress"
    await harness.post("gateway", {"action": "mute"})
    muted_at = time.monotonic()
    states = set()
    while not task.done():
        await harness.write("still talking")  # events still arrive; only heartbeats are unanswered
        states.add(impatient.health().state)
        await asyncio.sleep(0.02)
    assert time.monotonic() - muted_at < 15
    assert AdapterState.STALLED in states
    with pytest.raises(PlatformUnavailable, match="heartbeat"):
        await task


async def test_a_session_that_does_not_resume_ends_the_connection(harness: DiscordHarness) -> None:
    impatient = harness.another_adapter(stale_seconds=0.6)
    task = await running_task(impatient)
    await harness.fault(match="GATEWAY connect", kind="hang", seconds=30, times=-1)
    await harness.post("gateway", {"action": "drop"})
    await eventually(lambda: impatient.health().state is AdapterState.BACKING_OFF, "the loss shows")
    with pytest.raises(PlatformUnavailable, match="session"):
        await asyncio.wait_for(task, 20)


async def test_a_short_loss_is_resumed_without_a_new_run(harness: DiscordHarness) -> None:
    intake = RecordingIntake()
    async with running(harness.adapter, intake):
        for number, action in enumerate(("drop", "reconnect", "close")):
            await harness.post("gateway", {"action": action})
            await harness.write(f"message {number}")
            await intake.wait_for(number + 1)
            await eventually(lambda: harness.adapter.health().is_ready, "ready again")
    assert len(await harness.get("gateway_log", event="op2")) == 1
    assert intake.texts == ["message 0", "message 1", "message 2"]


async def test_an_unanswered_goodbye_does_not_delay_the_end(harness: DiscordHarness) -> None:
    task = await running_task(harness.adapter)
    [connection] = harness.discord.conns
    transport = connection.request.transport
    assert transport is not None
    transport.pause_reading()
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert time.monotonic() - started < 8


class StubbornIntake(RecordingIntake):
    """An intake that raises its own error when it is cancelled."""

    async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
        try:
            return await super().accept_batch(received)
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None


async def test_an_error_during_cancellation_does_not_hide_the_cancellation(harness: DiscordHarness) -> None:
    intake = StubbornIntake()
    intake.gate.clear()
    task = await running_task(harness.adapter, intake)
    await harness.write("hello")
    await eventually(lambda: bool(intake.offered), "the intake is at work")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_bug_in_the_intake_ends_the_run_with_its_own_error(harness: DiscordHarness) -> None:
    class Broken(RecordingIntake):
        async def accept_batch(self, received: Sequence[ReceivedEvent]) -> int:
            raise ValueError("a bug")

    task = await running_task(harness.adapter, Broken())
    await harness.write("hello")
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01])
async def test_it_stops_at_once_while_discord_is_unreachable(harness: DiscordHarness, delay: float) -> None:
    task = await running_task(harness.adapter)
    await harness.server.stop()
    await asyncio.sleep(delay)  # at any moment between losing the connection and reconnecting
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=20)
    assert done == {task}
    assert task.cancelled()


async def test_two_accounts_on_two_servers_share_nothing(harness: DiscordHarness, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    addresses = (Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY)
    async with DiscordHarness(elsewhere) as other:
        first, second = RecordingIntake(), RecordingIntake()
        async with running(harness.adapter, first), running(other.adapter, second):
            await harness.write("to the first")
            await other.write("to the second")
            await first.wait_for(1)
            await second.wait_for(1)
            await harness.adapter.send(request(harness.direct_chat, "from the first"))
            await other.adapter.send(request(other.direct_chat, "from the second"))
        assert first.texts == ["to the first"]
        assert second.texts == ["to the second"]
        assert await harness.visible(harness.direct_chat) == ["from the first"]
        assert await other.visible(other.direct_chat) == ["from the second"]
    assert addresses == (Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY)
