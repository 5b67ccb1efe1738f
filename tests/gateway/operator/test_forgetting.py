"""Deletion on request and of old conversations: what must go, and what must stay."""

import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.operator.forgetting import Forgetter, find_target, full_name, title_of
from hermes_state import attachments, outbox
from hermes_state.admin import deletion
from hermes_state.admin.deletion import DeletionTarget, load_hidden_chats, load_requests
from hermes_state.chats import ensure_chat
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError, StoreUnavailable
from hermes_state.files.folder import AttachmentFolder
from hermes_state.outbox import Reply
from hermes_state.sessions import load_tip, reset, resume
from hermes_state.store.sql import Connection, save_note, scalars
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, ChatKey, ChatKind, LineageId, MessageId, Millis, UserRef
from tests.databases import sqlite_only
from tests.hermes_state.rows import START, exchange

NOW = Millis(START + 10**11)


def forgetter_of(store: Store, home: Path) -> Forgetter:
    home.mkdir(exist_ok=True)
    config = SimpleNamespace(retention=SimpleNamespace(days=1, max_gb=None))
    loaded: Any = SimpleNamespace(home=home, secrets=list, config=config)
    clock: Any = SimpleNamespace(now=lambda: NOW)
    return Forgetter(store=store, files=AttachmentFolder(home / "attachments"), clock=clock, loaded=lambda: loaded)


def key_of(name: str, **parts: str) -> ChatKey:
    return ChatKey(platform="telegram", account="telegram", chat_ref=name, **parts)


def talk(db: Connection, key: ChatKey, words: str, at: Millis = START) -> tuple[ChatId, LineageId]:
    chat = ensure_chat(db, key, ChatKind.DIRECT, None, START)
    lineage_id = exchange(db, chat, words, "answer", at=at).lineage_id
    db.execute("UPDATE outbox SET state = 'sent', settled_at = 1, payload = ''")
    return chat, lineage_id


def talk_and_end(db: Connection, key: ChatKey, words: str) -> tuple[ChatId, LineageId]:
    chat, lineage_id = talk(db, key, words)
    reset(db, chat, START)
    return chat, lineage_id


async def words_in(store: Store) -> list[str]:
    return await store.read(lambda db: scalars(db, str, "SELECT text FROM messages WHERE role = 'user' ORDER BY id"))


async def test_retention_spares_resumed_and_pinned_conversations_and_skips_a_failing_one(
    store: Store, tmp_path: Path
) -> None:
    forgetter = forgetter_of(store, tmp_path / "home")
    targets = {}
    for name in ("resumed", "pinned", "fails", "goes", "answered"):
        chat, lineage_id = await store.write(talk_and_end, key_of(name), name)
        targets[name] = (chat, lineage_id)
    chat, lineage_id = targets["resumed"]
    key = (await store.read(load_tip, lineage_id)).key
    newest = await store.read(deletion.load_newest, lineage_id)
    await store.write(deletion.request, DeletionTarget(lineage_id=lineage_id), newest)
    await store.write(resume, chat, key[:8], NOW)
    await store.write(talk, key_of("resumed"), "written after the archive", NOW)
    await store.write(lambda db: db.execute("UPDATE chats SET pinned_at = 1 WHERE chat_ref = 'pinned'"))
    late = "UPDATE messages SET created_at = ? WHERE lineage_id = ?"
    await store.write(lambda db: db.execute(late, (NOW, targets["answered"][1])))
    archive = tmp_path / "home" / "archive"
    archive.mkdir()
    (archive / str(targets["fails"][0])).write_text("a file instead of the folder")
    long = forgetter.files.store(b"data", "я" * 126 + ".txt", "text/plain")
    await store.write(attachments.insert, targets["goes"][0], long, START, MessageId(7))

    assert (await forgetter.retire())[1:] == [targets["goes"][1]], "the first one is the empty one before `resume`"
    assert await words_in(store) == ["resumed", "pinned", "fails", "answered", "written after the archive"]
    assert await store.read(load_requests) == [], "the request of the resumed conversation is dropped"
    [file, _] = sorted(archive.glob(f"{targets['goes'][0]}/*"))
    assert (file.read_bytes(), file.suffix) == (b"data", ".txt")


@sqlite_only
async def test_a_repeated_deletion_of_a_person_keeps_later_messages(store: Store, tmp_path: Path) -> None:
    forgetter, person = forgetter_of(store, tmp_path / "home"), DeletionTarget(person=UserRef("telegram:1"))
    await store.write(talk, key_of("1"), "old words")
    await store.write(deletion.request, person)
    assert isinstance(store, SqliteStore)
    reader = sqlite3.connect(store.path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchone()
    with pytest.raises(StoreUnavailable, match="write-ahead log"):
        await forgetter.run()
    await store.write(talk, key_of("1"), "new words")
    reader.close()
    await forgetter.run()
    assert await words_in(store) == ["new words"]
    assert (await store.read(load_requests), await store.read(load_hidden_chats)) == ([], [])


async def test_a_group_goes_with_its_threads_and_a_message_is_no_target(store: Store, tmp_path: Path) -> None:
    forgetter = forgetter_of(store, tmp_path / "home")
    for key in (key_of("-100"), key_of("-100", thread_ref="7"), key_of("-100", user_ref="5"), key_of("-1")):
        await store.write(talk, key, key.name)
    with pytest.raises(CommandError, match="is a message"):
        await store.read(find_target, ["m1"])
    target = await store.read(find_target, ["-100"])
    assert await store.read(full_name, target) == "telegram:-100"
    assert "with 2 chats of its threads" in (await store.read(title_of, target))[0]
    await forgetter.handle({"words": ["-100"], "is_confirmed": True})
    assert await words_in(store) == ["telegram:-1"]


async def test_a_reply_that_nobody_can_send_does_not_hold_a_deletion_up(store: Store, tmp_path: Path) -> None:
    chat, _ = await store.write(talk, key_of("9"), "words")
    await store.write(outbox.enqueue, Reply(chat_id=chat, markdown="x", dedupe_key="new"), NOW)
    await store.write(save_note, "forget.cursor", "a note of an account with the name forget")
    target, forgetter = DeletionTarget(chat_id=chat), forgetter_of(store, tmp_path / "home")
    assert await store.write(deletion.begin, target, NOW) is None, "a new reply is sent first"
    await store.write(lambda db: db.execute("UPDATE outbox SET created_at = ? WHERE state = 'pending'", (START,)))
    assert (await forgetter.handle({"words": ["9"], "is_confirmed": True}))["is_done"]
    assert await words_in(store) == []


async def test_files_of_other_chats_and_rows_that_arrive_meanwhile_stay(store: Store, tmp_path: Path) -> None:
    home = tmp_path / "home"
    forgetter = forgetter_of(store, home)
    chat, lineage_id = await store.write(talk_and_end, key_of("42"), "words")
    other, second = await store.write(talk_and_end, key_of("77"), "words of others")
    file = forgetter.files.store(b"logo", "a.txt", "text/plain")
    await store.write(attachments.insert, chat, file, START, MessageId(1))
    copies = [home / "workspaces" / str(one) / "inbox" / "a.txt" for one in (chat, other)]
    for copy in copies:
        copy.parent.mkdir(parents=True)
        copy.write_bytes(b"logo")
    archived = home / "archive" / str(chat) / f"{(await store.read(load_tip, lineage_id)).key}.jsonl"
    archived.parent.mkdir(parents=True)
    archived.write_text("words")
    await store.write(deletion.request, DeletionTarget(lineage_id=lineage_id))
    await forgetter.run()
    assert [copy.exists() for copy in (*copies, archived)] == [False, True, False]
    assert not forgetter.files.local(file.path).exists()

    await store.write(deletion.request, DeletionTarget(lineage_id=second))
    await store.write(deletion.begin, DeletionTarget(lineage_id=second), NOW)
    [hidden] = await store.read(load_hidden_chats)
    await store.write(deletion.finish, hidden, NOW)
    assert await store.read(load_hidden_chats) == [hidden], "a chat with rows is not marked as removed"


async def test_write_protected_folders_are_removed_or_the_deletion_fails(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, _ = await store.write(talk, key_of("42"), "words")
    forgetter, remove = forgetter_of(store, tmp_path / "home"), shutil.rmtree
    inner = tmp_path / "home" / "workspaces" / str(chat) / "module"
    inner.mkdir(parents=True)
    (inner / "x").write_text("words")
    inner.chmod(0o500)

    def remove_as_user(folder: Path) -> None:
        """Fail as `rmtree` does for everybody but root."""
        if inner.stat().st_mode & 0o200 == 0 or (inner / "mount").exists():
            raise PermissionError("write-protected")
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", remove_as_user)
    (inner / "mount").touch()
    with pytest.raises(StoreUnavailable, match="cannot be removed"):
        await forgetter.handle({"words": ["42"], "is_confirmed": True})
    (inner / "mount").unlink()
    inner.chmod(0o500)
    await forgetter.run()
    assert not inner.parent.exists()
