"""Messages that a person sends to the page, and the entries that it shows."""

import asyncio
import io
import os
import re
import secrets
import shutil
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from sqlite3 import Connection
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state import attachments
from hermes_state.attachments import StoredFile
from hermes_state.chats import ensure_chat
from hermes_state.errors import MessageRejected, PlatformUnavailable
from hermes_state.files.bucket import open_bucket
from hermes_state.sessions import set_title, start_session
from hermes_state.values import AttachmentKind, Button, ChatKind, IncomingAttachment, InputKind, Millis, OutboundPart
from platforms.base import Preview, SendRequest, TextKind
from platforms.local import pages, uploads
from platforms.local.pages import chat_key
from platforms.local.uploads import MAX_FILES
from tests.fakes.object_store import object_store
from tests.platforms.contract import RecordingIntake, eventually, request, running
from tests.platforms.local.harness import LocalHarness, Screen


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalHarness]:
    made = LocalHarness(tmp_path, max_file_bytes=10_000, max_characters=5_000)
    async with made as harness, harness.running():
        await harness.sign_in()
        yield harness


def new_id() -> str:
    return secrets.token_hex(16)


def spooled(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "spool" / "local").iterdir())


# ---- writing -------------------------------------------------------------------------------------------------


async def test_a_message_is_answered_only_after_it_is_stored(local: LocalHarness) -> None:
    local.intake.gate.clear()
    posting = asyncio.create_task(local.post({"text": "keep me", "client_id": new_id()}))
    await eventually(lambda: bool(local.intake.offered), "the message is on its way")
    assert not posting.done()
    assert (await local.screen()).entries == []
    local.intake.gate.set()
    status, body = await posting
    assert (status, [entry.text for entry in Screen(body).of("person")]) == (200, ["keep me"])


async def test_a_double_submit_is_one_message_with_one_entry(local: LocalHarness) -> None:
    fields = {"text": "once", "client_id": new_id()}
    assert {status for status, _ in await asyncio.gather(*(local.post(fields) for _ in range(5)))} == {200}
    assert (local.intake.texts, len(set(local.intake.offered))) == (["once"], 1)
    assert [entry.text for entry in (await local.screen()).entries] == ["once"]


async def test_the_same_id_in_another_chat_is_another_message(local: LocalHarness) -> None:
    fields = {"text": "hello", "client_id": new_id()}
    await local.post(fields)
    await local.post(fields, name="other")
    assert [message.chat.name for message in local.intake.messages] == ["local:main", "local:other"]
    assert [[entry.text for entry in (await local.screen(name)).entries] for name in ("main", "other")] == [
        ["hello"]
    ] * 2


async def test_a_message_that_cannot_be_stored_gets_no_entry_and_its_files_are_dropped(
    local: LocalHarness, tmp_path: Path
) -> None:
    local.intake.refusals = 1
    status, body = await local.post({"text": "keep me", "client_id": new_id()}, files=[("a.txt", b"x")])
    assert status == 503
    assert "try again" in body
    assert ((await local.screen()).entries, spooled(tmp_path)) == ([], [])


async def test_an_unreadable_history_gets_a_sentence_without_your_text(local: LocalHarness) -> None:
    await local.store.close()
    async with local.browser.get(f"{local.root}/chat/main/earlier?before=9", headers=local.headers()) as answer:
        body = await answer.text()
    assert answer.status == 503
    assert "cannot use its database right now" in body
    assert "Your text" not in body


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"text": " \n ", "client_id": "a" * 20}, 422, "Write a message"),
        ({"client_id": "a" * 20}, 422, "Write a message"),
        ({"text": "x" * 5_001, "client_id": "a" * 20}, 413, "longer than 5,000 characters"),
        ({"text": "hello", "client_id": ""}, 400, "Reload the page"),
        ({"text": "hello", "client_id": "../../etc/passwd"}, 400, "Reload the page"),
        ({"text": "hello"}, 400, "Reload the page"),
    ],
)
async def test_an_invalid_message_gets_one_helpful_sentence(
    local: LocalHarness, fields: dict[str, str], status: int, sentence: str
) -> None:
    got, body = await local.post(fields)
    assert got == status
    assert sentence in body
    assert local.intake.offered == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nnameless\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\nno header\r\n\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"A: b\r\n" * 500 + b"\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"A" * 200_000),
        ("application/json", b"{}"),
        ("application/x-www-form-urlencoded", b"client_id=" + b"a" * 2_000_000),
    ],
)
async def test_malformed_forms_are_refused_without_a_stack_trace(
    local: LocalHarness, content_type: str, body: bytes
) -> None:
    headers = local.headers({"Content-Type": content_type})
    async with local.browser.post(f"{local.root}/chat/main/messages", data=io.BytesIO(body), headers=headers) as answer:
        assert 400 <= answer.status < 500
        assert "Traceback" not in await answer.text()
    assert local.intake.offered == []


async def test_endless_fields_are_refused_quickly_without_using_memory(local: LocalHarness) -> None:
    """A body without a length once made the gateway keep 780 MB of fields, each with another name."""

    async def fields(name: Callable[[int], str]) -> AsyncIterator[bytes]:
        for number in range(200):
            yield f'--x\r\nContent-Disposition: form-data; name="{name(number)}"\r\n\r\n'.encode()
            for _ in range(39):
                yield b"a" * 100_000
            yield b"\r\n"

    headers = local.headers({"Content-Type": "multipart/form-data; boundary=x"})
    for name in ("field-{}".format, lambda _: "text"):
        tracemalloc.start()
        try:
            async with local.browser.post(
                f"{local.root}/chat/main/messages", data=fields(name), headers=headers
            ) as answer:
                assert answer.status in (400, 413)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 32_000_000
    assert local.intake.offered == []


async def test_text_is_stored_as_written(local: LocalHarness) -> None:
    await local.write("    indented\r\n\tcode <b>&amp;</b>\n\n")
    assert local.intake.messages[0].text == "    indented\n\tcode <b>&amp;</b>"
    assert [entry.text for entry in (await local.screen()).entries] == ["    indented\n\tcode <b>&amp;</b>"]


# ---- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent_name", "name", "kind"),
    [
        ("notes.txt", "notes.txt", AttachmentKind.DOCUMENT),
        ("C:\\Users\\me\\photo.PNG", "photo.PNG", AttachmentKind.IMAGE),
        ("../../.bashrc", ".bashrc", AttachmentKind.DOCUMENT),
        ("song.mp3", "song.mp3", AttachmentKind.AUDIO),
        ("x" * 300, "x" * 120, AttachmentKind.DOCUMENT),
    ],
)
async def test_a_file_is_spooled_under_a_random_name(
    local: LocalHarness, tmp_path: Path, sent_name: str, name: str, kind: AttachmentKind
) -> None:
    await local.write("look", files=[(sent_name, b"content")])
    [attachment] = local.intake.messages[0].attachments
    assert (attachment.name, attachment.size_bytes, attachment.kind) == (name, 7, kind)
    [path] = spooled(tmp_path)
    assert (path.name, path.stat().st_mode & 0o777) == (attachment.file_ref, 0o600)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (await local.screen()).entries[0].files == [name]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("small.txt", b"x"), ("large.bin", b"x" * 10_001)], "at most 10 KB"),
        ([("huge", b"x" * 5_000_000)], "at most"),
        ([(f"{number}.txt", b"x") for number in range(MAX_FILES + 1)], f"at most {MAX_FILES} files"),
    ],
    ids=["a file", "the body", "their number"],
)
async def test_files_over_a_limit_get_a_sentence_and_are_removed(
    local: LocalHarness, tmp_path: Path, files: list[tuple[str, bytes]], words: str
) -> None:
    status, body = await local.post({"text": "all", "client_id": new_id()}, files=files)
    assert status == 413
    assert words in body
    assert (local.intake.offered, spooled(tmp_path)) == ([], [])


async def test_a_file_is_loaded_from_the_object_store(tmp_path: Path, intake: RecordingIntake) -> None:
    with object_store() as store:
        made = LocalHarness(tmp_path)
        made.files = files = open_bucket(store.url, store.options, tmp_path / "cache")
        fetched = files.new_file()
        fetched.write_bytes(b"# Plan")
        stored = files.keep(fetched, "plan.md", "text/markdown")
        shutil.rmtree(tmp_path / "cache")
        async with made as local, running(local.adapter, intake):
            await local.sign_in()
            await local.store.write(give_to_chat, stored)

            async def asked() -> tuple[int, str]:
                async with local.browser.get(f"{local.root}/chat/main/files/1", headers=local.headers()) as answer:
                    return answer.status, await answer.text()

            store.faults["GET"] = 507
            status, sentence = await asked()
            assert (status, "cannot be read right now" in sentence) == (503, True)
            store.faults.clear()
            assert await asked() == (200, "# Plan")
            files.remove([stored.path])
            assert (await asked())[0] == 404


def give_to_chat(db: Connection, file: StoredFile) -> None:
    chat_id = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(0))
    attachments.insert(db, chat_id, file, Millis(0))


async def test_old_unused_files_are_removed_while_the_daemon_runs(
    local: LocalHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.write("old", files=[("old.txt", b"old")])
    [old] = spooled(tmp_path)
    os.utime(old, (0, 0))
    monkeypatch.setattr(uploads, "_SWEEP_SECONDS", -1.0)
    await local.write("new", files=[("new.txt", b"new")])
    assert len(spooled(tmp_path)) == 1
    assert old not in spooled(tmp_path)


@pytest.mark.parametrize("ref", ["../state.db", "/etc/passwd", "", "0" * 32, "A" * 32])
async def test_only_spooled_files_can_be_fetched(local: LocalHarness, tmp_path: Path, ref: str) -> None:
    attachment = IncomingAttachment(kind=AttachmentKind.DOCUMENT, file_ref=ref, name="x")
    with pytest.raises(MessageRejected):
        await local.adapter.download(attachment, tmp_path / "target", max_bytes=10**9)


async def test_an_unwritable_target_is_a_retryable_error(local: LocalHarness, tmp_path: Path) -> None:
    await local.write_with_file("notes.txt", b"x")
    [attachment] = local.intake.messages[0].attachments
    with pytest.raises(PlatformUnavailable):
        await local.adapter.download(attachment, tmp_path / "missing" / "target", max_bytes=100)


# ---- chats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UPPER", "-dash", "a" * 33, "a%2Fb", "a.b", "Ä", "a%20b", "%E2%80%AEx"])
async def test_a_chat_name_in_an_address_is_checked(local: LocalHarness, name: str) -> None:
    async with local.browser.get(f"{local.root}/chat/{name}") as answer:
        assert answer.status == 404
        assert "does not exist" in await answer.text()


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("travel", "/chat/travel"),
        ("My Travel Plans!", "/chat/my-travel-plans"),
        ("//x", "/chat/x"),
        ("a--b_", "/chat/a--b"),
        ("Über café", "/chat/über-café"),
        ("日本語の予定", "/chat/日本語の予定"),
        ("हिन्दी", "/chat/हिन्दी"),
        ("مرحبا بالعالم", "/chat/مرحبا-بالعالم"),
        ("\u202eevil", "/chat/evil"),
    ],
)
async def test_a_typed_name_becomes_a_chat(local: LocalHarness, typed: str, path: str) -> None:
    async with local.browser.get(f"{local.root}/open", params={"name": typed}, allow_redirects=False) as answer:
        assert (answer.status, unquote(answer.headers["Location"])) == (303, path)
    name = path.removeprefix("/chat/")
    await local.write("hello", name=name)
    assert local.intake.messages[0].chat.chat_ref == name
    assert f'<span class="chat-name">{name}</span>' in await local.listed(name)


@pytest.mark.parametrize("typed", ["", "  ", "🎉", "///"])
async def test_a_chat_without_a_name_shows_its_conversations_title(local: LocalHarness, typed: str) -> None:
    async with local.browser.get(f"{local.root}/open", params={"name": typed}, allow_redirects=False) as answer:
        name = answer.headers["Location"].removeprefix("/chat/")
    assert await heading(local, name) == "New chat"

    def give_title(db: Connection) -> None:
        chat_id = ensure_chat(db, chat_key(name), ChatKind.LOCAL, None, local.clock.now())
        set_title(db, start_session(db, chat_id, local.clock.now()).id, "A week in Rome")

    await local.store.write(give_title)
    assert await heading(local, name) == "A week in Rome"
    assert await heading(local, "main") == "main"


async def heading(local: LocalHarness, name: str) -> str:
    found = re.search(r'hx-target="#heading" hx-swap="innerHTML">([^<]*)<', await local.listed(name))
    assert found is not None
    return found.group(1)


@given(typed=st.text(max_size=60))
def test_any_typed_text_makes_a_valid_name_or_none(typed: str) -> None:
    name = pages.named_after(typed)
    assert not name or pages.is_name(name)
    assert pages.named_after(name) == name


# ---- entries -------------------------------------------------------------------------------------------


async def test_notices_of_the_gateway_do_not_look_like_answers(local: LocalHarness) -> None:
    part = OutboundPart(text="**Stopped.**", plain="Stopped.")
    await local.adapter.send(SendRequest(chat=local.direct_chat, part=part, key="k1", text_kind=TextKind.REPLY))
    await local.adapter.send(request(local.direct_chat, "an answer", key="k2"))
    entries = (await local.screen()).entries
    assert [(entry.kind, entry.text.strip()) for entry in entries] == [("notice", "Stopped."), ("answer", "an answer")]


@pytest.mark.parametrize("kind", TextKind)
async def test_every_kind_of_text_is_shown(local: LocalHarness, kind: TextKind) -> None:
    part = OutboundPart(text="hello", plain="hello")
    await local.adapter.send(SendRequest(chat=local.direct_chat, part=part, key="k1", text_kind=kind))
    [entry] = (await local.screen()).entries
    assert (entry.kind == "answer") is (kind is TextKind.ANSWER)


async def test_the_plain_form_is_shown_as_written(local: LocalHarness) -> None:
    part = OutboundPart(text="**rejected**", plain="*plain* <i>")
    await local.adapter.send(SendRequest(chat=local.direct_chat, part=part, key="k", is_plain=True))
    assert [entry.text for entry in (await local.screen()).entries] == ["*plain* <i>"]


async def test_a_button_shows_its_label_and_sends_its_command(local: LocalHarness) -> None:
    buttons = (Button(label='Yes "please"', command="/approve <1>"),)
    await local.adapter.send(request(local.direct_chat, "May I?", buttons=buttons))
    await local.press('Yes "please"')
    assert (local.intake.messages[0].text, local.intake.messages[0].via) == ("/approve <1>", InputKind.BUTTON)


async def test_a_repeated_part_is_one_entry_at_its_first_place(local: LocalHarness) -> None:
    first = await local.adapter.send(request(local.direct_chat, "one", key="k1"))
    await local.adapter.send(request(local.direct_chat, "two", key="k2"))
    assert await local.adapter.send(request(local.direct_chat, "one", key="k1", is_repeat=True)) == first
    assert [entry.text.strip() for entry in (await local.screen()).entries] == ["one", "two"]


async def test_a_page_that_opens_during_an_answer_shows_the_preview(local: LocalHarness) -> None:
    await local.adapter.show(Preview(chat=local.direct_chat, is_shared=False, number=7, text="I thi", ref=None))
    [entry] = (await local.screen()).entries
    assert (entry.kind, entry.text.strip()) == ("preview", "I thi")


async def test_a_new_turns_preview_replaces_an_abandoned_preview(local: LocalHarness) -> None:
    for number in (7, 8):
        preview = Preview(chat=local.direct_chat, is_shared=False, number=number, text=f"turn {number}", ref=None)
        await local.adapter.show(preview)
    assert [entry.text.strip() for entry in (await local.screen()).entries] == ["turn 8"]


async def test_the_number_of_remembered_entries_is_limited(local: LocalHarness) -> None:
    for number in range(80):
        await local.adapter.send(request(local.direct_chat, f"reply {number}", key=f"k{number}"))
    shown = (await local.screen()).entries
    assert (len(shown), shown[-1].text.strip()) == (50, "reply 79")


async def test_the_commands_are_offered_with_their_arguments(local: LocalHarness) -> None:
    page = await local.page()
    assert 'data-command="/new" aria-selected="false" data-argument' in page
    assert "end the running turn" in page


async def test_an_empty_chat_invites_to_write(local: LocalHarness) -> None:
    page = await local.page("brand-new")
    assert "How can I help?" in page
    assert Screen(page).entries == []
    assert await local.store.read(lambda db: db.execute("SELECT count(*) FROM chats").fetchone()) == (0,)


def test_the_key_of_a_chat_is_its_name() -> None:
    assert chat_key("travel").name == "local:travel"
