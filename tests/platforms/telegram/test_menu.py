"""The command menu is published when it changed, and only then."""

from pathlib import Path

from platforms.base import CommandMenuItem
from platforms.telegram.menu import commands
from tests.platforms.contract import RecordingIntake, eventually, running
from tests.platforms.telegram.harness import TelegramHarness

MENU = (
    CommandMenuItem(name="new", description="Start a new conversation", argument=None),
    CommandMenuItem(name="title", description="Name this conversation", argument="[title]"),
)


async def test_the_menu_is_set_once_for_many_starts(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, menu=MENU) as telegram:
        for _ in range(2):
            async with running(telegram.adapter, intake):
                assert await telegram.calls("getMyCommands", wait=5)
                assert await telegram.calls("setMyCommands", wait=5)
        [call] = await telegram.calls("setMyCommands")
        [bot] = (await telegram.get("state"))["bots"]
        [menu] = bot["commands"].values()
    assert call["ok"]
    assert menu == [
        {"command": "new", "description": "Start a new conversation"},
        {"command": "title", "description": "[title] Name this conversation"},
    ]


async def test_a_menu_that_is_refused_does_not_stop_the_adapter(tmp_path: Path, intake: RecordingIntake) -> None:
    async with TelegramHarness(tmp_path, menu=MENU) as telegram:
        await telegram.fault(match="MyCommands", kind="500", times=-1)
        async with running(telegram.adapter, intake):
            assert await telegram.calls("getMyCommands", wait=5)
            await telegram.write("hello")
            await intake.wait_for(1)
            await eventually(lambda: telegram.adapter.health().is_ready, "ready")


def test_names_that_telegram_refuses_are_left_out() -> None:
    items = [
        CommandMenuItem(name=name, description="x" * 300, argument=None) for name in ("ok_1", "no-dash", "Big", "")
    ]
    [command] = commands(items)
    assert (command.command, len(command.description)) == ("ok_1", 256)
