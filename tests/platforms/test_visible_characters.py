"""Rendered answers keep every character that is not markup, on every platform.

The inputs in `fixtures/outside/rendering.jsonl` are answers from bug reports of chat programs, often with other words
(`source`), examples from specifications, and lines in the form of other documentation (`after: …`). `visible` must be
shown on each platform, `bold` and `struck` must have that format, and `gone` must not be shown.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platforms.discord import rendering as discord
from platforms.local.markdown import split_parts, to_html
from platforms.telegram import rendering as telegram
from tests.platforms.discord.shown import Shown, shown
from tests.platforms.local.test_markdown import Tags

_FIXTURE = Path(__file__).parents[1] / "fixtures" / "outside" / "rendering.jsonl"
OUTSIDE: list[dict[str, Any]] = [msgspec.json.decode(line) for line in _FIXTURE.read_bytes().splitlines()]
_STYLES = {"bold": "bold", "strikethrough": "struck", "italic": "italic"}
_TAGS = {"strong": "bold", "s": "struck", "em": "italic", "h3": "bold", "h4": "bold"}


def on_telegram(source: str) -> Shown:
    found = Shown()
    for part in telegram.render(source):
        found.text += part.text + "\n"
        units = part.text.encode("utf-16-le")
        for entity in orjson.loads(part.markup) if part.markup else []:
            covered = units[entity["offset"] * 2 : (entity["offset"] + entity["length"]) * 2].decode("utf-16-le")
            found.styles.append((_STYLES.get(entity["type"], entity["type"]), covered))
            found.text += f"({entity['url']})" if entity.get("url") else ""
    return found


def on_discord(source: str) -> Shown:
    found = Shown()
    for part in discord.render(source):
        one = shown(part.text)
        found.text += one.text + "\n"
        found.styles += one.styles
    return found


def on_the_web(source: str) -> Shown:
    found = Shown()
    for part in split_parts(source, 4_000):
        tags = StyledTags(str(to_html(part)))
        addressed = re.sub(r"\((\S+)\)(?=\1)", "", tags.text)  # an address without a text of its own
        found.text += re.sub(r"\n+", "\n", addressed)
        found.styles += tags.styles
    return found


class StyledTags(Tags):
    def __init__(self, html: str) -> None:
        self.open: list[tuple[str, int]] = []
        self.styles: list[tuple[str, str]] = []
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _TAGS:
            self.open.append((tag, len(self.text)))
        if tag == "a":
            self.text += f"({dict(attrs).get('href')})"
        if tag in ("br", "tr", "p", "li"):
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.styles.append((_TAGS[tag], self.text[self.open.pop()[1] :]))


PLATFORMS: dict[str, Callable[[str], Shown]] = {"telegram": on_telegram, "discord": on_discord, "web": on_the_web}


def faults(row: dict[str, Any], platform: str) -> list[str]:
    seen = PLATFORMS[platform](row["markdown"])
    styled = {style: {text.strip() for text in seen.covered(style)} for style in ("bold", "struck")}
    styled["bold"] |= {text.strip() for text in seen.covered("underline")}
    found = [f"lost {text!r}" for text in row["visible"] if text not in seen.text]
    found += [f"shows {text!r}" for text in row.get("gone", ()) if text in seen.text.replace("<table> it is", "")]
    if platform != "discord" or not row["markdown"].startswith("#"):
        for style in ("bold", "struck"):
            found += [f"not {style}: {text!r}" for text in row.get(style, ()) if text not in styled[style]]
    return [f"{fault} of {row['markdown']!r}: {seen.text!r}" for fault in found]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_recorded_answers_lose_no_character(platform: str) -> None:
    assert len(OUTSIDE) >= 45
    assert [fault for row in OUTSIDE for fault in faults(row, platform)] == []


_WORDS = r"""
2*3*4 (a)*(b)*(c) 长*宽*高 3*4 *2 __init__ obj.__custom__ __main__.py __FILE__ snake_case_name _a_b_
foo__bar__baz gimmick_: *.py **/x src/**/*.ts a/*.b */* text/* *nix /*x*/ '*' count(*) -*- (int*)p
std::vector<std::string> List<String> <T> <user@host> &foo a&b ^.*x.*$ [a-z]*b (a|b)*c a||b||c ~~> ~5
H~2~O $HOME/$USER $5 10$ ${a}${b} *** ** ____ C# a#b -> => x>=y 100% @me C:\dir 世界 слово it's
https://e.example/a_b_c https://e.example/x*y*z https://e.example/__x__/ "*a" "b*" ! (x)
"""
_TEXT = [
    *("a**2 + b**2", "5! = 5*4*3*2*1", "x *= 2", "a * b * c", "a ** b", "*args, **kw", "char **argv,", "int *p;"),
    *("a || b", "x ~~ y", "a_ b_"),
    *_WORDS.split(),
]
"""Texts without any markup, in every combination."""
_STYLED = [
    ("**重点**", "重点"),
    ("**重点：**", "重点："),
    ("**bold words**", "bold words"),
    ("*slanted*", "slanted"),
    ("~~gone~~", "gone"),
    ("`co*d*e`", "co*d*e"),
    ("\\*", "*"),
    ("\\_", "_"),
    ("&amp;", "&"),
    ("<br>", ""),
    ("[name](https://e.example/t)", "name"),
]
_pieces = st.sampled_from([*((text, text) for text in _TEXT), *_STYLED])


@pytest.mark.fuzz
@example(pieces=[("$HOME/$USER", "$HOME/$USER"), ("^.*x.*$", "^.*x.*$")], spaces=[" "] * 8)
@given(pieces=st.lists(_pieces, min_size=1, max_size=8), spaces=st.lists(st.sampled_from([" ", " w\nw "]), min_size=8))
def test_every_character_that_is_not_markup_is_shown_in_order(pieces: list[tuple[str, str]], spaces: list[str]) -> None:
    source = "w " + "".join(f"{text}{space}" for (text, _), space in zip(pieces, spaces, strict=False)) + "w"
    wanted = "w" + "".join(f"{text}{space}" for (_, text), space in zip(pieces, spaces, strict=False)) + "w"
    for platform, show in PLATFORMS.items():
        text = re.sub(r"\(https?:[^()]*\)", "", show(source).text)  # targets of links
        assert "".join(text.replace("&amp;", "&").split()) == "".join(wanted.split()), (platform, source)
