"""Polling in good and bad conditions: nothing lost, nothing twice, no unnoticed silence."""

import asyncio
import contextlib
import itertools
import logging
import re
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import SecretStr
from structlog.testing import capture_logs

from hermes_state.aio import Backoff
from hermes_state.errors import PlatformUnavailable, TokenRejected
from platforms.base import AdapterState
from platforms.telegram import TelegramSettings, WebhookSettings
from tests.fakes.labkit import Server
from tests.fakes.wire import Wire
from tests.platforms.contract import RecordingIntake, eventually, request, running
from tests.platforms.telegram.harness import GROUP, PERSON, TOKEN, TelegramHarness, free_port

IMPATIENT = {"poll_seconds": 0.1, "poll_grace_seconds": 0.3, "stall_seconds": 0.6}
"""Settings that notice silence within tenths of a second."""


async def polls(telegram: TelegramHarness) -> int:
    return len(await telegram.calls("getUpdates"))


async def test_an_update_is_acknowledged_only_after_its_commit(live: TelegramHarness) -> None:
    live.intake.gate.clear()
    await live.write("slow to store")
    await eventually(lambda: bool(live.intake.offered), "the update was offered")
    [pending] = [bot["pending"] for bot in (await live.get("state"))["bots"]]
    assert len(pending) == 1, "Telegram still holds what is not stored"
    live.intake.gate.set()
    await live.intake.wait_for(1)
    await live.write("another")
    await live.intake.wait_for(2)
    assert len(live.intake.offered) == 2, "what was acknowledged does not come again"


async def test_a_failing_database_loses_no_update(live: TelegramHarness) -> None:
    live.intake.refusals = 4
    with capture_logs() as logs:
        for number in range(5):
            await live.write(f"message {number}")
        await live.intake.wait_for(5)
        await eventually(lambda: live.adapter.health().is_ready, "healthy again")
    assert any("could not be stored" in line["detail"] for line in logs if line["event"] == "telegram.poll_failed")
    assert live.intake.texts == [f"message {number}" for number in range(5)]


def written(text: str, **more: object) -> dict[str, object]:
    who = {"id": PERSON, "type": "private", "is_bot": False, "first_name": "Ada"}
    return {"message_id": 77, "date": 1_700_000_000, "chat": who, "from": who, "text": text, **more}


@pytest.mark.parametrize(
    "message",
    [{"message_id": "?", "chat": {}}, *(written("poison", date=date) for date in (10**18, -(10**18), 10**400, 1e300))],
    ids=range(5),
)
async def test_an_unreadable_update_is_skipped_and_logged_once(live: TelegramHarness, message: object) -> None:
    with capture_logs() as logs:
        await live.post("update", {"update": {"message": message}})
        await live.write("after the strange one")
        await live.intake.wait_for(1)
    assert live.intake.texts == ["after the strange one"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["update.skipped"]


GIFT = {"gift": {"base_name": "Lamp", "name": "Lamp-1", "number": 1}, "origin": "auction"}
"""A unique gift without the fields that the SDK requires."""
REPLY = "message.reply_to_message"
EARLIER = {key: value for key, value in written("earlier").items() if key != "text"}
GIVEN = {**EARLIER, "unique_gift": GIFT}


@pytest.mark.parametrize(
    ("fields", "text", "name", "is_forwarded", "logged"),
    [
        ({"reply_to_message": GIVEN}, "hello", "the quoted message", False, [f"{REPLY}.unique_gift.gift"]),
        ({"reply_to_message": {"message_id": 1}}, "hello", None, False, [REPLY]),
        ({"entities": [{"type": "bold", "offset": 0, "length": 1}, {}]}, "hello", None, False, ["message.entities"]),
        ({"reply_markup": {"inline_keyboard": [[{"url": "x"}]]}}, "hello", None, False, None),
        ({"forward_origin": {"type": "channel", "date": 1}}, "hello", None, True, ["message.forward_origin"]),
        ({"via_bot": {"id": 5}}, "hello", None, True, ["message.via_bot"]),
        ({"text": None, "photo": [{"file_id": "f"}]}, "", "photo", False, ["message.photo"]),
        ({"text": None, "photo": [{"file_id": "f"}], "caption": "see"}, "see", "photo", False, ["message.photo"]),
        ({"text": None, "poll": {"question": "Tea?"}}, "Poll:\nTea?", None, False, ["message.poll"]),
        ({"text": None, "hologram": {"file_id": "f"}}, "", "hologram", False, ["hologram"]),
        ({"text": None, "hologram": {"title": "/stop"}}, "Hologram:\n/stop", None, False, []),
    ],
)  # fmt: skip
async def test_only_unreadable_parts_of_an_update_are_left_out(
    live: TelegramHarness,
    fields: dict[str, object],
    text: str,
    name: str | None,
    is_forwarded: bool,
    logged: list[str] | None,
) -> None:
    raw = {key: value for key, value in {**written("hello"), **fields}.items() if value is not None}
    with capture_logs() as logs:
        await live.post("update", {"update": {"message": raw}})
        await live.write("after it")
        [received, _] = await live.intake.wait_for(2)
    assert (received.text, received.sender.ref, received.words_by is not None) == (
        text,
        f"telegram:{PERSON}",
        is_forwarded,
    )
    assert [one.name for one in received.attachments] == ([name] if name else [])
    told = [field for entry in logs if entry["event"] == "update.partially_parsed" for field in entry["fields"]]
    assert logged is None or sorted({field.strip("_") for field in told} - {name}) == sorted({*logged} - {name})


@pytest.mark.parametrize(
    "fields",
    [
        {"unique_gift": GIFT},
        {"unique_gift": {"gift": {}}},
        {"community_chat_added": {"community": {"id": 9, "title": "Friends"}}},
        {"new_chat_members": [{"id": 9}]},
        {"video_chat_scheduled": {"start_date": 1}, "overview": {"title": "words about it"}},
    ],
)
async def test_service_messages_of_unknown_form_stay_silent(live: TelegramHarness, fields: dict[str, object]) -> None:
    await live.post("update", {"update": {"message": {**EARLIER, **fields}}})
    await live.write("after it")
    await live.intake.wait_for(1)
    assert live.intake.texts == ["after it"]


async def test_an_unpaired_surrogate_in_one_update_does_not_lose_its_batch(telegram: TelegramHarness) -> None:
    await telegram.write("before")
    await telegram.post("update", {"update": {"message": written("half of \ud83d and whole \ud83d\ude00")}})
    await telegram.write("after")
    async with telegram.running():
        await telegram.intake.wait_for(3)
    assert telegram.intake.texts == ["before", "half of \ufffd and whole 😀", "after"]


async def test_an_album_is_addressed_like_its_caption(live: TelegramHarness) -> None:
    captions = ("@lab_gateway_bot our trip", "", "")
    for album, caption in ((album, caption) for album in ("ours", "theirs") for caption in captions):
        spoken = caption if album == "ours" else caption.removeprefix("@lab_gateway_bot ")
        await live.message(chat_id=GROUP, user_id=PERSON, media="photo", caption=spoken, media_group_id=album)
    heard = await live.intake.wait_for(6)
    assert [message.is_addressed for message in heard] == [True] * 3 + [False] * 3


async def test_other_kinds_of_updates_are_not_requested(live: TelegramHarness) -> None:
    await eventually(lambda: live.adapter.health().is_ready, "one poll")
    [bot] = (await live.get("state"))["bots"]
    assert bot["allowed_updates"] == [
        "callback_query",
        "edited_message",
        "message",
        "message_reaction",
        "my_chat_member",
    ]


async def test_there_is_never_more_than_one_poll_in_flight(telegram: TelegramHarness) -> None:
    async with running(telegram.another_adapter(poll_seconds=0.1), telegram.intake):
        for number in range(10):
            await telegram.write(f"message {number}")
            await telegram.intake.wait_for(number + 1)
        await asyncio.sleep(0.3)  # two quiet polls
        rows = await telegram.calls("getUpdates")
    assert len(rows) >= 10
    for earlier, later in itertools.pairwise(rows):
        assert later["started"] >= earlier["t"]


async def test_running_twice_at_once_is_refused(live: TelegramHarness) -> None:
    with pytest.raises(RuntimeError):
        await live.adapter.run(live.intake)
    assert live.adapter.health().is_ready


async def test_a_black_holed_poll_is_noticed_and_its_connection_replaced(telegram: TelegramHarness) -> None:
    adapter = telegram.another_adapter(**IMPATIENT)
    async with running(adapter, telegram.intake):
        await telegram.fault(match="getUpdates", kind="hang", times=2)
        await eventually(lambda: not adapter.health().is_ready, "the stall shows")
        assert adapter.health().state in (AdapterState.STALLED, AdapterState.BACKING_OFF)
        await adapter.send(request(telegram.direct_chat, "still talking"))
        await telegram.write("are you deaf?")
        await telegram.intake.wait_for(1)
        await eventually(lambda: adapter.health().is_ready, "ready again")


async def test_a_hanging_store_shows_as_no_progress(telegram: TelegramHarness) -> None:
    adapter = telegram.another_adapter(**IMPATIENT)
    async with running(adapter, telegram.intake):
        telegram.intake.gate.clear()
        await telegram.write("never stored")
        await eventually(lambda: adapter.health().state is AdapterState.STALLED, "the silence shows")
        assert "no progress" in adapter.health().detail
        telegram.intake.gate.set()
        await eventually(lambda: adapter.health().is_ready, "ready again")


def test_the_default_timeouts_keep_the_promises() -> None:
    settings = TelegramSettings(token=SecretStr(TOKEN))
    one_poll = settings.poll_seconds + settings.poll_grace_seconds
    assert one_poll < settings.stall_seconds <= 90, "a stall is noticed within 90 seconds"
    probes = 3 * (settings.poll_grace_seconds + settings.backoff.max_seconds)
    assert one_poll + probes <= 180, "even if three fresh connections fail, a fourth is made within 3 minutes"


@pytest.mark.parametrize("kind", ["reset", "garbage", "500", "502"])
async def test_polling_continues_after_network_errors(live: TelegramHarness, kind: str) -> None:
    await live.fault(match="getUpdates", kind=kind, times=3)
    await live.write("through the storm")
    await live.intake.wait_for(1)
    await eventually(lambda: live.adapter.health().is_ready, "ready again")
    assert len(live.intake.offered) == 1


async def test_a_dead_connection_is_replaced(telegram: TelegramHarness) -> None:
    async with Wire(telegram.server.port) as wire:
        adapter = telegram.another_adapter(base_url=wire.url, **IMPATIENT)
        async with running(adapter, telegram.intake):
            wire.freeze()
            await eventually(lambda: adapter.health().state is AdapterState.STALLED, "the stall shows")
            await telegram.write("are you deaf?")
            wire.thaw()  # for new connections only
            await telegram.intake.wait_for(1)
            await eventually(lambda: adapter.health().is_ready, "ready again")


async def test_polling_continues_after_a_network_loss(telegram: TelegramHarness) -> None:
    async with Wire(telegram.server.port) as wire:
        adapter = telegram.another_adapter(base_url=wire.url)
        async with running(adapter, telegram.intake):
            wire.cut()
            await eventually(lambda: adapter.health().state is AdapterState.BACKING_OFF, "the outage shows")
            with pytest.raises(PlatformUnavailable):
                await adapter.send(request(telegram.direct_chat, "hello?"))
            await telegram.write("written meanwhile")
            await wire.mend()
            await telegram.intake.wait_for(1)
            await eventually(lambda: adapter.health().is_ready, "ready again")
            await adapter.send(request(telegram.direct_chat, "hello!"))
    assert await telegram.visible(telegram.direct_chat) == ["hello!"]


async def test_flood_control_of_polling_is_obeyed(live: TelegramHarness) -> None:
    await live.fault(match="getUpdates", kind="429", retry_after=1, times=1)
    await eventually(lambda: "429" in live.adapter.health().detail, "the penalty shows")
    before = await polls(live)
    await asyncio.sleep(0.7)
    assert await polls(live) == before, "nothing is asked during the penalty"
    await eventually(lambda: live.adapter.health().is_ready, "ready after it")


async def test_another_poller_is_never_fatal_and_health_names_it(live: TelegramHarness) -> None:
    await live.fault(match="getUpdates", kind="409", times=3)
    await eventually(lambda: live.adapter.health().state is AdapterState.BACKING_OFF, "the conflict shows")
    assert "Another process uses the same bot token" in live.adapter.health().detail
    before = await polls(live)
    await asyncio.sleep(0.15)
    assert await polls(live) == before, "a conflict is not fought over"
    await live.write("after the conflict")
    await live.intake.wait_for(1)
    assert live.adapter.health().is_ready
    assert "409" in live.adapter.health().detail, "a rival that takes turns stays named for a while"


async def test_a_webhook_of_an_earlier_configuration_is_removed(telegram: TelegramHarness) -> None:
    await telegram.control.post(f"/bot{TOKEN}/setWebhook", json={"url": "http://127.0.0.1:9/old"})
    await telegram.write("pending behind the webhook")
    async with telegram.running():
        await telegram.intake.wait_for(1)


async def test_a_wrong_token_is_fatal_and_is_not_shown(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, token="123456:ANOTHER") as telegram:
        with pytest.raises(TokenRejected, match=re.escape("telegram.token")) as caught:
            await telegram.adapter.run(intake)
        assert telegram.adapter.health().state is AdapterState.FAILED
    chain: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(repr(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert TOKEN not in " ".join(chain)


async def test_a_token_revoked_while_running_ends_the_adapter_with_an_error(telegram: TelegramHarness) -> None:
    task = asyncio.create_task(telegram.adapter.run(telegram.intake))
    await eventually(lambda: telegram.adapter.health().is_ready, "ready")
    await telegram.fault(match="getUpdates", kind="401", times=1)
    with pytest.raises(TokenRejected):
        await asyncio.wait_for(task, 20)
    assert telegram.adapter.health().state is AdapterState.FAILED


@pytest.mark.parametrize("is_webhook", [False, True], ids=["polling", "webhook"])
async def test_an_error_about_a_revoked_token_names_the_setting_of_this_bot(tmp_path: Path, is_webhook: bool) -> None:
    port = free_port()
    hook = WebhookSettings(url=f"http://127.0.0.1:{port}/telegram", port=port) if is_webhook else None
    key, method = "telegram.accounts[2]", "setWebhook" if is_webhook else "getUpdates"
    async with TelegramHarness(tmp_path, webhook=hook, token_key=key) as telegram:
        await telegram.fault(match=method, kind="401", times=1)
        with pytest.raises(TokenRejected, match=re.escape(key)):
            await asyncio.wait_for(telegram.adapter.run(telegram.intake), 20)


async def test_a_404_from_a_proxy_does_not_reject_the_token(telegram: TelegramHarness) -> None:
    async def not_found(request: web.Request) -> web.Response:
        return web.Response(status=404, text="<h1>404</h1>")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", not_found)
    async with Server(app) as proxy:
        with pytest.raises(PlatformUnavailable):
            await telegram.another_adapter(base_url=proxy.url).run(telegram.intake)


async def test_no_network_at_the_start_is_a_retryable_error(telegram: TelegramHarness) -> None:
    await telegram.server.stop()
    with pytest.raises(PlatformUnavailable):
        await telegram.adapter.run(telegram.intake)
    assert telegram.adapter.health().state is AdapterState.BACKING_OFF


async def test_shutdown_is_quick_during_a_backoff(telegram: TelegramHarness) -> None:
    adapter = telegram.another_adapter(backoff=Backoff(60.0, 60.0))
    async with running(adapter, telegram.intake):
        await telegram.fault(match="getUpdates", kind="500", times=-1)
        await eventually(lambda: adapter.health().state is AdapterState.BACKING_OFF, "the backoff")
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 2


async def test_a_migrated_group_is_moved_once_that_can_be_stored(live: TelegramHarness) -> None:
    live.intake.refusals = 2
    await live.message(chat_id=GROUP, user_id=PERSON, migrate_to_chat_id=-100777)
    await eventually(lambda: bool(live.intake.moves), "the move")
    assert (live.intake.moves, live.intake.messages) == ([(str(GROUP), "-100777")], [])


async def test_the_token_is_in_no_log(telegram: TelegramHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        async with telegram.running():
            await telegram.fault(match="getUpdates", kind="500", times=2)
            await telegram.write("hello")
            await telegram.intake.wait_for(1)
            await telegram.fault(match="sendMessage", kind="reset")
            with contextlib.suppress(Exception):
                await telegram.adapter.send(request(telegram.direct_chat, "hello"))
    assert logs
    assert TOKEN not in caplog.text + repr(logs)
    assert "LABTOKEN" not in repr(TelegramSettings(token=SecretStr(TOKEN)))


async def test_the_updates_of_a_poll_reach_the_intake_together_and_in_order(telegram: TelegramHarness) -> None:
    await telegram.post("message", [{"chat_id": PERSON, "text": f"message {number}"} for number in range(30)])
    async with telegram.running():
        await telegram.intake.wait_for(30)
    assert telegram.intake.batches == [30]
    assert telegram.intake.texts == [f"message {number}" for number in range(30)]


async def test_the_offset_moves_only_over_stored_updates(telegram: TelegramHarness) -> None:
    telegram.intake.batch_length, telegram.intake.capacity = 4, 8
    await telegram.post("message", [{"chat_id": PERSON, "text": f"message {number}"} for number in range(11)])
    async with telegram.running():
        await eventually(lambda: telegram.intake.batches.count(3) > 2, "the rest is offered again and again")
        [bot] = (await telegram.get("state"))["bots"]
        assert len(bot["pending"]) == 3, "Telegram still holds what is not stored, and nothing else"
        assert len(telegram.intake.overheard) >= 2, "what waits behind it is heard"
        telegram.intake.capacity = 11
        await telegram.intake.wait_for(11)
    assert telegram.intake.texts == [f"message {number}" for number in range(11)]
    assert len(telegram.intake.events) == 11
    assert len([ref for ref in telegram.intake.offered if telegram.intake.offered.count(ref) > 1]) >= 3
    assert all(telegram.intake.offered.count(event.event_ref) == 1 for event in telegram.intake.events[:8])
