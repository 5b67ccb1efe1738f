"""One timeline of stored and recent entries."""

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


def test_notices_below_an_answer_survive_a_reload() -> None:
    stored = [entry("q", "hello", EntryKind.PERSON), entry("a", "good day", at=2)]
    shown = entry("a", "good day\n\n_`spare` answers for now._", at=3)
    assert merge(stored, frozenset({"a"}), [shown], ALL) == [
        stored[0],
        entry("a", "good day\n\n_`spare` answers for now._", at=2),
    ]


def test_the_stored_form_of_an_answer_wins() -> None:
    stored = [entry("a", "corrected", at=2)]
    assert merge(stored, frozenset({"a"}), [entry("a", "good day", at=3)], ALL) == stored


def test_an_entry_that_is_not_stored_keeps_its_place() -> None:
    stored = [entry("a", "one", at=1), entry("b", "two", at=3)]
    notice = entry("n", "usage", EntryKind.NOTICE, at=2)
    assert merge(stored, frozenset(), [notice], ALL) == [stored[0], notice, stored[1]]
    assert merge(stored, frozenset({"n"}), [notice], ALL) == stored
    assert merge(stored, frozenset(), [notice], Millis(3)) == stored


def test_a_message_whose_turn_started_later_follows_the_entries_shown_then() -> None:
    stored = [replace(entry("q", "second question", EntryKind.PERSON, at=1), not_before=taken_up(Millis(5)))]
    failed = entry("n", "That did not work.", EntryKind.NOTICE, at=5)
    assert merge(stored, frozenset(), [failed], ALL) == [failed, stored[0]]


def test_waiting_messages_of_schedules_have_their_own_entries() -> None:
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
