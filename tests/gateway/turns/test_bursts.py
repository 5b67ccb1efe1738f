"""Selection of the waiting rows that become the next turn."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turns.bursts import ARRIVAL_SLACK_MS, PASTE_MS, held_until, next_burst
from hermes_state.inbox import InboxKind, InboxMode, InboxPayload, InboxRow, InboxState
from hermes_state.values import ChatId, InboxId, Millis, UserRef

MERGE = 2_000
LATER = Millis(10**9)
_ids = itertools.count(1)


def row(
    at: int = 0,
    *,
    sender: str = "a",
    kind: InboxKind = InboxKind.MESSAGE,
    mode: InboxMode = InboxMode.QUEUE,
    expects_more: bool = False,
) -> InboxRow:
    number = next(_ids)
    return InboxRow(
        id=InboxId(number),
        platform="t",
        account="t",
        event_ref=str(number),
        chat_id=ChatId(1),
        kind=kind,
        mode=mode,
        state=InboxState.NEW,
        sender_ref=UserRef(f"t:{sender}"),
        sender_name=sender,
        message_ref=str(number),
        payload=InboxPayload(text=str(number)),
        expects_more=expects_more,
        sent_at=Millis(at),
        received_at=Millis(at),
    )


COMMAND = {"kind": InboxKind.COMMAND}
NOTICE = {"kind": InboxKind.NOTICE}


def claimed(rows: list[InboxRow], now: int = LATER, merge: int = MERGE) -> list[int]:
    """Return the indexes of the `rows` that become a turn."""
    burst = next_burst(rows, merge_ms=merge)
    assert burst[0].kind is not InboxKind.COMMAND
    assert held_until(burst, rows) <= now
    return [rows.index(one) for one in burst]


def held(rows: list[InboxRow]) -> int:
    """Return the time until which the burst in `rows` is held."""
    return held_until(next_burst(rows, merge_ms=MERGE), rows)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([row(0)], [0], id="one message waits for nothing"),
        pytest.param([row(0), row(1_000), row(2_000)], [0, 1, 2], id="within two seconds is one turn"),
        pytest.param([row(0), row(1_500), row(3_000)], [0, 1], id="the span is from the first, not from the last"),
        pytest.param([row(0), row(2_001)], [0], id="a moment later is the next turn"),
        pytest.param([row(5_000), row(2_000)], [0], id="a clock that goes back stretches no span"),
        pytest.param([row(0), row(10, sender="b"), row(20)], [0], id="never across another sender"),
        pytest.param([row(0), row(10, **COMMAND), row(20)], [0], id="never across a command"),  # type: ignore[arg-type]
        pytest.param([row(0), row(10, mode=InboxMode.ALONE), row(20)], [0], id="never with a queued one"),
        pytest.param([row(0, mode=InboxMode.ALONE), row(10)], [0], id="a queued one is alone"),
        pytest.param([row(0, mode=InboxMode.STEER), row(10)], [0, 1], id="a late steer is like any message"),
        pytest.param([row(0, **NOTICE), row(10)], [0, 1], id="a notice goes along"),  # type: ignore[arg-type]
        pytest.param([row(0), row(5, sender="b", **NOTICE), row(10)], [0, 1, 2], id="a notice between does not part"),  # type: ignore[arg-type]
        pytest.param([row(0), row(10, **NOTICE)], [0], id="a later notice waits"),  # type: ignore[arg-type]
        pytest.param(
            [row(0, expects_more=True), row(2_400, expects_more=True), row(4_800)],
            [0, 1, 2],
            id="a paste outgrows the span",
        ),
        pytest.param([row(0, expects_more=True), row(PASTE_MS + 1_001)], [0], id="but not for ever"),
    ],
)
def test_which_rows_become_the_next_turn(rows: list[InboxRow], expected: list[int]) -> None:
    assert claimed(rows) == expected


def test_without_merging_pieces_of_a_paste_still_join() -> None:
    assert claimed([row(0), row(0)], merge=0) == [0]
    assert claimed([row(0, expects_more=True), row(100)], merge=0) == [0, 1]


def test_notices_alone_start_no_turn() -> None:
    assert next_burst([row(0, kind=InboxKind.NOTICE), row(1, kind=InboxKind.NOTICE)], merge_ms=MERGE) == []
    assert next_burst([], merge_ms=MERGE) == []


def test_a_command_runs_in_its_place() -> None:
    command = row(0, kind=InboxKind.COMMAND)
    assert next_burst([command, row(1)], merge_ms=MERGE) == [command]


def test_a_piece_is_held_for_the_next_piece_and_no_longer() -> None:
    piece = row(1_000, expects_more=True)
    until = 1_000 + PASTE_MS + ARRIVAL_SLACK_MS
    assert (held([piece]), claimed([piece], now=until)) == (until, [0])


def test_a_piece_is_not_held_if_other_rows_wait() -> None:
    assert claimed([row(0, expects_more=True), row(0, kind=InboxKind.COMMAND)], now=0) == [0]
    assert claimed([row(0, expects_more=True), row(0, sender="b")], now=0) == [0]


ROWS = st.lists(
    st.builds(
        row,
        st.integers(0, 6_000),
        sender=st.sampled_from("ab"),
        kind=st.sampled_from([InboxKind.MESSAGE] * 4 + [InboxKind.COMMAND, InboxKind.NOTICE]),
        mode=st.sampled_from([InboxMode.QUEUE] * 4 + [InboxMode.STEER, InboxMode.ALONE]),
        expects_more=st.booleans(),
    ),
    max_size=8,
)


@given(rows=ROWS, merge=st.sampled_from([0, MERGE]))
def test_every_row_gets_its_turn_once_and_in_order(rows: list[InboxRow], merge: int) -> None:
    rows = sorted(rows, key=lambda one: one.id)
    waiting = list(rows)
    order: list[InboxRow] = []
    while taken := next_burst(waiting, merge_ms=merge):
        assert held_until(taken, waiting) < LATER, "nothing is held for ever"
        asked = [one for one in taken if one.kind is not InboxKind.NOTICE]
        assert asked[0] == next(one for one in waiting if one.kind is not InboxKind.NOTICE)
        assert len({one.sender_ref for one in asked}) == 1
        assert taken == sorted(taken, key=lambda one: one.id)
        if asked[0].kind is InboxKind.COMMAND:
            assert len(taken) == 1
        else:
            assert all(one.kind is InboxKind.MESSAGE for one in asked)
            if not any(one.expects_more for one in asked[:-1]):
                assert abs(asked[-1].sent_at - asked[0].sent_at) <= merge or len(asked) == 1
        order += taken
        waiting = [one for one in waiting if one not in taken]
    assert all(one.kind is InboxKind.NOTICE for one in waiting)
    asked_order = [one.id for one in order if one.kind is not InboxKind.NOTICE]
    assert asked_order == [one.id for one in rows if one.kind is not InboxKind.NOTICE]


@given(rows=ROWS)
def test_a_hold_ends_within_the_paste_time(rows: list[InboxRow]) -> None:
    rows = sorted(rows, key=lambda one: one.id)
    if next_burst(rows, merge_ms=MERGE):
        assert held(rows) <= max(one.received_at for one in rows) + PASTE_MS + ARRIVAL_SLACK_MS
