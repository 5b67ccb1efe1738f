"""JSON without unreadable parts, and the text in JSON of an unknown form."""

from typing import Any

import pytest

from platforms.text import known_parts, text_in


def read(value: Any) -> None:
    """Read like an SDK: objects need their `id`, nested or not, and numbers at `size`."""
    if isinstance(value, list):
        for one in value:
            read(one)
    elif isinstance(value, int):
        raise TypeError("a number is no name")
    elif isinstance(value, dict):
        int(value["id"])
        int(value.get("size", 0))
        for part in value.values():
            if isinstance(part, dict | list):
                read(part)


GOOD, BAD = {"id": 1}, {"size": "?"}


@pytest.mark.parametrize(
    ("value", "known", "dropped"),
    [
        ({"id": 1, "a": GOOD}, {"id": 1, "a": GOOD}, []),
        ({"id": 1, "a": BAD, "b": GOOD}, {"id": 1, "b": GOOD}, ["a"]),
        ({"id": 1, "a": BAD, "b": BAD, "c": 3}, {"id": 1, "c": 3}, ["a", "b"]),
        ({"id": 1, "a": {"id": 2, "b": BAD, "c": 4}}, {"id": 1, "a": {"id": 2, "c": 4}}, ["a.b"]),
        ({"id": 1, "a": [GOOD, BAD, GOOD]}, {"id": 1, "a": [GOOD, GOOD]}, ["a"]),
        ({"id": 1, "a": [BAD]}, {"id": 1}, ["a"]),
        ({"id": 1, "a": [{"id": 2, "b": [BAD, GOOD]}]}, {"id": 1, "a": [{"id": 2, "b": [GOOD]}]}, ["a.b"]),
        ({"id": 1, "size": "?", "a": GOOD, "b": {"c": BAD}}, None, [""]),
        ({"a": GOOD}, None, [""]),
        ({"id": 1, "names": ["a", 5]}, {"id": 1, "names": ["a"]}, ["names"]),
        ([], [], []),
    ],
)
def test_only_unreadable_parts_are_left_out(value: Any, known: Any, dropped: list[str]) -> None:
    found: list[str] = []
    assert (known_parts(value, read, found), sorted(found)) == (known, dropped)


def test_an_object_keeps_the_part_that_it_needs() -> None:
    def read_message(value: dict[str, Any]) -> None:
        read(value["chat"])
        read(value.get("gift", GOOD))

    assert known_parts({"gift": BAD, "chat": GOOD}, read_message, []) == {"chat": GOOD}
    dropped: list[str] = []
    value = {"gift": BAD, "chat": {"id": 1, "colour": BAD}, "user": GOOD}
    assert known_parts(value, read_message, dropped) == {"chat": {"id": 1}, "user": GOOD}
    assert sorted(dropped) == ["chat.colour", "gift"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"blocks": [{"type": "paragraph", "text": "one"}, {"type": "paragraph", "text": "two"}]}, "one\ntwo"),
        ({"text": ["a ", {"type": "bold", "text": ["b", {"type": "italic", "text": "c"}]}, "!"]}, "a bc!"),
        ({"summary": "more", "blocks": [{"text": "inside"}]}, "more\ninside"),
        ({"cells": [[{"text": "x"}, {"text": "y"}]], "caption": "table"}, "x\ny\ntable"),
        ({"question": {"text": "Tea?"}, "options": [{"text": "yes", "id": "a"}]}, "Tea?\nyes"),
        ({"type": "photo", "photo": [{"file_id": "f"}], "url": "https://example.org"}, ""),
        ({"text": 5, "title": None, "caption": {}}, ""),
        ([], ""),
    ],
)
def test_text_is_found_under_text_keys(value: Any, words: str) -> None:
    assert text_in(value) == words
