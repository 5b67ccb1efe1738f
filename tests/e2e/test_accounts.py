"""Two Telegram bots and one Discord bot in one gateway."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import load_config
from gateway.daemon.process import lock_folder, token_locks
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_discord import ready
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.test_discord import sent as sent_on_discord
from tests.e2e.world import Program, World
from tests.fakes import fake_telegram
from tests.fakes.labkit import Control, Server

OTHER_TOKEN = "654321:OTHERTOKEN"


class Bots(World):
    """A world with a second Telegram bot, which has a server of its own, so that tests see which bot sent what."""

    tg2: Control

    def list_accounts(self, *, first: str = "support", second: str = "operations") -> None:
        self.configure(
            f"telegram:\n  - name: {first}\n  - name: {second}\n    token: '{OTHER_TOKEN}'\n"
            f"    base_url: {self.tg2.url}\n"
        )

    async def say2(self, text: str, **more: object) -> None:
        """Send a message from the person 42 to the second bot."""
        await self.tg2.post("message", {"chat_id": 42, "user_id": 42, "text": text, **more})

    async def replies2(self, count: int, *, wait: float = 15, match: str = "") -> list[str]:
        query: dict[str, object] = {"method": "sendMessage", "chat_id": 42, "wait": wait, "count": count}
        return [row["text"] for row in await self.tg2.get("sent", **query, **({"match": match} if match else {}))]

    async def status(self) -> Any:  # JSON
        code, said = await self.command_line("status", "--json")
        assert code == 0, said
        return json.loads(said)


async def open_bots(
    folder: Path, protocol: ModelProtocol, program: Program, kind: type[Bots] = Bots
) -> AsyncIterator[Bots]:
    world = kind(folder, protocol)
    await world.open(discord=True, program=program)
    try:
        await world.dc.post("config", {"rate_limits": False})
        async with Server(fake_telegram.make_app(username="operations_bot")) as server:
            world.tg2 = Control(server.url, world.http)
            world.list_accounts()
            yield world
        for _, path in token_locks(load_config(world.environ), lock_folder(world.environ)):
            path.unlink(missing_ok=True)
    finally:
        await world.close()


@pytest.fixture
async def bots(tmp_path: Path, protocol: ModelProtocol, program: Program) -> AsyncIterator[Bots]:
    async for world in open_bots(tmp_path, protocol, program):
        yield world


async def test_each_bot_answers_its_own_chats(bots: Bots) -> None:
    await ready(bots)
    await bots.say("to support")
    await bots.say2("to operations")
    await say_on_discord(bots, "to discord")
    [first], [second], [third] = await bots.replies(1), await bots.replies2(1), await sent_on_discord(bots, 1)
    assert ("to support" in first, "to operations" in second, "to discord" in third) == (True, True, True)
    assert bots.query("SELECT account, count(DISTINCT chat_ref) FROM chats GROUP BY account ORDER BY account") == [
        ("discord", 1),
        ("telegram", 1),
        ("telegram/operations", 1),
    ]
    [prompt] = [one for one in await bots.asked(3) if "to operations" in str(one)]
    assert "to support" not in str(prompt), "the person has a conversation of their own with each bot"


async def test_accounts_are_seen_wherever_people_look(bots: Bots) -> None:
    await bots.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await bots.say("hello support")
    await bots.say2("hello operations")
    await bots.replies(1)
    await bots.replies2(1)
    for command in ("/status", "/usage"):
        await bots.say2(command)
        assert await bots.replies2(1, match="Account: .*telegram/operations"), command
        await bots.say(command)
        assert await bots.replies(1, match="Account: .*telegram/support"), command
    await bots.say2("/insights")
    assert await bots.replies2(1, match="ACCOUNT(.|\n)*telegram/operations ")
    assert {"discord", "telegram/support", "telegram/operations"} <= (await bots.status())["platforms"].keys()
    code, said = await bots.command_line("lineage", "telegram/operations:42", "--json")
    assert (code, [row["account"] for row in json.loads(said)]) == (0, ["telegram/operations"])
    code, said = await bots.command_line("lineage", "42")
    assert code != 0
    assert "telegram:42" in said
    assert "telegram/operations:42" in said
    log = [json.loads(line) for line in bots.gateway.log_text().splitlines() if line.startswith("{")]
    finished = {(one["account"], one["chat"]) for one in log if one["event"] == "turn.finished"}
    assert finished == {("telegram", "telegram:42"), ("telegram/operations", "telegram/operations:42")}
    signed_in = [one["account"] for one in log if one["event"] == "telegram.signed_in"]
    assert sorted(signed_in) == ["telegram", "telegram/operations"]


async def test_each_bot_gets_a_menu(bots: Bots) -> None:
    await bots.gateway.start()
    await bots.until_rows("SELECT count(*) FROM meta WHERE key LIKE 'telegram.menu.%'", (2,))
    await bots.gateway.stop()
    await bots.gateway.start()
    await bots.say2("hello")
    await bots.replies2(1)
    calls = [len(await server.get("calls", method="setMyCommands")) for server in (bots.tg, bots.tg2)]
    assert calls == [3, 3], "unchanged menus are not set again"


async def test_after_a_kill_each_bot_answers_what_it_owes(bots: Bots) -> None:
    await bots.gateway.start()
    await bots.script(match="slow", hang=True, times=2)
    await bots.say("slow one")
    await bots.say2("slow two")
    await bots.asked(2)
    await bots.gateway.kill()
    await bots.say("while away")
    await bots.say2("away from operations")
    await bots.gateway.start()
    first, second = await bots.replies(2), await bots.replies2(2)
    assert ("slow one" in first[0], "slow two" in second[0]) == (True, True)
    assert "while away" in first[1]
    assert "away from operations" in second[1]
    assert await bots.gateway.stop() == 0
    assert (len(await bots.replies(0, wait=0)), len(await bots.replies2(0, wait=0))) == (2, 2)


async def test_a_revoked_token_stops_only_its_bot(bots: Bots) -> None:
    await bots.tg2.post("faults", {"match": ".*", "kind": "status", "status": 401, "times": -1})
    await ready(bots)
    await bots.converse("one", "two")
    await say_on_discord(bots, "three")
    assert await sent_on_discord(bots, 1)
    platforms = (await bots.status())["platforms"]
    assert {name: one["state"] for name, one in platforms.items()} == {
        "discord": "running",
        "telegram/support": "running",
        "telegram/operations": "failed",
    }
    sentence = "Telegram rejected the bot token; check telegram.accounts[2]"
    assert platforms["telegram/operations"]["detail"] == sentence
    await bots.say("/status")
    assert await bots.replies(1, match=r"Not connected: telegram/operations \(failed\)")
    assert bots.gateway.log_text().count(sentence) == 1
    await bots.tg2.delete("faults")
    assert await bots.gateway.stop() == 0
    await bots.gateway.start()
    await bots.say2("back again")
    assert await bots.replies2(1, match="back again")


async def test_an_admin_is_not_asked_by_a_bot_whose_token_was_revoked(bots: Bots) -> None:
    admins = {"HERMES_ACCESS__ADMINS": "telegram:42", "HERMES_ACCESS__ALLOW": "telegram:43"}
    await bots.gateway.start(**admins, HERMES_TOOLS__APPROVAL__WRITES="ask_admin")
    await bots.converse("one")
    await bots.say2("two")  # the chat that was used last
    assert await bots.replies2(1)
    await bots.tg2.post("faults", {"match": ".*", "kind": "status", "status": 401, "times": -1})
    await bots.say2("three")  # ends the poll, and the next one fails
    await bots.gateway.wait_for_log('"adapter.rejected"')
    await bots.script_call("every day", "schedule", action="add", cron="0 8 * * *", text="look")
    await bots.say("every day", chat_id=43)
    assert await bots.replies(1, match="May I use .?schedule.?. For User43")


async def test_an_outage_of_one_bot_leaves_the_other_running(bots: Bots) -> None:
    await bots.gateway.start()
    await bots.say2("before")
    await bots.replies2(1)
    await bots.tg2.post("faults", {"match": ".*", "kind": "status", "status": 502, "times": -1})
    await bots.converse("one", "two", "three")
    await bots.tg2.delete("faults")
    await bots.say2("after")
    assert await bots.replies2(1, match="after")


async def test_a_further_bot_cannot_become_the_first_and_get_other_chats(bots: Bots) -> None:
    await bots.gateway.start()
    await bots.say2("hello")
    await bots.replies2(1)
    await bots.gateway.stop()
    bots.list_accounts(first="operations", second="support")
    await bots.gateway.spawn()
    assert await bots.gateway.wait() == 78
    assert "telegram.accounts[1]: telegram/operations cannot become the first account" in bots.gateway.log_text()
    bots.list_accounts()
    await bots.gateway.start()
    await bots.say2("again")
    assert await bots.replies2(1, match="again")


async def test_a_bot_keeps_its_account(bots: Bots) -> None:
    await bots.gateway.start()
    await bots.say2("hello")
    await bots.replies2(1)
    await bots.gateway.stop()
    usual = {name: bots.gateway.environ[f"HERMES_TELEGRAM__{name}"] for name in ("TOKEN", "BASE_URL")}
    bots.configure("")
    await bots.gateway.spawn(HERMES_TELEGRAM__TOKEN=OTHER_TOKEN, HERMES_TELEGRAM__BASE_URL=bots.tg2.url)
    assert await bots.gateway.wait() == 78
    assert "telegram.token belongs to the bot of the account telegram/operations" in bots.gateway.log_text()
    bots.list_accounts(second="ops")
    await bots.gateway.spawn(**{f"HERMES_TELEGRAM__{name}": value for name, value in usual.items()})
    assert await bots.gateway.wait() == 78
    assert "telegram.accounts[2] belongs to the bot of the account telegram/operations" in bots.gateway.log_text()
    bots.list_accounts()
    await bots.gateway.start()
    await bots.say2("again")
    assert await bots.replies2(1, match="again")


async def test_a_new_account_connects_after_a_restart(bots: Bots) -> None:
    accounts = (bots.home / "config.yaml").read_text()
    bots.configure("telegram:\n  - name: support\n")
    await bots.gateway.start()
    bots.configure(accounts)
    await bots.reload()
    assert '"needs_restart":["telegram.accounts"]' in bots.gateway.log_text()
    await bots.converse("still here")
    await bots.gateway.stop()
    await bots.gateway.start()
    await bots.say2("hello")
    assert await bots.replies2(1, match="hello")
