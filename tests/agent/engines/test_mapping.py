"""Mapping of an engine's message list to rows."""

import copy
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.lists import MessageListError
from agent.engines.mapping import UNSAID, MappedMessages, SentMessages, mapped_messages, sent_messages
from agent.handoff import SUMMARY_PREFIX, Handoff, parse_handoff
from agent.model.wire import WireStyle, chat_messages
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, MessageRole, Origin
from tests.agent.context.rows import answer, human, result, row
from tests.agent.engines.examples import conversation
from tests.fakes.llm_legality import check_openai, untidy
from tests.sampling import examples

ROWS = conversation(6, filler="filler")
END = (-4, -3, -2, -1)


def given_list(rows: Sequence[Message] = ROWS) -> SentMessages:
    return sent_messages("You help.", tuple(rows), WireStyle())


def back(sent: SentMessages, returned: object) -> MappedMessages:
    return mapped_messages(sent, returned, lambda text: text.replace("hunter2", "[redacted]"))


def kept(mapped: MappedMessages) -> list[int]:
    return [item for item in mapped.context if not isinstance(item, NewMessage)]


def handoff(mapped: MappedMessages) -> NewMessage:
    [found] = [item for item in mapped.context if isinstance(item, NewMessage) and item.origin is Origin.SUMMARY]
    return found


def said(mapped: MappedMessages) -> str:
    return parse_handoff(handoff(mapped).text or "").text


def note(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def test_the_same_objects_are_the_same_rows_and_the_rest_is_the_handoff() -> None:
    sent = given_list()
    mapped = back(sent, [sent.messages[0], note("what was"), *sent.messages[-8:]])
    assert (kept(mapped), mapped.context[0]) == ([row.id for row in ROWS[-8:]], handoff(mapped))
    assert (said(mapped), mapped.summarised, mapped.removed) == ("what was", 16, ROWS[:16])
    record = parse_handoff(handoff(mapped).text or "")
    assert (record.messages, record.first_id, record.last_id) == (16, ROWS[0].id, ROWS[15].id)


def test_copies_are_matched_by_role_content_and_call_ids() -> None:
    sent = given_list()
    returned = copy.deepcopy([sent.messages[0], *sent.messages[1:5], note("what was"), *sent.messages[-4:]])
    returned[1]["content"] = [{"type": "text", "text": returned[1]["content"]}]
    mapped = back(sent, returned)
    assert kept(mapped) == [row.id for row in (*ROWS[:4], *ROWS[-4:])]
    assert mapped.context.index(handoff(mapped)) == 4


def test_equal_messages_are_matched_from_both_ends() -> None:
    rows = (human("ok"), answer("yes"), human("more"), answer("done"), human("ok"), answer("yes"), human("last"))
    sent = given_list(rows)
    copies = copy.deepcopy(list(sent.messages))
    assert kept(back(sent, [note("before"), *copies[5:]])) == [row.id for row in rows[4:]]
    assert kept(back(sent, [*copies[1:3], note("between"), copies[-1]])) == [rows[0].id, rows[1].id, rows[-1].id]


def test_a_repetition_of_a_kept_first_message_is_the_engines_own_text() -> None:
    rows = (human("hello"), answer("yes"), human("last"))
    sent = sent_messages("", rows, WireStyle())
    again = note(sent.messages[0]["content"])
    mapped = back(sent, [sent.messages[0], again, sent.messages[-1]])
    assert (kept(mapped), said(mapped)) == ([rows[0].id, rows[2].id], again["content"])


def test_an_unchanged_list_is_not_a_compression() -> None:
    sent = given_list()
    assert mapped_messages(sent, list(sent.messages), str) is None
    assert mapped_messages(sent, copy.deepcopy(list(sent.messages)), str) is None
    assert mapped_messages(sent, list(sent.messages[1:]), str) is None
    sent.messages[0]["content"] = "You are somebody else."
    assert mapped_messages(sent, list(sent.messages), str) is None, "the system prompt does not count"


def test_a_message_changed_in_place_no_longer_matches_its_row() -> None:
    sent = given_list()
    returned = list(sent.messages)
    returned[1]["content"] = "question 0, shortened"
    mapped = back(sent, returned)
    assert (kept(mapped), said(mapped)) == ([row.id for row in ROWS[1:]], "question 0, shortened")


def test_a_shortened_result_stays_with_its_call_and_names_the_full_result() -> None:
    rows = (human("q"), answer(None, "c1"), result("c1", "long " * 200), answer("a"), human("p"), human("next"))
    sent = given_list(rows)
    sent.messages[3]["content"] = "long, and so on"
    mapped = back(sent, list(sent.messages))
    [stub] = [item for item in mapped.context if isinstance(item, NewMessage)]
    assert mapped.context == (rows[0].id, rows[1].id, stub, *(row.id for row in rows[3:]))
    assert (stub.role, stub.tool_call_id, stub.turn_id) == (MessageRole.TOOL, "c1", rows[2].turn_id)
    assert stub.text.startswith("long, and so on")
    assert f'history_open(id="m{rows[2].id}")' in stub.text
    assert (mapped.removed, mapped.summarised) == ((rows[2],), 0)
    mapped = back(sent, [*sent.messages[:4], sent.messages[-1]])
    [stub, summary] = [item for item in mapped.context if isinstance(item, NewMessage)]
    assert mapped.context == (rows[0].id, rows[1].id, stub, summary, rows[4].id, rows[5].id), "the handoff comes after"


def test_text_added_before_a_call_becomes_the_handoff() -> None:
    rows = (human("q"), answer("look", "c1"), result("c1"), human("p"), answer("there", "c2"), result("c2"), human("n"))
    sent = given_list(rows)
    changed = {**sent.messages[5], "content": "what was\n\nthere"}
    mapped = back(sent, [sent.messages[0], sent.messages[4], changed, *sent.messages[6:]])
    assert (kept(mapped), said(mapped)) == ([row.id for row in rows[3:]], "what was")


def test_results_are_removed_together_with_their_call() -> None:
    rows = (human("q"), answer(None, "c1"), result("c1", "found it"), answer("a"), human("n"))
    sent = given_list(rows)
    asked = copy.deepcopy(sent.messages[2])
    asked["tool_calls"][0]["id"] = "other"
    returned = [sent.messages[1], asked, {**sent.messages[3], "tool_call_id": "other"}, *sent.messages[4:]]
    mapped = back(sent, returned)
    assert (kept(mapped), said(mapped)) == ([rows[0].id, rows[3].id, rows[4].id], "(called look)\n\nfound it")


def test_text_before_a_persons_words_is_separated_from_them() -> None:
    sent = given_list()
    newest = sent.messages[-4]
    merged = {"role": "user", "content": f"what was\n\n{newest['content']}"}
    mapped = back(sent, [sent.messages[0], merged, *sent.messages[-3:]])
    assert (kept(mapped), said(mapped)) == ([row.id for row in ROWS[-4:]], "what was")


def test_the_newest_request_stays_even_if_the_engine_dropped_it() -> None:
    rows = (*ROWS, human("and now this"), answer("working", "c9"), result("c9", "seen"))
    sent = given_list(rows)
    mapped = back(sent, [note("what was"), *sent.messages[-2:]])
    assert mapped.context == (handoff(mapped), rows[-3].id, rows[-2].id, rows[-1].id)


def test_all_text_of_an_engine_becomes_one_handoff_at_its_first_position() -> None:
    sent = given_list()
    messages = sent.messages
    mapped = back(sent, [*messages[1:5], note("one"), *messages[9:13], note("two"), *messages[-4:]])
    assert (said(mapped), mapped.context.index(handoff(mapped))) == ("one\n\ntwo", 4)


def test_an_earlier_handoff_is_a_separate_message_and_stays_if_unchanged() -> None:
    earlier = Handoff(text="long ago", messages=40, first_id=1, last_id=40).stored()
    rows = (human("q"), row(MessageRole.USER, earlier, origin=Origin.SUMMARY), *ROWS)
    sent = given_list(rows)
    assert sent.messages[2]["content"].startswith(SUMMARY_PREFIX)
    mapped = back(sent, [*sent.messages[:3], *sent.messages[-4:], note("bye")][:-1])
    # Rows were dropped without a summary, so the earlier record must cover them as well.
    record = parse_handoff(handoff(mapped).text or "")
    assert (record.text, record.messages) == ("long ago", 60)


def test_new_text_and_an_earlier_handoff_become_one_record() -> None:
    earlier = Handoff(text="long ago", messages=40, first_id=1, last_id=40).stored()
    rows = (row(MessageRole.USER, earlier, origin=Origin.SUMMARY), *ROWS)
    sent = given_list(rows)
    replaced = back(sent, [note("long ago and since"), *sent.messages[-4:]])
    record = parse_handoff(handoff(replaced).text or "")
    assert (record.text, record.messages, record.first_id) == ("long ago and since", 60, 1)
    both = back(sent, [sent.messages[1], note("since"), *sent.messages[-4:]])
    assert (said(both), kept(both)) == ("long ago\n\nsince", [row.id for row in ROWS[-4:]])


def test_rows_dropped_without_a_summary_are_announced() -> None:
    sent = given_list()
    mapped = back(sent, [*sent.messages[:5], *sent.messages[-4:]])
    assert (said(mapped), mapped.context.index(handoff(mapped))) == (UNSAID, 4)


def test_markers_and_secrets_in_an_engines_text_are_removed() -> None:
    sent = given_list()
    mapped = back(
        sent, [note(f"{SUMMARY_PREFIX}\nthe password is hunter2\n[END OF CONTEXT COMPACTION]"), *sent.messages[-4:]]
    )
    assert said(mapped) == "the password is [redacted]"


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "not a list"),
        ("all is well", "not a list"),
        ([], "empty"),
        (["hello"], "is str"),
        ([{"content": "hello"}], "no known role"),
        ([{"role": "narrator", "content": "hello"}], "no known role"),
        ([{"role": "user", "content": 7}], "no content"),
        ([{"role": "user", "content": ["hello"]}], "content part"),
        (
            [{"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "c", "content": "r"}],
            "result without a call",
        ),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}], "without a function name"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "without unique ids"),
    ],
)
def test_invalid_lists_are_refused(returned: object, reason: str) -> None:
    with pytest.raises(MessageListError, match=reason):
        mapped_messages(given_list(), returned, str)


@pytest.mark.parametrize(
    ("kept_places", "reason"),
    [
        ((1, 2, 4), "no result"),
        ((1, 2), "at the end"),
        ((1, 1, *END), "order"),
        ((5, 1), "order"),
        ((4, None, *END), "begin"),
    ],
)
def test_missing_results_and_another_order_are_refused(kept_places: Sequence[int | None], reason: str) -> None:
    sent = given_list()
    with pytest.raises(MessageListError, match=reason):
        mapped_messages(sent, [note("what was") if at is None else sent.messages[at] for at in kept_places], str)


def child_rows(mapped: MappedMessages, rows: Sequence[Message]) -> tuple[Message, ...]:
    """Rows of the view that would be committed."""
    by_id = {row.id: row for row in rows}
    made = row(MessageRole.USER, "made")
    return tuple(
        by_id[item]
        if not isinstance(item, NewMessage)
        else msgspec.structs.replace(
            made, role=item.role, origin=item.origin, text=item.text, body=item.body, tool_call_id=item.tool_call_id
        )
        for item in mapped.context
    )


@examples(100)
@given(data=st.data())
def test_any_valid_list_gives_a_valid_ordered_view_with_the_newest_request(data: st.DataObject) -> None:
    rows = (*conversation(data.draw(st.integers(1, 6)), filler=""), human("newest"), answer(None, "z"), result("z"))
    sent = given_list(rows)
    returned: list[Any] = []
    is_kept = True
    for at, message in enumerate(sent.messages):
        if message["role"] != "tool" or data.draw(st.integers(0, 30)) == 0:  # rarely separated from its call
            is_kept = data.draw(st.booleans())
        if is_kept:
            returned.append(message if data.draw(st.booleans()) else copy.deepcopy(message))
        if at and "tool_calls" not in message and data.draw(st.integers(0, 5)) == 0:
            returned.append(note("own words", data.draw(st.sampled_from(["user", "assistant", "system"]))))
    try:
        mapped = mapped_messages(sent, returned, str)
    except MessageListError:
        return
    if mapped is None:
        return
    view = child_rows(mapped, rows)
    assert not untidy(check_openai(chat_messages("You help.", view, WireStyle())))
    originals = [row.id for row in view if row.id in {row.id for row in rows}]
    assert originals == sorted(set(originals))
    assert rows[-3].id in originals
    assert sum(row.origin is Origin.SUMMARY for row in view) == 1
    assert {*originals, *(row.id for row in mapped.removed)} == {row.id for row in rows}
