"""The command menu is published only when it changed."""

import json
from pathlib import Path

import pytest

from platforms.base import MenuCommand
from platforms.telegram import adapter
from platforms.telegram.adapter import commands
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.telegram.harness import TelegramHarness

MENU = (
    MenuCommand(name="new", description="Start a new conversation", argument=None),
    MenuCommand(name="title", description="Name this conversation", argument="[title]"),
)


async def test_the_menu_is_set_once_for_many_starts(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, menu=MENU) as telegram:
        for _ in range(2):
            async with running(telegram.adapter, intake):
                assert await telegram.calls("getMyCommands", wait=15)
                assert await telegram.calls("setMyCommands", wait=15)
        [call] = await telegram.calls("setMyCommands")
        [bot] = (await telegram.get("state"))["bots"]
        [shown] = bot["commands"].values()
    assert call["ok"]
    assert shown == [
        {"command": "new", "description": "Start a new conversation"},
        {"command": "title", "description": "[title] Name this conversation"},
    ]


async def test_a_refused_menu_does_not_stop_the_adapter(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, menu=MENU) as telegram:
        await telegram.fault(match="MyCommands", kind="500", times=-1)
        async with running(telegram.adapter, intake):
            assert await telegram.calls("getMyCommands", wait=15)
            await telegram.write("hello")
            await intake.wait_for(1)
            await eventually(lambda: telegram.adapter.health().is_ready, "ready")


def test_names_that_telegram_refuses_are_left_out() -> None:
    items = [MenuCommand(name=name, description="x" * 300, argument=None) for name in ("ok_1", "no-dash", "Big", "")]
    [command] = commands(items)
    assert (command.command, len(command.description)) == ("ok_1", 256)


ADMIN_ITEM = MenuCommand(name="pair", description="Let people in", argument=None, is_admin_only=True)


async def menus(telegram: TelegramHarness) -> dict[str, list[str]]:
    """Return the names of the commands by chat, with the general menu under empty text."""
    [bot] = (await telegram.get("state"))["bots"]
    scopes = {key: json.loads(key)[0] for key in bot["commands"]}
    return {
        str(scopes[key].get("chat_id", "")): [row["command"] for row in rows]
        for key, rows in bot["commands"].items()
        if rows
    }


async def test_every_admin_has_a_menu_with_admin_commands(tmp_path: Path, intake: RecordingIntake) -> None:
    everybody, admins = ["new", "title"], ["new", "title", "pair"]
    intake.admins = frozenset({"42", "43"})
    async with TelegramHarness(tmp_path, menu=(*MENU, ADMIN_ITEM)) as telegram:
        async with running(telegram.adapter, intake):
            await telegram.calls("setMyCommands", wait=15, count=3)
            assert await menus(telegram) == {"": everybody, "42": admins, "43": admins}
            intake.admins = frozenset({"43", "44"})
            intake.admins_changed.set()
            await telegram.calls("setMyCommands", wait=15, count=4)
            await telegram.calls("deleteMyCommands", wait=15, count=1)
            assert await menus(telegram) == {"": everybody, "43": admins, "44": admins}
        intake.admins = frozenset()
        async with running(telegram.adapter, intake):
            await telegram.calls("deleteMyCommands", wait=15, count=3)
            assert await menus(telegram) == {"": everybody}


async def test_the_menu_of_an_admin_without_a_chat_is_retried(
    tmp_path: Path, intake: RecordingIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "RETRY_SECONDS", 0.1)
    intake.admins = frozenset({"42"})
    async with TelegramHarness(tmp_path, menu=(*MENU, ADMIN_ITEM)) as telegram:
        where = {"scope": {"type": "chat", "chat_id": 42}}
        await telegram.fault(match="getMyCommands", kind="400", description="Bad Request: chat not found", where=where)
        async with running(telegram.adapter, intake):
            await telegram.calls("setMyCommands", wait=15, count=2)
            assert (await menus(telegram))["42"] == ["new", "title", "pair"]
