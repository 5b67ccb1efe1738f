"""Database changes of each kind of event. Each function is one transaction."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.inbound.admission import AcceptedEvent, admit, apply_deletion, apply_edit
from hermes_state import inbox, journal, outbox
from hermes_state.chats import ensure_chat
from hermes_state.inbox import EDIT_PREFIX, InboxKind, InboxMode
from hermes_state.sessions import reset
from hermes_state.turns import find_turn
from hermes_state.values import ChatId, ChatKind, Cursor, DeletionEvent, EditEvent, InboundMessage, Millis, Sender
from tests.hermes_state.rows import START, finish, key_of, migrated, seen, start, states

ANN = Sender(platform="telegram", id="1", name="Ann")
BOB = Sender(platform="telegram", id="2", name="Bob")
CURSOR = Cursor(platform="telegram", account="telegram", channel_ref="42", seen_ref="100")


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with migrated() as connection:
        yield connection


def message(number: int = 1, text: str = "hello", *, sender: Sender = ANN, ticket: str | None = None) -> InboundMessage:
    return InboundMessage(
        event_ref=f"7:{number}",
        chat=key_of(),
        chat_kind=ChatKind.DIRECT,
        sender=sender,
        text=text,
        message_ref=str(number),
        sent_at=START,
        is_addressed=True,
        ticket=ticket,
    )


def admission(message: InboundMessage, **changes: Any) -> AcceptedEvent:  # Any: the fields that a test changes
    values: dict[str, Any] = {"kind": InboxKind.MESSAGE, "mode": InboxMode.QUEUE, "max_waiting": 3, "cursor": None}
    return AcceptedEvent(message=message, key=message.chat, text=message.text, **(values | changes))


def owed(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT DISTINCT chat_id FROM outbox").fetchall()
    found = (row.written for (chat,) in rows for row in outbox.load_open(db, chat))
    return [written.markdown for written in found if written is not None]


# ---- messages


def test_an_event_is_stored_with_its_cursor(db: sqlite3.Connection) -> None:
    admitted = admit(db, admission(message(), cursor=CURSOR), START)
    assert [row.id for row in inbox.load_waiting(db, admitted.chat_id)] == [admitted.inbox_id]
    assert inbox.load_cursors(db, "telegram", "telegram") == {"42": "100"}
    assert not admitted.has_reply


def test_a_repeated_event_returns_its_row_while_it_waits(db: sqlite3.Connection) -> None:
    first = admit(db, admission(message()), START)
    assert admit(db, admission(message()), START) == first
    assert first.inbox_id is not None
    journal.start_turn(db, first.chat_id, [first.inbox_id], {}, START)
    again = admit(db, admission(message(), cursor=CURSOR), START)
    assert (again.inbox_id, again.has_reply) == (None, False)
    assert inbox.load_cursors(db, "telegram", "telegram") == {"42": "100"}
    assert states(db, first.chat_id) == ["claimed"]


def test_a_command_is_acknowledged_only_if_it_waits(db: sqlite3.Connection) -> None:
    command = {"kind": InboxKind.COMMAND, "queued_notice": "later"}
    assert not admit(db, admission(message(1, "/new"), **command), START).has_reply
    admit(db, admission(message(2)), START)
    assert admit(db, admission(message(3, "/new"), **command), START).has_reply
    assert not admit(db, admission(message(3, "/new"), **command), START).has_reply
    assert owed(db) == ["later"]


def test_a_steer_joins_an_open_turn_and_otherwise_waits(db: sqlite3.Connection) -> None:
    chat = ensure_chat(db, key_of(), ChatKind.DIRECT, None, START)
    turn = start(db, chat, "go")
    steer = {"busy_mode": "steer", "steered_notice": "noted", "queued_notice": "later"}
    admit(db, admission(message(1, "in time"), **steer), START)
    finish(db, turn, "done")
    admit(db, admission(message(2, "too late"), **steer), START)
    assert [(row.payload.text, row.mode) for row in inbox.load_waiting(db, chat)] == [
        ("in time", InboxMode.QUEUE),
        ("too late", InboxMode.QUEUE),
    ]
    assert owed(db) == ["noted", "done", "later"]


def test_an_interrupting_message_ends_a_turn_of_another_node(db: sqlite3.Connection) -> None:
    chat = ensure_chat(db, key_of(), ChatKind.DIRECT, None, START)
    turn = start(db, chat, "go")
    here = admit(db, admission(message(1), busy_mode="interrupt", running_here=turn.id, may_join_any=True), START)
    assert (here.interrupts, find_turn(db, turn.id)) == (turn.id, turn)
    elsewhere = admit(db, admission(message(2), busy_mode="interrupt", may_join_any=True), START)
    assert (elsewhere.interrupts, find_turn(db, turn.id)) == (turn.id, None)


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
def test_a_turn_started_by_another_person_is_neither_joined_nor_ended(db: sqlite3.Connection, mode: str) -> None:
    chat = ensure_chat(db, key_of(), ChatKind.GROUP, None, START)
    turn = start(db, chat, "go")
    for sender, may_join in ((BOB, False), (ANN, True)):
        said = admit(db, admission(message(int(sender.id), sender=sender), busy_mode=mode), START)
        row = inbox.load_waiting(db, chat)[-1]
        assert (said.interrupts is not None or row.mode is InboxMode.STEER) == may_join
        assert (find_turn(db, turn.id) is None) == (may_join and mode == "interrupt")


def test_a_full_queue_is_refused_once_until_it_advances(db: sqlite3.Connection) -> None:
    admitted = [admit(db, admission(message(number)), START) for number in range(1, 7)]
    assert [one.inbox_id is not None for one in admitted] == [True] * 3 + [False] * 3
    assert [one.has_reply for one in admitted] == [False] * 3 + [True, False, False]
    chat = admitted[0].chat_id
    assert (states(db, chat), len(owed(db))) == (["new"] * 3 + ["dropped"] * 3, 1)
    assert "already have 3 messages in the queue" in owed(db)[0]
    assert admit(db, admission(message(9, sender=BOB)), START).inbox_id is not None
    first = admitted[0].inbox_id
    assert first is not None
    finish(db, journal.start_turn(db, chat, [first], {}, START), "a")
    assert admit(db, admission(message(10)), START).inbox_id is not None
    assert admit(db, admission(message(11)), START).has_reply
    assert len([sentence for sentence in owed(db) if "messages in the queue" in sentence]) == 2


def test_a_repeated_refused_event_changes_nothing(db: sqlite3.Connection) -> None:
    for number in range(1, 5):
        admit(db, admission(message(number)), START)
    before = db.execute("SELECT * FROM inbox").fetchall()
    again = admit(db, admission(message(4)), START)
    assert (again.inbox_id, again.has_reply, db.execute("SELECT * FROM inbox").fetchall()) == (None, False, before)


def test_a_full_queue_answers_every_slash_command(db: sqlite3.Connection) -> None:
    for number in range(1, 6):
        admit(db, admission(message(number, ticket=f"t{number}")), START)
    assert db.execute("SELECT ticket FROM outbox ORDER BY id").fetchall() == [("t4",), ("t5",)]


# ---- strangers


# ---- edits


def edit(text: str, *, number: int = 1, sender: Sender = ANN, event: str = "e") -> EditEvent:
    return EditEvent(
        event_ref=f"7:{number}:{event}:{text}",
        chat=key_of(),
        sender=sender,
        text=text,
        message_ref=str(number),
        sent_at=START,
    )


def told(db: sqlite3.Connection) -> ChatId:
    """Store message 1 with the text `hello` as answered."""
    admitted = admit(db, admission(message()), START)
    assert admitted.inbox_id is not None
    finish(db, journal.start_turn(db, admitted.chat_id, [admitted.inbox_id], {}, START), "hi")
    return admitted.chat_id


def notices(db: sqlite3.Connection, chat: ChatId) -> list[str]:
    return [row.payload.text for row in inbox.load_waiting(db, chat) if row.kind is InboxKind.NOTICE]


def test_an_edit_replaces_the_text_of_a_waiting_message(db: sqlite3.Connection) -> None:
    admitted = admit(db, admission(message()), START)
    assert apply_edit(db, edit("hullo"), key_of(), CURSOR, START) == admitted.chat_id
    assert [row.payload.text for row in inbox.load_waiting(db, admitted.chat_id)] == ["hullo"]
    assert inbox.load_cursors(db, "telegram", "telegram") == {"42": "100"}


def test_an_edit_of_an_answered_message_becomes_a_notice(db: sqlite3.Connection) -> None:
    chat = told(db)
    assert apply_edit(db, edit("hullo"), key_of(), None, START) == chat
    assert notices(db, chat) == [EDIT_PREFIX + "hullo"]
    row = admit(db, admission(message(2, "go on")), START).inbox_id
    waiting = [one.id for one in inbox.load_waiting(db, chat)]
    assert row in waiting
    turn = journal.start_turn(db, chat, waiting, {}, START)
    assert seen(db, turn.lineage_id) == ["hello", "hi", EDIT_PREFIX + "hullo", "go on"]


def test_an_edit_without_change_has_no_effect(db: sqlite3.Connection) -> None:
    chat = told(db)
    assert apply_edit(db, edit("hello"), key_of(), None, START) is None
    apply_edit(db, edit("hullo"), key_of(), None, START)
    assert apply_edit(db, edit("hullo"), key_of(), None, START) is None
    assert apply_edit(db, edit("hullo", event="preview of a link"), key_of(), None, START) is None
    assert notices(db, chat) == [EDIT_PREFIX + "hullo"]


def test_many_edits_leave_one_notice_with_the_last_text(db: sqlite3.Connection) -> None:
    chat = told(db)
    for number in range(20):
        apply_edit(db, edit(f"version {number}"), key_of(), None, START)
    assert notices(db, chat) == [EDIT_PREFIX + "version 19"]


def test_reverting_an_edit_that_the_model_saw_adds_a_notice(db: sqlite3.Connection) -> None:
    chat = told(db)
    apply_edit(db, edit("hullo"), key_of(), None, START)
    admit(db, admission(message(2, "go on")), START)
    ids = [row.id for row in inbox.load_waiting(db, chat)]
    finish(db, journal.start_turn(db, chat, ids, {}, START), "ok")
    assert apply_edit(db, edit("hello", event="back"), key_of(), None, START) == chat
    assert notices(db, chat) == [EDIT_PREFIX + "hello"]


def test_edits_by_others_of_commands_or_of_unknown_messages_have_no_effect(db: sqlite3.Connection) -> None:
    chat = told(db)
    admit(db, admission(message(2, "/new"), kind=InboxKind.COMMAND), START)
    assert apply_edit(db, edit("mine now", sender=BOB), key_of(), None, START) is None
    assert apply_edit(db, edit("/undo", number=2), key_of(), None, START) is None
    assert apply_edit(db, edit("x", number=99), key_of(), None, START) is None
    assert apply_edit(db, edit("x"), key_of("elsewhere"), None, START) is None
    assert notices(db, chat) == []


def test_an_edit_from_another_conversation_is_ignored(db: sqlite3.Connection) -> None:
    chat = told(db)
    reset(db, chat, Millis(START + 1))
    assert apply_edit(db, edit("hullo"), key_of(), None, START) is None
    assert notices(db, chat) == []


# ---- deletions


def deletion(number: int = 1) -> DeletionEvent:
    return DeletionEvent(event_ref=f"7:{number}:gone", chat=key_of(), message_ref=str(number), sent_at=START)


def test_a_deleted_message_that_waits_is_withdrawn(db: sqlite3.Connection) -> None:
    chat = admit(db, admission(message()), START).chat_id
    assert (apply_deletion(db, deletion(), CURSOR, START), apply_deletion(db, deletion(), CURSOR, START)) == (1, 0)
    assert states(db, chat) == ["withdrawn"]


def test_a_deleted_message_with_a_turn_stays_also_when_it_was_answered(db: sqlite3.Connection) -> None:
    admitted = admit(db, admission(message()), START)
    assert admitted.inbox_id is not None
    turn = journal.start_turn(db, admitted.chat_id, [admitted.inbox_id], {}, START)
    assert (apply_deletion(db, deletion(), None, START), states(db, admitted.chat_id)) == (0, ["claimed"])
    finish(db, turn, "hi")
    assert (apply_deletion(db, deletion(), None, START), states(db, admitted.chat_id)) == (0, ["done"])


def test_a_deletion_finds_the_message_in_per_user_chats(db: sqlite3.Connection) -> None:
    mine = replace(admission(message()), key=key_of(user_ref="1"))
    chat = admit(db, mine, START).chat_id
    assert (apply_deletion(db, deletion(), None, START), states(db, chat)) == (1, ["withdrawn"])
