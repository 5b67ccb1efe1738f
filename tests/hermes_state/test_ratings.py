"""Ratings: the newest thumb of a person counts, whatever the order and however often an event arrives."""

import sqlite3

import pytest

from hermes_state import ratings, sessions
from hermes_state.store.sql import Connection
from hermes_state.values import ChatId, LineageId, MessageId, Millis, ReactionEvent, Sender
from tests.databases import sqlite_only
from tests.hermes_state.rows import START, exchange, key_of, make_chat, query_plans


def thumb(value: int, at: int, *, is_removed: bool = False, ref: str = "sent", person: str = "1") -> ReactionEvent:
    return ReactionEvent(
        event_ref=f"9:{at}",
        chat=key_of(),
        sender=Sender(platform="telegram", id=person, name="Ada"),
        message_ref=ref,
        sent_at=Millis(START + at),
        value=value,
        is_removed=is_removed,
    )


@pytest.fixture
def answer(db: Connection) -> tuple[ChatId, MessageId, LineageId]:
    chat_id = make_chat(db)
    lineage_id = exchange(db, chat_id, "question", "the answer").lineage_id
    [(message_id,)] = db.execute("SELECT id FROM messages WHERE role = 'assistant'").fetchall()
    db.execute("INSERT INTO platform_messages VALUES (?, 'sent', ?, 0)", (chat_id, message_id))
    return chat_id, message_id, lineage_id


UP, DOWN, LATER = thumb(1, 10), thumb(-1, 20), thumb(1, 30)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([UP], [1]),
        ([UP, UP], [1]),
        ([UP, DOWN], [-1]),
        ([DOWN, UP], [-1]),  # the second event is older
        ([UP, DOWN, UP, DOWN], [-1]),  # both were delivered again
        ([DOWN, LATER, thumb(-1, 40, is_removed=True)], [1]),
        ([UP, thumb(1, 40, is_removed=True), thumb(1, 40, is_removed=True)], []),
        ([LATER, thumb(1, 20, is_removed=True)], [1]),
        ([UP, thumb(-1, 15, person="2")], [1, -1]),
    ],
)
def test_the_newest_thumb_counts(
    db: Connection, answer: tuple[ChatId, MessageId, LineageId], events: list[ReactionEvent], expected: list[int]
) -> None:
    chat_id, message_id, _ = answer
    for event in events:
        assert ratings.find_answer(db, event) == (chat_id, message_id)
        ratings.rate(db, chat_id, message_id, event, None)
    assert ratings.load_values(db, [message_id]).get(message_id, []) == expected
    assert ratings.count(db, START, chat_id) == (expected.count(1), expected.count(-1))
    assert ratings.count(db, START, chat_id, "") == (expected.count(1), expected.count(-1))
    assert ratings.count(db, START, chat_id, "ops") == (0, 0)


def test_a_rating_is_told_once_in_its_own_conversation(
    db: Connection, answer: tuple[ChatId, MessageId, LineageId]
) -> None:
    chat_id, message_id, lineage_id = answer
    ratings.rate(db, chat_id, message_id, UP, None)
    sessions.reset(db, chat_id, Millis(START + 50))
    other = exchange(db, chat_id, "another", "topic").lineage_id
    assert ratings.tell(db, chat_id, other) == ()
    assert ratings.tell(db, chat_id, lineage_id) == (
        f"people reacted to your answers: 1 👍 to “the answer” (m{message_id})",
    )
    ratings.rate(db, chat_id, message_id, UP, None)
    assert ratings.tell(db, chat_id, lineage_id) == ()
    assert ratings.find_answer(db, thumb(1, 1, ref="another message")) is None


@sqlite_only
def test_telling_about_ratings_reads_only_the_rated_messages(
    db: sqlite3.Connection, answer: tuple[ChatId, MessageId, LineageId]
) -> None:
    chat_id, message_id, lineage_id = answer
    ratings.rate(db, chat_id, message_id, UP, None)
    with query_plans(db, lambda query: query.startswith("UPDATE ratings")) as plans:
        assert ratings.tell(db, chat_id, lineage_id)
    [plan] = plans
    assert "SEARCH a USING INTEGER PRIMARY KEY" in plan
    assert "lineage" not in plan, "no list of all messages of the conversation"
