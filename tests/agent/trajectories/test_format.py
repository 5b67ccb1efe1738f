"""Lines of training files: accepted formats, rejected formats, and unchanged bytes."""

import json

import pytest

from agent.trajectories import Trajectory, TrajectoryRejected, TurnRole
from tests.agent.trajectories.corpus import LINES

LETTERS = {TurnRole.SYSTEM: "s", TurnRole.HUMAN: "h", TurnRole.GPT: "g", TurnRole.TOOL: "t"}


def line_of(*turns: dict[str, object], **keys: object) -> bytes:
    return json.dumps({"conversations": turns, **keys}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("line", "roles"), [(line, roles) for _, line, roles in LINES], ids=[name for name, *_ in LINES]
)
def test_lines_from_other_projects_are_accepted_or_rejected(line: str | bytes, roles: str | None) -> None:
    raw = line.encode() if isinstance(line, str) else line
    if roles is None:
        with pytest.raises(TrajectoryRejected) as caught:
            Trajectory.parse(raw)
        assert str(caught.value)
    else:
        assert "".join(LETTERS[turn.role] for turn in Trajectory.parse(raw).turns) == roles


def test_a_rejected_line_names_the_turn_and_the_fault() -> None:
    with pytest.raises(TrajectoryRejected, match="turn 2 has the role 'narrator'"):
        Trajectory.parse(line_of({"from": "human", "value": "q"}, {"from": "narrator", "value": "x"}))


def test_numbers_and_escapes_of_kept_turns_are_unchanged() -> None:
    line = (
        rb'{"id": 12345678901234567890123, "score": 1.0, "note": "\u00e9\/", "conversations": [{"from": "human", '
        rb'"value": "\u00fc", "weight": 0.10}, {"from": "gpt", "value": "a"}]}'
    )
    trajectory = Trajectory.parse(line)
    assert trajectory.encoded(trajectory.turns) == (
        rb'{"id":12345678901234567890123,"score":1.0,"note":"\u00e9\/","conversations":[{"from": "human", '
        rb'"value": "\u00fc", "weight": 0.10},{"from": "gpt", "value": "a"}]}'
    )


@pytest.mark.parametrize(
    ("turn", "added"),
    [
        ({"from": "human", "value": "q"}, {"from": "human", "value": "new"}),
        ({"from": "User", "value": "q"}, {"from": "User", "value": "new"}),
        ({"role": "user", "content": "q"}, {"role": "user", "content": "new"}),
        ({"role": "assistant", "content": "q"}, {"role": "user", "content": "new"}),
        ({"from": "gpt", "value": "q"}, {"from": "human", "value": "new"}),
    ],
)
def test_an_added_turn_uses_the_role_names_of_the_line(turn: dict[str, str], added: dict[str, str]) -> None:
    assert json.loads(bytes(Trajectory.parse(line_of(turn)).human("new").raw)) == added


def test_calls_next_to_the_text_count_as_text() -> None:
    call = [{"name": "search_trains", "arguments": {"from": "北京"}}]
    bare, calling = ({"from": "gpt", "value": "I look."}, {"from": "gpt", "value": "I look.", "tool_calls": call})
    one, other = Trajectory.parse(line_of(bare, calling)).turns
    assert "search_trains" in other.text
    assert other.tokens > one.tokens
