import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hermes_state import inbox, journal, outbox
from hermes_state.inbox import InboxKind, InboxPayload, InboxState
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.values import AttachmentKind, ChatKind, Cursor, IncomingAttachment, InputKind, Millis, Quote
from tests.databases import IS_POSTGRES, sqlite_only
from tests.hermes_state.rows import (
    ANN,
    BOB,
    START,
    exchange,
    finish,
    make_chat,
    migrated,
    query_plans,
    receive,
    received,
    start,
    states,
)
from tests.sampling import examples


def test_an_inbox_row_is_stored_unchanged(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    payload = InboxPayload(
        text="héllo 😀",
        attachments=(IncomingAttachment(kind=AttachmentKind.IMAGE, file_ref="f", name="a.png", size_bytes=3),),
        quote=Quote(message_ref="4", author="Bob", text="earlier"),
        via=InputKind.SLASH,
        ticket="t",
    )
    new = replace(received(chat, "", ref="5"), payload=payload, expects_more=True)
    row_id = inbox.insert(db, new, Millis(START + 1))
    [row] = inbox.load_waiting(db, chat)
    assert (row.id, row.payload, row.expects_more, row.received_at) == (row_id, payload, True, START + 1)
    assert (row.sender_ref, row.sender_name, row.message_ref) == (ANN, str(ANN), "5")


def test_an_event_is_stored_once_even_after_settling(db: sqlite3.Connection) -> None:
    row = received(make_chat(db), "once")
    first = inbox.insert(db, row, START)
    assert first is not None
    assert inbox.insert(db, row, START) is None
    assert inbox.find_new(db, "telegram", "telegram", row.event_ref) == first
    assert inbox.settle(db, first, InboxState.DROPPED, START)
    before = db.execute("SELECT * FROM inbox").fetchall()
    assert not inbox.settle(db, first, InboxState.DONE, Millis(START + 5))
    assert db.execute("SELECT * FROM inbox").fetchall() == before
    assert db.execute("SELECT payload, settled_at FROM inbox").fetchall() == [("", START)]
    assert inbox.insert(db, row, START) is None
    assert inbox.find_new(db, "telegram", "telegram", row.event_ref) is None


def test_waiting_rows_are_in_order_of_arrival_per_chat(db: sqlite3.Connection) -> None:
    one, two = make_chat(db, "1"), make_chat(db, "2")
    for number in range(3):
        receive(db, one, f"one {number}", at=START - number)
        receive(db, two, f"two {number}")
    assert [row.payload.text for row in inbox.load_waiting(db, one)] == ["one 0", "one 1", "one 2"]


def test_a_new_message_counts_what_its_sender_waits_for(db: sqlite3.Connection) -> None:
    chat, other = make_chat(db, kind=ChatKind.GROUP), make_chat(db, "other")
    for where, sender, kind in (
        (chat, ANN, InboxKind.MESSAGE),
        (chat, ANN, InboxKind.COMMAND),
        (chat, ANN, InboxKind.NOTICE),
        (chat, BOB, InboxKind.MESSAGE),
        (other, ANN, InboxKind.MESSAGE),
    ):
        receive(db, where, "earlier", sender=sender, kind=kind)
    inbox.settle(db, receive(db, chat, "gone"), InboxState.DONE, START)
    row = received(chat, "new", sender=ANN)
    arrived = inbox.insert_waiting(db, row, START)
    assert arrived is not None
    assert arrived[1:] == (2, False), "messages and commands of the same person and chat"
    assert inbox.insert_waiting(db, row, START) is None, "it is already stored"
    start(db, other, "running")
    arrived = inbox.insert_waiting(db, received(other, "new", sender=ANN), START)
    assert arrived is not None
    assert arrived[2], "the chat has an open turn"


def test_dropping_keeps_commands_and_claimed_rows(db: sqlite3.Connection) -> None:
    chat = make_chat(db, kind=ChatKind.GROUP)
    start(db, chat, "running")
    receive(db, chat, "mine")
    receive(db, chat, "/new", kind=InboxKind.COMMAND)
    receive(db, chat, "edit", kind=InboxKind.NOTICE)
    receive(db, chat, "yours", sender=BOB)
    inbox.settle(db, receive(db, chat, "gone"), InboxState.DONE, START)
    assert inbox.drop_waiting(db, chat, ANN, START) == 2
    assert states(db, chat) == ["claimed", "dropped", "new", "dropped", "new", "done"]
    assert inbox.drop_waiting(db, chat, None, START) == 1
    assert states(db, chat) == ["claimed", "dropped", "new", "dropped", "dropped", "done"]


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
    alone = receive(db, chat, "/retry", kind=InboxKind.COMMAND)
    assert not inbox.is_behind_work(db, alone)
    later = receive(db, chat, "/undo", kind=InboxKind.COMMAND)
    assert not inbox.is_behind_work(db, later)
    turn = journal.start_retry(db, alone, chat, ANN, START)
    assert inbox.is_behind_work(db, later), "an open turn precedes every row"
    finish(db, turn, "done")
    assert not inbox.is_behind_work(db, later)
    receive(db, chat, "message")
    assert inbox.is_behind_work(db, receive(db, chat, "/title x", kind=InboxKind.COMMAND))
    assert not inbox.is_behind_work(db, later)


def test_inbox_ids_are_never_reused(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    old = receive(db, chat, "/help", kind=InboxKind.COMMAND)
    reply = Reply(chat_id=chat, kind=OutboxKind.STATUS, markdown="x", dedupe_key=f"inbox:{old}")
    assert outbox.enqueue(db, reply, START)
    inbox.settle(db, old, InboxState.DONE, START)
    assert db.execute("DELETE FROM inbox WHERE settled_at IS NOT NULL").rowcount == 1
    assert receive(db, chat, "/help", kind=InboxKind.COMMAND) > old


@pytest.mark.parametrize("text", ["one\0two\0\0", "\\\0", "\\u0000", "\\\\u0000 \0"])
def test_a_nul_in_a_message_breaks_neither_its_turn_nor_its_edit(db: sqlite3.Connection, text: str) -> None:
    chat = make_chat(db)
    waiting = receive(db, chat, text, ref="7", ticket="t")
    edited = inbox.find_edited(db, chat, "7")
    assert edited is not None
    expected = text.replace("\0", "\N{REPLACEMENT CHARACTER}") if IS_POSTGRES else text.partition("\0")[0]
    assert edited.text == expected, "SQLite ends there what it takes out of JSON"
    assert journal.start_turn(db, chat, [waiting], {}, START).ticket == "t"


def test_only_waiting_rows_can_be_edited_or_withdrawn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "helo", ref="1", ticket="t")
    started = start(db, chat, "two").first_inbox_id
    assert inbox.replace_text(db, row, "hello")
    [waiting] = inbox.load_waiting(db, chat)
    assert waiting.payload == InboxPayload(text="hello", ticket="t")
    assert not inbox.replace_text(db, started, "hello")
    assert [inbox.withdraw(db, chat, "1", START) for _ in range(2)] == [1, 0]
    assert states(db, chat) == ["withdrawn", "claimed"]


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


def test_an_edit_finds_a_message_that_was_quoted_before_its_turn(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    row = receive(db, chat, "first", ref="7")
    quoting = receive(db, chat, "what is this?", ref="8", quote=Quote(message_ref="7", author="Ann", text="first"))
    for inbox_id in (quoting, row):
        finish(db, journal.start_turn(db, chat, [inbox_id], {}, START), "a")
    edited = inbox.find_edited(db, chat, "7")
    assert edited is not None
    assert (edited.inbox_id, edited.text) == (row, "first")


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


@examples(40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.integers(1, 10**20)), min_size=1))
def test_a_cursor_of_a_channel_and_account_only_moves_forward(seen: list[tuple[str, str, int]]) -> None:
    with migrated() as db:
        highest: dict[tuple[str, str], int] = {}
        for account, channel, ref in seen:
            inbox.advance_cursor(
                db, Cursor(platform="discord", account=account, channel_ref=channel, seen_ref=str(ref))
            )
            highest[account, channel] = max(ref, highest.get((account, channel), 0))
        for account in "ab":
            expected = {channel: str(ref) for (owner, channel), ref in highest.items() if owner == account}
            assert inbox.load_cursors(db, "discord", account) == expected


@sqlite_only
def test_settled_rows_do_not_slow_down_new_messages(db: sqlite3.Connection) -> None:
    chat = make_chat(db)
    with query_plans(
        db, lambda query: query.startswith(("SELECT", "UPDATE", "INSERT INTO inbox")) and "inbox" in query
    ) as plans:
        inbox.load_waiting(db, chat)
        inbox.insert_waiting(db, received(chat, "new"), START)
        inbox.drop_waiting(db, chat, None, START)
        inbox.queue_late_steers(db, chat)
        inbox.queue_steers(db, lambda _ref: True)
    assert len(plans) == 5
    assert all("inbox_waiting" in plan for plan in plans), plans


def test_an_account_belongs_to_the_bot_of_its_newest_event(db: sqlite3.Connection) -> None:
    chat = make_chat(db)

    def receive_as(account: str, event_ref: str) -> None:
        row = replace(received(chat, "hello"), account=account, event_ref=event_ref)
        inbox.insert(db, row, START)

    receive_as("telegram", "22:1")
    assert inbox.find_accounts(db, "telegram", "22") == ["telegram"]
    receive_as("telegram", "11:1")
    receive_as("telegram", "schedule:1:5")
    assert [inbox.find_accounts(db, "telegram", bot) for bot in ("22", "11", "1")] == [[], ["telegram"], []]
    receive_as("telegram/ops", "22:2")
    assert inbox.find_accounts(db, "telegram", "22") == ["telegram/ops"]
