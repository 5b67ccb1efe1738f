"""Messages written during an outage are read once, in order, without gaps."""

import asyncio

import discord
import pytest
from structlog.testing import capture_logs

from hermes_state.errors import PlatformUnavailable
from hermes_state.values import ChatKind, ChatScope
from tests.clocks import TurnedClock
from tests.fakes.discord_state import GUILD, ROLES
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.discord.harness import ALICE, BOB, GENERAL, DiscordHarness

HOUR_MS = 3_600_000


def texts(harness: DiscordHarness) -> list[str]:
    return harness.intake.texts


async def seen_once(harness: DiscordHarness) -> None:
    """Make the direct chat and `general` known channels."""
    async with harness.running():
        await harness.write("hello")
        await harness.write_in_group("hello all", is_mention=True)
        await harness.intake.wait_for(2)
    harness.intake.events.clear()


@pytest.fixture
async def known(harness: DiscordHarness) -> DiscordHarness:
    """The same harness after a session in which its channels became known."""
    await seen_once(harness)
    return harness


async def test_each_channel_is_caught_up_in_order_and_once(known: DiscordHarness) -> None:
    for number in range(6):
        await known.write(f"direct {number}")
        await known.write_in_group(f"group {number}", is_mention=number % 2 == 0)
    async with known.running():
        await known.intake.wait_for(12)
        await known.write("live")
        await known.intake.wait_for(13)
    assert [text for text in texts(known) if text.startswith("direct")] == [f"direct {n}" for n in range(6)]
    group = [message for message in known.intake.messages if message.chat_kind is ChatKind.GROUP]
    assert [message.text for message in group] == [f"group {number}" for number in range(6)]
    assert ([message.is_addressed for message in group], texts(known)[-1]) == ([True, False] * 3, "live")
    async with known.running():
        await known.write("later")
        await known.intake.wait_for(14)
    assert len(texts(known)) == 14


async def test_history_and_gateway_give_a_message_the_same_event_ref(harness: DiscordHarness) -> None:
    forgetful = RecordingIntake()
    await seen_once(harness)
    async with running(harness.adapter, forgetful):
        asked = await harness.message("first", channel="general", user_id=ALICE)
        await harness.post("roles", {"user_id": BOB, "roles": [*ROLES]})
        await harness.message("second", channel="general", user_id=BOB, mention=True, reply_to=asked)
        live = (await forgetful.wait_for(3))[1:]  # a new harness.intake does not know earlier messages
    async with harness.running():
        missed = await harness.intake.wait_for(2)
    assert missed == live


async def test_the_roles_of_each_person_who_addressed_the_bot_are_fetched_once(known: DiscordHarness) -> None:
    await known.post("roles", {"user_id": BOB, "roles": [ROLES[0]]})
    for number in range(3):
        await known.message(f"asked {number}", channel="general", user_id=BOB, mention=True)
        await known.message(f"said {number}", channel="general", user_id=ALICE)
    await known.message("gone", channel="general", user_id="100000000000000009", mention=True)
    await known.post("roles", {"user_id": "100000000000000009", "roles": None})
    async with known.running():
        missed = await known.intake.wait_for(7)
    has_role, has_none = ChatScope(guild_ref=GUILD, role_refs=ROLES[0]), ChatScope(guild_ref=GUILD)
    assert [event.scope for event in missed] == [has_role, has_none] * 3 + [has_none]
    assert len(await known.calls(f"GET /guilds/.*/members/{BOB}")) == 1


async def test_a_session_that_cannot_resume_is_caught_up(
    harness: DiscordHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_identify = asyncio.Event()

    async def pause(_: discord.Client, __: int | None, *, initial: bool) -> None:
        if not initial:  # the SDK pauses for five seconds
            await may_identify.wait()

    monkeypatch.setattr(discord.Client, "before_identify_hook", pause)
    await seen_once(harness)
    async with harness.running():
        await harness.write("before")
        await harness.intake.wait_for(1)
        await harness.post("gateway", {"action": "invalid_session", "resumable": False})
        await harness.write("in the gap")
        await eventually(lambda: not harness.adapter.health().is_ready, "the lost session shows")
        may_identify.set()
        await harness.intake.wait_for(2)
        assert harness.adapter.health().is_ready
    assert texts(harness) == ["before", "in the gap"]


async def test_the_cursor_moves_over_ignored_messages(live: DiscordHarness) -> None:
    join = await live.message("", channel="general", type=7)
    await eventually(lambda: live.intake.cursors.get(GENERAL) == join, "the cursor has passed the join message")
    assert live.intake.events == []


async def test_a_missing_channel_does_not_block_the_others(known: DiscordHarness) -> None:
    known.intake.cursors["300000000000000099"] = "1"
    await known.write("still read")
    await known.fault(match=f"GET /channels/{GENERAL}/messages", kind="status", status=403, code=50001)
    await known.write_in_group("unreadable", is_mention=True)
    async with known.running():
        await known.intake.wait_for(1)
    assert texts(known) == ["still read"]


async def test_a_channel_of_an_unknown_kind_does_not_block_the_others(known: DiscordHarness) -> None:
    unknown = await known.post("channel", {"type": 99, "name": "from the future"})
    known.intake.cursors[unknown["id"]] = "1"
    await known.write("still read")
    async with known.running():
        await known.intake.wait_for(1)
        await known.write("and live")
        await known.intake.wait_for(2)
    assert texts(known) == ["still read", "and live"]


async def test_a_history_that_discord_refuses_does_not_block_its_channel(known: DiscordHarness) -> None:
    channel = known.direct_chat.chat_ref
    await known.fault(match=f"GET /channels/{channel}/messages", kind="status", status=400, code=50035, times=100)
    async with known.running():
        await known.write("live")
        await known.intake.wait_for(1)
    assert texts(known) == ["live"]


async def test_a_first_message_in_an_unknown_channel_is_found(known: DiscordHarness) -> None:
    await known.message("while away", channel="bots", user_id=ALICE, mention=True)
    async with known.running():
        await known.intake.wait_for(1)
    assert texts(known) == ["while away"]


async def test_a_new_database_does_not_fetch_old_messages(harness: DiscordHarness) -> None:
    await harness.message("long ago", channel="general", user_id=ALICE, mention=True)
    async with harness.running():
        await harness.message("now", channel="general", user_id=ALICE, mention=True)
        await harness.intake.wait_for(1)
    assert texts(harness) == ["now"]


async def test_only_the_newest_two_hundred_are_fetched_with_a_notice_about_the_rest(known: DiscordHarness) -> None:
    await known.message("message {n}", repeat=230)
    async with known.running():
        await known.intake.wait_for(200)
        await known.write("live")
        await known.intake.wait_for(201)
        said = await known.visible(known.direct_chat)
    assert texts(known) == [*(f"message {number}" for number in range(30, 230)), "live"]
    [sentence] = said
    assert "last 200 messages" in sentence
    async with known.running():
        await known.write("again")
        await known.intake.wait_for(202)
    assert await known.visible(known.direct_chat) == [sentence], "what was announced is not announced again"


async def test_messages_older_than_a_day_get_a_notice_instead_of_an_answer(known: DiscordHarness) -> None:
    await known.write("yesterday's question")
    late = known.another_adapter(clock=TurnedClock(25 * HOUR_MS))
    async with running(late, known.intake):
        await known.post("message", {"content": "still there?", "dm_user_id": ALICE})
        await known.intake.wait_for(1)
        [sentence] = await known.visible(known.direct_chat)
    assert texts(known) == ["still there?"]
    assert "last 24 hours" in sentence


async def test_skipped_messages_that_do_not_address_the_bot_get_no_notice(known: DiscordHarness) -> None:
    await known.write_in_group("to somebody else", is_mention=False)
    newest = await known.write_in_group("and an answer", is_mention=False)
    async with running(known.another_adapter(clock=TurnedClock(25 * HOUR_MS)), known.intake):
        await eventually(lambda: known.intake.cursors[GENERAL] == newest, "the old talk counts as seen")
    assert await known.visible(known.group_chat()) == []
    assert known.intake.events == []


@pytest.mark.parametrize("bound", [{"catch_up_messages": 0}, {"catch_up_hours": 0}])
async def test_a_limit_of_zero_disables_catching_up(known: DiscordHarness, bound: dict[str, int]) -> None:
    await known.write("missed")
    async with running(known.another_adapter(**bound), known.intake):
        await known.write("live")
        await known.intake.wait_for(1)
    assert texts(known) == ["live"]
    assert await known.visible(known.direct_chat) == []


async def test_an_unreadable_history_keeps_no_more_events_than_the_queue(known: DiscordHarness) -> None:
    channel = known.direct_chat.chat_ref
    await known.fault(match=f"GET /channels/{channel}/messages", kind="status", status=503, times=1000)
    narrow = known.another_adapter(queue_size=5, stale_seconds=1)
    task = asyncio.create_task(narrow.run(known.intake))
    await eventually(lambda: narrow.health().is_ready, "ready")
    for number in range(12):
        await known.write(f"message {number}")
    await eventually(task.done, "the connection is given up")
    with pytest.raises(PlatformUnavailable):
        await task
    await known.control.delete("/_ctl/faults")
    async with known.running():
        await known.intake.wait_for(12)
    assert texts(known) == [f"message {number}" for number in range(12)]


async def test_an_overflow_ends_the_connection_without_losing_messages(known: DiscordHarness) -> None:
    narrow = known.another_adapter(queue_size=5, stale_seconds=1)
    task = asyncio.create_task(narrow.run(known.intake))
    await eventually(lambda: narrow.health().is_ready, "ready")
    known.intake.gate.clear()
    await known.message("message {n}", repeat=12)
    await eventually(task.done, "the connection is given up")
    with pytest.raises(PlatformUnavailable):
        await task
    known.intake.gate.set()
    async with known.running():
        await known.intake.wait_for(12)
    assert texts(known) == [f"message {number}" for number in range(12)]


async def test_an_unreadable_message_is_skipped_without_losing_its_neighbours(known: DiscordHarness) -> None:
    refs = [await known.write(text) for text in ("before", "no time", "half of \ud83d", "after")]
    known.discord.messages[known.direct_chat.chat_ref][refs[1]]["edited_timestamp"] = "99999-13-01T00:00:00+00:00"
    with capture_logs() as logs:
        async with known.running():
            await known.intake.wait_for(3)
            await known.write("live")
            await known.intake.wait_for(4)
        async with known.running():
            await known.write("later")
            await known.intake.wait_for(5)
    assert texts(known) == ["before", "half of \ufffd", "after", "live", "later"]
    assert {line["update_id"] for line in logs if line["event"] == "update.skipped"} == {refs[1]}


async def test_only_unreadable_parts_of_the_history_are_left_out(known: DiscordHarness) -> None:
    refs = [await known.write(text) for text in ("before", "beside it", "after")]
    unknown = {"components": [{"type": 1, "components": [{"type": 2, "label": "no style"}]}], "poll": {"expiry": None}}
    known.discord.messages[known.direct_chat.chat_ref][refs[1]] |= unknown
    async with known.running():
        await known.intake.wait_for(3)
    assert texts(known) == ["before", "beside it", "after"]


async def test_an_unreadable_event_does_not_end_the_connection(live: DiscordHarness) -> None:
    await live.write("before")
    await live.intake.wait_for(1)
    read = live.discord.message(live.direct_chat.chat_ref, live.intake.messages[0].message_ref)
    with capture_logs() as logs:
        for change in ({"edited_timestamp": "99999-13-01"}, {"author": None}, {"mentions": 7}, {"id": "none"}):
            await live.post("event", {"t": "MESSAGE_CREATE", "d": {**read, **change}})
        half = {**read, "id": f"{int(read['id']) + 1}", "content": "\ud83d!"}
        await live.post("event", {"t": "MESSAGE_CREATE", "d": half})
        await live.write("after")
        await live.intake.wait_for(3)
    assert texts(live) == ["before", "\ufffd!", "after"]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["update.skipped"] * 4
