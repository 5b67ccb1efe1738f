"""Facts: the quoted lines, and the absence of secrets in them."""

import re
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs

from agent.context.carried.choice import MAX_MISSES, MIN_EXCERPT_LIMIT, SAID_PERCENT, facts_of
from agent.context.carried.facts import LINE_CHARACTERS, Fact, known_line
from agent.context.carried.sections import Carried, carried, parted
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


def test_a_person_is_the_same_under_another_name_and_not_everybody_of_that_name() -> None:
    rent, changed = "The rent of the flat is 1,180 a month.", "The rent of the flat has now increased to 1,240."

    def shown(later: str, name: str) -> list[str]:
        rows = [human(rent, id=7, sender_ref="telegram:1", sender_name="Ada"), human(changed, id=9, sender_ref=later)]
        rows[1] = structs.replace(rows[1], sender_name=name)
        found = facts_of((), rows, limit=4_000, redact=Redactor([SECRET]), is_shared=True)
        assert all(re.fullmatch(rf"person (Ada|{name})#[0-9a-f]{{4}}", fact.speaker) for fact in found)
        record = Carried(facts=found)
        assert parted(record.behind("## Goal\nA flat.")) == ("## Goal\nA flat.", record)
        again = facts_of(found, (), limit=4_000, redact=Redactor([SECRET]), is_shared=True)
        assert again == found
        return [fact.text for fact in found]

    assert shown("telegram:1", "Ada Lovelace") == [changed]
    assert shown("telegram:2", "Ada") == [rent, changed]  # another Ada may mean another flat
    assert shown("telegram:2", "Bob") == [rent, changed]


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


def test_a_sentence_that_ends_with_a_semicolon_is_not_code() -> None:
    text = "We met at 18:30. It was late;"
    assert [fact.text for fact in facts(human(text))] == ["We met at 18:30."]
    assert [fact.text for fact in facts(human("The rent is 1,180. It is due on 3 May;"))] == [
        "The rent is 1,180.",
        "It is due on 3 May;",
    ]


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


def test_a_statement_that_does_not_fit_at_first_gets_room_later() -> None:
    limit, rows = 4_000, list[Message]()
    long = [
        human(f"yesterday we walked slowly {'harbour ' * 24} towards house {'x' * at} and back", id=at)
        for at in range(1, MAX_MISSES)
    ]
    (size,) = {known_line(row.id, "person", row.text or "").size for row in long[:1]}
    room = limit * SAID_PERCENT // 100
    while room >= size:  # newer statements leave a little of the first room
        rows.append(human(f"my aunt {'y' * len(rows)} lives near the old lighthouse with cats", id=100 + len(rows)))
        room -= known_line(rows[-1].id, "person", rows[-1].text or "").size
    kept = facts_of((), [*long, *rows], limit=limit, redact=Redactor([SECRET]), is_shared=False)
    assert [fact.id for fact in kept] == [row.id for row in (*long, *rows)]


def test_sentences_next_to_a_quoted_preference_stay() -> None:
    text = "I prefer small hotels. My sister Nora sings in the choir of the cathedral."
    alone = "We met again. I prefer small hotels."
    made = carried(
        Carried(), (), [human(text), human(alone)], rules_limit=400, facts_limit=4_000, redact=str, is_shared=False
    )
    assert [one.text for one in made.preferences] == ["I prefer small hotels."]
    assert [fact.text for fact in made.facts] == [text]


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


def test_room_that_is_left_holds_the_sentences_of_answers_with_words_of_their_own() -> None:
    filler = "There is more than one way to look at this, and most of them take time."
    told = "A curry with chickpeas and coconut is ready before the guests arrive."
    answers = [answer(f"{filler} {told} {filler}", id=5), answer(f"{filler} Two dry walls hold better than one.", id=6)]
    large: dict[str, Any] = {"limit": MIN_EXCERPT_LIMIT, "redact": Redactor([SECRET]), "is_shared": False}
    found = facts_of((), answers, **large)
    assert [fact.line for fact in found] == [
        f"- [m5 assistant] {told}",
        "- [m6 assistant] Two dry walls hold better than one.",
    ]
    assert facts_of(found, (), **large) == found
    assert facts_of((), answers, **large | {"limit": MIN_EXCERPT_LIMIT - 1}) == ()
    ends = [f"{one}{other}" for one in "abcdefghijklmnop" for other in "abcdefghijklmnop"]
    many = [answer(f"Stone{end} lies{end} near{end} moss{end} in this quiet little valley.") for end in ends]
    kept = facts_of(found, many, **large)
    assert 20 < len(kept) < len(many)
    assert not {fact.id for fact in kept} & {5, 6}
    assert sum(known_line(fact.id, fact.speaker, fact.text).size for fact in kept) <= MIN_EXCERPT_LIMIT * 0.3
