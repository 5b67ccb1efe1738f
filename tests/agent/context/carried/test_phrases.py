"""Faster expressions find the same sentences as the plain ones."""

import re
import tomllib
from pathlib import Path

import pytest

from agent.context.carried import phrases
from agent.context.carried.phrases import Language, hinted, weighty_words

SENTENCES = [
    phrases.plain(sentence)
    for name in ("rule_sentences.toml", "chat_sentences.toml")
    for sentence in re.findall(r'"([^"\n]{8,})"', Path(__file__).with_name(name).read_text(encoding="utf-8"))
]
EXPRESSIONS = ("rule", "take_back", "either", "choice", "wish", "once", "one_time", "foreign")


def tables() -> dict[str, dict[str, object]]:
    return tomllib.loads(Path(phrases.__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", tables())
def test_the_quick_test_of_a_group_changes_no_match(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Language(tables()[name])
    found = {one: [matched(getattr(guarded, one), text) for text in SENTENCES] for one in EXPRESSIONS}
    monkeypatch.setattr(phrases, "_guarded", lambda expression: f"(?:{expression})")
    plain = Language(tables()[name])
    for one in EXPRESSIONS:
        assert found[one] == [matched(getattr(plain, one), text) for text in SENTENCES], one
    assert any(span is not None for span in found["either"])


def matched(expression: re.Pattern[str], text: str) -> tuple[int, int] | None:
    match = expression.search(text)
    return None if match is None else match.span()


@pytest.mark.parametrize(
    ("expression", "begin"),
    [
        ("always", {"alw"}),
        ("(?:do not|don't) ever", {"do ", "don"}),
        ("(?:a |the )?rule", {"a r", "the", "rul"}),
        (r"(?<!\bi )(?:must|should)", {"mus", "sho"}),
        ("(?!no )no+t", {"n"}),
        ("(?:colou?r|e?mail)", {"col", ""}),
        ("(?:ab)+", {""}),
        (r"so\s+x", {"so"}),
    ],
)
def test_a_group_is_tested_by_the_beginnings_of_its_matches(expression: str, begin: set[str]) -> None:
    assert phrases._beginnings(expression) == begin


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Never push.", {"never"}),
        ("(never again)", {"never", "again"}),
        ("请始终。Never push", {"never", "始终"}),
        ("Whatever the compass says", set()),
        ("I shouldn't use it", {"n't "}),
        ("Unsere Grundregel", {"regel"}),
        ("say no only if asked", {" no ", "only"}),
    ],
)
def test_hints_count_at_the_start_of_a_word(text: str, words: set[str]) -> None:
    assert {word for _, *both in hinted(text) for some in both for word in some} == words


def test_weighty_words_are_found_in_every_script() -> None:
    assert {"important", "важно", "重要"} <= set(weighty_words("Important: Rückgabe bis 5. Mai. Важно! 重要"))
