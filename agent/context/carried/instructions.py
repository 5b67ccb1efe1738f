"""Instructions that tools have read: named behind a compression, so that the model reads them again."""

import re
from collections.abc import Container, Sequence
from contextlib import suppress

import orjson

from hermes_state.values import Message, MessageRole, Origin, ToolCall

READ_AGAIN = "Instructions that have left your view, read again before you go on: "
MAX_NAMED = 8
"""Most that are named; those read last stay."""
MAX_CHARACTERS = 200
_NAME = (
    r"(?:(?:AGENTS|CLAUDE|GEMINI|SKILL|CONVENTIONS|CONTRIBUTING|RULES|(?:[\w-]+-)?INSTRUCTIONS)(?:\.\w+)?\.md"
    r"|[\w-]+\.mdc|\.(?:cursor|windsurf|cline|roo)rules)(?![\w.-])"
)
_FILE = re.compile(rf"""(?<="path":")[^"]*(?<![\w.-]){_NAME}(?=")|[^\s"'<>|;&=()]*(?<![\w.-]){_NAME}""", re.IGNORECASE)
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
    with suppress(orjson.JSONDecodeError):
        given = orjson.dumps(orjson.loads(given)).decode()
    if call.name == "skill" or '"tool":"skill"' in given:
        return [f"skill {name}{f' ({file})' if file else ''}" for name, file in _SKILL.findall(given)]
    return [f"file {name}" for name in _FILE.findall(given) if len(name) <= MAX_CHARACTERS]
