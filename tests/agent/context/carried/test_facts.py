"""Facts: the quoted lines, and the absence of secrets in them."""

from agent.context.carried.facts import LINE_CHARACTERS, Fact, facts_of
from hermes_state.redaction import Redactor
from hermes_state.values import Message
from tests.agent.context.rows import human, result

SECRET = "correct-horse-7731-battery-staple"


def facts(*rows: Message) -> tuple[Fact, ...]:
    return facts_of((), rows, limit=4_000, redact=Redactor([SECRET]), is_shared=False)


def test_no_fact_contains_a_secret_or_part_of_one_at_any_cut() -> None:
    for before in range(LINE_CHARACTERS - len(SECRET) - 10, LINE_CHARACTERS + 10):
        [*found] = facts(human(f"{'ticket 48213 '.ljust(before, 'x')} {SECRET} and ticket 99127 behind it"))
        assert any("48213" in fact.text for fact in found)
        assert not any(part in fact.text for fact in found for part in ("correct", "horse-77", "7731", "staple"))


def test_frequent_shapes_in_results_are_noise_and_rare_lines_are_not() -> None:
    beats = "\n".join(f"heartbeat {number} ok in 3{number:03} ms" for number in range(50))
    found = facts(result("c1", f"{beats}\nthe release is build 77120 of the harbour branch"))
    assert [fact.text for fact in found] == ["the release is build 77120 of the harbour branch"]


def test_a_secret_in_one_line_of_a_result_does_not_change_other_lines() -> None:
    text = f"the release is build 77120 of the harbour branch\nlogin with {SECRET} on host db-0417"
    found = facts(result("c1", text))
    assert [fact.text for fact in found] == [
        "the release is build 77120 of the harbour branch",
        "login with [REDACTED] on host db-0417",
    ]
