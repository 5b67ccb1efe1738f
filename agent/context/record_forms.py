"""Records in other forms than the one that was asked for: JSON, tags, tables, headings of any style or language."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from typing import Any

MIN_NAMED = 3
"""Fewest sections that are recognised by their names."""
MIN_COUNTED = 6
"""Fewest that are recognised by their numbers or their count."""
_REWRITES = (
    (re.compile(r"<([^\W\d][\w.-]*)(?: [^<>\n]*)?>"), r"\n###### \1\n"),
    (re.compile(r"</[^<>\n]*>"), r"\n"),
    (re.compile(r"^[ \t]*\|(?: *\d{1,2} *\|)?([^|\n]{1,80})\|(.*[^|\s])[| \t]*$", re.MULTILINE), r"**\1:** \2"),
)
"""Tags and rows of tables as headings."""
_JSON_START = re.compile(r"(?:^|>)[ \t]*[\[{]", re.MULTILINE)
_JSON_END = re.compile(r"[\]}](?=[ \t]*(?:$|<))", re.MULTILINE)
_HEADING = re.compile(
    r"^[ \t]*(?P<mark>[^\w\s|][^\w\n|]*)?(?:Section )?"
    r"(?:(?P<number>\d{1,2})[.):\u3001\uff0e\ufe0f\u20e3]+(?P<inner>[ *_]*)|[一二三四五六七八九十]{1,3}\u3001)?"
    r"(?P<title>\w(?:[^:\uff1a*_`\"'\u3011#|\n]|(?<=\w)[_'](?=\w)){0,80})"
    r"(?P<close>[:\uff1a*_`\"'\u3011# \t]*)(?P<rest>.*)$",
    re.MULTILINE,
)


def reformed(text: str, titles: Sequence[str]) -> str | None:
    """The record under the given titles, recognised by their names, numbers or order; None for a text that is none."""
    start, ends = _JSON_START.search(text), [*_JSON_END.finditer(text)]
    with suppress(ValueError, RecursionError):
        if start and ends:
            given = re.sub(r",(\s*[}\]])", r"\1", text[start.end() - 1 : ends[-1].end()])
            text = _flat(json.loads(given, strict=False))
    for pattern, put in _REWRITES:
        text = pattern.sub(put, text)
    lines, names = list(_HEADING.finditer(text)), {_key(title): title for title in titles}
    named = [(names[key], one) for one in lines if (key := _key(one["title"])) in names]
    choices = [[(title, one) for title, one in named if _style(one) or not one["rest"]], named]
    for _, group in groupby(sorted(filter(_style, lines), key=_style), key=_style):
        heads = list(group)
        numbers = [0, *(int(one["number"] or 0) for one in heads)]
        if len(heads) == len(titles):
            choices.append(list(zip(titles, heads, strict=True)))
        elif numbers[-1] == len(titles) and all(one < following for one, following in pairwise(numbers)):
            choices.append([(titles[number - 1], one) for number, one in zip(numbers[1:], heads, strict=True)])
    for index, sections in enumerate(choices):
        if len(dict(sections)) >= (min(MIN_NAMED, len(titles)) if index < 2 else MIN_COUNTED):
            return _written(text, sections)
    return None


def _flat(value: Any) -> str:
    """JSON as text with a heading for each key."""
    if isinstance(value, dict):
        return "".join(f"\n###### {key}\n{_flat(one)}" for key, one in value.items())
    return "".join(f"\n- {_flat(one)}" for one in value) if isinstance(value, list) else str(value or "")


def _key(title: str) -> str:
    """A title without what differs between its spellings."""
    return re.sub(r"^[\W\d_]+|[\W_]|amp;|and", "", title.lower())


def _style(line: re.Match[str]) -> str:
    """Marks of a line that looks like a heading; empty for any other line."""
    mark = re.sub(r"[^#*_`\u3010]+", "^", re.sub(r"(?<![*\w])[-*+]\s|\s", "", line["mark"] or ""))
    mark += (line["inner"] or "").strip() + "1" * bool(line["number"])
    ends = re.sub(r"[^:\uff1a]", "", line["close"])[:1]
    if line["rest"] and not (mark and line["close"].strip()):
        return ""
    return f"{mark}{ends}{'…' if line['rest'] else ''}" if mark.strip("1") or ends else ""


def _written(text: str, sections: Sequence[tuple[str, re.Match[str]]]) -> str:
    ends, written = [*(one.start() for _, one in sections[1:]), len(text)], list[str]()
    for (title, one), end in zip(sections, ends, strict=True):
        body = re.sub(r"^###### .*\n?|\n```\s*\Z", "", f"{one['rest']}\n{text[one.end() : end]}", flags=re.MULTILINE)
        written.append(f"## {title}\n{body.strip() or 'None.'}")
    return "\n\n".join(written)
