import asyncio
import json
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from hermes_state import attachments, outbox
from hermes_state.admin.deletion import (
    _TABLES,
    DeletionTarget,
    begin,
    hide,
    is_busy,
    load_chats,
    load_extent,
    load_hidden_chats,
    load_requests,
    remove_deleted,
    remove_slice,
    request,
)
from hermes_state.chats import ensure_chat, find_chat
from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.inbox import InboxKind
from hermes_state.outbox import Reply
from hermes_state.search.full_text import search
from hermes_state.sessions import load_active, reset, set_title, start_subagent_session
from hermes_state.store.sql import Connection, scalars
from hermes_state.store.writer import Store
from hermes_state.tools.schedules import FiringPlan, NewSchedule, fire_due, insert_schedule
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.values import ChatId, ChatKey, ChatKind, LineageId, MessageId, MessageRole, Millis, Origin, UserRef
from tests.databases import IS_POSTGRES, sqlite_only
from tests.hermes_state.files.test_files import keep
from tests.hermes_state.rows import START, exchange, receive, start

SECRETS = [f"{random.Random(number).getrandbits(48):012x}" for number in range(300)]
"""Words of the deleted chat. None of them starts like another, so the index stores the end of each."""


def key_of(name: str) -> ChatKey:
    return ChatKey(platform="local", account="local", chat_ref=name)


def now() -> Millis:
    return Millis(START + 90_000)


def talk(db: Connection, name: str, words: list[str]) -> ChatId:
    chat = ensure_chat(db, key_of(name), ChatKind.LOCAL, None, START)
    for number in range(0, len(words), 3):
        exchange(db, chat, " ".join(words[number : number + 3]), f"about {words[number]}")
    db.execute("UPDATE outbox SET state = 'sent', settled_at = ?, payload = '' WHERE chat_id = ?", (START, chat))
    active = load_active(db, chat)
    assert active is not None
    set_title(db, active.id, f"Talk of {words[0]}")
    return chat


def owe_event(db: Connection, source: ChatId, cause: str) -> None:
    hook = ensure_chat(
        db, ChatKey(platform="webhook", account="local", chat_ref="webhook"), ChatKind.DIRECT, None, START
    )
    key = f"{outbox.HOOK_PREFIX}{source}:{cause}"
    outbox.enqueue(db, Reply(chat_id=hook, markdown=cause, dedupe_key=key), START)


async def test_nothing_of_a_deleted_chat_is_left_but_figures(store: Store, tmp_path: Path) -> None:
    files, forgotten = AttachmentFolder(tmp_path / "files"), list[ChatId]()
    own, shared = keep(files, b"only here", f"{SECRETS[0]}.txt"), keep(files, b"in two chats", "both.txt")
    gone = await store.write(talk, "gone", SECRETS)
    stays = await store.write(talk, "stays", ["marigold", "common", "words"])
    for chat in (gone, stays):  # events of both chats wait for a webhook
        await store.write(owe_event, chat, f"turn:1:{SECRETS[7] if chat == gone else 'marigold'}")
    for chat, file in ((gone, own), (gone, shared), (stays, shared)):
        await store.write(attachments.insert, chat, file, START)
    calls = await store.read(lambda db: db.execute("SELECT count(*), sum(input_tokens) FROM model_calls").fetchone())
    extent = await store.read(load_extent, DeletionTarget(chat_id=gone))
    assert (extent.messages, extent.files) == (200, 2)

    await store.write(hide, key_of("gone"), START)
    assert await store.read(find_chat, key_of("gone")) is None, "it is hidden at once, and its name is free"
    await store.write(remove_slice, gone)  # a process that was stopped here
    told = await remove_deleted(store, files.remove, forgotten.append, now)

    assert (told, forgotten) == ([stays], [gone])
    assert await store.read(load_hidden_chats) == []
    assert await store.read(search, SECRETS[5]) == []
    assert len(await store.read(search, "marigold")) == 2
    assert not files.local(own.path).exists()
    assert files.local(shared.path).exists()
    rest = await store.read(lambda db: db.execute("SELECT count(*), sum(input_tokens) FROM model_calls").fetchone())
    assert rest == calls, "the ledger keeps its figures"
    pending = "SELECT payload FROM outbox WHERE state = 'pending'"
    [event, notice] = await store.read(lambda db: scalars(db, str, f"{pending} ORDER BY id"))
    assert "marigold" in event
    assert "deleted 90 seconds ago is now completely removed" in notice
    assert await remove_deleted(store, files.remove, forgotten.append, now) == []
    if not IS_POSTGRES:
        assert left_in(tmp_path / "home", ["marigold", *SECRETS]) == ["marigold"]


def left_in(home: Path, words: list[str]) -> list[str]:
    """Return the words whose end is in a file of the database."""
    content = b"".join(path.read_bytes() for path in home.iterdir())
    return [word for word in words if word[-8:].encode() in content]


@sqlite_only
async def test_the_words_of_a_short_chat_leave_an_index_with_few_parts(store: Store, tmp_path: Path) -> None:
    await store.write(talk, "gone", SECRETS[:3])
    await store.write(hide, key_of("gone"), START)
    await remove_deleted(store, AttachmentFolder(tmp_path / "files").remove, lambda chat_id: None, now)
    assert left_in(tmp_path / "home", SECRETS) == []


@sqlite_only
async def test_a_deletion_knows_every_table_with_rows_of_a_chat(store: Store) -> None:
    query = """SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c
    WHERE t.type = 'table' AND c.name = 'chat_id'"""
    found = {name for (name,) in await store.read(lambda db: db.execute(query).fetchall())}
    assert found == {*_TABLES, "messages", "model_calls"}, "messages go first, and the ledger keeps its figures"


async def test_a_chat_that_answers_is_not_deleted(store: Store) -> None:
    chat = await store.write(talk, "busy", ["one"])
    await store.write(lambda db: start(db, chat, "a question"))
    with pytest.raises(CommandError, match="is being answered"):
        await store.write(hide, key_of("busy"), START)
    with pytest.raises(CommandError, match="no longer exists"):
        await store.write(hide, key_of("unknown"), START)
    assert await store.read(find_chat, key_of("busy")) is not None


async def test_a_waiting_notice_is_deleted_with_its_chat(store: Store, tmp_path: Path) -> None:
    chat = await store.write(talk, "gone", ["one"])
    await store.write(lambda db: receive(db, chat, "Background command 3 has ended.", kind=InboxKind.NOTICE))
    await store.write(hide, key_of("gone"), START)
    await remove_deleted(store, AttachmentFolder(tmp_path / "files").remove, lambda chat_id: None, now)
    assert await store.read(lambda db: db.execute("SELECT count(*) FROM inbox").fetchall()) == [(0,)]


async def test_schedules_end_when_their_chat_is_hidden(store: Store) -> None:
    def schedule(db: Connection, chat: ChatId) -> None:
        plan = {"creator_ref": UserRef("local:owner"), "creator_name": "Owner", "spec": "0 8 * * *", "zone": "UTC"}
        insert_schedule(db, NewSchedule(chat_id=chat, text="wake up", next_at=START, created_at=START, **plan))

    for name in ("gone", "stays"):
        await store.write(schedule, await store.write(talk, name, ["one"]))
    await store.write(hide, key_of("gone"), START)
    stays = await store.read(find_chat, key_of("stays"))
    assert stays is not None
    assert await store.write(fire_due, lambda row: FiringPlan(key="2026-01-01T08:00"), now()) == [stays.id]


async def test_other_chats_write_while_a_chat_is_removed(store: Store, tmp_path: Path) -> None:
    await store.write(talk, "gone", SECRETS)
    await store.write(hide, key_of("gone"), START)
    removal = asyncio.create_task(
        remove_deleted(store, AttachmentFolder(tmp_path / "files").remove, lambda chat_id: None, now)
    )
    for number in range(5):
        await store.write(talk, "gone", [f"fresh{number}"])
    assert await removal != []
    assert len(await store.read(search, "fresh4")) == 2


async def test_a_conversation_goes_with_its_sub_agents_and_the_others_stay(store: Store, tmp_path: Path) -> None:
    chat = await store.write(talk, "main", SECRETS[:3])

    def delegate(db: Connection) -> LineageId:
        helper = start_subagent_session(db, chat, MessageId(1), START)
        append_to_tip(db, helper, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=SECRETS[3]), START)
        return helper

    helper = await store.write(delegate)
    active = await store.read(load_active, chat)
    assert active is not None
    await store.write(reset, chat, START)
    await store.write(exchange, chat, SECRETS[4], "marigold")
    target = DeletionTarget(lineage_id=active.lineage_id)
    await store.write(lambda db: db.execute("UPDATE outbox SET state = 'sent', settled_at = 1, payload = ''"))
    assert (await store.read(load_extent, target)).messages == 3
    turns = await store.read(lambda db: scalars(db, int, "SELECT id FROM turns ORDER BY id"))
    for turn_id, word in ((turns[0], SECRETS[5]), (turns[-1], "marigold")):
        await store.write(owe_event, chat, f"turn:{turn_id}:{word}")
    refs = "SELECT m.id FROM platform_messages p LEFT JOIN messages m ON m.id = p.message_id ORDER BY p.message_id"
    assert len(await store.read(lambda db: scalars(db, int, refs))) == 2
    for _ in range(2):  # a second deletion uses the same hidden chat
        await store.write(request, target)
        assert await store.read(load_requests) == [target]
        assert set(await store.write(begin, target, START) or []) in ({active.lineage_id, helper}, set())
    await remove_deleted(store, AttachmentFolder(tmp_path / "files").remove, lambda chat_id: None, now)
    assert (await store.read(load_requests), await store.read(load_hidden_chats)) == ([], [])
    texts = await store.read(lambda db: scalars(db, str, "SELECT text FROM messages ORDER BY id"))
    assert texts == [SECRETS[4], "marigold"]
    assert None not in await store.read(lambda db: [row_id for (row_id,) in db.execute(refs).fetchall()])
    assert len(await store.read(lambda db: scalars(db, int, refs))) == 1
    left = await store.read(lambda db: scalars(db, str, "SELECT payload FROM outbox WHERE state = 'pending'"))
    assert [json.loads(one)["markdown"] for one in left] == [f"turn:{turns[-1]}:marigold"], "no notice, and no event"
    if not IS_POSTGRES:
        assert left_in(tmp_path / "home", SECRETS) == [SECRETS[4]]


async def test_people_own_their_direct_chats_and_nobody_elses(store: Store) -> None:
    """Admins can act in the direct chats of others, and each guest of the web chat has separate chats."""

    def fill(db: Connection) -> None:
        keys = [key_of("main"), replace(key_of("main"), user_ref="bob")]
        keys += [ChatKey(platform="telegram", account="telegram", chat_ref=ref) for ref in ("1", "2")]
        keys += [ChatKey(platform="telegram", account="telegram", chat_ref="-9", user_ref=ref) for ref in ("", "1")]
        kinds = [ChatKind.LOCAL] * 2 + [ChatKind.DIRECT] * 2 + [ChatKind.GROUP] * 2
        for key, kind in zip(keys, kinds, strict=True):
            ensure_chat(db, key, kind, None, START)
        receive(db, ChatId(3), "a button of the console", sender=UserRef("local:owner"))
        receive(db, ChatId(5), "hello all", sender=UserRef("telegram:1"))

    await store.write(fill)
    owned = {"local:owner": [1], "local:bob": [2], "telegram:1": [3, 6], "telegram:2": [4], "telegram:-9": []}
    for person, chats in owned.items():
        target = DeletionTarget(person=UserRef(person))
        assert await store.read(load_chats, target) == chats, person
    assert await store.read(is_busy, DeletionTarget(person=UserRef("telegram:1")), Millis(0))
    assert not await store.read(is_busy, DeletionTarget(person=UserRef("telegram:1")))
    assert await store.write(begin, DeletionTarget(person=UserRef("telegram:1")), START) is None
