"""What a question about a call shows."""

import pytest

from agent.tools.approvals import fenced, inline


@pytest.mark.parametrize(
    "character",
    ["\u200b", "\u200f", "\u061c", "\u2028", "\u2063", "\u00ad", "\ufeff", "\u3164", "\u2800", "\U000e0041", "\ue000"],
)
def test_what_is_not_seen_stands_as_its_code(character: str) -> None:
    code = f"\\u{ord(character):04x}"
    assert code in fenced(f"rm a{character}b")
    assert code in inline(f"rm a{character}b")


@pytest.mark.parametrize(
    "text", ["\u2764\ufe0f", "\U0001f469\u200d\U0001f680", "می\u200cخواهم", "क्\u200dष", "naïve – 5 €"]
)
def test_what_people_write_with_stays(text: str) -> None:
    assert text in fenced(text)
    assert text in inline(text)


def test_a_joiner_between_latin_letters_is_shown() -> None:
    assert "r\\u200dm" in inline("r\u200dm")
