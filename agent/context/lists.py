"""Message lists in the form of the chat completions API, as engines of others read and write them.

What is wrong with one, what a message says, and when two are the same. Nothing here knows of stored rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

ListMessage: TypeAlias = dict[str, Any]  # the provider's JSON, in the hands of code that is not ours
Key: TypeAlias = tuple[str, bytes, tuple[str, ...], str]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
INSTRUCTING = frozenset({"system", "developer"})


class IllegalList(Exception):
    """A list that no provider would accept, or that cannot be the compression of the list it was made from."""


def checked_list(value: object) -> list[ListMessage]:
    """`value` as a legal list. Raises `IllegalList` with what is wrong with it."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise IllegalList(f"it is no list of messages but {type(value).__name__}")
    if not value:
        raise IllegalList("it is empty")
    messages: list[ListMessage] = []
    waiting: set[str] = set()
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise IllegalList(f"message {place} is {type(message).__name__}")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise IllegalList(f"message {place} has no known role")
        _check_content(place, role, message.get("content"))
        if role == "tool":
            _answer(place, message, waiting)
        elif waiting:
            raise IllegalList(f"calls have no result before message {place}")
        if role == "assistant":
            waiting = _asked(place, message)
        messages.append(message)
    if waiting:
        raise IllegalList("calls at its end have no result")
    return messages


def call_ids(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of the calls that an assistant message makes."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    return tuple(str(call.get("id", "")) for call in calls if isinstance(call, dict))


def text_of(content: object) -> str:
    """All text of a message's content: a string, or the text among its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def images_in(content: object) -> int:
    """How many images a message's content holds."""
    parts = content if isinstance(content, list) else []
    return sum(isinstance(part, dict) and "image" in str(part.get("type", "")) for part in parts)


def key_of(message: Mapping[str, Any]) -> Key:
    """What makes two messages the same: role, content, and the ids of calls. One text part is as good as a string."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and _is_plain(content[0]):
        content = content[0]["text"]
    try:
        raw = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # what is no JSON is the same as nothing else
        raw = repr(content).encode("utf-8", "surrogatepass")
    return str(message.get("role")), raw, call_ids(message), str(message.get("tool_call_id") or "")


def _is_plain(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _check_content(place: int, role: str, content: object) -> None:
    if content is None and role == "assistant":
        return
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise IllegalList(f"message {place} has a content part without a type")
    elif not isinstance(content, str):
        raise IllegalList(f"message {place} has no content")


def _answer(place: int, message: Mapping[str, Any], waiting: set[str]) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in waiting:
        raise IllegalList(f"message {place} is the result of no call")
    waiting.discard(call_id)


def _asked(place: int, message: Mapping[str, Any]) -> set[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return set()
    ids = call_ids(message)
    if not isinstance(calls, list) or len(ids) != len(calls) or not all(ids) or len(set(ids)) != len(ids):
        raise IllegalList(f"message {place} has calls without ids of their own")
    for call in calls:
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise IllegalList(f"message {place} calls no function")
    return set(ids)
