"""Files of a chat's workspace: made by the model, given to people, and there again after a restart."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.test_compression import page_of
from tests.e2e.world import TOKEN, World
from tests.fakes.object_store import SECRET, object_store
from tests.pictures import picture

FREELY = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cf00000301010018dd8db00000000049454e44ae426082"
)


async def on_telegram(world: World, kind: str, count: int = 1) -> list[tuple[str, str, bytes]]:
    """Caption, name and bytes of the files of a kind that the bot has sent; waits for them."""
    method = {"document": "sendDocument", "photo": "sendPhoto", "voice": "sendVoice"}[kind]
    assert len(await world.tg.get("sent", method=method, count=count, wait=20)) == count
    found = []
    for message in (await world.tg.get("chat/42"))["messages"]:
        if kind in message and message["from"]["is_bot"]:
            file = message[kind][-1] if kind == "photo" else message[kind]
            async with world.http.post(
                f"{world.tg.url}/bot{TOKEN}/getFile", json={"file_id": file["file_id"]}
            ) as response:
                path = (await response.json())["result"]["file_path"]
            async with world.http.get(f"{world.tg.url}/file/bot{TOKEN}/{path}") as response:
                found.append((message.get("caption", ""), file.get("file_name", ""), await response.read()))
    return found


def workspace(world: World) -> Path:
    [folder] = (world.home / "workspaces").iterdir()
    return folder


async def test_the_model_writes_a_file_and_gives_it_to_the_chat_on_telegram(world: World) -> None:
    await world.gateway.start(**FREELY)
    await world.script_call("a plan", "write_file", path="out/der Plan č.md", content="# Plan\n1. rest")
    await world.script(
        match_any="Wrote 14 bytes",
        last_role="tool",
        times=1,
        tool_calls=[{"name": "send_file", "arguments": {"path": "out/der Plan č.md", "caption": "as you asked"}}],
    )
    await world.say("make a plan")
    assert await on_telegram(world, "document") == [("as you asked", "der Plan č.md", b"# Plan\n1. rest")]
    assert await world.replies(1, match="is on its way to the chat")
    assert (workspace(world) / "out" / "der Plan č.md").stat().st_mode & 0o777 == 0o600
    assert await world.gateway.stop() == 0
    assert world.query("SELECT count(*) FROM outbox WHERE state <> 'sent'") == [(0,)]


async def test_a_picture_is_shown_as_one_and_what_is_none_as_a_document(world: World) -> None:
    await world.gateway.start(**FREELY)
    await world.say('hello [[tool:write_file {"path": "a.txt", "content": "x"}]]')
    await world.replies(1)
    (workspace(world) / "dot.png").write_bytes(PIXEL)
    await world.say('picture [[tool:send_file {"path": "dot.png"}]]')
    assert [content for _, _, content in await on_telegram(world, "photo")] == [PIXEL]
    refused = {"description": "Bad Request: PHOTO_INVALID_DIMENSIONS"}
    await world.tg.post("faults", {"kind": "400", "match": "sendPhoto", "times": -1, **refused})
    await world.say('again [[tool:send_file {"path": "dot.png", "caption": "dot"}]]')
    assert await on_telegram(world, "document") == [("dot", "dot.png", PIXEL)]


@pytest.mark.each_protocol
async def test_a_picture_of_the_workspace_is_shown_to_a_model_that_sees(world: World) -> None:
    await world.gateway.start(**FREELY, HERMES_MODEL__IMAGES="true")
    await world.say('hello [[tool:write_file {"path": "a.txt", "content": "x"}]]')
    await world.replies(1)
    (workspace(world) / "chart").write_bytes(picture((3_000, 1_500)))
    (workspace(world) / "broken.png").write_bytes(PIXEL[:20])
    await world.say('look [[tool:read_file {"path": "chart"}]]')
    assert len(await world.replies(2)) == 2
    assert world.query("SELECT count(*) FROM messages WHERE text LIKE '%is a picture; it is shown%'") == [(1,)]
    assert await world.gateway.stop() == 0
    await world.gateway.start()
    await world.ask("and now?", "and now")
    scaled = base64.b64encode(picture((2_000, 1_000))).decode()
    seen = [request for request in await world.asked(5) if scaled in str(request["body"])]
    assert len(seen) == 2, "with its result, and in the turn after a restart"
    await world.ask('look [[tool:read_file {"path": "broken.png"}]]', "is broken or has an unsupported format")


async def test_files_in_an_object_store_are_there_on_another_machine(world: World) -> None:
    with object_store() as store:
        place = {"HERMES_ATTACHMENTS__URL": store.url, "HERMES_ATTACHMENTS__OPTIONS": json.dumps(store.options)}
        settings = {**FREELY, **place, "HERMES_MODEL__IMAGES": "true"}
        await world.gateway.start(**settings)
        await world.say('hello [[tool:write_file {"path": "a.txt", "content": "before"}]]')
        await world.replies(1)
        (workspace(world) / "chart").write_bytes(picture((3_000, 1_500)))
        await world.say('look [[tool:read_file {"path": "chart"}]]')
        await world.replies(2)
        await world.tg.post("faults", {"kind": "500", "match": "sendDocument", "times": -1})
        await world.say('send it [[tool:send_file {"path": "a.txt"}]]')
        assert await world.tg.get("calls", method="sendDocument", count=1, wait=20)
        await world.gateway.kill()
        shutil.rmtree(world.home / "cache")
        await world.tg.delete("faults")
        await world.gateway.start(**settings)
        assert [content for *_, content in await on_telegram(world, "document")] == [b"before"]
        await world.ask("and now?", "and now")
        assert await world.gateway.stop() == 0
    scaled = base64.b64encode(picture((2_000, 1_000))).decode()
    assert scaled in str((await world.asked(1))[-1]["body"]), "of the picture that was fetched again"
    assert sorted(store.objects.values()) == sorted([b"before", picture((3_000, 1_500))])
    assert list((world.home / "attachments").iterdir()) == []
    assert SECRET not in world.gateway.log_text()


async def test_a_file_that_was_on_its_way_at_a_kill_arrives_once_as_it_was(world: World) -> None:
    await world.gateway.start(**FREELY)
    await world.say('hello [[tool:write_file {"path": "a.txt", "content": "before"}]]')
    await world.replies(1)
    await world.tg.post("faults", {"kind": "500", "match": "sendDocument", "times": -1})
    await world.say('send it [[tool:send_file {"path": "a.txt"}]]')
    assert await world.tg.get("calls", method="sendDocument", count=1, wait=20)
    await world.gateway.kill()
    (workspace(world) / "a.txt").write_text("after")
    await world.tg.delete("faults")
    await world.gateway.start(**FREELY)
    [(_, name, content)] = await on_telegram(world, "document")
    assert (name, content) == ("a.txt", b"before")
    assert await world.replies(1, match="is on its way|Outcome unknown")
    assert world.query("SELECT count(*) FROM attachments") == [(1,)]


async def test_what_cannot_be_sent_or_seen_is_told_to_the_model_and_a_file_is_sent_once_in_a_turn(
    world: World,
) -> None:
    await world.gateway.start(**FREELY, HERMES_MODEL__IMAGES="false")
    await world.say('hello [[tool:write_file {"path": "a.txt", "content": "x"}]]')
    await world.replies(1)
    (workspace(world) / "dot.png").write_bytes(PIXEL)
    await world.say('look [[tool:read_file {"path": "dot.png"}]]')
    assert await world.replies(1, match="is a picture, which the model of this chat cannot see")
    assert world.query("SELECT count(*) FROM attachments") == [(0,)]
    with (workspace(world) / "large.bin").open("wb") as file:
        file.truncate(51_000_000)
    (workspace(world) / "empty").touch()
    for path, told in {
        "large.bin": "larger than 50,000,000 bytes, the limit of this chat",
        "empty": "is empty",
        "../state.db": "contains “..”",
        "gone.txt": "“gone.txt” does not exist",
    }.items():
        await world.ask(f'[[tool:send_file {{"path": "{path}"}}]]', told)
    assert not await world.tg.get("sent", method="sendDocument")
    assert [path.name for path in (world.home / "attachments").iterdir()] == []
    call = '[[tool:send_file {"path": "a.txt"}]]'
    await world.ask(f"twice {call} {call}", "it is not sent again")
    assert len(await on_telegram(world, "document")) == 1
    await world.say(f"once more {call}")
    assert len(await on_telegram(world, "document", 2)) == 2
    forbidden = {"description": "Bad Request: not enough rights to send documents to the chat"}
    await world.tg.post("faults", {"kind": "400", "match": "sendDocument", "times": -1, **forbidden})
    await world.say('send [[tool:send_file {"path": "a.txt", "caption": "here it is"}]]')
    [told] = await world.replies(1, match="could not be sent")
    assert told == "here it is\n(The file “a.txt” could not be sent here.)"
    assert world.query("SELECT count(*) FROM outbox WHERE state = 'dead'") == [(0,)]


async def test_a_file_is_given_to_the_chat_on_discord(discord_world: World) -> None:
    world = discord_world
    await discord.ready(world, **FREELY)
    await world.script_call("a plan", "write_file", path="plan.md", content="# Plan")
    await world.script(
        match_any="Wrote 6 bytes",
        last_role="tool",
        times=1,
        tool_calls=[{"name": "send_file", "arguments": {"path": "plan.md", "caption": "as you asked"}}],
    )
    said = await discord.say(world, "make a plan")
    await discord.sent(world, 2)
    shown = await world.dc.get("messages", channel_id=said["channel_id"])
    [message] = [row for row in shown if row["attachments"]]
    assert (message["content"], message["attachments"][0]["filename"]) == ("as you asked", "plan.md")
    async with world.http.get(message["attachments"][0]["url"]) as response:
        assert await response.read() == b"# Plan"


async def test_in_the_web_chat_only_its_signed_in_page_is_given_a_file(world: World) -> None:
    await world.gateway.start(**FREELY, **world.web_chat())
    address = "/chat/main/files/1"
    async with page_of(world) as page:
        await page.write('hello [[tool:write_file {"path": "a<b.svg", "content": "<svg onload=x>"}]]')
        await page.until("Wrote 14 bytes")
        await page.write('send [[tool:send_file {"path": "a<b.svg", "caption": "as *asked*"}]]')
        await page.until("as asked")
        shown = await page.html()
        assert f'<img class="sent" data-file="{address}"' in shown
        name = "a&lt;b.svg"
        assert f'data-file="{address}" data-name="{name}" title="Download">{name}</button>' in shown
        status, body, headers = await page.fetch(address)
        assert (status, body) == (200, b"<svg onload=x>")
        assert (headers["Content-Disposition"], headers["X-Content-Type-Options"]) == ("attachment", "nosniff")
        assert (await page.fetch(address, has_key=False))[0] == 401
        for path in ("/chat/other/files/1", "/chat/main/files/2", "/chat/main/files/..%2f..%2fstate.db"):
            assert (await page.fetch(path))[0] == 404, path
    await world.gateway.kill()
    await world.gateway.start(**FREELY)
    async with page_of(world) as page:
        assert (await page.html()).count('class="sent"') == 1
