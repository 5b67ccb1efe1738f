import sqlite3

import pytest

from hermes_state.errors import SessionNotFound
from hermes_state.sessions import load_session, load_tip
from hermes_state.transcripts import (
    NewMessage,
    append,
    append_view_row,
    hide,
    load_beginning,
    load_hidden,
    load_message,
    load_messages,
    load_view,
)
from hermes_state.values import LineageId, MessageBody, MessageId, MessageRole, Millis, Origin, SessionId, ToolCall
from tests.hermes_state.rows import START, exchange, make_chat, replace_row, seen


def stub(db: sqlite3.Connection, session_id: SessionId, text: str, replaces: MessageId | None = None) -> MessageId:
    new = NewMessage(role=MessageRole.USER, origin=Origin.SYSTEM, text=text)
    return append_view_row(db, session_id, new, replaces, START)


def ids(db: sqlite3.Connection, lineage_id: LineageId) -> list[MessageId]:
    return [row.id for row in load_view(db, lineage_id).transcript]


@pytest.fixture
def talk(db: sqlite3.Connection) -> LineageId:
    """Create a conversation of two exchanges: q1 a1 q2 a2."""
    chat = make_chat(db)
    exchange(db, chat, "q1", "a1")
    return exchange(db, chat, "q2", "a2").lineage_id


def test_message_rows_are_stored_unchanged(db: sqlite3.Connection, talk: LineageId) -> None:
    session = load_tip(db, talk)
    body = MessageBody(calls=(ToolCall(id="c", name="look", arguments='{"a": 1}'),), notes=("n",))
    new = NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=None, body=body)
    row = load_message(db, append(db, session.id, new, Millis(START + 9)))
    assert NewMessage(role=row.role, origin=row.origin, text=row.text, body=row.body) == new
    assert (row.seq, row.session_id, row.created_at) == (5, session.id, START + 9)
    with pytest.raises(SessionNotFound):
        append(db, SessionId(9), new, START)


def test_a_view_interns_sender_names(db: sqlite3.Connection, talk: LineageId) -> None:
    said = [row for row in load_view(db, talk).transcript if row.sender_ref is not None]
    assert len(said) == 2, "both of one person"
    assert said[0].sender_ref is said[1].sender_ref, "fifty long conversations at once take megabytes more otherwise"


def test_a_hidden_row_leaves_the_view_but_stays_in_history(db: sqlite3.Connection, talk: LineageId) -> None:
    assert hide(db, load_tip(db, talk).id, ids(db, talk)[2:], "undo", START) == 2
    assert seen(db, talk) == ["q1", "a1"]
    assert [row.text for row in load_messages(db, talk, 10)] == ["q1", "a1", "q2", "a2"]
    newest = load_messages(db, talk, 3)
    assert [row.text for row in newest] == ["a1", "q2", "a2"]
    assert [row.text for row in load_messages(db, talk, 3, newest[0].id)] == ["q1"]


def test_a_replacement_can_be_replaced_and_hidden(db: sqlite3.Connection, talk: LineageId) -> None:
    session = load_tip(db, talk)
    for text in ("short", "shorter"):
        old = ids(db, talk)[1]
        replace_row(db, session.id, old, stub(db, session.id, text, old), "prune", START)
        assert seen(db, talk) == ["q1", text, "q2", "a2"]
        assert text not in [row.text for row in load_messages(db, talk, 10)]
    hide(db, session.id, ids(db, talk)[:2], "undo", START)
    assert seen(db, talk) == ["q2", "a2"]


def test_editing_a_view_clears_the_reported_tokens_and_increases_the_version(
    db: sqlite3.Connection, talk: LineageId
) -> None:
    session = load_tip(db, talk)
    assert hide(db, session.id, [], "undo", START) == 0
    same = load_session(db, session.id)
    assert (same.reported_prompt_tokens, same.version) == (100, session.version)
    hide(db, session.id, ids(db, talk)[2:], "undo", START)
    edited = load_session(db, session.id)
    assert (edited.reported_prompt_tokens, edited.reported_at_seq) == (None, None)
    assert edited.version == session.version + 1


def test_rows_made_for_a_view_are_not_counted(db: sqlite3.Connection, talk: LineageId) -> None:
    session = load_tip(db, talk)
    first, second = stub(db, session.id, "one"), stub(db, session.id, "two")
    assert [load_message(db, one).seq for one in (first, second)] == [-1, -2]
    after = load_session(db, session.id)
    assert (after.next_seq, after.message_count) == (session.next_seq, session.message_count)
    assert seen(db, talk) == ["q1", "a1", "q2", "a2"]


def test_only_hidden_rows_count_as_undone(db: sqlite3.Connection, talk: LineageId) -> None:
    session = load_tip(db, talk)
    q1, a1, *_ = ids(db, talk)
    replace_row(db, session.id, a1, stub(db, session.id, "short"), "prune", START)
    hide(db, session.id, [q1], "undo", START)
    assert load_hidden(db, talk) == {q1}


def test_the_beginning_of_a_conversation_excludes_undone_messages(db: sqlite3.Connection, talk: LineageId) -> None:
    def beginning(limit: int) -> list[str | None]:
        return [row.text for row in load_beginning(db, talk, limit)]

    assert beginning(3) == ["q1", "a1", "q2"]
    append(db, load_tip(db, talk).id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text="a notice"), START)
    assert beginning(9) == ["q1", "a1", "q2", "a2"]
    hide(db, load_tip(db, talk).id, ids(db, talk)[:2], "undo", START)
    assert beginning(2) == ["q2", "a2"]
