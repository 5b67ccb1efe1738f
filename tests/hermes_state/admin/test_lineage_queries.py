import sqlite3

import pytest
from msgspec.structs import replace

from hermes_state.admin.lineage_queries import (
    LookupResult,
    find_place,
    load_around,
    load_conversations,
    load_lineage_session,
    load_lineage_sessions,
)
from hermes_state.chats import ensure_chat, find_chats_named
from hermes_state.compressions import CompressionRow, plan_undo, split, undo_compression
from hermes_state.errors import LookupReason, LookupRejected
from hermes_state.search.full_text import search
from hermes_state.sessions import EndReason, load_session, load_tip, reset
from hermes_state.transcripts import load_messages, load_view
from hermes_state.values import ChatId, ChatKey, ChatKind, LineageId, MessageRole, Millis, SessionId
from tests.hermes_state.rows import START, compress, exchange, key_of, make_chat, split_plan


def undo(db: sqlite3.Connection, lineage: LineageId) -> SessionId:
    plan = plan_undo(db, lineage)
    assert plan is not None
    return undo_compression(db, plan, START)


def talk(db: sqlite3.Connection, chat: ChatId, question: str) -> LineageId:
    return exchange(db, chat, question, f"answer to {question}").lineage_id


def test_a_chain_lists_sessions_oldest_first_with_their_compressions(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "q1")
    figures = {"focus": "doors", "summary_kind": "deterministic", "tokens_before": 900, "tokens_after": 90}
    plan = replace(split_plan(db, lineage), row=CompressionRow(layer="hygiene", **figures))
    split(db, plan, Millis(START + 10))
    undo(db, lineage)
    place = LookupResult(chat_id=ChatId(1), session=load_tip(db, lineage))
    root, child, tip = load_lineage_sessions(db, place, 10)
    assert (root.parent_key, root.child_key, root.depth, root.layer) == (None, child.key, 0, None)
    assert (root.end_reason, root.message_count) == (EndReason.COMPRESSION, 2)
    assert (child.parent_key, child.child_key, child.lineage_key) == (root.key, tip.key, root.key)
    assert child.end_reason is EndReason.UNDO
    assert (child.layer, child.tokens_before, child.tokens_after, child.focus) == ("hygiene", 900, 90, "doors")
    assert (child.summary_kind, child.model, child.was_undone) == ("deterministic", None, True)
    assert (tip.depth, tip.layer, tip.ended_at, tip.child_key) == (2, None, None, None)
    assert load_lineage_session(db, child.session_id) == child
    assert load_lineage_sessions(db, place, 1) == [tip]


def test_a_deleted_chat_has_no_conversations(db: sqlite3.Connection) -> None:
    first, second = make_chat(db, "1"), make_chat(db, "2")
    lineages = [talk(db, chat, "q1") for chat in (first, second)]

    def listed() -> list[LineageId]:
        return [one.lineage_id for one in load_conversations(db, None, Millis(0), LineageId(0), 10)]

    assert listed() == lineages
    db.execute("UPDATE chats SET deleted_at = ? WHERE id = ?", (START, first))
    assert listed() == lineages[1:]


def test_sessions_are_listed_for_one_chat_or_all_chats(db: sqlite3.Connection) -> None:
    first, second = make_chat(db, "1"), make_chat(db, "2")
    talk(db, first, "q1")
    talk(db, second, "q1")
    reset(db, first, START)
    assert [one.chat.name for one in load_lineage_sessions(db, None, 10)] == ["telegram:1", "telegram:2", "telegram:1"]
    sessions = load_lineage_sessions(db, LookupResult(chat_id=first), 10)
    assert [one.end_reason for one in sessions] == [EndReason.RESET, None]
    assert [one.lineage_key for one in sessions] == [one.key for one in sessions]


def test_a_name_finds_a_chat_a_session_or_a_message(db: sqlite3.Connection) -> None:
    chat = make_chat(db, "42")
    lineage = talk(db, chat, "q1")
    session = load_tip(db, lineage)
    said = load_messages(db, lineage, 10)
    for name in ("telegram:42", "42", " telegram:42 "):
        assert find_place(db, name) == LookupResult(chat_id=chat)
    for name in (session.key, session.short_key, session.key[:4].upper()):
        assert find_place(db, name) == LookupResult(chat_id=chat, session=session)
    place = find_place(db, f"m{said[1].id}")
    assert (place.session, place.message_id, place.message_seq) == (session, said[1].id, 2)
    compress(db, lineage)
    [handoff] = load_view(db, lineage).transcript
    with pytest.raises(LookupRejected):
        find_place(db, f"m{handoff.id}")  # a row made for a view


def test_threads_and_per_person_chats_have_their_own_names(db: sqlite3.Connection) -> None:
    keys = (key_of("-1"), key_of("-1", thread_ref="7"), key_of("-1", thread_ref="7", user_ref="5"))
    made = [ensure_chat(db, key, ChatKind.GROUP, None, START) for key in keys]
    names = ["telegram:-1", "telegram:-1/7", "telegram:-1/7#5"]
    assert [[chat.id for chat in find_chats_named(db, name)] for name in names] == [[one] for one in made]


@pytest.mark.parametrize(
    "name", ["", "telegram:7", "nothing!", "m999", "m0", "abc", "'; --", "%", "m" + "9" * 40, "x" * 9_000]
)
def test_an_unknown_name_is_refused(db: sqlite3.Connection, name: str) -> None:
    talk(db, make_chat(db), "q1")
    with pytest.raises(LookupRejected) as raised:
        find_place(db, name)
    assert len(str(raised.value)) < 300


def test_an_ambiguous_name_lists_candidates(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    keys = [load_tip(db, talk(db, chat, "q1")).key]
    reset(db, chat, START)
    keys.append(load_tip(db, talk(db, chat, "q2")).key)
    with pytest.raises(LookupRejected, match=LookupReason.AMBIGUOUS_SESSION) as raised:
        find_place(db, keys[0][:4])
    assert sorted(raised.value.candidates) == sorted(keys)
    other = ChatKey(platform="discord", account="discord", chat_ref="42")
    ensure_chat(db, other, ChatKind.DIRECT, None, START)
    with pytest.raises(LookupRejected, match=LookupReason.AMBIGUOUS_CHAT) as raised:
        find_place(db, "42")
    assert "discord:42" in raised.value.candidates


def test_a_lookup_within_one_chat_reaches_no_other_chat(db: sqlite3.Connection) -> None:
    mine, other = make_chat(db, "1"), make_chat(db, "2")
    talk(db, mine, "q1")
    lineage = talk(db, other, "q2")
    session, message = load_tip(db, lineage), load_messages(db, lineage, 1)[0]
    for name, reason in (
        ("telegram:2", LookupReason.OTHER_CHAT),
        (session.key, LookupReason.NOT_FOUND),
        (f"m{message.id}", LookupReason.MESSAGE_NOT_FOUND),
    ):
        assert find_place(db, name).chat_id == other
        with pytest.raises(LookupRejected) as raised:
            find_place(db, name, mine)
        assert raised.value.reason is reason


def test_a_search_hit_names_its_session(db: sqlite3.Connection) -> None:
    lineage = talk(db, make_chat(db), "the red door")
    root = load_tip(db, lineage)
    compress(db, lineage)
    tip = load_session(db, undo(db, lineage))
    talk(db, tip.chat_id, "the blue door")
    found = search(db, "door", role=MessageRole.USER, order="newest")
    assert [(one.text, one.session_key, one.lineage_key) for one in found] == [
        ("the blue door", tip.key, root.key),
        ("the red door", root.key, root.key),
    ]
    assert found[0].chat.name == "telegram:42"
    assert found[0].sender_name == "telegram:1"


def test_rows_around_a_message_stay_in_its_session(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    for number in range(3):
        lineage = talk(db, chat, f"q{number}")
    root, child = load_tip(db, lineage), compress(db, lineage)
    talk(db, chat, "q3")
    for place, texts in {
        (3, 1, 3): ["answer to q0", "q1", "answer to q1"],
        (6, 1, 9): ["q2", "answer to q2"],
        (1, 5, 2): ["q0", "answer to q0"],
        (None, 0, 1): ["q0"],
    }.items():
        assert [row.text for row in load_around(db, root.id, *place)] == texts
    assert [row.text for row in load_messages(db, lineage, 9, session_id=child)] == ["q3", "answer to q3"]
    newest = load_messages(db, lineage, 1)[0]
    assert [row.text for row in load_messages(db, lineage, 2, newest.id)] == ["answer to q2", "q3"]
