"""Pruning: long tool results and arguments that are behind become one line, which names where the whole can be read.

No model takes part, and nothing is lost: rows stay as they are in the database, and a stub carries the recall id of
its row. The same transcript always gives the same stubs, and pruning what was pruned changes no byte.
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
"""A longer string inside a call's arguments is shortened to this."""
MAX_DEPTH = 50
"""Deepest level of arguments that is shortened; what lies deeper is left as it is."""
TARGET_CHARACTERS = 80
OUTCOME_CHARACTERS = 80
LOOKED_CHARACTERS = 2_000
"""Characters of a text that is cut short in which secrets are looked for."""

_STUB_MARK: Final = "[pruned "
_TARGET_NAMES = ("path", "file", "file_path", "url", "command", "cmd", "query", "pattern", "id", "name")
_EXIT = re.compile(r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|returncode)\W{1,3}(-?\d{1,5})\b", re.IGNORECASE)
_FAILS = re.compile(r"\A\s*(?:error|fatal|traceback|failed|exception)\b", re.IGNORECASE)


def prune(transcript: Transcript, *, upto: int, redact: Redact) -> tuple[Transcript, int]:
    """The transcript with what stands before index `upto` shortened, and the number of results that became stubs.

    Every row keeps its id and place; those from `upto` on, and every text that people wrote, stay. `redact` takes
    secrets out of what is cut: half of one could not be recognised any more. Others stay for those who read the rows.
    """
    calls: dict[str | None, ToolCall] = {}  # ids come again: a result answers the call before it
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
            shorter = _with_short_arguments(row, redact)
        rows.append(shorter)
    return (*rows, *transcript[upto:]), stubs


# ---- results


def _pruned_result(row: Message, call: ToolCall | None, newest: Mapping[str, int], redact: Redact) -> Message:
    """The row with a stub for its text. `newest`: the newest row of each long result, by its text."""
    text = row.text or ""
    if len(text) <= WORTH_PRUNING_CHARACTERS or text.startswith(_STUB_MARK):
        return row
    twin = newest[text]
    if twin != row.id:
        stub = f"{_begun(row)}the same result as {recall_id(twin)}, which came later]"
    else:
        stub = _stub(row, text, call, redact)
    return msgspec.structs.replace(row, text=stub) if len(stub) < len(text) else row


def _begun(row: Message) -> str:
    return f"{_STUB_MARK}{recall_id(row.id)}: "


def _stub(row: Message, text: str, call: ToolCall | None, redact: Redact) -> str:
    lines = text.count("\n") + 1
    size = f"{len(text):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")
    name = _one_line(row.tool_name or (call.name if call is not None else "") or "tool", 64, redact)
    target = _target(call, redact)
    about = f"{name} {target}" if target else name
    return f"{_begun(row)}{about}: {_outcome(text, redact)}; {size}; history_open reads them]"


def _outcome(text: str, redact: Redact) -> str:
    """Outcome of the call as far as its text shows: an exit code, an error's first line, else how it begins."""
    exit_code = _exit_code(text[:400]) or _exit_code(text[-400:])
    begins = _one_line(text.lstrip().partition("\n")[0], OUTCOME_CHARACTERS, redact)
    if exit_code is not None:
        return f"exit code {exit_code[1]}"
    return f"failed, {begins!r}" if _FAILS.match(text[:200]) else f"ok, begins {begins!r}"


def _exit_code(text: str) -> re.Match[str] | None:
    lower = text.lower()  # to see that it holds no such word takes a hundredth of the search
    return _EXIT.search(text) if "exit" in lower or "returncode" in lower else None


def _target(call: ToolCall | None, redact: Redact) -> str:
    """Subject of the call: the argument that names it, else the first short text among them."""
    arguments = _parsed(call.arguments) if call is not None else None
    if not isinstance(arguments, dict):
        return ""
    texts = {str(name): value for name, value in arguments.items() if isinstance(value, str) and value.strip()}
    named = next((texts[name] for name in _TARGET_NAMES if name in texts), None)
    return _one_line(named if named is not None else next(iter(texts.values()), ""), TARGET_CHARACTERS, redact)


# ---- arguments


def _with_short_arguments(row: Message, redact: Redact) -> Message:
    """The row with the long texts inside its calls' arguments shortened; what is no JSON is left alone."""
    calls = tuple(_shortened_call(call, row, redact) for call in row.body.calls)
    if calls == row.body.calls:
        return row
    return msgspec.structs.replace(row, body=msgspec.structs.replace(row.body, calls=calls))


def _shortened_call(call: ToolCall, row: Message, redact: Redact) -> ToolCall:
    if len(call.arguments) <= ARGUMENT_CHARACTERS:
        return call
    arguments = _parsed(call.arguments)
    if not isinstance(arguments, dict | list):
        return call
    try:
        shorter = orjson.dumps(_shortened(arguments, row, redact)).decode()
    except orjson.JSONEncodeError:  # it reads deeper nesting than it writes
        return call
    return msgspec.structs.replace(call, arguments=shorter) if len(shorter) < len(call.arguments) else call


def _shortened(value: Any, row: Message, redact: Redact, depth: int = 0) -> Any:
    """A JSON value with its long strings cut; `Any` because that is what JSON is."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, str):
        if len(value) <= ARGUMENT_CHARACTERS + 60:  # what the mark takes
            return value
        return f"{_beginning(value, ARGUMENT_CHARACTERS, redact)}… {_begun(row)}{len(value):,} characters]"
    if isinstance(value, list):
        return [_shortened(item, row, redact, depth + 1) for item in value]
    if isinstance(value, dict):
        return {name: _shortened(item, row, redact, depth + 1) for name, item in value.items()}
    return value


def _parsed(arguments: str) -> Any:
    """The arguments as JSON, None where they are none (or too deep to look at)."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None


# ---- cutting


def _one_line(text: str, limit: int, redact: Redact) -> str:
    flat = " ".join(text.split(None, limit))
    return flat if len(flat) <= limit else f"{_beginning(flat, limit - 1, redact)}…"


def _beginning(text: str, limit: int, redact: Redact) -> str:
    """The first `limit` characters, or up to a space shortly before; no secret is cut in two."""
    index = seam(text[:limit], limit * 3 // 4, limit)
    return text[:index] if index is not None else redact(text[:LOOKED_CHARACTERS])[:limit]
