"""Webhook mode: only Telegram is accepted, and 200 means stored."""

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from hermes_state.errors import PlatformUnavailable
from platforms.base import AdapterState
from platforms.telegram import WebhookSettings
from tests.platforms.contract import eventually
from tests.platforms.telegram.harness import PERSON, TelegramHarness, free_port

SECRET = "s3cret-Token_1"
HEADER = "X-Telegram-Bot-Api-Secret-Token"
UPDATE = {
    "update_id": 900,
    "message": {
        "message_id": 7,
        "date": 1_700_000_000,
        "chat": {"id": PERSON, "type": "private", "first_name": "Ada"},
        "from": {"id": PERSON, "is_bot": False, "first_name": "Ada"},
        "text": "hello",
    },
}


@pytest.fixture
def webhook() -> WebhookSettings:
    port = free_port()
    return WebhookSettings(url=f"http://127.0.0.1:{port}/hooks/telegram", secret=SecretStr(SECRET), port=port)


@pytest.fixture
async def telegram(tmp_path: Path, webhook: WebhookSettings) -> AsyncIterator[TelegramHarness]:
    async with TelegramHarness(tmp_path, webhook=webhook) as harness:
        yield harness


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_the_webhook_is_set_with_address_secret_and_kinds(
    live: TelegramHarness, webhook: WebhookSettings
) -> None:
    [bot] = (await live.get("state"))["bots"]
    assert (bot["webhook"]["url"], bot["webhook"]["secret"]) == (webhook.url, SECRET)
    assert bot["allowed_updates"] == [
        "callback_query",
        "edited_message",
        "message",
        "message_reaction",
        "my_chat_member",
    ]
    assert await live.calls("getUpdates") == []


@pytest.mark.parametrize("headers", [{}, {HEADER: ""}, {HEADER: "s3cret"}, {HEADER: SECRET + "x"}, {HEADER: "ü"}])
async def test_a_post_without_the_secret_is_refused(
    telegram: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    async with telegram.running(), client.post(webhook.url, json=UPDATE, headers=headers) as answer:
        assert answer.status == 403
    assert telegram.intake.offered == []


async def test_unknown_kinds_of_updates_are_acknowledged_and_named_once(
    live: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession
) -> None:
    with capture_logs() as logs:
        for number, kind in enumerate(("subscription", "guest_message", "subscription")):
            raw = {"update_id": number, kind: {"state": "active"}}
            async with client.post(webhook.url, json=raw, headers={HEADER: SECRET}) as answer:
                assert answer.status == 200
    assert [entry["kind"] for entry in logs if entry["event"] == "update.ignored"] == ["subscription", "guest_message"]
    assert live.intake.messages == []


async def test_posts_without_the_secret_do_not_fill_the_log(
    live: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession
) -> None:
    with capture_logs() as logs:
        for _ in range(20):
            async with client.post(webhook.url, json=UPDATE) as answer:
                assert answer.status == 403
    assert [line["count"] for line in logs if line["event"] == "webhook.refused"] == [1]


async def test_an_unpaired_surrogate_does_not_cause_a_redelivery(
    telegram: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession
) -> None:
    body = json.dumps(UPDATE).replace("hello", "half of \\ud83d")
    sent = client.post(webhook.url, data=body, headers={HEADER: SECRET})
    async with telegram.running(), sent as answer:
        assert answer.status == 200
    assert telegram.intake.texts == ["half of \ufffd"]


async def test_an_unstored_update_is_refused_and_comes_again(
    live: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession
) -> None:
    live.intake.refusals = 1
    async with client.post(webhook.url, json=UPDATE, headers={HEADER: SECRET}) as answer:
        assert answer.status == 503
    assert "could not be stored" in live.adapter.health().detail
    async with client.post(webhook.url, json=UPDATE, headers={HEADER: SECRET}) as answer:
        assert answer.status == 200
    assert live.intake.texts == ["hello"]
    assert len(set(live.intake.offered)) == 1, "a redelivery carries the same event_ref"


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b"7"])
async def test_a_body_that_is_not_an_update_is_refused(
    telegram: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession, body: bytes
) -> None:
    headers = {HEADER: SECRET}
    async with telegram.running(), client.post(webhook.url, data=body, headers=headers) as answer:
        assert answer.status == 400


async def test_an_unreadable_update_is_acknowledged_and_skipped(
    live: TelegramHarness, webhook: WebhookSettings, client: aiohttp.ClientSession
) -> None:
    strange = {"update_id": 901, "message": {"chat": {}}}
    async with client.post(webhook.url, json=strange, headers={HEADER: SECRET}) as answer:
        assert answer.status == 200
    assert live.intake.offered == []


async def test_a_removed_webhook_is_set_again(live: TelegramHarness, webhook: WebhookSettings) -> None:
    await live.control.post("/bot123456:LABTOKEN/deleteWebhook", json={})
    assert len(await live.calls("setWebhook", count=2, wait=15)) == 2


async def test_an_outage_is_noticed_without_any_posts(live: TelegramHarness) -> None:
    await live.fault(match="getWebhookInfo", kind="reset", times=-1)
    await eventually(lambda: live.adapter.health().state is AdapterState.BACKING_OFF, "the outage shows")
    await live.control.delete("/_ctl/faults")
    await eventually(lambda: live.adapter.health().is_ready, "ready again")


async def test_a_port_in_use_is_named(telegram: TelegramHarness, webhook: WebhookSettings) -> None:
    with (
        socket.create_server((webhook.host, webhook.port)),
        pytest.raises(PlatformUnavailable, match=str(webhook.port)),
    ):
        await telegram.adapter.run(telegram.intake)
