import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_state import inbox, journal, outbox
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, InboxState, NewInboxRow
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.values import (
    AttachmentKind,
    ChatId,
    ChatKind,
    Cursor,
    IncomingAttachment,
    InputKind,
    Millis,
    Quote,
)
from tests.databases import IS_POSTGRES, sqlite_only
from tests.hermes_state.rows import ANN, BOB, START, exchange, finish, make_chat, migrated, receive, start, states
from tests.sampling import examples


def new_row(chat: ChatId, event_ref: str, payload: InboxPayload) -> NewInboxRow:
    return NewInboxRow(
        platform="telegram",
        account="telegram",
        event_ref=event_ref,
        chat_id=chat,
        kind=InboxKind.MESSAGE,
        mode=InboxMode.QUEUE,
        sender_ref=ANN,
        sender_name="Ann",
        message_ref="5",
        payload=payload,
        expects_more=True,
        sent_at=START,
    )


def test_an_inbox_row_is_stored_unchanged(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    payload = InboxPayload(
        text="héllo 😀",
        attachments=(IncomingAttachment(kind=AttachmentKind.IMAGE, file_ref="f", name="a.png", size_bytes=3),),
        quote=Quote(message_ref="4", author="Bob", text="earlier"),
        via=InputKind.SLASH,
        ticket="t",
    )
    row_id = inbox.insert(db, new_row(chat, "9:1", payload), Millis(START + 1))
    [row] = inbox.load_waiting(db, chat)
    assert (row.id, row.payload, row.expects_more, row.received_at) == (row_id, payload, True, START + 1)
    assert (row.sender_ref, row.sender_name, row.message_ref) == (ANN, "Ann", "5")


def test_an_event_is_stored_once_even_after_settling(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = new_row(chat, "9:1", InboxPayload(text="once"))
    first = inbox.insert(db, row, START)
    assert first is not None
    assert inbox.insert(db, row, START) is None
    assert inbox.find_new(db, "telegram", "telegram", "9:1") == first
    inbox.settle(db, first, InboxState.DONE, START)
    assert inbox.insert(db, row, START) is None
    assert inbox.find_new(db, "telegram", "telegram", "9:1") is None


def test_waiting_rows_are_in_order_of_arrival_per_chat(db: sqlite3.Connection) -> None:
    one, two = make_chat(db, "1"), make_chat(db, "2")
    for number in range(3):
        receive(db, one, f"one {number}", at=START - number)
        receive(db, two, f"two {number}")
    assert [row.payload.text for row in inbox.load_waiting(db, one)] == ["one 0", "one 1", "one 2"]


def test_settling_empties_the_payload_and_keeps_the_key(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    inbox.settle(db, receive(db, chat, "secret"), InboxState.DONE, START)
    assert db.execute("SELECT payload, settled_at FROM inbox").fetchall() == [("", START)]


def test_messages_and_commands_of_the_sender_count_as_waiting(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    receive(db, chat, "mine")
    receive(db, chat, "/new", kind=InboxKind.COMMAND)
    receive(db, chat, "edit", kind=InboxKind.NOTICE)
    receive(db, chat, "yours", sender=BOB)
    inbox.settle(db, receive(db, chat, "gone"), InboxState.DROPPED, START)
    assert inbox.count_waiting(db, chat, ANN) == 2


def test_dropping_keeps_commands_and_claimed_rows(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    start(db, chat, "running")
    receive(db, chat, "mine")
    receive(db, chat, "/new", kind=InboxKind.COMMAND)
    receive(db, chat, "yours", sender=BOB)
    assert inbox.drop_waiting(db, chat, ANN, START) == 1
    assert states(db, chat) == ["claimed", "dropped", "new", "new"]
    assert inbox.drop_waiting(db, chat, None, START) == 1
    assert states(db, chat) == ["claimed", "dropped", "new", "dropped"]


def test_chats_with_waiting_rows_or_turns_have_work(db: sqlite3.Connection) -> None:
    quiet, waiting, running = (make_chat(db, ref) for ref in "123")
    exchange(db, quiet, "q", "a")
    receive(db, waiting, "hello")
    turn = start(db, running, "go")
    assert set(inbox.load_chats_with_waiting(db)) == {waiting, running}
    finish(db, turn, "done")
    assert inbox.load_chats_with_waiting(db) == [waiting]


def test_a_row_knows_if_other_work_precedes_it(db: sqlite3.Connection) -> None:
    chat, other = make_chat(db), make_chat(db, "other")
    receive(db, other, "elsewhere")
    alone = receive(db, chat, "/new", kind=InboxKind.COMMAND)
    assert not inbox.is_behind_work(db, alone)
    assert not inbox.is_behind_work(db, receive(db, chat, "/undo", kind=InboxKind.COMMAND))
    receive(db, chat, "message")
    assert inbox.is_behind_work(db, receive(db, chat, "/title x", kind=InboxKind.COMMAND))
    assert not inbox.is_behind_work(db, alone)


def test_an_open_turn_precedes_every_row(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    command = receive(db, chat, "/retry", kind=InboxKind.COMMAND)
    turn = journal.start_retry(db, command, chat, ANN, START)
    later = receive(db, chat, "/new", kind=InboxKind.COMMAND)
    assert inbox.is_behind_work(db, later)
    finish(db, turn, "done")
    assert not inbox.is_behind_work(db, later)


def test_inbox_ids_are_never_reused(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    old = receive(db, chat, "/help", kind=InboxKind.COMMAND)
    reply = Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown="x", dedupe_key=f"inbox:{old}")
    assert outbox.enqueue(db, reply, START)
    inbox.settle(db, old, InboxState.DONE, START)
    assert db.execute("DELETE FROM inbox WHERE settled_at IS NOT NULL").rowcount == 1
    assert receive(db, chat, "/help", kind=InboxKind.COMMAND) > old


# ---- edits and deletions


def test_an_edit_replaces_only_the_text_of_a_waiting_row(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "helo", ticket="t")
    assert inbox.replace_text(db, row, "hello")
    [waiting] = inbox.load_waiting(db, chat)
    assert waiting.payload == InboxPayload(text="hello", ticket="t")


def test_a_claimed_row_is_not_rewritten(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "helo")
    journal.start_turn(db, chat, [row], {}, START)
    assert not inbox.replace_text(db, row, "hello")


@pytest.mark.parametrize("text", ["one\0two\0\0", "\\\0", "\\u0000", "\\\\u0000 \0"])
def test_a_nul_in_a_message_breaks_neither_its_turn_nor_its_edit(db: sqlite3.Connection, text: str) -> None:
    chat = make_chat(db)
    waiting = receive(db, chat, text, ref="7", ticket="t")
    edited = inbox.find_edited(db, chat, "7")
    assert edited is not None
    expected = text.replace("\0", "\N{REPLACEMENT CHARACTER}") if IS_POSTGRES else text.partition("\0")[0]
    assert edited.text == expected, "SQLite ends there what it takes out of JSON"
    assert journal.start_turn(db, chat, [waiting], {}, START).ticket == "t"


def test_an_edit_finds_the_stored_message(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    assert inbox.find_edited(db, chat, "7") is None
    row = receive(db, chat, "first", ref="7")
    waiting = inbox.find_edited(db, chat, "7")
    assert waiting is not None
    assert (waiting.state, waiting.text, waiting.lineage_id) == (InboxState.NEW, "first", None)
    turn = journal.start_turn(db, chat, [row], {}, START)
    finish(db, turn, "a")
    told = inbox.find_edited(db, chat, "7")
    assert told is not None
    assert (told.state, told.text, told.lineage_id) == (InboxState.DONE, "first", turn.lineage_id)


def test_the_newest_notice_has_the_current_text(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "first", ref="7")
    finish(db, journal.start_turn(db, chat, [row], {}, START), "a")
    notice = receive(db, chat, inbox.EDIT_PREFIX + "second", ref="7", kind=InboxKind.NOTICE)
    edited = inbox.find_edited(db, chat, "7")
    assert edited is not None
    assert (edited.inbox_id, edited.text, edited.waiting_notice) == (row, "second", notice)
    asked = receive(db, chat, "go on")
    finish(db, journal.start_turn(db, chat, [notice, asked], {}, START), "b")
    edited = inbox.find_edited(db, chat, "7")
    assert edited is not None
    assert (edited.text, edited.waiting_notice) == ("second", None)


def test_only_waiting_rows_can_be_withdrawn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    receive(db, chat, "one", ref="1")
    start(db, chat, "two")
    assert inbox.withdraw(db, chat, "1", START) == 1
    assert inbox.withdraw(db, chat, "1", START) == 0
    assert states(db, chat) == ["withdrawn", "claimed"]


# ---- cursors


@examples(40)
@given(st.lists(st.integers(1, 10**20), min_size=1))
def test_a_cursor_only_moves_forward(ids: list[int]) -> None:
    with migrated() as db:
        for seen in ids:
            inbox.advance_cursor(db, Cursor(platform="discord", account="discord", channel_ref="c", seen_ref=str(seen)))
        assert inbox.load_cursors(db, "discord", "discord") == {"c": str(max(ids))}


def test_cursors_are_separate_per_channel_and_account(db: sqlite3.Connection) -> None:
    for account, channel, seen in (("a", "1", "5"), ("a", "2", "6"), ("b", "1", "7")):
        inbox.advance_cursor(db, Cursor(platform="discord", account=account, channel_ref=channel, seen_ref=seen))
    assert inbox.load_cursors(db, "discord", "a") == {"1": "5", "2": "6"}


@sqlite_only
def test_settled_rows_do_not_slow_down_new_messages(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    plans: list[str] = []

    def explained(query: str) -> None:
        if query.startswith(("SELECT", "UPDATE")) and "inbox" in query:
            plans.extend(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {query}").fetchall())

    with migrated() as other:
        db.set_trace_callback(explained)
        inbox.load_waiting(db, chat)
        inbox.count_waiting(db, chat, ANN)
        inbox.drop_waiting(db, chat, None, START)
        inbox.queue_late_steers(db, chat)
        inbox.queue_steers(db, lambda _ref: True)
        db.set_trace_callback(None)
    assert len(plans) == 5
    assert all("inbox_open" in plan for plan in plans), plans
