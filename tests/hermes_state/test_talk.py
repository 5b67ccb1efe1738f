"""The talk between mentions: bounded rows that a turn shows once."""

import pytest
from msgspec.structs import replace

from hermes_state import journal, talk
from hermes_state.chats import ensure_chat
from hermes_state.inbox import EDIT_PREFIX
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, ChatKey, ChatKind, EditEvent, InboundMessage, Millis, Sender
from tests.hermes_state.rows import START, received

GROUP = ChatKey(platform="telegram", account="telegram", chat_ref="-100")
ANN = Sender(platform="telegram", id="7", name="Ann")


@pytest.fixture
def group(db: Connection) -> ChatId:
    return ensure_chat(db, GROUP, ChatKind.GROUP, "Group", START)


def say(db: Connection, chat: ChatId, number: int, text: str = "", sent_at: int = START) -> None:
    message = InboundMessage(
        event_ref=f"7:{number}",
        chat=GROUP,
        chat_kind=ChatKind.GROUP,
        sender=ANN,
        text=text,
        message_ref=str(number),
        sent_at=Millis(sent_at),
        is_addressed=False,
    )
    talk.keep(db, chat, message, text or f"message {number}", has_access=True)


def kept(db: Connection) -> list[str]:
    return [text for (text,) in db.execute("SELECT text FROM talk ORDER BY id").fetchall()]


def shown(db: Connection, chat: ChatId, number: int, now: Millis = START) -> list[str]:
    """Start and end a turn, and return the talk that it added."""
    row = received(chat, f"question {number}")
    inbox_id = journal.inbox.insert(db, row, now)
    assert inbox_id is not None
    turn = journal.start_turn(db, chat, [inbox_id], {}, now, shows_talk=True)
    journal.stop_turn(db, turn, None, "stopped", now, notice="")
    query = "SELECT text FROM messages WHERE turn_id = ? AND origin = 'talk' ORDER BY seq"
    return [text for (text,) in db.execute(query, (turn.id,)).fetchall()]


def test_each_message_is_stored_and_shown_once_and_its_number_is_bounded(db: Connection, group: ChatId) -> None:
    for number in range(250):
        say(db, group, number)
    say(db, group, 249, "the same message again")
    assert kept(db) == [f"message {number}" for number in range(50, 250)]
    assert shown(db, group, 1) == [f"message {number}" for number in range(150, 250)]
    assert shown(db, group, 2) == []
    say(db, group, 250)
    assert shown(db, group, 3) == ["message 250"]


def test_the_newest_characters_are_shown_and_old_messages_are_not(db: Connection, group: ChatId) -> None:
    say(db, group, 1, "old", START - talk.MAX_AGE_MS)
    for number in range(2, 30):
        say(db, group, number, f"{number} " + "x" * 5_000)
    found = shown(db, group, 1)
    assert 7 <= len(found) <= 8
    assert sum(map(len, found)) <= talk.MAX_SHOWN_CHARACTERS
    assert found[-1].startswith("29 ")
    assert shown(db, group, 2) == [], "what was dropped does not come later"


def test_every_conversation_of_a_group_sees_the_talk_once(db: Connection, group: ChatId) -> None:
    chats = [ensure_chat(db, replace(GROUP, user_ref=user), ChatKind.GROUP, None, START) for user in ("7", "8")]
    say(db, group, 1)
    assert [shown(db, chat, at) for at, chat in enumerate(chats)] == [["message 1"]] * 2
    assert [shown(db, chat, at) for at, chat in enumerate(chats, 2)] == [[]] * 2


def test_an_edit_replaces_the_text_or_is_shown_as_a_change(db: Connection, group: ChatId) -> None:
    say(db, group, 1)
    say(db, group, 2)

    def edit(text: str, sender: Sender = ANN) -> bool:
        change = EditEvent(
            event_ref=text, chat=GROUP, sender=sender, text=text, message_ref="1", sent_at=Millis(START + 1)
        )
        return talk.apply_edit(db, change, None)

    assert edit("new")
    assert not edit("forged", replace(ANN, id="8"))
    assert shown(db, group, 1) == ["new", "message 2"]
    assert edit("new")
    assert edit("newer")
    assert edit("newest")
    assert shown(db, group, 2) == [f"{EDIT_PREFIX}newest"]
    assert talk.remove(db, group, "1") == 1
    assert not edit("after the deletion")


HEAD, TAIL = "(in reply to Bob: lunch?)\n(forwarded from Eve)\n", "\n(file: menu.pdf)"


@pytest.mark.parametrize(
    ("stored", "new", "text"),
    [
        (f"{HEAD}at noon{TAIL}", "at one", f"{HEAD}at one{TAIL}"),
        ("(file: menu.pdf)", "the menu", "the menu\n(file: menu.pdf)"),
        (f"{HEAD}at noon{TAIL}", "at noon", None),
        ("x" * 2_000 + TAIL, "x" * 2_000, None),
        ("I read\n(file: x)", "I read\n(file: x)", None),
    ],
    ids=["all marks", "caption added", "unchanged", "long and unchanged", "looks like a mark"],
)
def test_an_edit_keeps_what_the_message_answers_and_contains(
    db: Connection, group: ChatId, stored: str, new: str, text: str | None
) -> None:
    change = EditEvent(event_ref="e", chat=GROUP, sender=ANN, text=new, message_ref="1", sent_at=START)
    say(db, group, 1, stored)
    before = kept(db)
    assert talk.apply_edit(db, change, None)
    assert kept(db) == ([text] if text else before)
    db.execute("DELETE FROM talk")
    say(db, group, 1, stored)
    shown(db, group, 1)
    assert talk.apply_edit(db, change, None)
    assert shown(db, group, 2) == ([f"{EDIT_PREFIX}{text}"] if text else [])


def test_switching_off_removes_the_talk_and_keeps_late_messages_out(db: Connection, group: ChatId) -> None:
    say(db, group, 1)
    assert talk.must_tell(db, group, START)
    assert not talk.must_tell(db, group, START)
    key = replace(GROUP, user_ref="7")
    talk.switch(db, key, ChatKind.GROUP, START, is_on=False)
    say(db, group, 2)
    assert kept(db) == []
    assert talk.load_hearing(db) == {GROUP: False}
    talk.switch(db, key, ChatKind.GROUP, START, is_on=True)
    say(db, group, 3)
    assert kept(db) == ["message 3"]
    assert talk.load_hearing(db) == {GROUP: True}
    assert not talk.must_tell(db, group, START), "the command has told the group"
