"""Outgoing answers: placeholders, drafts, repeats, topics, buttons and refusals."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hermes_state.errors import (
    ChatMoved,
    ChatUnreachable,
    FileSizeExceeded,
    MessageRejected,
    PlatformUnavailable,
    SendAmbiguous,
)
from hermes_state.values import AttachmentKind, Button, ChatKey, IncomingAttachment
from platforms.base import Preview, SendRequest
from platforms.telegram.adapter import local_path
from tests.platforms.contract import eventually, request, running
from tests.platforms.telegram.harness import GROUP, PERSON, TelegramHarness
from tests.platforms.telegram.test_rendering import ANSWERS, AnswerMaker

FORUM = -1002
TOPIC = 17


def preview(chat: ChatKey, text: str, ref: str | None = None) -> Preview:
    return Preview(chat=chat, is_shared=int(chat.chat_ref) < 0, number=9, text=text, ref=ref)


def topic(thread_ref: str = str(TOPIC)) -> ChatKey:
    return ChatKey(platform="telegram", account="telegram", chat_ref=str(FORUM), thread_ref=thread_ref)


@pytest.fixture
def rendered(telegram: TelegramHarness) -> Callable[..., SendRequest]:
    """Return a send request for Markdown that fits one part."""
    numbers = itertools.count()

    def make(text: str, **fields: Any) -> SendRequest:
        [part] = telegram.adapter.render(text)
        return SendRequest(**{"chat": telegram.direct_chat, "part": part, "key": f"k{next(numbers)}", **fields})

    return make


class TestMarkup:
    async def test_entities_are_sent_as_stored(
        self, live: TelegramHarness, rendered: Callable[..., SendRequest]
    ) -> None:
        await live.adapter.send(rendered("👋 **bold** and `code`"))
        [message] = (await live.get(f"chat/{PERSON}"))["messages"]
        assert message["entities"] == [
            {"type": "bold", "offset": 3, "length": 4},
            {"type": "code", "offset": 12, "length": 4},
        ]

    async def test_the_plain_form_is_sent_without_entities(
        self, live: TelegramHarness, rendered: Callable[..., SendRequest]
    ) -> None:
        await live.adapter.send(replace(rendered("**bold**"), is_plain=True))
        [message] = (await live.get(f"chat/{PERSON}"))["messages"]
        assert message["text"] == "bold"
        assert "entities" not in message

    @pytest.mark.fuzz
    async def test_random_answers_reach_the_chat_without_a_refusal(self, live: TelegramHarness) -> None:
        texts = []
        for seed in range(ANSWERS):
            for part in live.adapter.render(AnswerMaker(seed).answer()):
                texts.append(part.text.strip())
                await live.adapter.send(SendRequest(chat=live.direct_chat, part=part, key="k"))
        assert [text.strip() for text in await live.visible(live.direct_chat)] == texts


class TestPlaceholders:
    async def test_a_placeholder_that_was_deleted_is_replaced_by_a_new_message(self, live: TelegramHarness) -> None:
        ref = await live.adapter.send(request(live.direct_chat, "draft"))
        await live.control.post("/bot123456:LABTOKEN/deleteMessage", json={"chat_id": PERSON, "message_id": ref})
        assert await live.adapter.send(request(live.direct_chat, "final", replaces=ref)) != ref
        assert await live.visible(live.direct_chat) == ["final"]

    async def test_an_edit_of_a_deleted_message_sends_no_other(self, live: TelegramHarness) -> None:
        ref = await live.adapter.send(request(live.direct_chat, "the error"))
        await live.control.post("/bot123456:LABTOKEN/deleteMessage", json={"chat_id": PERSON, "message_id": ref})
        edit = replace(request(live.direct_chat, "the error", replaces=ref), only_edits=True)
        assert await live.adapter.send(edit) == ref
        assert await live.visible(live.direct_chat) == []

    async def test_an_edit_whose_answer_was_lost_can_be_repeated(self, live: TelegramHarness) -> None:
        ref = await live.adapter.send(request(live.direct_chat, "draft"))
        await live.fault(match="editMessageText", kind="reset_after")
        final = request(live.direct_chat, "final", replaces=ref)
        with pytest.raises(SendAmbiguous):
            await live.adapter.send(final)
        assert await live.adapter.send(replace(final, is_repeat=True)) == ref
        assert await live.visible(live.direct_chat) == ["final"]

    async def test_a_repeat_without_placeholder_says_that_it_may_be_one(
        self, live: TelegramHarness, rendered: Callable[..., SendRequest]
    ) -> None:
        answer = rendered("the **answer**")
        await live.fault(match="sendMessage", kind="reset_after")
        with pytest.raises(SendAmbiguous):
            await live.adapter.send(answer)
        await live.adapter.send(replace(answer, is_repeat=True))
        first, second = (await live.get(f"chat/{PERSON}"))["messages"]
        assert (first["text"], second["text"]) == ("the answer", "(possibly a repeat) the answer")
        [bold] = second["entities"]
        assert second["text"][bold["offset"] : bold["offset"] + bold["length"]] == "answer"

    async def test_a_repeat_after_its_placeholder_was_deleted_says_that_it_may_be_one(
        self, live: TelegramHarness
    ) -> None:
        answer = request(live.direct_chat, "final", replaces="4711")
        await live.fault(match="sendMessage", kind="reset_after")
        with pytest.raises(SendAmbiguous):
            await live.adapter.send(answer)
        await live.adapter.send(replace(answer, is_repeat=True))
        assert await live.visible(live.direct_chat) == ["final", "(possibly a repeat) final"]


class TestPreviews:
    async def test_direct_chats_stream_as_drafts_of_the_turn(self, live: TelegramHarness) -> None:
        for text in ("one", "one **two**"):
            assert await live.adapter.show(preview(live.direct_chat, text)) is None
        drafts = await live.sent("sendMessageDraft")
        assert [(row["draft_id"], row["draft_text"]) for row in drafts] == [(9, "one"), (9, "one two")]
        assert await live.visible(live.direct_chat) == []

    async def test_groups_stream_by_edits_of_one_placeholder(self, live: TelegramHarness) -> None:
        group = live.group_chat()
        ref = await live.adapter.show(preview(group, "one"))
        assert await live.adapter.show(preview(group, "one two", ref)) == ref
        assert await live.adapter.show(preview(group, "one two", ref)) == ref, "an unchanged text is no error"
        assert await live.visible(group) == ["one two …"]

    async def test_a_server_without_drafts_gets_placeholders(self, telegram: TelegramHarness) -> None:
        await telegram.fault(match="sendMessageDraft", kind="status", status=404, times=-1, description="Not Found")
        async with telegram.running():
            ref = await telegram.adapter.show(preview(telegram.direct_chat, "one"))
            assert ref is not None
            assert await telegram.adapter.show(preview(telegram.direct_chat, "one two", ref)) == ref
        assert len(await telegram.calls("sendMessageDraft")) == 1
        assert await telegram.visible(telegram.direct_chat) == ["one two …"]

    async def test_only_a_chat_that_refuses_drafts_gets_placeholders(self, telegram: TelegramHarness) -> None:
        refusal = {"kind": "status", "status": 400, "description": "Bad Request: TEXTDRAFT_PEER_INVALID"}
        await telegram.fault(match="sendMessageDraft", times=1, **refusal)
        async with telegram.running():
            ref = await telegram.adapter.show(preview(telegram.direct_chat, "one"))
            assert ref is not None
            assert await telegram.adapter.show(preview(telegram.direct_chat, "one two", ref)) == ref
            assert await telegram.adapter.show(preview(telegram.direct_chat, "next turn")) is None
        assert await telegram.visible(telegram.direct_chat) == ["one two …"]

    async def test_a_placeholder_that_may_exist_is_not_created_again(self, live: TelegramHarness) -> None:
        group = live.group_chat()
        await live.fault(match="sendMessage", kind="reset_after")
        with pytest.raises(SendAmbiguous):
            await live.adapter.show(preview(group, "one"))
        assert await live.adapter.show(preview(group, "one two")) is None
        assert await live.visible(group) == ["one …"], "a copy for every lost answer would fill the group"
        next_turn = replace(preview(group, "another"), number=10)
        assert await live.adapter.show(next_turn) is not None

    async def test_a_placeholder_cancelled_while_sending_is_not_created_again(self, live: TelegramHarness) -> None:
        group = live.group_chat()
        await live.fault(match="sendMessage", kind="delay", seconds=3)
        showing = asyncio.create_task(live.adapter.show(preview(group, "one")))
        async with asyncio.timeout(20):
            while not (await live.get("faults"))["fired"]:  # noqa: ASYNC110 - a fault has no event
                await asyncio.sleep(0.01)  # until the send has started
        showing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await showing
        assert await live.adapter.show(preview(group, "one two")) is None

    async def test_a_refused_placeholder_is_retried(self, live: TelegramHarness) -> None:
        await live.fault(match="sendMessage", kind="status", status=409)
        with pytest.raises(PlatformUnavailable):
            await live.adapter.show(preview(live.group_chat(), "one"))
        assert await live.adapter.show(preview(live.group_chat(), "one")) is not None

    async def test_a_long_preview_shows_its_newest_part(self, live: TelegramHarness) -> None:
        lines = [f"line {number}" for number in range(1000)]
        await live.adapter.show(preview(live.direct_chat, "\n".join(lines)))
        [draft] = await live.sent("sendMessageDraft")
        assert draft["draft_text"].endswith("line 999")
        assert "line 1\n" not in draft["draft_text"]


class TestTopics:
    async def test_everything_goes_to_the_topic_it_belongs_to(self, telegram: TelegramHarness) -> None:
        await telegram.post("chat", {"chat_id": FORUM, "thread_id": TOPIC})
        async with telegram.running():
            await telegram.adapter.show_typing(topic())
            ref = await telegram.adapter.show(preview(topic(), "thinking"))
            await telegram.adapter.send(request(topic(), "thought", replaces=ref))
            await telegram.adapter.send(request(topic(), "second part"))
        rows = await telegram.sent(chat_id=FORUM)
        assert {str(row["thread_id"]) for row in rows} == {str(TOPIC)}

    async def test_an_answer_to_a_deleted_topic_goes_to_the_group(self, telegram: TelegramHarness) -> None:
        await telegram.post("chat", {"chat_id": FORUM, "is_forum": True})
        async with telegram.running():
            await telegram.adapter.send(request(topic("99"), "the answer"))
        assert await telegram.visible(topic()) == ["the answer"]


class TestReplies:
    async def test_a_streamed_answer_is_a_reply_from_its_first_preview(self, telegram: TelegramHarness) -> None:
        asked = (await telegram.message(chat_id=GROUP, user_id=PERSON, text="why?"))["message_id"]
        group = telegram.group_chat()
        async with telegram.running():
            ref = await telegram.adapter.show(replace(preview(group, "bec"), reply_to=str(asked)))
            await telegram.adapter.send(replace(request(group, "because"), reply_to=str(asked), replaces=ref))
            await telegram.adapter.send(replace(request(group, "more"), reply_to=str(asked)))
        messages = (await telegram.get(f"chat/{GROUP}"))["messages"][-2:]
        assert [(one["text"], one["reply_to_message"]["message_id"]) for one in messages] == [
            ("because", asked),
            ("more", asked),
        ]

    async def test_a_reply_to_a_deleted_message_is_still_sent(self, live: TelegramHarness) -> None:
        await live.adapter.send(replace(request(live.direct_chat, "because"), reply_to="999"))
        assert await live.visible(live.direct_chat) == ["because"]


class TestButtons:
    async def test_a_press_is_answered_and_a_long_command_survives_a_restart(self, telegram: TelegramHarness) -> None:
        command = "/resume " + "a title that is longer than a button can carry " * 2
        buttons = (Button(label="Resume", command=command), Button(label="Stop", command="/stop"))
        async with telegram.running():
            await telegram.adapter.send(request(telegram.direct_chat, "Which?", buttons=buttons))
        async with running(telegram.another_adapter(), telegram.intake):
            await telegram.press("Resume")
            await telegram.press("Stop")
            await telegram.intake.wait_for(2)
            await eventually_answered(telegram, 2)
        assert telegram.intake.texts == [command, "/stop"]

    async def test_a_press_in_a_group_has_its_own_sender(self, live: TelegramHarness) -> None:
        buttons = (Button(label="Yes", command="/approve 7"),)
        ref = await live.adapter.send(request(live.group_chat(), "May I?", buttons=buttons))
        await live.post("callback", {"chat_id": GROUP, "user_id": 77, "message_id": int(ref), "button": "Yes"})
        [press] = await live.intake.wait_for(1)
        assert (press.sender.ref, press.chat, press.message_ref) == ("telegram:77", live.group_chat(), ref)

    async def test_an_unknown_press_gets_a_message(self, live: TelegramHarness) -> None:
        buttons = (Button(label="Yes", command="/approve 7"),)
        ref = await live.adapter.send(request(live.direct_chat, "May I?", buttons=buttons))
        for data in ("from another program", "h:unknown"):
            press = {"chat_id": PERSON, "user_id": PERSON, "message_id": int(ref), "data": data}
            await live.post("callback", press)
        rows = await eventually_answered(live, 2)
        assert {row["params"]["text"] for row in rows} == {"This button no longer works."}
        assert live.intake.messages == []

    async def test_an_unstored_press_is_not_answered_yet(self, live: TelegramHarness) -> None:
        buttons = (Button(label="Yes", command="/approve 7"),)
        await live.adapter.send(request(live.direct_chat, "May I?", buttons=buttons))
        live.intake.gate.clear()
        await live.press("Yes")
        await eventually(lambda: bool(live.intake.offered), "the press was offered")
        assert await live.sent("answerCallbackQuery") == []
        live.intake.gate.set()
        await eventually_answered(live, 1)


async def eventually_answered(telegram: TelegramHarness, count: int) -> list[dict[str, Any]]:
    rows = await telegram.sent("answerCallbackQuery", count=count, wait=15)
    assert len(rows) == count
    return rows


class TestRefusals:
    @pytest.mark.parametrize("reason", ["blocked", "kicked", "deactivated", "restricted"])
    async def test_an_unreachable_chat_is_reported_as_unreachable(self, live: TelegramHarness, reason: str) -> None:
        await live.post("chat", {"chat_id": PERSON, "blocked": reason})
        for chat_ref in (live.direct_chat.chat_ref, "4711"):  # the second is unknown
            with pytest.raises(ChatUnreachable):
                await live.adapter.send(request(replace(live.direct_chat, chat_ref=chat_ref), "hello"))

    async def test_a_migrated_group_names_its_new_id(self, live: TelegramHarness) -> None:
        await live.post("chat", {"chat_id": GROUP, "migrated_to": -100777})
        with pytest.raises(ChatMoved) as caught:
            await live.adapter.send(request(live.group_chat(), "hello"))
        assert caught.value.new_chat_ref == "-100777"

    async def test_a_text_too_long_is_rejected(self, live: TelegramHarness) -> None:
        with pytest.raises(MessageRejected):
            await live.adapter.send(request(live.direct_chat, "x" * 5000))

    @pytest.mark.parametrize("kind", ["reset", "500", "garbage"])
    async def test_a_broken_answer_is_ambiguous(self, live: TelegramHarness, kind: str) -> None:
        await live.fault(match="sendMessage", kind=kind)
        with pytest.raises(SendAmbiguous):
            await live.adapter.send(request(live.direct_chat, "hello"))

    @pytest.mark.parametrize(
        "fields",
        [
            {"reply_to_message": {"kind": "of a later Bot API"}},
            {"entities": [{"type": "bold"}], "photo": 7},
            {"chat": {"id": PERSON, "type": "private", "photo": "of a later Bot API"}},
        ],
        ids=["reply", "entities", "chat"],
    )
    async def test_an_answer_with_unknown_shapes_still_means_sent(
        self, live: TelegramHarness, fields: dict[str, object]
    ) -> None:
        await live.fault(match="sendMessage|editMessageText", kind="altered", times=2, fields=fields)
        ref = await live.adapter.send(request(live.direct_chat, "hello"))
        edit = replace(request(live.direct_chat, "changed"), replaces=ref)
        assert await live.adapter.send(edit) == ref
        assert await live.visible(live.direct_chat) == ["changed"]
        assert len((await live.get("faults"))["fired"]) == 2

    @pytest.mark.parametrize("lost", ["message_id", "date"])
    async def test_an_answer_without_a_message_is_ambiguous_only_after_a_send(
        self, live: TelegramHarness, lost: str
    ) -> None:
        ref = await live.adapter.send(request(live.direct_chat, "hello"))
        await live.fault(match="sendMessage|editMessageText", kind="altered", times=2, fields={lost: None})
        edit = replace(request(live.direct_chat, "changed"), replaces=ref)
        assert await live.adapter.send(edit) == ref
        with pytest.raises(SendAmbiguous, match="has no message id"):
            await live.adapter.send(request(live.direct_chat, "more"))

    async def test_an_unknown_answer_to_a_draft_is_ignored(self, live: TelegramHarness) -> None:
        await live.fault(match="sendMessageDraft", kind="altered", fields={"kind": "of a later Bot API"})
        assert await live.adapter.show(preview(live.direct_chat, "half an ans")) is None
        assert len((await live.get("faults"))["fired"]) == 1
        assert await live.sent("sendMessage$") == []

    async def test_silence_after_sending_is_ambiguous(self, telegram: TelegramHarness) -> None:
        adapter = telegram.another_adapter(request_seconds=1.0)
        async with running(adapter, telegram.intake):
            await telegram.fault(match="sendMessage", kind="hang", seconds=20)
            with pytest.raises(SendAmbiguous):
                await adapter.send(request(telegram.direct_chat, "hello"))

    async def test_nothing_is_sent_while_connections_are_closing(
        self, telegram: TelegramHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused: list[PlatformUnavailable] = []

        async def shut_down() -> None:
            with pytest.raises(PlatformUnavailable) as caught:
                await telegram.adapter.send(request(telegram.direct_chat, "hello"))
            refused.append(caught.value)

        async with telegram.running():
            assert telegram.adapter._client is not None
            polling = telegram.adapter._client.polling
            close = polling.shutdown
            monkeypatch.setattr(polling, "shutdown", shut_down)
        await close()
        assert len(refused) == 1

    async def test_a_revoked_token_keeps_the_answer_for_later(self, live: TelegramHarness) -> None:
        await live.fault(match="sendMessage", kind="401")
        with pytest.raises(PlatformUnavailable):
            await live.adapter.send(request(live.direct_chat, "hello"))


async def test_a_slow_answer_delays_no_other_chat(telegram: TelegramHarness) -> None:
    chats = [replace(telegram.direct_chat, chat_ref=str(5000 + number)) for number in range(300)]
    for chat in chats:
        await telegram.post("chat", {"chat_id": int(chat.chat_ref)})
    await telegram.fault(match="sendMessage", kind="delay", seconds=1, times=256)
    adapter = telegram.another_adapter(request_seconds=10)
    async with running(adapter, telegram.intake):
        async with asyncio.timeout(8):  # needs at least 32 parallel requests
            await asyncio.gather(*(adapter.send(request(chat, "hello")) for chat in chats))


class TestFiles:
    @pytest.fixture
    async def document(self, telegram: TelegramHarness) -> AsyncIterator[IncomingAttachment]:
        async with telegram.running():
            await telegram.write_with_file("notes.txt", b"0123456789" * 1000)
            [message] = await telegram.intake.wait_for(1)
            yield message.attachments[0]

    async def test_a_wrong_size_is_noticed_while_reading(
        self, telegram: TelegramHarness, document: IncomingAttachment, tmp_path: Path
    ) -> None:
        target = tmp_path / "file"
        unannounced = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref=document.file_ref, name="x")
        with pytest.raises(FileSizeExceeded):
            await telegram.adapter.download(unannounced, target, max_bytes=9_999)
        assert not target.exists(), "half a file is no file"
        assert await telegram.adapter.download(unannounced, target, max_bytes=10_000) == 10_000

    async def test_a_file_that_is_gone_is_rejected(
        self, telegram: TelegramHarness, document: IncomingAttachment, tmp_path: Path
    ) -> None:
        for file_ref in ("", "unknown"):
            gone = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref=file_ref, name="x")
            with pytest.raises(MessageRejected):
                await telegram.adapter.download(gone, tmp_path / "file", max_bytes=100)

    async def test_a_file_above_telegrams_download_limit_is_rejected(
        self, live: TelegramHarness, tmp_path: Path
    ) -> None:
        await live.message(media="document", file_name="huge.bin", file_size=30_000_000)
        [message] = await live.intake.wait_for(1)
        with pytest.raises(FileSizeExceeded) as caught:
            await live.adapter.download(message.attachments[0], tmp_path / "file", max_bytes=50_000_000)
        assert caught.value.limit_bytes == 20_000_000

    async def test_a_local_server_names_a_file_on_this_machine(
        self, telegram: TelegramHarness, document: IncomingAttachment, tmp_path: Path
    ) -> None:
        await telegram.post("config", {"local_files": str(tmp_path)})
        target = tmp_path / "file"
        assert await telegram.adapter.download(document, target, max_bytes=10_000) == 10_000
        assert target.read_bytes() == b"0123456789" * 1000
        unannounced = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref=document.file_ref, name="x")
        with pytest.raises(FileSizeExceeded):
            await telegram.adapter.download(unannounced, tmp_path / "capped", max_bytes=9_999)
        assert not (tmp_path / "capped").exists()

    def test_telegrams_own_server_cannot_name_local_files(self) -> None:
        assert local_path("/etc/passwd", "https://api.telegram.org/bot1:x") is None
        assert local_path("documents/file_1.txt", "http://127.0.0.1:8081/bot1:x") is None
        assert local_path("/var/lib/bot/file_1.txt", "http://127.0.0.1:8081/bot1:x") == Path("/var/lib/bot/file_1.txt")

    @pytest.mark.parametrize(("kind", "times"), [("reset", 2), ("502", 1)])  # a reset is retried once automatically
    async def test_a_broken_download_is_retryable(
        self, telegram: TelegramHarness, document: IncomingAttachment, tmp_path: Path, kind: str, times: int
    ) -> None:
        await telegram.fault(match="download", kind=kind, times=times)
        with pytest.raises(PlatformUnavailable):
            await telegram.adapter.download(document, tmp_path / "file", max_bytes=20_000)
        assert await telegram.adapter.download(document, tmp_path / "file", max_bytes=20_000) == 10_000
