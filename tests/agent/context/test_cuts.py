"""Cuts of a transcript: which rows stay, and which rows are never separated."""

from collections.abc import Sequence

import pytest

from agent.context.cuts import Cut, SkipReason, child_context, find_cut, handoff_for, middle_of
from agent.context.limits import CompressorSettings, Limits, LimitSettings, limits_of
from agent.model.wire import WireStyle, chat_messages
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, MessageBody, MessageRole, Origin, Transcript, TurnId
from tests.agent.context.rows import answer, human, result, row

WINDOW = limits_of(190_000, 8_192, LimitSettings())  # threshold 95,000, tail 19,000 to 28,500, head 4,000
SMALL = limits_of(8_192, 1_024, LimitSettings())  # threshold 4,096, tail 819 to 1,228, head 1,024
RULES = CompressorSettings()


def cut_of(
    rows: Sequence[Message],
    sizes: Sequence[int] | int = 100,
    limits: Limits = SMALL,
    rules: CompressorSettings = RULES,
    keep_turns: int | None = None,
) -> Cut | SkipReason:
    each = [sizes] * len(rows) if isinstance(sizes, int) else sizes
    return find_cut(tuple(rows), each, limits, rules, keep_turns=keep_turns)


def cut(*args: object, **named: object) -> Cut:
    found = cut_of(*args, **named)  # type: ignore[arg-type]  # passed on as they are
    assert isinstance(found, Cut)
    return found


def chatter(turns: int) -> list[Message]:
    return [one for number in range(turns) for one in (human(f"question {number}"), answer(f"answer {number}"))]


def step(*calls: str) -> list[Message]:
    return [answer(None, *calls), *(result(call) for call in calls)]


def handoff(text: str = "record") -> Message:
    return row(MessageRole.USER, text, origin=Origin.SUMMARY, sender_ref=None, sender_name=None, turn_id=None)


def child(rows: Sequence[Message], found: Cut) -> Transcript:
    """Rows of the child's view."""
    by_id = {one.id: one for one in rows}
    context = child_context(tuple(rows), found, handoff_for(*middle_of(tuple(rows), found), "record"))
    return tuple(handoff(item.text or "") if isinstance(item, NewMessage) else by_id[item] for item in context)


# ---- the worked example


@pytest.mark.parametrize("shape", ["words", "tools"])
def test_a_list_of_45_messages_keeps_a_head_of_3_the_handoff_and_the_newest_20(shape: str) -> None:
    """A system prompt and 44 rows of about 95,000 tokens, the newest 20 with 28,000. The window has 190,000."""
    if shape == "words":
        rows = chatter(22)
    else:
        rows = [human("a"), *step("c"), *[row for _ in range(10) for row in (answer("b"), human("c"))]]
        rows = [*rows, answer("d"), *chatter(10)]
    sizes = [500] * 3 + [65_500 // 21] * 21 + [1_400] * 20
    assert len(rows) == len(sizes) == 44
    found = cut(rows, sizes, WINDOW)
    assert found == Cut(head_end=3, tail_start=24)
    after = child(rows, found)
    assert len(after) == 24
    sent = chat_messages("You are Hermes.", after, WireStyle())
    assert (len(sent), [message["role"] for message in sent[4:6]]) == (25, ["assistant", "user"])
    tokens = sum(sizes[:3]) + WINDOW.summary_ceiling + sum(sizes[24:]) + 2_000
    assert 40_000 <= tokens <= 48_000


# ---- the tail


SHORT_TAIL = CompressorSettings(protect_last_n=3)
CHATTER = {
    "the tail fills its budget": (40, 40, SHORT_TAIL, Cut(head_end=3, tail_start=80 - 819 // 40)),
    "the tail has protected rows": (20, 60, RULES, Cut(head_end=3, tail_start=40 - 20)),
    "the protected rows exceed the budget by more than half": (20, 100, RULES, Cut(head_end=3, tail_start=40 - 8)),
    "three rows stay regardless of size": (10, 1_500, RULES, Cut(head_end=0, tail_start=20 - 3)),
    "three rows would fill the window": (10, 4_000, RULES, Cut(head_end=0, tail_start=20 - 1, kept=(18,))),
    "everything would fit into the tail": (10, 10, RULES, Cut(head_end=4, tail_start=17)),
    "the first row is too large for the head": (20, [2_000] + [60] * 39, RULES, Cut(head_end=0, tail_start=20)),
    "the second row is too large for the head": (20, [60, 2_000] + [60] * 38, RULES, Cut(head_end=1, tail_start=20)),
    "few rows": (3, 100, RULES, SkipReason.TOO_FEW),
    "few rows that fill the window": (3, 2_000, RULES, Cut(head_end=0, tail_start=4)),
}


@pytest.mark.parametrize("case", CHATTER)
def test_a_conversation_without_tools_is_cut_by_sizes_and_settings(case: str) -> None:
    turns, sizes, rules, expected = CHATTER[case]
    assert cut_of(chatter(turns), sizes, SMALL, rules) == expected


def test_a_call_and_its_results_stay_together_at_the_start_of_the_tail() -> None:
    rows = [*chatter(5), human("go"), *step("a", "b", "c", "d"), answer("done")]
    found = cut(rows, [100] * 10 + [10] + [600, 10, 10, 10, 10] + [900])
    assert (found.tail_start, found.kept) == (11, (10,))


def test_late_results_keep_all_rows_up_to_their_call() -> None:
    turn = TurnId(7)
    rows = [*chatter(8), human("go", turn_id=turn), answer(None, "a", "b", turn_id=turn), result("a")]
    rows += [human("wait", turn_id=turn), result("b"), *step("c"), *step("d")]
    assert cut(rows, 150, SMALL, CompressorSettings(protect_last_n=1)).tail_start == 17


def test_an_exchange_that_would_fill_the_window_is_summarised() -> None:
    rows = [*chatter(5), human("read all"), *step("a", "b", "c", "d"), human("and now?")]
    found = cut(rows, [10] * 11 + [10, 2_000, 2_000, 2_000, 2_000, 10])
    assert (found.tail_start, found.kept, child(rows, found)[-1].text) == (16, (9,), "and now?")


# ---- the head


@pytest.mark.parametrize(("answer_size", "head_end"), [(60, 4), (5_000, 0)])
def test_the_head_extends_to_an_answer_that_fits_if_the_tail_begins_with_an_answer(
    answer_size: int, head_end: int
) -> None:
    rows = [human("a"), *step("c"), answer("b"), *chatter(10), answer("notice"), *chatter(9)]
    found = cut(rows, [60] * 3 + [answer_size] + [60] * (len(rows) - 4), SMALL, CompressorSettings(protect_last_n=19))
    assert (rows[found.tail_start].role, found.head_end) == (MessageRole.ASSISTANT, head_end)


def test_calls_and_results_in_the_head_stay_together() -> None:
    rows = [human("a"), *step("c", "d", "e"), answer("b"), *chatter(20)]
    assert cut(rows, 31).head_end == 5
    assert cut(rows, [31, 31, 31, 31, 2_000] + [31] * (len(rows) - 5)).head_end == 1


def test_an_earlier_handoff_is_never_in_the_head_or_tail() -> None:
    rows = [*chatter(1), handoff(), *chatter(20)]
    found = cut(rows, 60)
    assert (found.head_end, [one.origin for one in child(rows, found)].count(Origin.SUMMARY)) == (2, 1)
    assert cut_of([*chatter(4), handoff(), human("x"), answer("y")], 10) is SkipReason.NOTHING_BETWEEN


def test_with_keeps_head_once_the_second_compression_summarises_the_head() -> None:
    rules = CompressorSettings(keeps_head_once=True)
    assert cut(chatter(20), 60, SMALL, rules).head_end == 3
    assert cut([*chatter(1), handoff(), *chatter(20)], 60, SMALL, rules).head_end == 0


# ---- the open request


def test_in_one_huge_turn_the_request_follows_the_handoff() -> None:
    turn = TurnId(7)
    rows = [*chatter(2), human("do it", turn_id=turn), human("carefully", turn_id=turn)]
    rows += [one for number in range(30) for one in step(f"c{number}")]
    assert (cut(rows, 100).kept, cut(rows, 100).head_end) == ((4, 5), 4)
    found = cut(rows, 100, SMALL, CompressorSettings(protect_first_n=0))
    assert found.kept == (3, 4, 5)
    after = child(rows, found)
    index = next(index for index, one in enumerate(after) if one.origin is Origin.SUMMARY)
    assert [one.text for one in after[index + 1 : index + 4]] == ["answer 1", "do it", "carefully"]


def test_edits_of_the_newest_message_stay_with_it() -> None:
    rows = [*chatter(2), human("do it"), row(MessageRole.USER, "(changed) do both", origin=Origin.NOTICE)]
    rows += [one for number in range(30) for one in step(f"c{number}")]
    assert [rows[index].text for index in cut(rows, 100).kept] == ["do it", "(changed) do both"]


def test_an_answer_larger_than_the_tail_is_summarised() -> None:
    rows = [*chatter(2), human("do it"), *[one for number in range(30) for one in step(f"c{number}")]]
    assert cut(rows, [100] * 3 + [1_300] + [100] * (len(rows) - 4)).kept == (4,)


def test_the_newest_request_is_never_in_the_head() -> None:
    rows = [human("do it"), *[one for number in range(30) for one in step(f"c{number}")]]
    found = cut(rows, 100)
    assert (found.head_end, found.kept) == (0, (0,))


# ---- no cut


TURN = TurnId(7)
RUNNING = [human("go", turn_id=TURN), answer(None, "a", "b", turn_id=TURN), result("a")]
LOST = [human("go"), answer(None, "a")]


@pytest.mark.parametrize(
    ("newest", "is_cut"),
    [
        *((RUNNING, False), ([*RUNNING, human("wait", turn_id=TURN)], False)),
        *(([*LOST, human("and now?")], True), ([*LOST, answer("given up")], True)),
    ],
    ids=["a tool runs", "a tool runs and people write", "a later turn has begun", "the turn was given up"],
)
def test_nothing_is_cut_while_a_tool_runs(newest: list[Message], is_cut: bool) -> None:
    found = cut_of([*chatter(10), *newest])
    assert isinstance(found, Cut) if is_cut else found is SkipReason.TOOL_RUNS


def test_a_second_result_for_a_call_is_not_part_of_its_exchange() -> None:
    rows = [*chatter(1), human("go"), *step("a"), *chatter(10), result("a"), *chatter(10)]
    assert cut(rows, 60, SMALL, CompressorSettings(protect_last_n=20)).tail_start == len(rows) - 20


def test_a_result_after_a_handoff_is_not_part_of_an_earlier_exchange() -> None:
    rows = [human("a"), answer(None, "c"), answer("b"), handoff(), human("x"), result("c"), *chatter(20)]
    assert cut(rows, 60).head_end == 3


def test_a_view_with_only_a_handoff_and_a_tail_is_not_cut() -> None:
    rows = [handoff(), *chatter(5)]
    assert cut_of(rows, 10, SMALL, CompressorSettings(protect_first_n=3)) != SkipReason.TOO_FEW
    assert cut_of([handoff(), human("a"), *step("c", "d", "e", "f", "g")], 10) is SkipReason.NOTHING_BETWEEN


# ---- /compress here N


def test_the_requested_number_of_newest_turns_is_kept() -> None:
    assert cut(chatter(10), 10, keep_turns=2).tail_start == 16
    assert cut(chatter(10), 5_000, keep_turns=4).tail_start == 12
    for everything in (9, 10):
        assert cut_of(chatter(10), 10, keep_turns=everything) is SkipReason.NOTHING_BETWEEN


def test_messages_that_arrived_together_are_one_turn() -> None:
    turn = TurnId(7)
    rows = [*chatter(8), human("a", turn_id=turn), human("b", turn_id=turn), answer("c")]
    assert cut(rows, 10, keep_turns=1).tail_start == 16


def test_interrupted_answers_without_text_count_as_answers() -> None:
    stopped = answer(None, body=MessageBody(was_interrupted=True))
    rows = [*chatter(2), human("go"), stopped, *[one for number in range(30) for one in step(f"c{number}")]]
    assert 5 in cut(rows, 100).kept
