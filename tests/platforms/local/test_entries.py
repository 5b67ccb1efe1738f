"""One timeline of stored and recent entries."""

import json

import pytest
from msgspec.structs import replace

from hermes_state.attachments import StoredFile, insert
from hermes_state.chats import ensure_chat
from hermes_state.sessions import start_session
from hermes_state.tools.schedules import FiringPlan, NewSchedule, fire_due, insert_schedule
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatKind, MessageBody, MessageRole, Millis, Origin, Reasoning, ToolCall, UserRef
from platforms.local.entries import Entry, EntryKind, merge, taken_up
from platforms.local.history import load_history
from platforms.local.pages import chat_key
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


def test_entries_of_the_same_time_keep_their_order() -> None:
    entries = [entry(ref, ref, at=7) for ref in "abc"]
    merged = merge(entries, frozenset(), [entry("d", "d", EntryKind.NOTICE, at=7), entry("e", "e", at=8)], ALL)
    assert [one.ref for one in merged] == [*"abcde"]
    orders = [one.order for one in merged]
    assert orders == sorted(set(orders))
    assert max(replace(merged[-1], is_waiting=True, at=Millis(2 * 10**12)).order, 0) < 2**53


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


@pytest.mark.parametrize(
    ("kind", "text", "look"),
    [
        (EntryKind.PERSON, "/stop", "person command"),
        (EntryKind.PERSON, "/title\tPlans", "person command"),
        (EntryKind.PERSON, "/etc/hosts is broken", "person"),
        (EntryKind.REPLY, "/stop", "notice reply"),
        (EntryKind.QUESTION, "May I?", "notice question"),
        (EntryKind.FAILURE, "Send /retry.", "notice error failure"),
    ],
)
def test_kinds_look_different(kind: EntryKind, text: str, look: str) -> None:
    assert entry("a", text, kind).look == look


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        (
            {"behind": "ab12", "blocks": [{"type": "thinking", "thinking": "First, look.", "signature": "x"}]},
            "First, look.",
        ),
        ({"behind": "ab12", "blocks": [{"type": "redacted_thinking", "data": "secret"}]}, ""),
        ([{"reasoning_content": " First, look.\n"}], "First, look."),
        ([{"reasoning_details": [{"type": "reasoning.text", "text": "One."}, {"summary": "Two."}]}], "One.\n\nTwo."),
        ([{"thinking": [{"type": "text", "text": "First, look."}]}, {"tool_calls": {"0": {"x": "y"}}}], "First, look."),
        ([[0, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "One."}], "id": "rs_1"}]], "One."),
        ([[0, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]], ""),
    ],
    ids=["anthropic", "redacted", "chat completions", "details", "thinking", "responses", "encrypted"],
)
def test_reasoning_of_every_protocol_is_shown_before_its_calls(blocks: object, text: str) -> None:
    with migrated() as db:
        chat_id = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(1))
        session = start_session(db, chat_id, Millis(1))
        body = MessageBody(
            calls=(ToolCall(id="c1", name="read_file", arguments="{}"),),
            reasoning=Reasoning(made_by="some:model", blocks=json.dumps(blocks)),
        )
        said = NewMessage(role=MessageRole.ASSISTANT, origin=Origin.ASSISTANT, text=None, body=body)
        append(db, session.id, said, Millis(2))
        entries, _ = load_history(db, chat_key("main"), 10, None, ())
        thoughts = [(EntryKind.REASONING, text)] if text else []
        assert [(entry.kind, entry.text) for entry in entries] == [*thoughts, (EntryKind.TOOL, "")]


def test_uploaded_files_of_a_message_are_listed() -> None:
    with migrated() as db:
        chat_id = ensure_chat(db, chat_key("main"), ChatKind.LOCAL, None, Millis(1))
        session = start_session(db, chat_id, Millis(1))
        body = MessageBody(other_files=("cat.iso",))
        look = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text="look", body=body)
        asked = append(db, session.id, look, Millis(2))
        append(db, session.id, NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text="no file"), Millis(3))
        file = StoredFile(sha256="ab", path="ab/cd", name="cat.png", mime="image/png", size_bytes=3)
        insert(db, chat_id, file, Millis(2), asked)
        entries, _ = load_history(db, chat_key("main"), 10, None, ())
        assert [[file.name for file in entry.stored] for entry in entries] == [["cat.png"], []]
        assert [entry.files for entry in entries] == [("cat.iso",), ()]
