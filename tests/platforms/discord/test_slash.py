"""Slash commands and buttons: the menu, the acknowledgement, and answers in place."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes_state.errors import SendAmbiguous
from hermes_state.values import Button, ChatKind, ChatScope, InboundMessage, InputKind, OutboundPart
from platforms.base import CommandAction, CommandOption, MenuCommand, OutboundFile, Preview, SendRequest
from platforms.discord import slash
from platforms.discord.outbound import NOT_PRIVATE
from tests.fakes.discord_state import GUILD, ROLES
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.discord.harness import ALICE, BOB, GENERAL, DiscordHarness, chat

SUB_COMMAND, GROUP, STRING, INTEGER = 1, 2, 3, 4
"""Types of options in Discord's API."""

_NUMBER = CommandOption("number", "Its number", is_number=True, is_required=True)
_WHEN = CommandOption("when", "The time", is_required=True)
_TEXT = CommandOption("text", "The message", is_required=True)
_FACT = CommandOption("fact", "The fact", is_required=True)

MENU = (
    MenuCommand(name="help", description="What I can do", argument=None),
    MenuCommand(name="sessions", description="List conversations", argument=None, is_private=True),
    MenuCommand(
        name="title",
        description="Name this conversation",
        argument="[title]",
        options=(CommandOption("title", "The new title"),),
    ),
    MenuCommand(
        name="compress",
        description="Make room. " * 20,
        argument="[topic]",
        options=(CommandOption("topic", "The topic", has_suggestions=True),),
    ),
    MenuCommand(
        name="approve",
        description="Say yes",
        argument="[id] [once|always]",
        options=(CommandOption("id", "The question"), CommandOption("scope", "How long", ("once", "always"))),
    ),
    MenuCommand(
        name="schedule",
        description="Messages at a time",
        argument="[list|add|pause]",
        actions=(
            CommandAction("list", "Show them"),
            CommandAction("add", "Add one", (_WHEN, _TEXT)),
            CommandAction("pause", "Pause one", (_NUMBER,)),
        ),
    ),
    MenuCommand(
        name="memory",
        description="Notes",
        argument="[add|me add|me remove]",
        actions=(
            CommandAction("add", "About the work", (_FACT,)),
            CommandAction("me add", "About you", (_FACT,)),
            CommandAction("me remove", "About you", (_FACT,)),
        ),
    ),
)


FILE = OutboundFile(name="a.txt", mime="text/plain", size_bytes=6, content=b"secret")


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DiscordHarness]:
    async with DiscordHarness(tmp_path, menu=MENU) as harness:
        yield harness


@pytest.fixture
async def live(harness: DiscordHarness) -> AsyncIterator[DiscordHarness]:
    """A harness whose adapter runs and has published its menu."""
    async with harness.running():
        await published(harness)
        yield harness


async def published(harness: DiscordHarness, times: int = 1) -> list[dict[str, Any]]:
    rows = await harness.sent("commands", count=times, wait=15)
    assert len(rows) == times
    return rows


async def given(live: DiscordHarness, name: str, **data: Any) -> InboundMessage:
    """Run a slash command as the person."""
    before = len(live.intake.messages)
    await live.post("interaction", {"name": name, "dm_user_id": ALICE, **data})
    return (await live.intake.wait_for(before + 1))[before]


def answer(command: InboundMessage, text: str, key: str = "k1", **more: Any) -> SendRequest:
    part = OutboundPart(text=text, plain=text)
    return SendRequest(chat=command.chat, part=part, key=key, ticket=command.ticket, **more)


# The menu


async def menu_of(live: DiscordHarness) -> dict[str, Any]:
    return {command["name"]: command for command in (await live.get("state"))["commands"][""]}


async def test_the_menu_is_published_in_discords_form(live: DiscordHarness) -> None:
    commands = await menu_of(live)
    assert commands.keys() == {"help", "sessions", "title", "compress", "approve", "schedule", "memory"}
    assert all(command["contexts"] == [0, 1] for command in commands.values()), "servers and the chat with the bot"
    assert commands["help"]["options"] == []
    assert [option["name"] for option in commands["title"]["options"]] == ["title"]
    assert not commands["title"]["options"][0]["required"]
    assert len(commands["compress"]["description"]) <= 100


async def test_options_have_types_choices_and_suggestions(live: DiscordHarness) -> None:
    commands = await menu_of(live)
    which, scope = commands["approve"]["options"]
    assert (which["type"], scope["type"]) == (STRING, STRING)
    assert [choice["value"] for choice in scope["choices"]] == ["once", "always"]
    assert commands["compress"]["options"][0]["autocomplete"]
    listing, add, pause = commands["schedule"]["options"]
    assert (listing["type"], add["type"], pause["type"]) == (SUB_COMMAND,) * 3
    assert [(option["name"], option["required"]) for option in add["options"]] == [("when", True), ("text", True)]
    assert (pause["options"][0]["type"], pause["options"][0]["min_value"]) == (INTEGER, 1)
    work, me = commands["memory"]["options"]
    assert (work["type"], me["type"]) == (SUB_COMMAND, GROUP)
    assert [action["name"] for action in me["options"]] == ["add", "remove"]


async def test_an_unchanged_menu_is_not_published_again(harness: DiscordHarness) -> None:
    async with harness.running():
        await published(harness)
    async with harness.running():
        await harness.write("hello")
        await harness.intake.wait_for(1)
        await asyncio.sleep(0.3)  # publishing took a tenth of this time before
    await published(harness)
    async with running(harness.another_adapter(menu=MENU[:1]), harness.intake):
        rows = await published(harness, 2)
    assert rows[-1]["names"] == ["help"]


async def test_a_menu_that_discord_refuses_does_not_stop_the_adapter(harness: DiscordHarness) -> None:
    await harness.fault(match="PUT /applications/.*", kind="status", status=400, code=50035)
    async with harness.running():
        await harness.calls("PUT /applications/.*", wait=15)
        await harness.write("hello")
        await harness.intake.wait_for(1)
    async with harness.running():
        await published(harness)


# In


async def test_a_slash_command_arrives_as_its_command_line(live: DiscordHarness) -> None:
    command = await given(live, "title", options={"title": " Plans for May "})
    assert command.text == "/title Plans for May"
    assert command.via is InputKind.SLASH
    assert command.is_addressed
    assert command.chat == live.direct_chat
    assert command.chat_kind is ChatKind.DIRECT
    assert command.sender.id == ALICE
    assert command.ticket is not None


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("title", {}, "/title"),
        ("schedule list", {}, "/schedule list"),
        ("schedule add", {"text": "Good morning", "when": "@daily"}, "/schedule add @daily Good morning"),
        ("schedule pause", {"number": 3}, "/schedule pause 3"),
        ("memory add", {"fact": "Fridays"}, "/memory add Fridays"),
        ("memory me add", {"fact": "I like tea"}, "/memory me add I like tea"),
        ("approve", {"scope": "always"}, "/approve always"),
        ("approve", {"scope": "once", "id": "a7"}, "/approve a7 once"),
        ("approve", {"id": "7\n/stop"}, "/approve 7\n/stop"),
    ],
)
async def test_options_follow_the_name_in_the_order_of_the_command_line(
    live: DiscordHarness, name: str, options: dict[str, object], line: str
) -> None:
    assert (await given(live, name, options=options)).text == line


async def test_commands_and_messages_of_one_burst_keep_their_order(harness: DiscordHarness) -> None:
    async with running(harness.adapter, RecordingIntake()):
        await published(harness)
    burst, expected = [], []
    for number in range(5):
        title = {"name": "title", "options": {"title": f"{number}"}, "dm_user_id": ALICE}
        burst.append({"t": "INTERACTION_CREATE", "d": (await harness.post("interaction", title))["event"]})
        said = await harness.post("message", {"content": f"after {number}", "dm_user_id": ALICE})
        burst.append({"t": "MESSAGE_CREATE", "d": said["message"]})
        expected += [f"/title {number}", f"after {number}"]
    async with running(harness.another_adapter(catch_up_hours=0), harness.intake):
        await harness.write("known")  # messages, unlike commands, wait until their channel is caught up
        await harness.intake.wait_for(1)
        await harness.post("event", burst)
        assert [message.text for message in await harness.intake.wait_for(11)][1:] == expected


async def test_a_refusal_is_shown_only_to_its_person(live: DiscordHarness) -> None:
    live.intake.refused["/schedule pause 3"] = "That is not yours."
    await live.post("interaction", {"name": "schedule pause", "options": {"number": 3}, "dm_user_id": ALICE})
    [row] = await live.sent("interaction_reply", wait=15)
    assert (row["text"], row["ephemeral"]) == ("That is not yours.", True)
    await live.write("later")
    assert [message.text for message in await live.intake.wait_for(1)] == ["later"]


@pytest.mark.parametrize("name", ["gone", "schedule", "approve"])
async def test_a_command_of_an_older_menu_is_answered(live: DiscordHarness, name: str) -> None:
    old = {"name": name, "options": [{"name": "list_add_pause", "type": STRING, "value": "list"}], "force": True}
    await live.post("interaction", {**old, "dm_user_id": ALICE})
    [row] = await live.sent("interaction_reply", wait=15)
    assert (row["text"], row["ephemeral"]) == (slash.COMMAND_CHANGED, True)


async def test_suggestions_match_the_typed_text(live: DiscordHarness) -> None:
    live.intake.suggested = ("preview", "undo", "here 3", "p" * 101)
    written = [{"name": "topic", "type": STRING, "value": "RE", "focused": True}]
    await live.post("interaction", {"name": "compress", "autocomplete": True, "options": written, "dm_user_id": ALICE})
    [row] = await live.sent("interaction_type_8", wait=15)
    assert [choice["value"] for choice in row["data"]["choices"]] == ["preview", "here 3"]
    assert live.intake.messages == []


async def test_a_slash_command_in_a_group_names_its_sender_and_their_roles(live: DiscordHarness) -> None:
    await live.post("roles", {"user_id": BOB, "roles": [*ROLES]})
    await live.post("interaction", {"name": "help", "channel_id": GENERAL, "user_id": BOB})
    [command] = await live.intake.wait_for(1)
    assert (command.text, command.chat, command.sender.id) == ("/help", chat(GENERAL), BOB)
    assert command.chat_kind is ChatKind.GROUP
    assert command.scope == ChatScope(guild_ref=GUILD, role_refs=f"{ROLES[1]} {ROLES[0]}")


async def test_a_command_is_acknowledged_at_once_even_while_the_database_waits(live: DiscordHarness) -> None:
    live.intake.gate.clear()
    await live.post("interaction", {"name": "help", "dm_user_id": ALICE})
    [deferred] = await live.sent("interaction_defer", wait=15)
    assert deferred
    [interaction] = await live.get("interactions")
    assert interaction["ack_after"] < 3
    assert live.intake.messages == []
    live.intake.gate.set()
    assert (await live.intake.wait_for(1))[0].text == "/help"


async def test_a_command_whose_acknowledgement_failed_still_runs(live: DiscordHarness) -> None:
    await live.fault(match="POST /interactions/.*", kind="status", status=404, code=10062)
    command = await given(live, "help")
    await live.adapter.send(answer(command, "here"))
    assert await live.visible(command.chat) == ["here"]
    assert len(await live.sent("send")) == 1


# Out


async def test_the_answer_fills_the_commands_own_message(live: DiscordHarness) -> None:
    command = await given(live, "help")
    ref = await live.adapter.send(answer(command, "here"))
    assert await live.visible(command.chat) == ["here"]
    assert await live.sent("send") == []
    [row] = await live.sent("interaction_.*", match="here")
    assert row["message_id"] == ref
    command = await given(live, "help")
    await live.fault(match="PATCH /webhooks/.*", kind="reset_after")
    with pytest.raises(SendAmbiguous):
        await live.adapter.send(answer(command, "here"))
    await live.adapter.send(answer(command, "here", is_repeat=True))
    assert await live.visible(command.chat) == ["here", "here"], "a repeat fills it again"


async def test_a_command_that_arrives_twice_is_answered_in_place(live: DiscordHarness) -> None:
    given_once = await live.post("interaction", {"name": "help", "dm_user_id": ALICE})
    [command] = await live.intake.wait_for(1)
    await live.sent("interaction_defer", wait=15)
    await live.post("event", {"t": "INTERACTION_CREATE", "d": given_once["event"]})
    await live.write("later")
    await live.intake.wait_for(2)
    await live.adapter.send(answer(command, "here"))
    assert await live.visible(command.chat) == ["here"]
    assert await live.sent("send") == []


async def test_parts_after_the_first_are_ordinary_messages(live: DiscordHarness) -> None:
    command = await given(live, "help")
    await live.adapter.send(answer(command, "one", "k1"))
    await live.adapter.send(answer(command, "two", "k2"))
    assert await live.visible(command.chat) == ["one", "two"]
    [row] = await live.sent("send")
    assert row["nonce"]


async def test_every_part_of_a_private_answer_is_private_in_a_server_only(live: DiscordHarness) -> None:
    await live.post("interaction", {"name": "sessions", "channel_id": GENERAL, "user_id": ALICE})
    [command] = await live.intake.wait_for(1)
    for number in ("one", "two"):
        await live.adapter.send(answer(command, number, number))
    assert [row["ephemeral"] for row in await live.sent("interaction_(edit|followup)")] == [True, True]
    assert await live.visible(command.chat) == []
    direct = await given(live, "sessions")
    await live.adapter.send(answer(direct, "here"))
    assert await live.visible(direct.chat) == ["here"]


@pytest.mark.parametrize("is_restarted", [True, False], ids=["after a restart", "after 15 minutes"])
@pytest.mark.parametrize("more", [{}, {"replaces": "1"}, {"file": FILE}], ids=["text", "page", "file"])
async def test_a_private_answer_whose_ticket_is_lost_is_not_shown_in_the_channel(
    live: DiscordHarness, monkeypatch: pytest.MonkeyPatch, is_restarted: bool, more: dict[str, Any]
) -> None:
    if not is_restarted:
        monkeypatch.setattr(slash, "TICKET_SECONDS", 0.0)
    await live.post("interaction", {"name": "sessions", "channel_id": GENERAL, "user_id": ALICE})
    [command] = await live.intake.wait_for(1)
    restarted = live.another_adapter()
    async with running(restarted, RecordingIntake()):
        adapter = restarted if is_restarted else live.adapter
        await adapter.send(answer(command, "secret", **more))
    assert await live.visible(command.chat) == [NOT_PRIVATE]
    assert [row["attachments"] for row in await live.sent("send")] == [[]]


async def test_a_file_in_a_private_answer_is_private(live: DiscordHarness) -> None:
    await live.post("interaction", {"name": "sessions", "channel_id": GENERAL, "user_id": ALICE})
    [command] = await live.intake.wait_for(1)
    await live.adapter.send(answer(command, "one", "k1"))
    await live.adapter.send(answer(command, "two", "k2", file=FILE))
    rows = await live.sent("interaction_(edit|followup)")
    assert [(row["ephemeral"], row["attachments"]) for row in rows] == [(True, []), (True, ["a.txt"])]
    assert await live.visible(command.chat) == []


@pytest.mark.parametrize(
    "fields", [{}, {"embeds": 7, "poll": [], "resource": {"message": 7}}], ids=["plain", "answered unreadably"]
)
async def test_an_answer_without_the_right_to_write_is_a_followup(live: DiscordHarness, fields: dict[str, Any]) -> None:
    await live.post("config", {"write_answers": fields})
    await live.post("interaction", {"name": "help", "channel_id": GENERAL, "user_id": ALICE})
    [command] = await live.intake.wait_for(1)
    await live.post("channel", {"channel_id": GENERAL, "set": {"deny_send": True}})
    await live.adapter.send(answer(command, "one", "k1"))
    await live.adapter.send(answer(command, "two", "k2"))
    assert await live.visible(command.chat) == ["one", "two"]


async def test_the_commands_own_message_replaces_a_placeholder(live: DiscordHarness) -> None:
    command = await given(live, "help")
    shown = Preview(chat=command.chat, is_shared=False, number=9, text="thinking", ref=None)
    placeholder = await live.adapter.show(shown)
    await live.adapter.send(answer(command, "here", replaces=placeholder))
    assert await live.visible(command.chat) == ["here"]


async def test_after_a_ticket_expires_the_answer_is_an_ordinary_message(
    live: DiscordHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slash, "TICKET_SECONDS", 0.0)
    command = await given(live, "help")
    await live.adapter.send(answer(command, "here"))
    [row] = await live.sent("send")
    assert row["text"] == "here"


async def test_a_ticket_outlives_its_connection(harness: DiscordHarness) -> None:
    async with harness.running():
        await published(harness)
        command = await given(harness, "help")
        await harness.sent("interaction_defer", wait=15)
    async with running(harness.adapter, RecordingIntake()):
        await harness.adapter.send(answer(command, "here"))
    assert await harness.visible(command.chat) == ["here"]
    assert await harness.sent("send") == []


async def test_a_ticket_of_an_earlier_process_is_ignored(live: DiscordHarness) -> None:
    command = await given(live, "help")
    restarted = live.another_adapter()
    async with running(restarted, RecordingIntake()):
        await restarted.send(answer(command, "here"))
    assert "here" in await live.visible(command.chat)


# Buttons


@pytest.mark.parametrize("kind", [InputKind.BUTTON, InputKind.PAGE])
async def test_a_button_with_a_long_command_works_after_a_restart(live: DiscordHarness, kind: InputKind) -> None:
    command = "/title " + "a very long title " * 10
    button = Button(label="Name it", command=command, turns_page=kind is InputKind.PAGE)
    part = OutboundPart(text="?", plain="?", buttons=(button,))
    await live.adapter.send(SendRequest(chat=live.direct_chat, part=part, key="k1"))
    await live.post("gateway", {"action": "forget_sessions"})
    restarted, heard = live.another_adapter(), RecordingIntake()
    async with running(restarted, heard):
        await live.press("Name it")
        [pressed] = await heard.wait_for(1)
    assert pressed.text == command
    assert pressed.via is kind
    assert pressed.ticket is None


async def test_a_press_is_acknowledged_without_changing_the_message(live: DiscordHarness) -> None:
    part = OutboundPart(text="May I?", plain="May I?", buttons=(Button(label="Yes", command="/approve 7"),))
    ref = await live.adapter.send(SendRequest(chat=live.direct_chat, part=part, key="k1"))
    await live.press("Yes")
    [pressed] = await live.intake.wait_for(1)
    assert pressed.message_ref == ref
    [interaction] = await live.get("interactions")
    assert (interaction["acked"], interaction["ack_type"]) == (True, 6)
    assert await live.visible(live.direct_chat) == ["May I?"]


async def test_a_final_edit_removes_the_buttons(live: DiscordHarness) -> None:
    part = OutboundPart(text="May I?", plain="May I?", buttons=(Button(label="Yes", command="/approve 7"),))
    ref = await live.adapter.send(SendRequest(chat=live.direct_chat, part=part, key="k1"))
    done = OutboundPart(text="Done.", plain="Done.")
    await live.adapter.send(SendRequest(chat=live.direct_chat, part=done, key="k2", replaces=ref))
    [message] = await live.get("messages", channel_id=live.direct_chat.chat_ref)
    assert (message["content"], message["components"]) == ("Done.", [])


async def test_a_button_that_is_not_ours_is_acknowledged_and_ignored(live: DiscordHarness) -> None:
    ref = await live.adapter.send(
        SendRequest(chat=live.direct_chat, part=OutboundPart(text="hi", plain="hi"), key="k1")
    )
    await live.post("interaction", {"dm_user_id": ALICE, "custom_id": "somebody-elses", "message_id": ref})
    await live.post("interaction", {"dm_user_id": ALICE, "custom_id": "n:unknown", "message_id": ref})
    await eventually(lambda: all(row["acked"] for row in live.discord.interactions.values()), "acknowledged")
    await live.write("hello")
    assert [message.text for message in await live.intake.wait_for(1)] == ["hello"]
