"""One timeline of what is stored and what was said lately."""

from dataclasses import replace

from hermes_state.chats import ensure_chat
from hermes_state.tools.schedules import FiringPlan, NewSchedule, fire_due, insert_schedule
from hermes_state.values import ChatKind, Millis, UserRef
from platforms.local.entries import Entry, EntryKind, merge, taken_up
from platforms.local.history import chat_key, load_history
from tests.hermes_state.rows import migrated

ALL = Millis(0)


def entry(ref: str, text: str, kind: EntryKind = EntryKind.ANSWER, at: int = 1) -> Entry:
    return Entry(ref=ref, kind=kind, at=Millis(at), text=text)


def test_what_was_said_below_an_answer_is_still_there_when_the_page_is_loaded_again() -> None:
    stored = [entry("q", "hello", EntryKind.PERSON), entry("a", "good day", at=2)]
    shown = entry("a", "good day\n\n_`spare` answers for now._", at=3)
    assert merge(stored, frozenset({"a"}), [shown], ALL) == [
        stored[0],
        entry("a", "good day\n\n_`spare` answers for now._", at=2),
    ]


def test_an_answer_that_is_stored_otherwise_stays_as_it_is_stored() -> None:
    stored = [entry("a", "corrected", at=2)]
    assert merge(stored, frozenset({"a"}), [entry("a", "good day", at=3)], ALL) == stored


def test_what_is_not_stored_stands_where_it_was_said() -> None:
    stored = [entry("a", "one", at=1), entry("b", "two", at=3)]
    notice = entry("n", "usage", EntryKind.NOTICE, at=2)
    assert merge(stored, frozenset(), [notice], ALL) == [stored[0], notice, stored[1]]
    assert merge(stored, frozenset({"n"}), [notice], ALL) == stored
    assert merge(stored, frozenset(), [notice], Millis(3)) == stored


def test_what_was_taken_up_stands_behind_what_was_shown_just_then() -> None:
    stored = [replace(entry("q", "second question", EntryKind.PERSON, at=1), not_before=taken_up(Millis(5)))]
    failed = entry("n", "That did not work.", EntryKind.NOTICE, at=5)
    assert merge(stored, frozenset(), [failed], ALL) == [failed, stored[0]]


def test_messages_that_schedules_bring_wait_as_entries_of_their_own() -> None:
    with migrated() as db:
        chat_id = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(1))
        for text in ("one", "two"):
            schedule = NewSchedule(
                chat_id=chat_id,
                creator_ref=UserRef("local:owner"),
                creator_name="Owner",
                spec="@daily",
                zone="UTC",
                text=text,
                next_at=Millis(1),
                created_at=Millis(1),
            )
            insert_schedule(db, schedule)
        fire_due(db, lambda row: FiringPlan(key="2026-11-24T08:00", next_at=Millis(9)), Millis(1))
        entries, _ = load_history(db, chat_key("main"), 10, None, ())
        assert [entry.text for entry in entries] == ["one", "two"]
        assert len({entry.ref for entry in entries if entry.ref}) == 2
