"""Texts that fit on a phone: help, lists and their pages."""

import re

import pytest
from msgspec.structs import replace

from gateway.commands.table import REGISTRY
from hermes_state.values import Button, InputKind
from tests.gateway.commands.test_lineage_commands import compress
from tests.gateway.helpers import ANN, BOSS, BOSS_CHAT, DIRECT, GROUP, Serve, TestGateway

HELP = """\
**Conversation**
/new /title /sessions /resume /history /compress /rules
`/new Rome` starts a conversation called “Rome”.

**Answers**
/stop /retry /undo /queue /steer /steps /approve /deny
`/queue And by train?` asks this after the current answer.

**Memory and settings**
/memory /todo /schedule /model /agent /think /tools{group} /reactions /voice
`/memory me add I prefer metric units` makes me remember that you prefer metric units.

**About**
{start}/help /status /usage /whoami /privacy
`/usage` shows what this conversation costs.
{admins}
`/help schedule` explains one command."""
ADMINS = """
**For admins**
/pair /insights /search /lineage /session /why /mcp /forget
`/search train tickets` searches all chats.
"""
NEW = """\
`/new [title]`, `/reset`: start a new conversation; the old one is kept.
- `title`: a title for the conversation
In a shared chat, only admins and moderators can use some of this.
Example: `/new Rome` starts a conversation called “Rome”."""


@pytest.mark.parametrize(
    ("line", "place", "said"),
    [
        ("/help", {}, HELP.format(group="", start="/start ", admins="")),
        ("/help", {"chat": GROUP}, HELP.format(group=" /groupcontext", start="", admins="")),
        ("/help", {"chat": BOSS_CHAT, "sender": BOSS}, HELP.format(group="", start="/start ", admins=ADMINS)),
        ("/help new", {}, NEW),
        ("/help /RESET", {}, NEW),
        ("/help pair", {}, "Only admins can use /pair."),
        ("/help scedule", {}, "There is no command /scedule. Did you mean /schedule? /help lists all commands."),
        ("/whoami", {}, "You are Ann (`telegram:1`), and your role is user.\nThis chat is `telegram:1`."),
    ],
)
async def test_help(gateway: TestGateway, line: str, place: dict[str, object], said: str) -> None:
    assert await gateway.ask(line, **place) == said


def test_help_explains_every_command_and_each_group_contains_its_example() -> None:
    registry = REGISTRY
    grouped = [name for _, names, _, _ in registry.groups for name in names.split()]
    assert sorted(grouped) == sorted(command.name for command in registry.commands)
    for _, names, example, _ in registry.groups:
        assert example[1:].split()[0] in names.split()
    pages = [registry.explain(name, is_admin=True) for name in registry.by_name]
    assert all(1 <= len(page.splitlines()) <= 12 for page in pages)


def buttons(gateway: TestGateway) -> dict[str, Button]:
    return {button.label: button for button in gateway.adapter.requests[-1].part.buttons}


async def press(gateway: TestGateway, label: str, **place: object) -> str:
    """Press a page button of the newest message, and return the text that replaced it."""
    chat = place.get("chat", DIRECT)
    (ref, _), button = [*gateway.adapter.visible[chat.chat_ref, chat.thread_ref].items()][-1], buttons(gateway)[label]
    via = InputKind.PAGE if button.turns_page else InputKind.BUTTON
    count = len(gateway.adapter.requests)
    message = replace(gateway.message(button.command, **place), via=via, message_ref=ref)
    await gateway.intake.accept(message)
    await gateway.quiet(chat)
    assert [request.replaces for request in gateway.adapter.requests[count:]] == [ref if button.turns_page else None]
    return gateway.adapter.texts(chat)[-1]


async def test_sessions_show_titles_and_turn_pages(gateway: TestGateway) -> None:
    for number in range(8):
        await gateway.ask(f"question {number}")
        await gateway.ask("/new")
    first = await gateway.ask("/sessions")
    assert "- “question 7”: 2 messages, just now, `" in first
    assert [label for label in buttons(gateway) if label in ("Back", "More")] == ["More"]
    assert "“question 0”" in await press(gateway, "More")
    assert [label for label in buttons(gateway) if label in ("Back", "More")] == ["Back"]
    assert await press(gateway, "Back") == first
    await gateway.ask("/title Boats", sender=BOSS)
    lines = (await gateway.ask("/lineage", sender=BOSS)).splitlines()
    assert re.fullmatch("- `\\w{8}` “Boats”, just now, 0 messages, open", lines[-1])
    assert re.fullmatch("- `\\w{8}` just now, 2 messages, ended with /new", lines[-2])
    assert await gateway.ask("/sessions 9") == "This chat has no more conversations."


async def test_lineage_has_eight_lines_and_its_undo_ends_with_the_next_compression(gateway: TestGateway) -> None:
    await gateway.ask("one", sender=BOSS, chat=BOSS_CHAT)
    for _ in range(8):
        await compress(gateway, BOSS_CHAT)
    place = {"chat": BOSS_CHAT, "sender": BOSS}
    first = await gateway.ask("/lineage", **place)
    assert len(first.splitlines()) == 7
    assert [*buttons(gateway)] == ["Open the newest", "Undo compression", "More"]
    assert len((await press(gateway, "More", **place)).splitlines()) == 4
    assert await gateway.rows("SELECT count(*) FROM live_buttons") == [(0,)]
    assert await press(gateway, "Back", **place) == first
    assert await gateway.rows("SELECT topic FROM live_buttons") == [("undo",)]
    assert (await press(gateway, "Open the newest", **place)).startswith("Session `")


async def test_another_persons_list_in_a_shared_group_stays(serve: Serve) -> None:
    async with serve(sessions={"groups": "per_user"}) as gateway:
        await gateway.say("/sessions", chat=GROUP)
        [empty] = await gateway.replies(1, replace(GROUP, user_ref=ANN.id))
        assert empty == "This chat has no conversation yet."
        page = replace(gateway.message("/sessions 2", chat=GROUP, sender=BOSS), via=InputKind.PAGE, message_ref="1000")
        await gateway.intake.accept(page)
        await gateway.quiet(replace(GROUP, user_ref=BOSS.id))
        assert gateway.adapter.requests[-1].replaces is None


@pytest.mark.parametrize("via", [InputKind.PAGE, InputKind.BUTTON])
async def test_a_pressed_page_of_the_queue_is_no_message(gateway: TestGateway, via: InputKind) -> None:
    await gateway.intake.accept(replace(gateway.message("/queue 2"), via=via))
    assert (await gateway.replies(1))[0].startswith("The queue is empty.")
    assert gateway.model.requests == []


async def test_why_names_people_and_places(gateway: TestGateway) -> None:
    await gateway.ask("hello")
    await gateway.ask("hello, too", chat=BOSS_CHAT, sender=BOSS)
    said = await gateway.ask("/why m1", chat=BOSS_CHAT, sender=BOSS)
    assert said.startswith("Message m1 in Ann (telegram:1):\n")
    assert re.search(r": the turn started for Ann \(telegram:1\)\.\n", said)
