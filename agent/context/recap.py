"""The record that needs no model: what can be taken from the rows by rule.

It is what stands in for a summary when none can be had. Everything in it is quoted from the conversation; it says
itself that it is no summary, and how many messages it stands for.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import orjson

from agent.context.summary import SECRET_MARK
from agent.handoff import defused
from agent.sizes import estimated_text_tokens
from hermes_state.redaction import MARK
from hermes_state.values import Message, Origin, Role, Tokens, Transcript

REQUEST_CHARACTERS = 600
LINE_CHARACTERS = 200
PREVIOUS_SHARE = 40
"""Percent of the length that an earlier record may take."""

_QUESTION = re.compile(r"[?\u061f](?=\s|\Z)|\uff1f")  # also the Arabic and the full-width one
_DECISION = re.compile(
    r"\b(?:decided|agreed|we(?:'ll| will) (?:use|go with|keep)|let's (?:use|go with|keep)|chose|settled on|instead of"
    r"|beschlossen|entschieden|wir nehmen|décidé|on prend|decidimos|vamos a usar)\b|决定|決定|решили|결정",
    re.IGNORECASE,
)
_RULE = re.compile(
    r"\b(?:must(?: not)?|never|always|do not|don't|only ever|make sure|immer|niemals?|nie|toujours|jamais|siempre|nunca"
    r"|всегда|никогда)\b|必须|不要|禁止|总是|必ず|絶対に|항상|절대",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b(?:[A-Z][A-Za-z]*(?:Error|Exception)|error|fatal|failed|denied|exit code [1-9]\d*|traceback)\b", re.IGNORECASE
)
_FILE = re.compile(
    r"https?://[^\s<>\"')\]]{4,200}|(?<![\w/])(?:~|\.{1,2})?/(?:[\w.@+-]+/)*[\w.@+-]+"
    r"|\b[\w-]+(?:/[\w.-]+)*\.(?:py|md|txt|json|ya?ml|toml|sql|sh|js|ts|tsx|css|html|log|db|csv|ini|conf|service)\b"
)
_IDENTIFIER = re.compile(
    r"\b(?:[A-Z]{2,10}-\d{1,8}|[0-9a-f]{7,40}(?=\b)(?<!\d{7})|v?\d+\.\d+\.\d+(?:[-+][\w.]+)?|\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?"
    r"|[a-z]+_[a-z_]{3,40}\d*|#\d{1,7})\b"
)

_SENTENCE_END = re.compile(
    r"\n+|(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])"
)  # Chinese and Japanese put no space behind it

_OPENING: Final = (
    "No summary could be made of the {removed} messages that this record stands for; it only lists what could be found "
    "in them by rule. Continue from the recent messages and from the current state of things, and look up what you "
    "need with the history tools before you rely on anything that is not here."
)


def recap(rows: Transcript, previous: str | None, *, redact: Callable[[str], str], limit: Tokens, removed: int) -> str:
    """The record of `rows`, of about `limit` tokens at most. `removed`: how many messages it stands for in all."""
    sections = [
        ("Active Task", _newest_requests(rows)),
        ("Constraints & Preferences", _sentences(rows, _RULE, people_only=True)),
        ("Completed Actions", _actions(rows)),
        ("Blocked", _sentences(rows, _ERROR)),
        ("Key Decisions", _sentences(rows, _DECISION)),
        ("Pending User Asks", _open_questions(rows)),
        ("Relevant Files", _matches(rows, _FILE)),
        ("Critical Context", _matches(rows, _IDENTIFIER)),
    ]
    text = _OPENING.format(removed=removed)
    room = max(0, int(limit) - int(estimated_text_tokens(text)))
    if previous:
        earlier = _within(previous.splitlines(), room * PREVIOUS_SHARE // 100)
        if earlier:
            text += "\n\n## Earlier record\n" + "\n".join(earlier)
            room -= sum(int(estimated_text_tokens(line)) for line in earlier)
    filled = [(title, lines) for title, lines in sections if lines]
    for place, (title, lines) in enumerate(filled):
        share = room // (len(filled) - place)
        kept = _within(lines, share)
        room -= sum(int(estimated_text_tokens(line)) for line in kept)
        if kept:
            text += f"\n\n## {title}\n" + "\n".join(kept)
    return defused(redact(text).replace(MARK, SECRET_MARK))


def _within(lines: Sequence[str], limit: int) -> list[str]:
    """The first lines that fit."""
    kept: list[str] = []
    for line in lines:
        limit -= int(estimated_text_tokens(line)) + 1
        if limit < 0:
            break
        kept.append(line)
    return kept


def _newest_requests(rows: Transcript) -> list[str]:
    """What people asked last inside these rows, newest first, in their own words."""
    asked = [row for row in reversed(rows) if row.origin is Origin.HUMAN and row.text]
    return [f"- m{row.id}: {_one_line(row.text or '', REQUEST_CHARACTERS)}" for row in asked[:3]]


def _open_questions(rows: Transcript) -> list[str]:
    """Questions of people that no later answer in words follows."""
    found: list[str] = []
    for row in reversed(rows):
        if row.role is Role.ASSISTANT and row.text and not row.body.calls:
            break
        if row.origin is Origin.HUMAN and row.text and _QUESTION.search(row.text):
            found.append(f"- m{row.id}: {_one_line(row.text, LINE_CHARACTERS)}")
    return found


def _actions(rows: Transcript) -> list[str]:
    """Calls and how they ended, newest first."""
    results = {row.tool_call_id: row for row in rows if row.role is Role.TOOL}
    found: list[str] = []
    for row in reversed(rows):
        for call in row.body.calls:
            result = results.get(call.id)
            outcome = _one_line(result.text or "", 100) if result is not None else "no result is known"
            found.append(f"- {call.name} {_one_line(_short_arguments(call.arguments), 100)}: {outcome}")
    return found


def _short_arguments(arguments: str) -> str:
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    if not isinstance(parsed, dict):
        return arguments
    return ", ".join(f"{name}={value}" for name, value in parsed.items())


def _sentences(rows: Transcript, cue: re.Pattern[str], *, people_only: bool = False) -> list[str]:
    """Sentences that hold a cue, newest first, each once."""
    found: dict[str, None] = {}
    for row in reversed(rows):
        if row.origin is not Origin.HUMAN and (people_only or row.origin is Origin.SUMMARY):
            continue
        for sentence in _SENTENCE_END.split((row.text or "")[:20_000]):
            if cue.search(sentence):
                found[f"- m{row.id}: {_one_line(sentence, LINE_CHARACTERS)}"] = None
    return list(found)


def _matches(rows: Transcript, pattern: re.Pattern[str]) -> list[str]:
    """What a pattern finds, newest first, each once, with the message it stands in."""
    found: dict[str, str] = {}
    for row in reversed(rows):
        for match in pattern.finditer(_all_text(row)):
            found.setdefault(match[0], f"- {match[0]} (m{row.id})")
    return list(found.values())


def _all_text(row: Message) -> str:
    return " ".join(_texts(row))[:40_000]


def _texts(row: Message) -> Iterable[str]:
    yield row.text or ""
    yield from (call.arguments for call in row.body.calls)
    yield from (document.text for document in row.body.documents)


def _one_line(text: str, limit: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"
