"""Meaning of Telegram updates, case by case."""

from typing import Any

import pytest
from telegram import Update

from hermes_state.values import AttachmentKind, ChatKind, EditEvent, InboundMessage, ReactionEvent
from platforms.telegram.inbound import UpdateReader, read_migration
from tests.fakes import tg_markup

READER = UpdateReader(bot_id=123456, username="Our_Bot")
ADA = {"id": 42, "is_bot": False, "first_name": "Ada", "last_name": "L"}
US = {"id": 123456, "is_bot": True, "first_name": "Ours", "username": "Our_Bot"}
PRIVATE = {"id": 42, "type": "private", "first_name": "Ada"}
GROUP = {"id": -1001, "type": "supergroup", "title": "Friends"}
FORUM = {**GROUP, "is_forum": True}


def message(text: str | None = "hello", *, chat: dict[str, Any] = PRIVATE, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"message_id": 7, "date": 1_700_000_000, "from": ADA, "chat": chat, **fields}
    if text is not None:
        made["text"] = text
        made.setdefault("entities", tg_markup.detect(text))
    return made


def update(kind: str = "message", **fields: Any) -> Update:
    return Update.de_json({"update_id": 900, kind: message(**fields)}, None)


def read(kind: str = "message", **fields: Any) -> InboundMessage | EditEvent | ReactionEvent | None:
    return READER.read(update(kind, **fields))


def read_one(**fields: Any) -> InboundMessage:
    received = read(**fields)
    assert isinstance(received, InboundMessage)
    return received


def test_a_private_message_has_every_field() -> None:
    received = read_one(text="hello")
    assert (received.event_ref, received.chat.name) == ("123456:m:42:7", "telegram:42")
    assert received.chat_kind is ChatKind.DIRECT
    assert (received.sender.ref, received.sender.name, received.sender.is_bot) == ("telegram:42", "Ada L", False)
    assert (received.message_ref, received.sent_at) == ("7", 1_700_000_000_000)
    assert received.is_addressed


@pytest.mark.parametrize(
    ("text", "is_addressed", "meant"),
    [
        ("hello all", False, "hello all"),
        ("@our_bot hello", True, "hello"),
        ("@Our_Bot, hello @ada", True, "hello @ada"),
        ("hello @our_bot", True, "hello @our_bot"),
        ("👋 @our_bot and @ada", True, "👋 @our_bot and @ada"),
        ("@our_bot", True, ""),
        ("@our_bottle hello", False, "@our_bottle hello"),
        ("mail me@our_bot.example", False, "mail me@our_bot.example"),
        ("/stop", True, "/stop"),
        ("/stop@our_bot", True, "/stop"),
        ("/title@OUR_BOT Plans for 世界", True, "/title Plans for 世界"),
        ("say /stop@other_bot", False, "say /stop@other_bot"),
    ],
)
def test_a_mention_or_command_addresses_the_bot_in_a_group(text: str, is_addressed: bool, meant: str) -> None:
    received = read_one(text=text, chat=GROUP)
    assert (received.is_addressed, received.text) == (is_addressed, meant)
    assert received.chat_kind is ChatKind.GROUP
    assert received.chat_title == "Friends"


def test_a_command_for_another_bot_is_ignored() -> None:
    assert read(text="/stop@other_bot", chat=GROUP) is None


@pytest.mark.parametrize(
    ("fields", "is_bare_command"),
    [
        ({"text": "/roll 6"}, True),
        ({"text": "/roll@our_bot 6"}, False),
        ({"text": "@our_bot /roll 6"}, False),
        ({"text": "roll 6"}, False),
        ({"text": "/roll 6", "chat": PRIVATE}, False),
        ({"text": "/roll 6", "reply_to_message": {**message("dice?", chat=GROUP), "message_id": 5, "from": US}}, False),
        ({"text": "/roll 6", "reply_to_message": {**message("dice?", chat=GROUP), "message_id": 5}}, True),
    ],
)
def test_a_bare_command_in_a_group_is_marked(fields: dict[str, Any], is_bare_command: bool) -> None:
    received = read_one(**{"chat": GROUP, **fields})
    assert received.is_bare_command is is_bare_command
    assert received.is_addressed is (fields["text"] != "roll 6")


def test_a_mention_by_account_addresses_us_without_our_name() -> None:
    entity = {"type": "text_mention", "offset": 0, "length": 4, "user": US}
    received = read_one(text="Ours what now?", chat=GROUP, entities=[entity])
    assert (received.is_addressed, received.text) == (True, "what now?")


def test_a_reply_to_us_addresses_us_and_quotes_the_answered_message() -> None:
    original = {**message("x" * 600, chat=GROUP), "message_id": 5, "from": US}
    received = read_one(text="why?", chat=GROUP, reply_to_message=original)
    assert received.is_addressed
    assert received.quote is not None
    assert (received.quote.message_ref, received.quote.author, received.quote.is_from_bot) == ("5", "Ours", True)
    assert received.quote.text == "x" * 500


def test_a_reply_to_somebody_else_is_quoted_but_does_not_address_us() -> None:
    original = {**message("their words", chat=GROUP), "message_id": 5}
    received = read_one(text="agreed", chat=GROUP, reply_to_message=original)
    assert not received.is_addressed
    assert received.quote is not None
    assert (received.quote.text, received.quote.author, received.quote.is_from_bot) == ("their words", "Ada L", False)


TOPIC_CREATED = {
    **message(None, chat=FORUM),
    "message_id": 17,
    "from": US,
    "forum_topic_created": {"name": "Plans", "icon_color": 1},
}


@pytest.mark.parametrize(
    ("fields", "thread_ref", "kind"),
    [
        ({"chat": PRIVATE}, "", ChatKind.DIRECT),
        ({"chat": GROUP}, "", ChatKind.GROUP),
        ({"chat": GROUP, "message_thread_id": 5}, "", ChatKind.GROUP),
        ({"chat": FORUM}, "", ChatKind.GROUP),
        ({"chat": FORUM, "message_thread_id": 1, "is_topic_message": True}, "", ChatKind.GROUP),
        ({"chat": FORUM, "message_thread_id": 5}, "", ChatKind.GROUP),
        ({"chat": FORUM, "message_thread_id": 17, "is_topic_message": True}, "17", ChatKind.THREAD),
        ({"chat": PRIVATE, "message_thread_id": 17, "is_topic_message": True}, "17", ChatKind.DIRECT),
    ],
    ids=["direct", "group", "reply in a group", "forum", "general topic", "reply in general", "topic", "direct topic"],
)
def test_only_topics_are_separate_chats(fields: dict[str, Any], thread_ref: str, kind: ChatKind) -> None:
    received = read_one(**fields)
    assert (received.chat.thread_ref, received.chat_kind) == (thread_ref, kind)


def test_a_message_in_a_topic_that_we_created_is_not_a_reply() -> None:
    received = read_one(chat=FORUM, message_thread_id=17, is_topic_message=True, reply_to_message=TOPIC_CREATED)
    assert not received.is_addressed
    assert received.quote is None


@pytest.mark.parametrize(
    ("text", "expects_more"),
    [("x" * 3895, False), ("x" * 3896, True), ("👋" * 1947, False), ("👋" * 1948, True), ("世" * 3896, True)],
)
def test_a_text_near_the_limit_expects_more(text: str, expects_more: bool) -> None:
    assert read_one(text=text).expects_more is expects_more


def test_a_piece_of_an_album_expects_more() -> None:
    photo = [{"file_id": f"f{size}", "file_unique_id": f"u{size}", "width": size, "height": size} for size in (90, 640)]
    received = read_one(text=None, photo=photo, caption="our trip", media_group_id="g1")
    assert received.expects_more
    assert received.text == "our trip"
    [attachment] = received.attachments
    assert (attachment.kind, attachment.file_ref, attachment.mime) == (AttachmentKind.IMAGE, "f640", "image/jpeg")


FILE = {"file_id": "f", "file_unique_id": "u", "file_size": 9}


@pytest.mark.parametrize(
    ("fields", "kind", "name"),
    [
        ({"document": {**FILE, "file_name": "a.py", "mime_type": "text/x-python"}}, AttachmentKind.DOCUMENT, "a.py"),
        ({"document": {**FILE, "file_name": "a.png", "mime_type": "image/png"}}, AttachmentKind.IMAGE, "a.png"),
        ({"voice": {**FILE, "duration": 1}}, AttachmentKind.VOICE, "voice.ogg"),
        ({"audio": {**FILE, "duration": 1}}, AttachmentKind.AUDIO, "audio"),
        ({"video": {**FILE, "duration": 1, "width": 1, "height": 1}}, AttachmentKind.VIDEO, "video.mp4"),
        ({"video_note": {**FILE, "duration": 1, "length": 1}}, AttachmentKind.VIDEO, "video-note.mp4"),
        (
            {"animation": {**FILE, "duration": 1, "width": 1, "height": 1}, "document": {**FILE, "file_name": "a.gif"}},
            AttachmentKind.VIDEO,
            "animation.mp4",
        ),
        ({"story": {"chat": {"id": -5, "type": "channel", "title": "News"}, "id": 2}}, AttachmentKind.OTHER, "story"),
        ({"hologram": {"file_id": "f"}}, AttachmentKind.OTHER, "hologram"),
        ({"hologram": {"file_id": "f"}, "caption": "see"}, AttachmentKind.OTHER, "hologram"),
        ({"paid_media": {"star_count": 1, "paid_media": []}}, AttachmentKind.OTHER, "paid media"),
    ],
)
def test_every_kind_of_file_becomes_an_attachment(fields: dict[str, Any], kind: AttachmentKind, name: str) -> None:
    [attachment] = read_one(text=None, **fields).attachments
    assert (attachment.kind, attachment.name) == (kind, name)


PLACE = {"longitude": 13.4, "latitude": 52.5}
POLL = {
    **dict.fromkeys(("is_closed", "is_anonymous", "allows_multiple_answers", "allows_revoting", "members_only"), False),
    **{"id": "1", "total_voter_count": 2},
}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"location": PLACE}, "Location: latitude 52.5, longitude 13.4"),
        ({"location": {**PLACE, "live_period": 900}}, "Live location: latitude 52.5, longitude 13.4"),
        (
            {"venue": {"location": PLACE, "title": "Café", "address": "Main St 1"}, "location": PLACE},
            "Venue: Café, Main St 1: latitude 52.5, longitude 13.4",
        ),
        ({"contact": {"phone_number": "1", "first_name": "Ada"}}, "Contact: Ada, phone 1"),
        (
            {"contact": {"phone_number": "1", "first_name": "Ada", "last_name": "L", "vcard": "BEGIN:VCARD"}},
            "Contact: Ada L, phone 1\nBEGIN:VCARD",
        ),
        (
            {
                "poll": {
                    **POLL,
                    "type": "quiz",
                    "question": "Tea?",
                    "options": [{"persistent_id": "a", "text": "Green", "voter_count": 2}],
                }
            },
            "Quiz poll: Tea?\n- Green (2 votes)",
        ),
        (
            {
                "checklist": {
                    "title": "Trip",
                    "tasks": [
                        {"id": 1, "text": "pack", "completed_by_user": ADA, "completion_date": 1},
                        {"id": 2, "text": "go", "completion_date": 0},
                    ],
                }
            },
            "Checklist: Trip\n- pack (done)\n- go",
        ),
        ({"dice": {"emoji": "🎲", "value": 3}}, "Dice: 🎲 shows 3"),
    ],
)
def test_fields_become_words(fields: dict[str, Any], text: str) -> None:
    received = read_one(text=None, **fields)
    assert (received.text, received.attachments) == (text, ())


@pytest.mark.parametrize(
    "fields",
    [
        {"new_chat_members": [ADA]},
        {"left_chat_member": ADA},
        {"new_chat_title": "Better friends"},
        {"forum_topic_created": {"name": "Plans", "icon_color": 1}},
        {"pinned_message": message("pinned", chat=GROUP)},
    ],
)
def test_service_messages_are_ignored(fields: dict[str, Any]) -> None:
    assert read(text=None, chat=GROUP, **fields) is None


def test_the_sender_of_an_anonymous_admin_is_the_chat() -> None:
    received = read_one(chat=GROUP, sender_chat=GROUP)
    assert (received.sender.ref, received.sender.name) == ("telegram:-1001", "Friends")


def test_another_bot_is_marked_as_one() -> None:
    assert read_one(chat=GROUP, **{"from": {**US, "id": 9}}).sender.is_bot


PAID = {"type": "paid"}
CUSTOM = {"type": "custom_emoji", "custom_emoji_id": "5368324170671202286"}


@pytest.mark.parametrize(
    ("old", "new", "fields", "expected"),
    [
        ("", "👍", {}, (1, False)),
        ("👍", "👎", {}, (-1, False)),
        ("👍", "👎👍", {}, (-1, False)),
        ("👎👍", "👍", {}, (1, False)),
        ("👍", "❤", {}, (1, True)),
        ("👍", "", {"new_reaction": [CUSTOM, PAID]}, (1, True)),
        ("❤", "🔥", {}, None),
        ("", "👍", {"user": None, "actor_chat": GROUP}, None),
    ],
)
def test_a_reaction_is_read_as_the_new_or_the_removed_thumb(
    old: str, new: str, fields: dict[str, Any], expected: tuple[int, bool] | None
) -> None:
    both = [[{"type": "emoji", "emoji": emoji} for emoji in one] for one in (old, new)]
    changed = {"chat": FORUM, "message_id": 61, "date": 1_735_689_901, "user": ADA}
    raw = {**changed, "old_reaction": both[0], "new_reaction": both[1], **fields}
    received = READER.read(Update.de_json({"update_id": 900, "message_reaction": raw}, None))
    assert received is None or isinstance(received, ReactionEvent)
    assert (None if received is None else (received.value, received.is_removed)) == expected


def test_an_edit_carries_the_new_text_and_its_time() -> None:
    received = read("edited_message", text="/title@our_bot New", chat=GROUP, edit_date=1_700_000_100)
    assert isinstance(received, EditEvent)
    assert (received.text, received.message_ref, received.sent_at) == ("/title New", "7", 1_700_000_100_000)


@pytest.mark.parametrize(
    ("chat", "fields"),
    [
        ({"id": -5, "type": "group", "title": "Friends"}, {"migrate_to_chat_id": -1005}),
        ({"id": -1005, "type": "supergroup", "title": "Friends"}, {"migrate_from_chat_id": -5}),
    ],
)
def test_both_messages_about_a_migration_give_the_same_ids(chat: dict[str, Any], fields: dict[str, Any]) -> None:
    assert read_migration(update(text=None, chat=chat, **fields)) == ("-5", "-1005")
    assert read(text=None, chat=chat, **fields) is None
