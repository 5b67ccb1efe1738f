"""What a question about a call shows."""

import re

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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pаypal.com", "p\\u0430ypal.com"),  # Cyrillic
        ("gοogle", "g\\u03bfogle"),  # Greek
        ("notes/сор.md", "notes/\\u0441\\u043e\\u0440.md"),
        ("ｒm", "\\uff52m"),
        ("a\nb", "a\\u000ab"),
        (" a ", "\\u0020a\\u0020"),
    ],
)
def test_letters_that_look_like_others_stand_as_their_codes(text: str, code: str) -> None:
    assert inline(text) == f"`{code}`"


@pytest.mark.parametrize("text", ["заметки/план.md", "Καλημέρα", "日本語test", "naïve.py", "straße"])
def test_names_in_other_scripts_stay_as_they_are(text: str) -> None:
    assert inline(text) == f"`{text}`"


def test_a_command_in_which_a_letter_looks_like_another_shows_its_code() -> None:
    assert "p\\u0430ypal" in fenced("curl https://pаypal.com")
    assert "привет, мир" in fenced("echo привет, мир")
    assert "\\nпривет" in fenced(r'{"text": "one\nпривет"}')


def test_white_space_that_hides_what_follows_is_counted() -> None:
    assert fenced("ls" + " " * 500 + "; reboot") == "```\nls[500 spaces or tabs]; reboot\n```"
    assert fenced("ls" + "\n" * 50 + "reboot") == "```\nls[50 line ends]reboot\n```"


@pytest.mark.parametrize("name", ["a`b", "``` x", "x" * 201])
def test_a_long_name_or_one_with_backticks_is_a_block_of_its_own(name: str) -> None:
    shown = inline(name)
    fence = re.match(r"\n(`+)\n", shown)
    assert fence is not None
    assert shown == f"\n{fence[1]}\n{name}\n{fence[1]}\n"
    assert fence[1] not in name
