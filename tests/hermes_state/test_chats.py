import sqlite3

from msgspec.structs import replace

from hermes_state import inbox, outbox
from hermes_state.chats import ensure_chat, find_chat, find_chats_at, load_chat, meet_chat, move_chat
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.sessions import load_active
from hermes_state.values import ChatId, ChatKind, ChatScope, Millis
from tests.hermes_state.rows import START, exchange, key_of, make_chat, receive, seen, start


def move(db: sqlite3.Connection, old: str, new: str) -> list[ChatId]:
    return move_chat(db, "telegram", "telegram", old, new, Millis(START + 1))


def owe(db: sqlite3.Connection, chat: ChatId, key: str) -> None:
    outbox.enqueue(db, Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown=key, dedupe_key=key), START)


def test_every_part_of_the_key_distinguishes_chats(db: sqlite3.Connection) -> None:
    keys = [key_of(), key_of("43"), key_of(thread_ref="7"), key_of(user_ref="1"), key_of(thread_ref="7", user_ref="1")]
    ids = [ensure_chat(db, key, ChatKind.GROUP, None, START) for key in keys * 2]
    assert ids[len(keys) :] == ids[: len(keys)]
    assert len(set(ids)) == len(keys)


def test_a_new_title_is_stored_and_a_missing_one_keeps_the_old(db: sqlite3.Connection) -> None:
    chat = ensure_chat(db, key_of(), ChatKind.GROUP, "Old", START)
    ensure_chat(db, key_of(), ChatKind.GROUP, "New", START)
    ensure_chat(db, key_of(), ChatKind.GROUP, None, START)
    assert load_chat(db, chat).title == "New"
    ensure_chat(db, key_of(), ChatKind.CHANNEL, None, START)
    assert load_chat(db, chat).kind is ChatKind.CHANNEL


def test_the_scope_is_stored_with_roles_only_for_a_session_of_one_person(db: sqlite3.Connection) -> None:
    scope = ChatScope(guild_ref="9", parent_ref="50", role_refs="72 71")
    for key, stored in ((key_of(user_ref="1"), scope), (key_of(), replace(scope, role_refs=""))):
        chat, _ = meet_chat(db, key, ChatKind.THREAD, None, START, scope)
        assert load_chat(db, chat).scope == stored
        assert meet_chat(db, key, ChatKind.THREAD, None, START) == (chat, None)
        assert load_chat(db, chat).scope == stored, "an event without a scope does not change it"
        meet_chat(db, key, ChatKind.THREAD, None, START, ChatScope(guild_ref="9"))
        assert load_chat(db, chat).scope == ChatScope(guild_ref="9")


def test_all_per_person_chats_of_a_place_are_found(db: sqlite3.Connection) -> None:
    ids = {ensure_chat(db, key_of(user_ref=user), ChatKind.GROUP, None, START) for user in ("", "1", "2")}
    ensure_chat(db, key_of(thread_ref="7"), ChatKind.GROUP, None, START)
    assert {chat.id for chat in find_chats_at(db, key_of())} == ids


def test_a_moved_chat_keeps_its_conversation_its_threads_and_its_people(db: sqlite3.Connection) -> None:
    main = make_chat(db, "old", ChatKind.GROUP)
    topic = ensure_chat(db, key_of("old", thread_ref="7"), ChatKind.GROUP, None, START)
    lineage = exchange(db, main, "q", "a").lineage_id
    start(db, main, "go")
    assert set(move(db, "old", "new")) == {main, topic}
    found = find_chat(db, key_of("new"))
    assert found is not None
    assert found.id == main
    assert load_chat(db, topic).key == key_of("new", thread_ref="7")
    assert seen(db, lineage) == ["q", "a", "go"]
    assert find_chat(db, key_of("old")) is None
    before = db.execute("SELECT * FROM chats").fetchall()
    assert move(db, "old", "new") == [], "it was moved before"
    assert db.execute("SELECT * FROM chats").fetchall() == before


def test_waiting_rows_of_the_new_id_join_the_conversation(db: sqlite3.Connection) -> None:
    old, new = make_chat(db, "old", ChatKind.GROUP), make_chat(db, "new", ChatKind.GROUP)
    exchange(db, old, "q", "a")
    receive(db, new, "written after the move")
    owe(db, new, "owed")
    assert move(db, "old", "new") == [old]
    assert load_chat(db, old).key == key_of("new")
    assert load_chat(db, new).key == key_of("old"), "no row in use is deleted"
    assert [row.payload.text for row in inbox.load_waiting(db, old)] == ["written after the move"]
    assert {row.dedupe_key for row in outbox.load_open(db, old)} >= {"owed"}


def test_a_conversation_under_the_new_id_survives_and_gets_waiting_rows(db: sqlite3.Connection) -> None:
    old, new = make_chat(db, "old", ChatKind.GROUP), make_chat(db, "new", ChatKind.GROUP)
    exchange(db, old, "q", "a")
    exchange(db, new, "q2", "a2")
    receive(db, old, "late")
    assert move(db, "old", "new") == [new]
    assert [row.payload.text for row in inbox.load_waiting(db, new)] == ["late"]
    assert outbox.load_open(db, old) == []
    active = load_active(db, new)
    assert active is not None
    assert seen(db, active.lineage_id) == ["q2", "a2"]
