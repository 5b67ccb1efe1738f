"""Command menus by kind of chat and role, which are published only when they changed."""

import asyncio
import json
from pathlib import Path

import pytest

from hermes_state.store.sql import load_note
from platforms.base import MenuCommand
from platforms.telegram import adapter
from platforms.telegram.adapter import commands
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.telegram.harness import TOKEN, TelegramHarness

MENU = (
    MenuCommand(name="start", description="Introduce the bot", argument=None, place="direct"),
    MenuCommand(name="groupcontext", description="Read along", argument=None, place="groups"),
    MenuCommand(name="new", description="Start a new conversation", argument=None),
    MenuCommand(name="title", description="Name this conversation", argument="[title]"),
)


ADMIN_ITEM = MenuCommand(name="pair", description="Let people in", argument=None, is_admin_only=True)


async def test_each_menu_is_set_once_for_many_starts(tmp_path: Path, intake: RecordingIntake) -> None:
    intake.admins = frozenset({"42"})
    async with TelegramHarness(tmp_path, menu=(*MENU, ADMIN_ITEM)) as telegram:
        async with running(telegram.adapter, intake):
            await telegram.calls("setMyCommands", wait=15, count=3)
            async with asyncio.timeout(15):
                while await telegram.store.read(load_note, f"telegram.menu.{TOKEN.partition(':')[0]}") is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)  # no event tells that the digests are stored
        async with running(telegram.another_adapter(), intake):
            await telegram.write("hello")
            await intake.wait_for(1)
            intake.admins = frozenset()
            intake.admins_changed.set()
            await telegram.calls("deleteMyCommands", wait=15, count=1)
        assert len(await telegram.calls(".*MyCommands")) == 4, "unchanged menus cause no calls"
        [bot] = (await telegram.get("state"))["bots"]
    menu = next(rows for key, rows in bot["commands"].items() if "private" in key)
    assert menu == [
        {"command": "start", "description": "Introduce the bot"},
        {"command": "new", "description": "Start a new conversation"},
        {"command": "title", "description": "[title] Name this conversation"},
    ]


async def test_a_refused_menu_does_not_stop_the_adapter(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, menu=MENU) as telegram:
        await telegram.fault(match="MyCommands", kind="500", times=-1)
        async with running(telegram.adapter, intake):
            assert await telegram.calls("setMyCommands", wait=15)
            await telegram.write("hello")
            await intake.wait_for(1)
            await eventually(lambda: telegram.adapter.health().is_ready, "ready")


def test_names_that_telegram_refuses_are_left_out() -> None:
    items = [MenuCommand(name=name, description="x" * 300, argument=None) for name in ("ok_1", "no-dash", "Big", "")]
    [command] = commands(items)
    assert (command.command, len(command.description)) == ("ok_1", 256)


async def menus(telegram: TelegramHarness) -> dict[str, list[str]]:
    """Return the names of the commands by chat or kind of chat."""
    [bot] = (await telegram.get("state"))["bots"]
    scopes = {key: json.loads(key)[0] for key in bot["commands"]}
    return {
        str(scopes[key].get("chat_id", scopes[key]["type"])): [row["command"] for row in rows]
        for key, rows in bot["commands"].items()
        if rows
    }


async def test_every_admin_has_a_menu_with_admin_commands(tmp_path: Path, intake: RecordingIntake) -> None:
    admins = ["start", "new", "title", "pair"]
    general = {"all_private_chats": admins[:3], "all_group_chats": ["groupcontext", "new", "title"]}
    intake.admins = frozenset({"42", "43"})
    async with TelegramHarness(tmp_path, menu=(*MENU, ADMIN_ITEM)) as telegram:
        async with running(telegram.adapter, intake):
            await telegram.calls("setMyCommands", wait=15, count=4)
            assert await menus(telegram) == {**general, "42": admins, "43": admins}
            intake.admins = frozenset({"43", "44"})
            intake.admins_changed.set()
            await telegram.calls("setMyCommands", wait=15, count=5)
            await telegram.calls("deleteMyCommands", wait=15, count=1)
            assert await menus(telegram) == {**general, "43": admins, "44": admins}
        intake.admins = frozenset()
        async with running(telegram.adapter, intake):
            await telegram.calls("deleteMyCommands", wait=15, count=3)
            assert await menus(telegram) == general


async def test_the_menu_of_an_admin_without_a_chat_is_retried(
    tmp_path: Path, intake: RecordingIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "RETRY_SECONDS", 0.1)
    intake.admins = frozenset({"42"})
    async with TelegramHarness(tmp_path, menu=(*MENU, ADMIN_ITEM)) as telegram:
        where = {"scope": {"type": "chat", "chat_id": 42}}
        await telegram.fault(match="setMyCommands", kind="400", description="Bad Request: chat not found", where=where)
        async with running(telegram.adapter, intake):
            await telegram.calls("setMyCommands", wait=15, count=4)
            assert (await menus(telegram))["42"] == ["start", "new", "title", "pair"]
