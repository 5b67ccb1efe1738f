"""Events of Discord as values: who is addressed, in which chat, and with which text."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hermes_state.errors import MessageRejected, PlatformUnavailable
from hermes_state.values import AttachmentKind, ChatKind, ChatScope, EditEvent, InboundMessage, IncomingAttachment
from platforms.discord.inbound import FileRef
from tests.fakes.discord_state import GUILD, ROLES
from tests.platforms.contract import request
from tests.platforms.discord.harness import ALICE, BOB, BOT, GENERAL, DiscordHarness, chat

OTHER_BOT = "900000000000000077"


async def heard(live: DiscordHarness, content: str, **data: Any) -> InboundMessage:
    """Return what the adapter reads from a message in `general` (or the channel in `data`)."""
    before = len(live.intake.messages)
    await live.message(content, **{"channel": "general", "user_id": ALICE, **data})
    return (await live.intake.wait_for(before + 1))[before]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (f"<@{BOT}> what now?", "what now?"),
        (f"<@!{BOT}>, what now?", "what now?"),
        (f"<@{BOT}>: what now?", "what now?"),
        (f"  <@{BOT}>\nwhat now?", "what now?"),
        (f"what does <@{BOT}> say?", "what does @labgateway say?"),
        (f"<@{BOT}> ask <@{BOB}>", "ask @bob"),
    ],
)
async def test_the_bots_name_addresses_it(live: DiscordHarness, content: str, text: str) -> None:
    message = await heard(live, content)
    assert message.is_addressed
    assert message.text == text
    assert message.chat_kind is ChatKind.GROUP
    assert (message.chat, message.chat_title) == (chat(GENERAL), "general")
    assert message.event_ref.startswith(f"{BOT}:")


@pytest.mark.parametrize("content", ["hello all", f"<@{BOB}> hello", "@everyone look", f"{BOT} labgateway"])
async def test_other_messages_do_not_address_it(live: DiscordHarness, content: str) -> None:
    assert not (await heard(live, content)).is_addressed


async def test_a_reply_of_a_person_to_the_bot_addresses_it(live: DiscordHarness) -> None:
    answer = await live.adapter.send(request(chat(GENERAL), "I say so"))
    message = await heard(live, "why?", reply_to=answer)
    assert message.is_addressed
    assert message.quote is not None
    assert (message.quote.message_ref, message.quote.text, message.quote.is_from_bot) == (answer, "I say so", True)


async def test_a_reply_to_somebody_else_is_quoted_but_does_not_address_it(live: DiscordHarness) -> None:
    said = await heard(live, "lunch?", user_id=BOB)
    message = await heard(live, "yes", reply_to=said.message_ref)
    assert not message.is_addressed
    assert message.quote is not None
    assert (message.quote.author, message.quote.is_from_bot) == ("bob", False)


async def test_the_ping_of_another_bots_reply_is_not_a_mention(live: DiscordHarness) -> None:
    answer = await live.adapter.send(request(chat(GENERAL), "I say so"))
    reply = await heard(live, "interesting", user_id=OTHER_BOT, is_bot=True, reply_to=answer)
    assert not reply.is_addressed
    assert reply.sender.is_bot
    assert (await heard(live, f"<@{BOT}> hello", user_id=OTHER_BOT, is_bot=True)).is_addressed


async def test_a_message_tells_its_server_its_parent_channel_and_the_roles_of_its_author(live: DiscordHarness) -> None:
    low, high = ROLES
    thread = await live.post("channel", {"channel": "general", "thread": "plans", "user_id": ALICE})
    await live.post("roles", {"user_id": BOB, "roles": [low, high]})
    scope = ChatScope(guild_ref=GUILD, parent_ref=GENERAL, role_refs=f"{high} {low}")
    assert (await heard(live, "in here", channel_id=thread["id"], user_id=BOB)).scope == scope
    assert (await heard(live, "out here", user_id=ALICE)).scope == ChatScope(guild_ref=GUILD)
    assert (await heard(live, "in private", dm_user_id=ALICE)).scope is None


async def test_a_thread_is_a_separate_chat(live: DiscordHarness) -> None:
    thread = await live.post("channel", {"channel": "general", "thread": "plans", "user_id": ALICE})
    message = await heard(live, "in here", channel_id=thread["id"], mention=True)
    assert message.chat_kind is ChatKind.THREAD
    assert (message.chat.name, message.chat.thread_ref) == (f"discord:{thread['id']}", "")
    assert message.chat_title == "plans"
    await live.adapter.send(request(message.chat, "answer"))
    assert await live.visible(message.chat) == ["answer"]


async def test_a_message_near_the_limit_expects_more_in_utf16_units(live: DiscordHarness) -> None:
    assert (await heard(live, "👋" * 900)).expects_more
    assert not (await heard(live, "x" * 1799)).expects_more


async def test_the_bots_own_messages_are_ignored(live: DiscordHarness) -> None:
    await live.adapter.send(request(chat(GENERAL), "from me"))
    await live.adapter.send(request(chat(GENERAL), "from me again", key="k2"))
    await heard(live, "from her")
    assert live.intake.texts == ["from her"]


async def test_a_link_preview_is_not_an_edit(live: DiscordHarness) -> None:
    message = await heard(live, "https://example.org")
    raw = live.discord.event_of(live.discord.message(GENERAL, message.message_ref))
    await live.post("event", {"t": "MESSAGE_UPDATE", "d": {**raw, "embeds": [{"title": "Example", "type": "link"}]}})
    await live.post("edit", {"channel_id": GENERAL, "message_id": message.message_ref, "content": f"<@{BOT}> fixed"})
    edit = await live.intake.next_of(EditEvent)
    assert (edit.text, edit.sender.id, len(live.intake.of(EditEvent))) == ("fixed", ALICE, 1)


async def test_each_edit_is_a_new_event_and_a_replay_is_not(live: DiscordHarness) -> None:
    message = await heard(live, "one")
    change = {"channel_id": GENERAL, "message_id": message.message_ref}
    await live.post("edit", {**change, "content": "two"})
    await live.post("edit", {**change, "content": "three"})
    raw = live.discord.event_of(live.discord.message(GENERAL, message.message_ref))
    await live.post("event", {"t": "MESSAGE_UPDATE", "d": raw})
    await heard(live, "afterwards")
    assert [edit.text for edit in live.intake.of(EditEvent)] == ["two", "three"]


SNAPSHOT = {
    **{"type": 0, "content": "", "timestamp": "2026-01-01T00:00:00+00:00", "edited_timestamp": None, "flags": 0},
    **{key: [] for key in ("attachments", "embeds", "mentions", "mention_roles", "components")},
}
BROKEN_BUTTON = {"type": 1, "components": [{"type": 2, "label": "/stop"}]}
"""A button without the style that the SDK requires."""
WAVE = {"id": "1", "name": "Wave", "format_type": 1}
CARD = {"type": 17, "components": [{"type": 10, "content": "card"}]}


def forward(**fields: Any) -> dict[str, Any]:
    return {"content": "", "message_snapshots": [{"message": fields}]}


@pytest.mark.parametrize(
    ("change", "text", "names", "is_forwarded"),
    [
        ({"poll": {"question": {"text": "Tea?"}, "expiry": None}}, "hello", [], False),
        ({"content": "", "poll": {"question": {"text": "Tea?"}, "expiry": None}}, "Tea?", [], True),
        ({"embeds": [{"type": "rich", "color": {}}, {"type": "rich", "title": "T"}]}, "hello", [], False),
        ({"components": [BROKEN_BUTTON]}, "hello", [], False),
        ({"reactions": [{"count": 1}]}, "hello", [], False),
        (forward(**{**SNAPSHOT, "content": "theirs", "components": [BROKEN_BUTTON]}), "theirs", [], True),
        (forward(content="theirs"), "theirs", [], True),
        (forward(**{**SNAPSHOT, "components": [CARD]}), "card", [], True),
        ({"content": "", "sticker_items": [WAVE]}, "", ["sticker Wave"], False),
        ({"content": "", "shared_client_theme": {"colors": ["5865F2"]}}, "", ["this kind of message"], False),
    ],
)  # fmt: skip
async def test_only_unreadable_parts_of_a_message_are_left_out(
    live: DiscordHarness, change: dict[str, Any], text: str, names: list[str], is_forwarded: bool
) -> None:
    message = await heard(live, "placeholder")
    raw = live.discord.event_of(live.discord.message(GENERAL, message.message_ref))
    unknown = {**raw, "id": live.discord.flake(), "content": "hello", **change}
    await live.post("event", {"t": "MESSAGE_CREATE", "d": unknown})
    received = (await live.intake.wait_for(2))[1]
    assert (received.text, received.words_by is not None) == (text, is_forwarded)
    assert [one.name for one in received.attachments] == names


async def test_an_edit_is_read_without_parts_unknown_to_the_sdk(live: DiscordHarness) -> None:
    message = await heard(live, "one")
    stored = live.discord.event_of(live.discord.message(GENERAL, message.message_ref))
    change = {"content": "two", "edited_timestamp": "2026-01-01T00:00:00+00:00", "components": [BROKEN_BUTTON]}
    await live.post("event", {"t": "MESSAGE_UPDATE", "d": {**stored, **change}})
    await heard(live, "afterwards")
    assert [edit.text for edit in live.intake.of(EditEvent)] == ["two"]


@pytest.mark.parametrize(
    ("mime", "kind"),
    [
        ("image/png", AttachmentKind.IMAGE),
        ("audio/ogg", AttachmentKind.AUDIO),
        ("video/mp4", AttachmentKind.VIDEO),
        ("text/plain; charset=utf-8", AttachmentKind.DOCUMENT),
        ("application/pdf", AttachmentKind.DOCUMENT),
    ],
)
async def test_files_are_sorted_by_kind(live: DiscordHarness, mime: str, kind: AttachmentKind) -> None:
    files = [{"filename": "file", "text": "data", "content_type": mime}]
    [attachment] = (await heard(live, "", files=files)).attachments
    assert attachment.kind is kind
    assert (attachment.mime, attachment.size_bytes) == (mime.partition(";")[0], 4)


@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_an_expired_address_is_renewed(live: DiscordHarness, tmp_path: Path, is_forwarded: bool) -> None:
    fields: dict[str, Any] = {"files": [{"filename": "a.txt", "text": "data"}]}
    if is_forwarded:
        snapshot = {**SNAPSHOT, "attachments": live.discord.files_of(fields)}
        fields = {"message_snapshots": [{"message": snapshot}]}
    [attachment] = (await heard(live, "", **fields)).attachments
    old = msgspec.structs.replace(FileRef.decode(attachment.file_ref), url=f"{live.server.url}/_cdn/0/a.txt")
    stale = IncomingAttachment(kind=attachment.kind, file_ref=old.encode(), name="a.txt")
    assert await live.adapter.download(stale, tmp_path / "a.txt", 100) == 4
    assert (tmp_path / "a.txt").read_bytes() == b"data"


async def test_a_file_that_is_gone_is_rejected(live: DiscordHarness, tmp_path: Path) -> None:
    message = await heard(live, "", files=[{"filename": "a.txt", "text": "data"}])
    await live.post("delete", {"channel_id": GENERAL, "message_id": message.message_ref})
    live.discord.files.clear()
    with pytest.raises(MessageRejected):
        await live.adapter.download(message.attachments[0], tmp_path / "a.txt", 100)
    assert not (tmp_path / "a.txt").exists()


async def test_a_file_that_is_too_large_is_removed(live: DiscordHarness, tmp_path: Path) -> None:
    message = await heard(live, "", files=[{"filename": "a.txt", "text": "x" * 600_000}])
    with pytest.raises(MessageRejected):
        await live.adapter.download(message.attachments[0], tmp_path / "a.txt", 300_000)
    assert not (tmp_path / "a.txt").exists()


async def test_an_unreachable_file_server_is_retryable(live: DiscordHarness, tmp_path: Path) -> None:
    [attachment] = (await heard(live, "", files=[{"filename": "a.txt", "text": "data"}])).attachments
    await live.server.stop()
    with pytest.raises(PlatformUnavailable):
        await live.adapter.download(attachment, tmp_path / "a.txt", 100)


async def test_an_invalid_file_reference_is_rejected(live: DiscordHarness, tmp_path: Path) -> None:
    sticker = IncomingAttachment(kind=AttachmentKind.OTHER, file_ref="https://example.org/x.png", name="sticker x")
    with pytest.raises(MessageRejected):
        await live.adapter.download(sticker, tmp_path / "x", 100)
