"""Pruning: old, long tool results and arguments are replaced by a one-line stub with the recall id of the full text.

Rows in the database do not change. The same transcript always gives the same stubs, and pruning again changes nothing.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from agent.context.excerpt import Redact
from hermes_state.redaction import seam
from hermes_state.values import Message, MessageRole, ToolCall, Transcript, recall_id

WORTH_PRUNING_CHARACTERS = 200
ARGUMENT_CHARACTERS = 200
MAX_DEPTH = 50
_STUB_MARK: Final = "[pruned "
_EXIT = re.compile(r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|returncode)\W{1,3}(-?\d{1,5})\b", re.IGNORECASE)
_FAILS = re.compile(r"\A\s*(?:error|fatal|traceback|failed|exception)\b", re.IGNORECASE)


def prune(transcript: Transcript, *, upto: int, redact: Redact) -> tuple[Transcript, int]:
    """Shorten the rows before index `upto`. Return all rows and the number of results that became stubs.

    Each row keeps its id and place, and text from people stays unchanged. `redact` runs before each cut, because half a
    secret is not recognised.
    """
    calls: dict[str | None, ToolCall] = {}  # ids can repeat, so a result belongs to the nearest call before it
    tool_rows = (row for row in transcript if row.role is MessageRole.TOOL)
    newest = {
        row.text: row.id for row in tool_rows if row.text is not None and len(row.text) > WORTH_PRUNING_CHARACTERS
    }
    rows: list[Message] = []
    stubs = 0
    for row in transcript[:upto]:
        shorter = row
        calls.update({call.id: call for call in row.body.calls})
        if row.role is MessageRole.TOOL:
            shorter = _pruned_result(row, calls.get(row.tool_call_id), newest, redact)
            stubs += shorter is not row
        elif row.body.calls:
            short = tuple(_shortened_call(call, row, redact) for call in row.body.calls)
            if short != row.body.calls:
                shorter = msgspec.structs.replace(row, body=msgspec.structs.replace(row.body, calls=short))
        rows.append(shorter)
    return (*rows, *transcript[upto:]), stubs


def _pruned_result(row: Message, call: ToolCall | None, newest: Mapping[str, int], redact: Redact) -> Message:
    """Return the row with a stub as its text. `newest`: for each long text, the id of the newest row with this text."""
    text = row.text or ""
    if len(text) <= WORTH_PRUNING_CHARACTERS or text.startswith(_STUB_MARK):
        return row
    stub = f"{_STUB_MARK}{recall_id(row.id)}: "
    if (twin := newest[text]) != row.id:
        stub += f"the same result as {recall_id(twin)}, which came later]"
    else:
        lines = text.count("\n") + 1
        size = f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")
        name = _one_line(row.tool_name or (call.name if call is not None else "") or "tool", 64, redact)
        target = _target(call, redact)
        about = f"{name} {target}" if target else name
        stub += f"{about}: {_outcome(text, redact)}; {size}; history_open reads them]"
    return msgspec.structs.replace(row, text=stub) if len(stub) < len(text) else row


def _outcome(text: str, redact: Redact) -> str:
    """Return the outcome of a tool call: the exit code, the beginning of an error, or the beginning of the result."""
    for part in (text[:400], text[-400:]):
        lower = part.lower()  # this check is a hundred times faster than the regular expression
        if ("exit" in lower or "returncode" in lower) and (exit_code := _EXIT.search(part)) is not None:
            return f"exit code {exit_code[1]}"
    begins = _one_line(text.lstrip().partition("\n")[0], 80, redact)
    return f"failed, {begins!r}" if _FAILS.match(text[:200]) else f"ok, begins {begins!r}"


def _target(call: ToolCall | None, redact: Redact) -> str:
    """Return the subject of a tool call: an argument such as the path or command, or else the first text argument."""
    arguments = _parsed(call.arguments) if call is not None else None
    if not isinstance(arguments, dict):
        return ""
    texts = {str(name): value for name, value in arguments.items() if isinstance(value, str) and value.strip()}
    names = ("path", "file", "file_path", "url", "command", "cmd", "query", "pattern", "id", "name", *texts)
    return _one_line(next((texts[name] for name in names if name in texts), ""), 80, redact)


def _shortened_call(call: ToolCall, row: Message, redact: Redact) -> ToolCall:
    if len(call.arguments) <= ARGUMENT_CHARACTERS:
        return call
    arguments = _parsed(call.arguments)
    if not isinstance(arguments, dict | list):
        return call
    try:
        shorter = orjson.dumps(_shortened(arguments, row, redact)).decode()
    except orjson.JSONEncodeError:  # orjson can read deeper nesting than it can write
        return call
    return msgspec.structs.replace(call, arguments=shorter) if len(shorter) < len(call.arguments) else call


def _shortened(value: Any, row: Message, redact: Redact, depth: int = 0) -> Any:
    if isinstance(value, str) and depth <= MAX_DEPTH and len(value) > ARGUMENT_CHARACTERS + 60:  # room for the mark
        mark = f"{_STUB_MARK}{recall_id(row.id)}: {len(value):,} characters]"
        return f"{_beginning(value, ARGUMENT_CHARACTERS, redact)}… {mark}"
    if isinstance(value, list) and depth <= MAX_DEPTH:
        return [_shortened(item, row, redact, depth + 1) for item in value]
    if isinstance(value, dict) and depth <= MAX_DEPTH:
        return {name: _shortened(item, row, redact, depth + 1) for name, item in value.items()}
    return value


def _parsed(arguments: str) -> Any:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None


def _one_line(text: str, limit: int, redact: Redact) -> str:
    flat = " ".join(text.split(None, limit))
    return flat if len(flat) <= limit else f"{_beginning(flat, limit - 1, redact)}…"


def _beginning(text: str, limit: int, redact: Redact) -> str:
    """Return at most the first `limit` characters, cut at a space if possible and never inside a secret."""
    index = seam(text[:limit], limit * 3 // 4, limit)
    return text[:index] if index is not None else redact(text[:2_000])[:limit]
