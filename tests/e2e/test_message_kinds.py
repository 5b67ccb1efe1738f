"""Kinds of messages that hold no plain text: each reaches the model in words, or its sender hears that it does not."""

import base64
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.chats import Chat
from tests.e2e.protocols import prompt_of
from tests.e2e.world import TOKEN, World
from tests.pictures import noise, picture, saved

QUICKLY = {"HERMES_SESSIONS__MERGE_SECONDS": "0", "HERMES_SESSIONS__MESSAGES_PER_MINUTE": "10000"}
KINDS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "fixtures" / "outside" / "message_kinds.jsonl").read_text().splitlines()
]
REFUSALS = ("I cannot read", "I have not read")
PERSON = {"id": 42, "is_bot": False, "first_name": "Ada"}
CHAT = {"id": 42, "type": "private", "first_name": "Ada"}


async def send(world: World, raw: Mapping[str, Any], number: int = 900, kind: str = "message") -> None:
    """A person sends a message that the Bot API shows as `raw`."""
    await world.tg.post("chat", {"chat_id": 42, "first_name": "Ada"})
    message = {"message_id": number, "date": int(time.time()), "chat": CHAT, "from": PERSON, **raw}
    await world.tg.post("update", {"update": {kind: message}})


async def heard_since(world: World, since: int) -> tuple[list[str], int]:
    """What the newest turns were told, each by its last message, and how many requests there were before."""
    requests = await world.asked(0, wait=0, since=since)
    return [prompt_of(request)[-1].text for request in requests], max([since, *(one["seq"] for one in requests)])


def fault_of(case: Mapping[str, Any], said: Sequence[str], heard: Sequence[str]) -> str | None:
    """What is wrong with what became of a message: `said` by the bot, `heard` by the model."""
    told = "\n".join(heard)
    match case["expect"]:
        case "words":
            return None if all(words in told for words in case["has"]) else f"the model heard {heard}"
        case "sentence":
            is_told = any(one.startswith(REFUSALS) and all(words in one for words in case["has"]) for one in said)
            return None if is_told and not heard else f"the person heard {said}, the model {heard}"
        case "heard":
            return None if said or heard else "nobody heard anything"
    return f"the person heard {said}, the model {heard}" if said or heard else None


async def test_every_kind_of_telegram_message_is_heard_or_refused(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    faults, seen, asked = [], 0, 0
    for number, case in enumerate(case for case in KINDS if case["platform"] == "telegram"):
        await send(world, case["raw"], 1_000 + number)
        await world.ask(f"marker {number};", f"marker {number};")
        replies = await world.replies(0, wait=0)
        heard, asked = await heard_since(world, asked)
        said = [one for one in replies[seen:] if f"marker {number};" not in one]
        seen = len(replies)
        if fault := fault_of(case, said, [one for one in heard if f"marker {number};" not in one]):
            faults.append(f"{case['kind']}: {fault}")
    print(f"{len(faults)} faults")
    assert faults == []


async def test_every_kind_of_discord_message_is_heard_or_refused(discord_world: World) -> None:
    world = discord_world
    await discord.ready(world, **QUICKLY)
    base = (await discord.say(world, "marker start;"))["message"]
    assert await discord.sent(world, 1)
    faults, seen, asked = [], 1, (await heard_since(world, 0))[1]
    for number, case in enumerate(case for case in KINDS if case["platform"] == "discord"):
        event = {**base, **case["raw"], "id": str(int(base["id"]) + 1 + number)}
        await world.dc.post("event", {"t": "MESSAGE_CREATE", "d": event})
        await discord.say(world, f"marker {number};")
        assert await discord.sent(world, 1, match=f"marker {number};"), case["kind"]
        replies = await discord.sent(world, 0, wait=0)
        heard, asked = await heard_since(world, asked)
        said = [one for one in replies[seen:] if f"marker {number};" not in one]
        seen = len(replies)
        if fault := fault_of(case, said, [one for one in heard if f"marker {number};" not in one]):
            faults.append(f"{case['kind']}: {fault}")
    print(f"{len(faults)} faults")
    assert faults == []


# ---- Telegram, beyond the table


async def test_what_the_sdk_does_not_know_costs_no_message_in_webhook_mode(world: World) -> None:
    port = world.free_port()
    address = f"http://127.0.0.1:{port}/telegram"
    webhook = {"HERMES_TELEGRAM__WEBHOOK__URL": address, "HERMES_TELEGRAM__WEBHOOK__PORT": str(port)}
    await world.gateway.start(**QUICKLY, **webhook)
    await world.tg.get("calls", method="setWebhook", wait=15, count=1)
    [gift] = [case["raw"] for case in KINDS if case["kind"] == "reply to a unique gift without gift_id"]
    await send(world, gift)
    assert await world.replies(1, match="what is this gift")
    await send(world, {"rich_message": {"blocks": [{"type": "divider"}]}}, 901)
    assert await world.replies(1, match="I cannot read “rich message”")
    lines = [json.loads(line) for line in world.gateway.log_text().splitlines() if "partially_parsed" in line]
    assert [line["fields"] for line in lines] == [["message.reply_to_message.unique_gift.gift"], ["rich_message"]]


async def test_words_of_an_unknown_form_are_never_a_command(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    paragraph = {"type": "paragraph", "text": "/new"}
    await send(world, {"rich_message": {"blocks": [paragraph]}})
    assert await world.replies(1, match="Rich message")
    await send(world, {"reply_to_message": {"rich_message": {"blocks": [paragraph]}}, "text": "and this?"}, 901)
    assert await world.replies(1, match="and this")
    assert world.query("SELECT count(*) FROM inbox WHERE kind = 'command'") == [(0,)]


async def test_words_of_an_answered_message_that_the_sdk_refuses_are_quoted(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    options = [{"text": "by boat", "voter_count": 0, "form": "new"}]
    poll = {"id": "1", "question": "how do we get there", "options": options, "type": "regular"}
    answered = {"message_id": 5, "date": 1_700_000_000, "chat": CHAT, "from": {**PERSON, "id": 77}, "poll": poll}
    await send(world, {"reply_to_message": answered, "text": "what do you think"})
    assert await world.replies(1, match="what do you think")
    told = prompt_of((await world.asked(1))[0])[-1].text
    assert "how do we get there" in told
    assert "by boat" in told


async def test_a_forward_of_unknown_origin_stays_a_forward(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    origin = {"type": "channel", "date": 1_700_000_000, "chat": {"id": -5, "type": "channel", "title": "News"}}
    await send(world, {"text": "whose words are these", "forward_origin": origin})
    assert await world.replies(1, match="whose words")
    [request] = await world.asked(1)
    assert "<quoted_message" in prompt_of(request)[-1].text


async def test_an_unknown_kind_in_a_group_is_heard_where_it_names_the_bot(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    async with world.http.get(f"{world.tg.url}/bot{TOKEN}/getMe") as response:
        name = (await response.json())["result"]["username"]
    group = {"chat": {"id": -100, "type": "supergroup", "title": "Friends"}}
    await world.tg.post("chat", {"chat_id": -100, "title": "Friends"})
    for number, text in enumerate(("nobody is meant", [f"@{name}", " look at this"])):
        await send(world, {**group, "rich_message": {"blocks": [{"type": "paragraph", "text": text}]}}, 900 + number)
    assert await world.replies(1, chat_id=-100, match="look at this")
    assert await world.replies(0, chat_id=-100, wait=0, match="nobody is meant") == []


# ---- files that no model can be shown


PDF = b"%PDF-1.7\n1 0 obj << /Type /Catalog >> endobj\ntrailer << /Root 1 0 R >>\n"
UNREAD = [
    ("report.pdf", "application/pdf", PDF),
    ("plan.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document", b"PK\x03\x04 docx"),
    ("sums.ods", "", b"PK\x03\x04 ods"),
    ("old.doc", "application/msword", b"\xd0\xcf\x11\xe0 doc"),
]
WITHOUT_WORKSPACE = {"HERMES_TOOLS__USE": '{"*": "off"}'}


async def send_file(chat: Chat, text: str, name: str, mime: str, content: bytes, *answers: str) -> None:
    """Send a file with a caption, and wait until the bot has said all of `answers` in separate messages."""
    await chat.send_file(text, name, mime, content)
    for words in answers:
        await chat.until(re.escape(words))


async def test_a_file_that_is_not_read_is_named_to_its_sender_and_to_the_model(chat: Chat) -> None:
    await chat.start(**QUICKLY, **(WITHOUT_WORKSPACE if chat.platform == "web" else {}))
    for number, (name, mime, content) in enumerate(UNREAD):
        question = f"question {number};"
        await send_file(chat, question, name, mime, content, f"cannot read “{name}”", question)
        heard = prompt_of((await chat.world.asked(number + 1))[number])[-1].text
        assert name in heard
        assert "PK" not in heard
        assert "%PDF" not in heard
        assert re.search("not shown to you|could not be read", heard)
    for name, content in (("alone.pdf", PDF), ("empty.pdf", b"")):
        await send_file(chat, "", name, "application/pdf", content, f"cannot read “{name}”")


# ---- pictures


def with_bad_checksum(kind: bytes) -> bytes:
    """A PNG file whose chunk of a kind has another checksum than it should."""
    data = bytearray(saved(noise((64, 48)), "PNG", dpi=(72, 72)))
    start = data.index(kind)
    end = start + 4 + int.from_bytes(data[start - 4 : start])
    data[end] ^= 0xFF
    return bytes(data)


SEEING = {**QUICKLY, "HERMES_MODEL__IMAGES": "true"}
UNSHOWN = {
    "truncated.png": saved(noise((64, 48)), "PNG")[:4_000],
    "truncated.jpg": saved(noise((64, 48)), "JPEG")[:800],
    "empty.png": b"",
    "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "header.webp": b"RIFF\x10\0\0\0WEBPVP8 ",
}


async def test_a_picture_is_shown_or_its_sender_and_the_model_are_told(chat: Chat) -> None:
    await chat.start(**SEEING)
    count = 0
    for count, kind in enumerate((b"IHDR", b"pHYs", b"IDAT"), start=1):
        await send_file(chat, f"shown {count};", "chart.png", "image/png", with_bad_checksum(kind), f"shown {count};")
        assert prompt_of((await chat.world.asked(count))[-1])[-1].images == 1, kind
    for number, (name, content) in enumerate(UNSHOWN.items(), start=count + 1):
        answers = (f"I cannot open “{name}” as an image", f"unshown {number};")
        await send_file(chat, f"unshown {number};", name, f"image/{name.partition('.')[2]}", content, *answers)
        heard = prompt_of((await chat.world.asked(number))[-1])[-1]
        assert heard.images == 0
        assert f"not shown to you: image “{name}”" in heard.text
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><text>Sales in May</text></svg>'
    await send_file(chat, "drawing;", "chart.svg", "image/svg+xml", svg, "drawing;")
    assert "Sales in May" in prompt_of((await chat.world.asked(number + 1))[-1])[-1].text


async def test_a_picture_for_a_model_that_sees_none_is_not_dropped_in_silence(world: World) -> None:
    await world.gateway.start(**QUICKLY)
    await world.say("look;", media="photo", file_b64=base64.b64encode(picture()).decode())
    assert await world.replies(1, match="cannot see images")
    assert await world.replies(1, match="look;")


@pytest.mark.each_protocol
async def test_a_picture_with_a_bad_checksum_is_shown_as_the_result_of_a_tool(world: World) -> None:
    await world.gateway.start(**SEEING, HERMES_TOOLS__APPROVAL__WRITES="allow")
    await world.say('hello [[tool:write_file {"path": "a.txt", "content": "x"}]]')
    await world.replies(1)
    [folder] = (world.home / "workspaces").iterdir()
    (folder / "chart.png").write_bytes(with_bad_checksum(b"IHDR"))
    await world.say('look [[tool:read_file {"path": "chart.png"}]]')
    assert len(await world.replies(2)) == 2
    assert sum(said.images for said in prompt_of((await world.asked(4))[-1])) == 1
