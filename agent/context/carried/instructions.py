"""Instructions that tools have read: named behind a compression, so that the model reads them again."""

import re
from collections.abc import Container, Sequence
from contextlib import suppress

import orjson

from hermes_state.values import Message, MessageRole, Origin, ToolCall

READ_AGAIN = "Instructions that have left your view, read again before you go on: "
MAX_NAMED = 8
"""Most that are named; those read last stay."""
MAX_CHARACTERS = 1_000
"""Longest arguments of a call that only reads."""
_READING = re.compile(r"read|view|open|cat|get_|terminal|shell|bash|command|more_tools|skill")
_NAME = re.compile(
    r"(?<![\w.-])(?:(?:AGENTS?|CLAUDE|GEMINI|QWEN|CRUSH|WARP|HERMES|SOUL|SKILL|CONVENTIONS|CONTRIBUTING|RULES|GUIDELINES"
    r"|(?:[\w-]{1,40}[-.])?INSTRUCTIONS)(?:\.\w+)?\.md|[\w-]{1,60}\.mdc"
    r"|(?:\.?\w{0,20}rules|skills|steering|instructions)/[\w./-]{1,100}\.md|\.\w{0,20}(?:rules|hints))(?![\w.-])",
    re.IGNORECASE,
)
_BEFORE_PATH = re.compile(r"[\s\"'<>|;&=()]")
_SKILL = re.compile(r'"name":"([^"]+)"(?:.*?"file":"([^"]+)")?')


def to_read_again(rows: Sequence[Message], kept: Container[object]) -> str | None:
    """Return a line with the instructions read in these rows, and those named before, unless their row is `kept`."""
    failed = {
        row.tool_call_id for row in rows if row.role is MessageRole.TOOL and (row.text or "").startswith("Error:")
    }
    found = dict[str, None]()
    for row in rows:
        text = row.text or ""
        names = text.partition(READ_AGAIN)[2].split("; ") if row.origin is Origin.TODO and READ_AGAIN in text else []
        names += [name for call in row.body.calls if call.id not in failed for name in _read_by(call)]
        for name in names:
            found.pop(name, None)
            if row.id not in kept or row.origin is Origin.TODO:
                found[name] = None
    return READ_AGAIN + "; ".join([*found][-MAX_NAMED:]) if found else None


def _read_by(call: ToolCall) -> list[str]:
    given = call.arguments
    if len(given) > MAX_CHARACTERS or not _READING.search(call.name):
        return []
    with suppress(orjson.JSONDecodeError):
        given = orjson.dumps(orjson.loads(given)).decode()
    if call.name == "skill" or '"tool":"skill"' in given:
        return [f"skill {name}{f' ({file})' if file else ''}" for name, file in _SKILL.findall(given)]
    return [f"file {_folder(given[: found.start()])}{found[0]}" for found in _NAME.finditer(given)]


def _folder(before: str) -> str:
    """The part of a path that ends a text: from `"path":` on, or without blanks."""
    folder = before.rpartition('"path":"')[2]
    return folder if '"path":"' in before and '"' not in folder else _BEFORE_PATH.split(before)[-1]
