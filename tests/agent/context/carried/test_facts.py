"""Facts: the quoted lines, and the absence of secrets in them."""

from unittest.mock import patch

import pytest

from agent.context.carried.choice import MAX_MISSES, facts_of
from agent.context.carried.facts import LINE_CHARACTERS, Fact, known_line
from hermes_state.redaction import Redactor
from hermes_state.values import Message
from tests.agent.context.rows import answer, human, result

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


def test_the_newest_value_of_a_matter_replaces_the_older_one() -> None:
    said = ["The rent of the flat is 1,180 a month.", "The rent of the shop is 2,950 a month for Ada."]
    changed = "The rent of the flat has now increased to 1,240."
    assert [fact.text for fact in facts(*map(human, [*said, changed]))] == [said[1], changed]
    frank = "The rent of Frank's flat is 1,430 a month."
    assert [fact.text for fact in facts(human(frank), human(changed))] == [frank, changed]
    bob = facts_of(
        (),
        [human(said[0], sender_name="Ada"), human(changed, sender_name="Bob")],
        limit=4_000,
        redact=Redactor([SECRET]),
        is_shared=True,
    )
    assert [fact.text for fact in bob] == [said[0], changed]  # Bob may mean another flat


@pytest.mark.parametrize(
    "code",
    [
        "```python\nport = 48213\n```",
        "def pay(amount=48213):\n    return charge(48213)",
        'const url = "https://example.org/48213";\napp.listen(48213);',
        "SELECT * FROM orders WHERE id = 48213;",
        '{\n  "password": "hunter-48213",\n}',
        '<div id="a-48213">\n</div>',
    ],
)
def test_code_that_people_paste_is_not_a_fact(code: str) -> None:
    text = f"The order is 77120 for now.\n{code}\nCall me (before 18:30)."
    assert [fact.text for fact in facts(human(text))] == ["The order is 77120 for now.", "Call me (before 18:30)."]


def test_the_choice_ends_soon_when_no_line_fits() -> None:
    rows = [human(f"The long lease of the bakery at the harbour is OPS-{number}.") for number in range(10_000, 10_200)]
    with patch("agent.context.carried.facts.known_line", wraps=known_line) as read:
        assert facts_of((), rows, limit=12, redact=Redactor([SECRET]), is_shared=False) == ()
    assert read.call_count <= MAX_MISSES + 1


def test_what_people_said_besides_facts_comes_before_results() -> None:
    told = [
        human(f"My {thing} lives with a cat near the old harbour. It is loud there.") for thing in ("aunt", "uncle")
    ]
    shells = [result("c1", f"the release is build 77{n:03} of branch {n:x}") for n in range(400)]
    first = facts_of((), [*told, *shells], limit=3_000, redact=Redactor([SECRET]), is_shared=False)
    assert [fact.text for fact in first if fact.speaker == "person"] == [row.text for row in told]
    again = facts_of(first, shells, limit=3_000, redact=Redactor([SECRET]), is_shared=False)
    assert [fact for fact in again if fact.speaker == "person"] == list(first[:2])


def test_a_small_room_keeps_facts_before_other_sentences() -> None:
    told = [human(f"we walked along the old harbour and talked about boats, part {'x' * at}") for at in range(60)]
    found = [
        answer(f"The build number of branch b{at} is {77_000 + 13 * at}, finished by host db-{at}.") for at in range(60)
    ]
    kept = facts_of((), [*told, *found], limit=2_500, redact=Redactor([SECRET]), is_shared=False)
    assert sum(fact.speaker == "assistant" for fact in kept) == 60


def test_a_replacement_that_does_not_fit_leaves_the_older_value() -> None:
    older = human("The rent of the flat is 1,180 a month.", id=7)
    newer = human(f"The rent of the flat has now increased to 1,240, {'which nobody likes ' * 5}.", id=8)
    for limit in range(12, 60):
        assert facts_of((), [older, newer], limit=limit, redact=Redactor([SECRET]), is_shared=False) or limit < 24
