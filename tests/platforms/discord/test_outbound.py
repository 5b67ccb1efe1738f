"""Sending to Discord: nothing twice, nothing lost, and every failure translated."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from hermes_state.errors import (
    ChatUnreachable,
    MessageRejected,
    PlatformError,
    PlatformUnavailable,
    RateLimited,
    SendAmbiguous,
)
from hermes_state.values import Button, ChatKey, Millis, OutboundPart, SystemClock
from platforms.base import OutboundFile, Preview, SendRequest
from tests.fakes import discord_limits
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.discord.harness import GENERAL, DiscordHarness, chat

LATE = Millis(180_000)
"""Longer than Discord reliably remembers a nonce."""


def request(
    where: ChatKey,
    text: str,
    key: str = "k1",
    *,
    replaces: str | None = None,
    reply_to: str | None = None,
    tried_before: Millis | None = None,
    buttons: tuple[Button, ...] = (),
) -> SendRequest:
    """Return a send request. `tried_before` is the time since an ambiguous attempt."""
    return SendRequest(
        chat=where,
        part=OutboundPart(text=text, plain=text, buttons=buttons),
        key=key,
        replaces=replaces,
        reply_to=reply_to,
        is_repeat=tried_before is not None,
        first_tried_at=None if tried_before is None else Millis(SystemClock().now() - tried_before),
    )


def preview(live: DiscordHarness, text: str, ref: str | None = None) -> Preview:
    return Preview(chat=live.direct_chat, is_shared=False, number=9, text=text, ref=ref)


async def lose(live: DiscordHarness, kind: str = "reset_after") -> None:
    """Send an answer whose acknowledgement is lost."""
    await live.fault(match="POST /channels/.*/messages", kind=kind)
    with pytest.raises(SendAmbiguous):
        await live.adapter.send(request(live.direct_chat, "the answer"))


async def test_a_lost_acknowledgement_shows_one_copy(live: DiscordHarness) -> None:
    await lose(live)
    ref = await live.adapter.send(request(live.direct_chat, "the answer", tried_before=Millis(1_000)))
    assert await live.visible(live.direct_chat) == ["the answer"]
    assert ref == (await live.sent("send"))[0]["message_id"]
    assert len(await live.sent("nonce_duplicate")) == 1
    assert await live.calls("GET /channels/.*/messages") == [], "the nonce answers the question"


@pytest.mark.parametrize("since", [LATE, Millis(-86_400_000)], ids=["late", "the clock was set back"])
async def test_a_repeat_after_the_nonce_expired_finds_the_first_copy(live: DiscordHarness, since: Millis) -> None:
    await live.post("config", {"nonce_seconds": 0})
    await lose(live)
    await live.write("are you there?")
    ref = await live.adapter.send(request(live.direct_chat, "the answer", tried_before=since))
    assert ref == (await live.sent("send"))[0]["message_id"]
    assert await live.visible(live.direct_chat) == ["the answer"]


async def test_a_late_repeat_of_a_lost_message_is_sent(live: DiscordHarness) -> None:
    await live.post("config", {"nonce_seconds": 0})
    await lose(live, "reset")
    await live.adapter.send(request(live.direct_chat, "the answer", tried_before=LATE))
    assert await live.visible(live.direct_chat) == ["the answer"]


async def test_a_late_repeat_is_not_confused_with_another_answer_of_the_same_text(live: DiscordHarness) -> None:
    await live.post("config", {"nonce_seconds": 0})
    await live.adapter.send(request(live.direct_chat, "Done.", "k1"))
    second = await live.adapter.send(request(live.direct_chat, "Done.", "k2", tried_before=LATE))
    assert await live.visible(live.direct_chat) == ["Done.", "Done."]
    assert await live.adapter.send(request(live.direct_chat, "Done.", "k2", tried_before=LATE)) == second


async def test_a_late_repeat_is_not_confused_with_a_persons_message_of_the_same_text(live: DiscordHarness) -> None:
    await live.post("config", {"nonce_seconds": 0})
    await live.write("42")
    await live.adapter.send(request(live.direct_chat, "42", tried_before=LATE))
    assert await live.visible(live.direct_chat) == ["42"]


async def test_a_late_repeat_of_a_file_is_not_confused_with_another_file(live: DiscordHarness) -> None:
    await live.post("config", {"nonce_seconds": 0})
    one = OutboundFile(name="one.txt", mime="text/plain", size_bytes=1, content=b"x")
    before_a_restart = await live.adapter._connected_sender().post(live.direct_chat.chat_ref, "", "k1", file=one)
    second = replace(request(live.direct_chat, "", "k2", tried_before=LATE), file=replace(one, name="two.txt"))
    assert await live.adapter.send(second) != before_a_restart


async def test_a_late_repeat_searches_a_busy_channel(live: DiscordHarness) -> None:
    await live.post("config", {"nonce_seconds": 0})
    await lose(live)
    first = int((await live.sent("send"))[0]["message_id"])
    for number in range(150):  # just before our message, which is therefore on the second page
        message_id = str(first - 200 + number)
        row = {"id": message_id, "author": {"id": "1"}, "content": "talk", "components": []}
        live.discord.messages[live.direct_chat.chat_ref][message_id] = row
    assert await live.adapter.send(request(live.direct_chat, "the answer", tried_before=LATE)) == str(first)


async def test_a_late_repeat_is_sent_if_the_history_is_unreadable(live: DiscordHarness) -> None:
    await live.fault(match="GET /channels/.*/messages", kind="status", status=403, code=50001)
    await live.adapter.send(request(live.direct_chat, "the answer", tried_before=LATE))
    assert await live.visible(live.direct_chat) == ["the answer"]


async def test_an_edit_of_a_deleted_message_sends_no_other(live: DiscordHarness) -> None:
    ref = await live.adapter.send(request(live.direct_chat, "the error"))
    await live.delete(ref)
    edit = replace(request(live.direct_chat, "the error", key="k2", replaces=ref), only_edits=True)
    assert await live.adapter.send(edit) == ref
    assert await live.visible(live.direct_chat) == []


@pytest.mark.parametrize(("status", "code"), [(400, 50083), (403, 50005)])
async def test_an_answer_arrives_even_if_its_placeholder_cannot_be_edited(
    live: DiscordHarness, status: int, code: int
) -> None:
    ref = await live.adapter.show(preview(live, "thinking"))
    await live.fault(match="PATCH /channels/.*", kind="status", status=status, code=code)
    assert await live.adapter.send(request(live.direct_chat, "the answer", replaces=ref)) != ref
    assert (await live.visible(live.direct_chat))[-1] == "the answer"


async def test_two_databases_do_not_share_nonces(live: DiscordHarness, tmp_path: Path) -> None:
    other_path = tmp_path / "other"
    other_path.mkdir()
    await live.adapter.send(request(live.direct_chat, "from the first", "1:0"))
    async with DiscordHarness(other_path) as other:
        fresh = other.another_adapter(
            api_url=live.server.url, gateway_url=f"{live.server.url.replace('http', 'ws', 1)}/gateway"
        )
        async with running(fresh, RecordingIntake()):
            await fresh.send(request(live.direct_chat, "from the second", "1:0"))
    assert await live.visible(live.direct_chat) == ["from the first", "from the second"]


async def test_a_deleted_placeholder_is_replaced_by_a_new_message(live: DiscordHarness) -> None:
    ref = await live.adapter.show(preview(live, "thinking"))
    assert ref is not None
    await live.delete(ref)
    again = await live.adapter.show(preview(live, "still", ref))
    assert again not in (None, ref)
    assert again is not None
    await live.delete(again)
    assert await live.adapter.send(request(live.direct_chat, "done", replaces=again)) not in (ref, again)
    assert await live.visible(live.direct_chat) == ["done"]


async def test_a_placeholder_whose_acknowledgement_was_lost_is_found_again(live: DiscordHarness) -> None:
    await live.break_next_send("answer_lost")
    with pytest.raises(SendAmbiguous):
        await live.adapter.show(preview(live, "thin"))
    ref = await live.adapter.show(preview(live, "think"))
    await live.adapter.send(request(live.direct_chat, "thought", replaces=ref))
    assert await live.visible(live.direct_chat) == ["thought"]


async def test_a_long_preview_shows_its_end_with_its_code_closed(live: DiscordHarness) -> None:
    text = "```python\n" + "\n".join(f"print({number})" for number in range(900))
    await live.adapter.show(preview(live, text))
    [shown] = await live.visible(live.direct_chat)
    assert "print(899)" in shown
    assert shown.count("```") == 2
    assert len(shown) <= 2000


async def test_messages_never_ping_anybody(live: DiscordHarness) -> None:
    question = await live.write("hello?")
    await live.adapter.show(preview(live, "@everyone"))
    await live.adapter.send(request(live.direct_chat, "@everyone <@100000000000000002>", reply_to=question))
    rows = await live.sent("send")
    assert [row["allowed_mentions"] for row in rows] == [{"parse": [], "replied_user": False}] * 2
    assert rows[-1]["reply_to"] == question


async def test_a_streamed_answer_is_a_reply_from_its_first_preview(live: DiscordHarness) -> None:
    question = await live.message("why?", channel="general", mention=True)
    thinking = Preview(chat=chat(GENERAL), is_shared=True, number=9, text="bec", ref=None, reply_to=question)
    ref = await live.adapter.show(thinking)
    assert await live.adapter.send(request(chat(GENERAL), "because", reply_to=question, replaces=ref)) == ref
    assert [row["reply_to"] for row in await live.sent("send")] == [question]


async def test_a_reply_to_a_deleted_message_still_arrives(live: DiscordHarness) -> None:
    question = await live.write("hello?")
    await live.delete(question)
    await live.adapter.send(request(live.direct_chat, "hello!", reply_to=question))
    assert await live.visible(live.direct_chat) == ["hello!"]


async def test_a_reply_without_the_right_to_read_history_becomes_an_ordinary_message(live: DiscordHarness) -> None:
    question = await live.message("hello?", channel="general", mention=True)
    await live.fault(match="POST /channels/.*/messages", kind="status", status=403, code=160002)
    await live.adapter.send(request(chat(GENERAL), "hello!", reply_to=question))
    [row] = await live.sent("send")
    assert (row["text"], row["reply_to"]) == ("hello!", None)


async def test_every_message_has_a_short_unique_nonce(live: DiscordHarness) -> None:
    for key in ("1:0", "1:1", "an-outbox-key-of-25-chars"):
        await live.adapter.send(request(live.direct_chat, key, key))
    await live.adapter.send(request(chat(GENERAL), "elsewhere", "1:0"))
    nonces = [row["nonce"] for row in await live.sent("send")]
    assert len(set(nonces)) == 4
    assert all(0 < len(nonce) <= 25 for nonce in nonces)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, 10003, ChatUnreachable),
        (403, 50001, ChatUnreachable),
        (403, 50007, ChatUnreachable),
        (403, 50013, ChatUnreachable),
        (400, 50083, ChatUnreachable),
        (403, 0, ChatUnreachable),
        (400, 50035, MessageRejected),
        (400, 50006, MessageRejected),
        (413, 40005, MessageRejected),
        (401, 0, PlatformUnavailable),
        (503, 0, PlatformUnavailable),
        (522, 0, SendAmbiguous),
    ],
)
async def test_refusals_are_translated_to_our_errors(
    live: DiscordHarness, status: int, code: int, expected: type[PlatformError]
) -> None:
    await live.fault(match="POST /channels/.*/messages", kind="status", status=status, code=code)
    with pytest.raises(expected):
        await live.adapter.send(request(live.direct_chat, "hello"))
    assert await live.visible(live.direct_chat) == []


async def test_a_temporary_server_error_does_not_reach_the_caller(live: DiscordHarness) -> None:
    await live.fault(match="POST /channels/.*/messages", kind="status", status=502)
    await live.adapter.send(request(live.direct_chat, "hello"))
    assert await live.visible(live.direct_chat) == ["hello"]


async def test_an_unreadable_answer_is_ambiguous(live: DiscordHarness) -> None:
    await live.fault(match="POST /channels/.*/messages", kind="garbage")
    with pytest.raises(SendAmbiguous):
        await live.adapter.send(request(live.direct_chat, "hello"))


async def test_an_answer_with_unreadable_fields_is_not_a_failed_send(live: DiscordHarness) -> None:
    await live.post("config", {"write_answers": {"embeds": 7, "reactions": "?", "poll": [], "author": None}})
    ref = await live.adapter.show(preview(live, "thin"))
    assert await live.adapter.send(request(live.direct_chat, "thought", replaces=ref)) == ref
    await live.adapter.send(request(live.direct_chat, "more", "k2"))
    assert await live.visible(live.direct_chat) == ["thought", "more"]


async def test_a_hanging_request_is_ambiguous(harness: DiscordHarness) -> None:
    hasty = harness.another_adapter(request_seconds=1.0)
    async with running(hasty, RecordingIntake()):
        await harness.fault(match="POST /channels/.*/messages", kind="hang", seconds=20)
        started = time.monotonic()
        with pytest.raises(SendAmbiguous):
            await hasty.send(request(harness.direct_chat, "hello"))
        assert time.monotonic() - started < 15


async def test_an_unreachable_server_means_not_sent(live: DiscordHarness) -> None:
    await live.server.stop()
    with pytest.raises(PlatformUnavailable):
        await live.adapter.send(request(live.direct_chat, "hello"))


async def test_a_long_rate_limit_is_raised_and_a_short_one_is_waited_out(live: DiscordHarness) -> None:
    await live.fault(match="POST /channels/.*/messages", kind="429", retry_after=30)
    with pytest.raises(RateLimited) as caught:
        await live.adapter.send(request(live.direct_chat, "one"))
    assert caught.value.retry_after == pytest.approx(30)
    await live.fault(match="POST /channels/.*/messages", kind="429", retry_after=0.1)
    await live.adapter.send(request(live.direct_chat, "two"))
    assert await live.visible(live.direct_chat) == ["two"]


async def test_a_block_at_discords_edge_is_a_rate_limit(live: DiscordHarness) -> None:
    await live.fault(match="POST /channels/.*/messages", kind="429", retry_after=7, cloudflare=True)
    with pytest.raises(RateLimited) as caught:
        await live.adapter.send(request(live.direct_chat, "one"))
    assert caught.value.retry_after == pytest.approx(7)


async def test_bursts_stay_within_discords_own_limits(live: DiscordHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(discord_limits.LIMITS, "POST /channels/:id/messages", (5, 1.0))  # Discord's limit is 5 seconds
    await live.post("config", {"rate_limits": True})
    started = time.monotonic()
    for number in range(11):
        await live.adapter.send(request(live.direct_chat, f"part {number}", f"k{number}"))
    assert time.monotonic() - started >= 1.9, "the sixth and the eleventh each wait for another span"
    assert await live.visible(live.direct_chat) == [f"part {number}" for number in range(11)]
    assert [row["status"] for row in await live.calls("POST /channels/.*/messages")].count(429) == 0


async def test_too_many_buttons_do_not_fail_the_message(live: DiscordHarness) -> None:
    buttons = tuple(Button(label=f"{number} {'x' * 90}", command=f"/pick {number}") for number in range(30))
    await live.adapter.send(request(live.direct_chat, "choose", buttons=buttons))
    [row] = await live.sent("send")
    assert [len(line["components"]) for line in row["components"]] == [5] * 5
    assert all(len(button["label"]) <= 80 for line in row["components"] for button in line["components"])


async def test_a_hanging_chat_does_not_delay_another(live: DiscordHarness) -> None:
    await live.fault(match=f"POST /channels/{GENERAL}/messages", kind="hang")
    slow = asyncio.create_task(live.adapter.send(request(chat(GENERAL), "slow")))
    await eventually(lambda: bool(live.discord.faults.fired), "the slow one is under way")
    await live.adapter.send(request(live.direct_chat, "fast"))
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
