"""Messages that refer to others, in the shapes from platform documentation and bug reports.

Each line of the fixture names its source, has the payload, and states the expected result:

- `command`: the text is a command of its sender;
- `contains`, `lacks`: words that the model sees, or does not see;
- `files`: quoted files that are fetched for the model;
- `passed_on`: the sender did not write the text;
- `told`: a part cannot be read, and the sender gets a message about it;
- `ignored`: the message starts nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import telegram

from gateway.commands.registry import CommandRegistry
from gateway.commands.table import COMMANDS
from hermes_state.values import EditEvent, InboundEvent, InboundMessage
from platforms.telegram.inbound import UpdateReader
from platforms.telegram.updates import UpdateHandler
from tests.platforms.contract import RecordingIntake
from tests.platforms.discord.harness import DiscordHarness

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures/outside/messages_pointing.jsonl").read_text().splitlines()
]
REGISTRY = CommandRegistry(COMMANDS)


def of(platform: str) -> pytest.MarkDecorator:
    rows = [row for row in ROWS if row["platform"] == platform]
    return pytest.mark.parametrize("row", rows, ids=[row["id"] for row in rows])


def check(event: InboundEvent | None, expected: dict[str, Any]) -> None:
    """Compare the adapter's event with the expected result."""
    is_ignored = event is None or (isinstance(event, InboundMessage) and event.sender.is_bot)
    assert is_ignored is expected.get("ignored", False)
    if event is None or is_ignored:
        return
    assert isinstance(event, InboundMessage | EditEvent)
    parsed, _ = REGISTRY.resolve(event.text, event.is_literal)
    assert (parsed is not None) is expected.get("command", False)
    assert event.words_by is not None or not expected.get("passed_on", False)
    quote = event.quote if isinstance(event, InboundMessage) else None
    files = event.attachments if isinstance(event, InboundMessage) else ()
    seen = [event.text, event.words_by or "", *(f"{file.kind} {file.name}" for file in files)]
    seen += [] if quote is None else [quote.author, quote.text]
    for words in expected.get("contains", ()):
        assert words in "\n".join(seen)
    for words in expected.get("lacks", ()):
        assert words not in "\n".join(seen)
    for name in expected.get("files", ()):
        assert [file for file in files if file.is_quoted and name in (file.file_ref, file.name)]
    assert any(not file.file_ref for file in files) is expected.get("told", False)


@of("telegram")
def test_a_telegram_message_that_refers_to_another(row: dict[str, Any]) -> None:
    bot = cast(telegram.Bot, SimpleNamespace(defaults=None))
    unused = cast(Any, None)
    reader = UpdateReader(bot_id=123456, username="our_bot")
    handler = UpdateHandler(
        intake=RecordingIntake(), reader=reader, sdk=bot, buttons=unused, clock=unused, answer_press=unused
    )
    update = handler.read(row["payload"])
    assert not isinstance(update.content, Exception), update.content
    check(update.event, row["expect"])


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[DiscordHarness]:
    async with DiscordHarness(tmp_path) as harness, harness.running():
        yield harness


async def test_discord_messages_that_refer_to_others(live: DiscordHarness) -> None:
    rows = [row for row in ROWS if row["platform"] == "discord"]
    names = {live.discord.flake(): row for row in rows}
    for message_id, row in names.items():
        await live.post("event", {"t": "MESSAGE_CREATE", "d": {**row["payload"], "id": message_id}})
    last = await live.message("the last one", channel="general")
    async with asyncio.timeout(10):
        while not live.intake.messages or live.intake.messages[-1].message_ref != last:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    events = {event.message_ref: event for event in live.intake.messages}
    wrong = {}
    for message_id, row in names.items():
        try:
            check(events.get(message_id), row["expect"])
        except AssertionError as error:
            wrong[row["id"]] = str(error).splitlines()[0]
    assert not wrong
