"""Intake: access checks, and storage before acknowledgement."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.inbound.intake import NO_ACCESS
from hermes_state.errors import StoreUnavailable
from hermes_state.values import ChatKey, Cursor, Sender
from tests.gateway.helpers import (
    ANN,
    BOB,
    EVE,
    EVE_CHAT,
    GROUP,
    PLATFORM,
    Serve,
    TestGateway,
    asked,
    eventually,
    hanging,
    settled,
)
from tests.hermes_state.helpers import one_batch, set_max_pages


def cursor(seen: int) -> Cursor:
    return Cursor(platform=PLATFORM, account=PLATFORM, channel_ref="c", seen_ref=str(seen))


# ---- times


@pytest.mark.parametrize("at", [253_402_300_799_000, 10**30, -1, -62_135_596_800_000], ids=str)
async def test_an_impossible_event_time_is_replaced(gateway: TestGateway, at: int) -> None:
    began = gateway.clock.now()
    for text in ("first", "second"):
        assert await gateway.ask(text, at=at)
    [(earliest, latest)] = await gateway.rows("SELECT min(sent_at), max(sent_at) FROM inbox")
    assert began <= earliest <= latest <= gateway.clock.now()


# ---- who is let in


async def test_without_pairing_a_stranger_is_told_once_a_day(serve: Serve) -> None:
    async with serve(pairing={"enabled": False}) as gateway:
        assert await gateway.ask("hi", chat=EVE_CHAT, sender=EVE) == NO_ACCESS
        await gateway.say("hi", chat=EVE_CHAT, sender=EVE)
        await settled()
        assert gateway.adapter.texts(EVE_CHAT) == [NO_ACCESS]


@pytest.mark.parametrize("is_pairing", [False, True], ids=["closed", "pairing"])
async def test_every_bot_answers_a_stranger(serve: Serve, is_pairing: bool) -> None:
    async with serve(pairing={"enabled": is_pairing}) as gateway:
        if is_pairing:
            await gateway.ask("hi", chat=EVE_CHAT, sender=EVE)  # the code
        for account in ("telegram", "telegram/operations"):
            await gateway.intake.accept(
                gateway.message("hi", chat=replace(EVE_CHAT, account=account), sender=EVE), None
            )
        query = """SELECT c.account FROM outbox o JOIN chats c ON c.id = o.chat_id
        WHERE o.dedupe_key LIKE 'waits:%' OR o.dedupe_key LIKE 'no-access:%'"""
        assert sorted(await gateway.rows(query)) == [("telegram",), ("telegram/operations",)]


async def test_a_stranger_in_a_group_is_ignored_and_creates_no_chat(gateway: TestGateway) -> None:
    await gateway.say("@bot hi", chat=GROUP, sender=EVE, cursor=cursor(1))
    await gateway.say("overheard", chat=GROUP, is_addressed=False, cursor=cursor(2))
    assert await gateway.rows("SELECT (SELECT count(*) FROM chats), (SELECT count(*) FROM inbox)") == [(0, 0)]
    assert await gateway.intake.load_cursors(PLATFORM, PLATFORM) == {"c": "2"}


async def test_an_unknown_bare_command_in_a_group_is_not_answered(gateway: TestGateway) -> None:
    for number, text in enumerate(("/roll 6", "/etc/hosts is a file", "/rolls")):
        bare = replace(gateway.message(text, chat=GROUP), is_bare_command=True)
        await gateway.intake.accept(bare, cursor(number + 1))
    assert await gateway.inbox_states() == []
    assert await gateway.intake.load_cursors(PLATFORM, PLATFORM) == {"c": "3"}
    await gateway.intake.accept(replace(gateway.message("/reset", chat=GROUP), is_bare_command=True))
    await gateway.say("/roll 6", chat=GROUP)
    await gateway.say("/roll 6")
    assert [text for text in await gateway.replies(2, GROUP) if "no command /roll" in text]
    assert "no command /roll" in (await gateway.replies(1))[0]


async def test_a_strangers_slash_command_is_answered_each_time(gateway: TestGateway) -> None:
    for number in range(2):
        await gateway.say("/help", chat=GROUP, sender=EVE, ticket=f"t{number}")
    assert await gateway.replies(2, GROUP) == [NO_ACCESS] * 2
    assert [request.ticket for request in gateway.adapter.requests] == ["t0", "t1"]


# ---- stored first, once


async def test_the_event_is_acknowledged_after_the_commit(gateway: TestGateway) -> None:
    async with one_batch(gateway.store):
        accepting = asyncio.create_task(gateway.say("hi"))
        await settled(0.02)
        assert not accepting.done()
    await accepting
    assert len(await gateway.inbox_states()) == 1


async def test_a_full_database_refuses_the_event_and_accepts_the_repeat(gateway: TestGateway) -> None:
    await gateway.ask("warm up")
    big = gateway.message("x" * 50_000)
    await gateway.store.write(set_max_pages, 0)
    with pytest.raises(StoreUnavailable):
        await gateway.intake.accept(big, cursor(5))
    assert await gateway.intake.load_cursors(PLATFORM, PLATFORM) == {}
    await gateway.store.write(set_max_pages, None)
    await gateway.intake.accept(big, cursor(5))
    await gateway.quiet()
    assert [state for state, _ in await gateway.turns_of()] == ["finished", "finished"]


async def test_an_event_cancelled_after_its_commit_is_answered_when_repeated(gateway: TestGateway) -> None:
    for line in ("hello", "/whoami"):
        message = gateway.message(line)
        async with one_batch(gateway.store):
            accepting = asyncio.create_task(gateway.intake.accept(message))
            await settled(0.02)
            accepting.cancel()
        await asyncio.wait({accepting})
        before = len(gateway.adapter.texts())
        await gateway.intake.accept(message)
        await gateway.replies(before + 1)
    assert gateway.adapter.texts()[0] == "echo: hello"
    assert "telegram:1" in gateway.adapter.texts()[1]


# ---- groups


async def test_per_user_keeps_people_of_a_group_apart(serve: Serve) -> None:
    async with serve(sessions={"groups": "per_user"}) as gateway:
        await gateway.ask("from ann", chat=GROUP)
        hang = await hanging(gateway, "ann again", chat=GROUP)
        await gateway.say("from bob", chat=GROUP, sender=BOB)
        await eventually(lambda: len(gateway.adapter.texts(GROUP)) == 2, "bob does not wait for ann")
        await gateway.until_rows("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE state <> 'sent')")
        assert [row.text for row in gateway.model.requests[-1].transcript] == ["from bob"]
        await gateway.say("/stop", chat=GROUP, sender=BOB)
        await eventually(lambda: "Nothing was running." in gateway.adapter.texts(GROUP), "bob has nothing to stop")
        hang.release()
        await gateway.quiet(GROUP)


@pytest.mark.parametrize("started_with", ["shared", "per_user"])
async def test_a_command_from_the_console_reaches_the_chat_that_it_names(serve: Serve, started_with: str) -> None:
    key = GROUP if started_with == "shared" else replace(GROUP, user_ref=ANN.id)
    async with serve(sessions={"groups": started_with}) as gateway:
        await gateway.ask("remember this", chat=GROUP)
    async with serve(sessions={"groups": "per_user"}) as gateway:
        owner = Sender(platform="local", id="owner", name="Owner")
        await gateway.say("/schedule add 0 8 * * 1 the plan", chat=key, sender=owner)
        await gateway.until_rows("SELECT 1 FROM schedules")
        assert await gateway.rows("SELECT user_ref FROM chats") == [(key.user_ref,)]


async def test_topics_of_a_group_are_chats_of_their_own(gateway: TestGateway) -> None:
    topic = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref=GROUP.chat_ref, thread_ref="7")
    hang = await hanging(gateway, chat=GROUP)
    assert await gateway.ask("in the topic", chat=topic) == "echo: in the topic"
    hang.release()
    await gateway.quiet(GROUP)


async def test_a_stop_overheard_before_its_turn_stops_it_later(gateway: TestGateway) -> None:
    stop = gateway.message("/stop")
    await gateway.intake.overhear(stop)  # it waits behind the question that it is about
    await hanging(gateway, "a long question")
    await gateway.intake.accept(stop)
    await gateway.quiet()
    assert await gateway.turns_of() == [("stopped", "a long question")]


# ---- edits, deletions, moves


async def test_an_edit_needs_access_and_authorship(gateway: TestGateway) -> None:
    hang = await hanging(gateway, chat=GROUP)
    message = await gateway.say("mine", chat=GROUP)
    for other in (BOB, EVE):
        await gateway.edit(message, "not yours", sender=other)
    hang.release()
    assert (await gateway.replies(2, GROUP))[1] == "echo: mine"


async def test_per_user_edits_reach_their_own_conversation(serve: Serve) -> None:
    async with serve(sessions={"groups": "per_user"}) as gateway:
        hang = await hanging(gateway, chat=GROUP)
        message = await gateway.say("wrnog", chat=GROUP)
        await gateway.edit(message, "right")
        hang.release()
        assert (await gateway.replies(2, GROUP))[1] == "echo: right"


async def test_a_deleted_message_that_waits_is_not_answered(serve: Serve) -> None:
    async with serve(sessions={"merge_seconds": 0}) as gateway:
        hang = await hanging(gateway)
        gone = await gateway.say("gone")
        await gateway.say("kept")
        await gateway.delete(gone)
        hang.release()
        assert await gateway.replies(2) == ["finally", "echo: kept"]
        assert await gateway.inbox_states() == ["done", "withdrawn", "done"]


async def test_a_group_that_got_a_new_id_keeps_its_conversation(gateway: TestGateway) -> None:
    await gateway.ask("one", chat=GROUP)
    moved = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="-200")
    await gateway.intake.move_chat(PLATFORM, PLATFORM, GROUP.chat_ref, moved.chat_ref)
    assert await gateway.ask("two", chat=moved) == "echo: two"
    assert [row.text for row in gateway.model.requests[-1].transcript] == ["one", "echo: one", "two"]


async def test_waiting_messages_of_a_moved_group_are_answered_under_the_new_id(gateway: TestGateway) -> None:
    moved = ChatKey(platform=PLATFORM, account=PLATFORM, chat_ref="-200")
    await gateway.ask("there", chat=moved)
    hang = await hanging(gateway, "here", chat=GROUP)
    await gateway.say("waiting", chat=GROUP)
    await gateway.intake.move_chat(PLATFORM, PLATFORM, GROUP.chat_ref, moved.chat_ref)
    await eventually(lambda: len(gateway.adapter.texts(moved)) == 2, "an answer under the new id")
    assert asked(gateway.model.requests[-1]) == ["waiting"]
    hang.release()
    await gateway.quiet(GROUP)
