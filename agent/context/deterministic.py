"""A record made by fixed rules when no model can write a summary.

It quotes the conversation, newest messages first, and says that it is not a summary. Rows are read from the newest to
the oldest until enough is found, so the time does not grow with the conversation.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from textwrap import indent
from typing import Final, TypeAlias

import orjson

from agent.context.carried.facts import identifiers
from agent.context.carried.phrases import QUESTION, any_of, sentences
from agent.context.excerpt import (
    QUOTED_CHARACTERS,
    SECRET_MARK,
    Redact,
    bounded_record,
    clean,
    one_line,
    without_thoughts,
)
from agent.handoff import escape_markers
from agent.model.usage import estimated_text_tokens
from hermes_state.redaction import MARK
from hermes_state.text import both_ends
from hermes_state.values import Message, MessageRole, Origin, Tokens, ToolCall, Transcript, recall_id

LINE_CHARACTERS = 200
READ_CHARACTERS = 200_000
"""Maximum number of characters to read from all messages, newest first. History tools can find older messages."""
MIN_LINE_TOKENS = 6
_EXTENSIONS = (
    "py|md|txt|json|ya?ml|toml|sql|sh|jsx?|tsx?|css|html?|log|db|csv|ini|conf|cfg|service|xml|pdf|docx?|xlsx?|pptx?"
    "|png|jpe?g|gif|svg|zip|gz|tar|rs|go|java|kt|cpp|hpp|rb|php|lock|env|ipynb|tf"
)
# Every repetition is bounded and cannot match the text before it, so the search time is linear.
_FILE = re.compile(
    r"https?://[^\s<>\"'`)\]]{4,200}"
    r"|(?<![A-Za-z0-9_./~-])(?:~|\.{1,2})?(?:/[A-Za-z0-9_.@+-]{1,80}){1,16}"
    rf"|(?<![A-Za-z0-9_./@-])[A-Za-z0-9_][A-Za-z0-9_./@+-]{{0,120}}\.(?:{_EXTENSIONS})(?![A-Za-z0-9_])"
    rf"|[^\x00-\x7f]{{1,30}}\.(?:{_EXTENSIONS})(?![A-Za-z0-9_])"
)
_Findings: TypeAlias = dict[str, dict[str, str]]
"""Findings for each heading, newest first, each with its line in the record.

The line names the newest message that contains the finding.
"""
_OPENING: Final = (
    "No summary could be made of the {count} that this record replaces. It only lists extracted lines, newest first. "
    "Continue from the recent messages and the current state of things. Look up anything else that you need with the "
    "history tools before you rely on it."
)
_EARLIER: Final = "## Earlier record"


def deterministic_summary(
    rows: Transcript, previous: str | None, *, redact: Redact, limit: Tokens, removed: int
) -> str:
    """Return a record of about `limit` tokens or less that replaces `removed` messages."""
    text = _OPENING.format(count="one message" if removed == 1 else f"{removed:,} messages")
    room = limit - estimated_text_tokens(text)
    request = _newest_request(rows, redact, room * 40 // 100)
    earlier = _earlier(previous, redact, room * 35 // 100)
    room -= sum(estimated_text_tokens(section) + 1 for section in (request, earlier) if section)
    found = _find(rows, redact, max_lines=max(0, room) // MIN_LINE_TOKENS)
    sections = [text, request, *_sections(found, room), earlier]
    return escape_markers(redact("\n\n".join(filter(None, sections))).replace(MARK, SECRET_MARK))


def _sections(found: _Findings, room: int) -> Iterator[str]:
    """Yield findings under their headings. Each heading gets an equal part of the remaining room."""
    titles = [title for title in _TITLES if found[title]]
    for index, title in enumerate(titles):
        heading = f"## {title}"
        limit, kept = room // (len(titles) - index) - _tokens(heading), list[str]()
        for line in found[title].values():
            if (size := _tokens(line)) <= limit:
                kept.append(line)
                limit -= size
            elif limit < MIN_LINE_TOKENS:
                break
        if kept:
            room -= _tokens(heading) + sum(map(_tokens, kept))
            yield "\n".join((heading, *kept))


def _tokens(line: str) -> int:
    return estimated_text_tokens(line) + 1


def _newest_request(rows: Transcript, redact: Redact, limit: int) -> str:
    """Return the newest request verbatim, quoted so that none of its lines looks like a heading."""
    own = (row for row in reversed(rows) if row.origin is Origin.HUMAN and row.body.words_by is None)
    row = next((row for row in own if (row.text or "").strip()), None)
    if row is None:
        return ""
    text = clean(row.text or "", redact).strip()
    name = recall_id(row.id)
    title = f"## Active Task\nThe last request in these messages ({name}). The recent messages show what happened next:"
    limit -= estimated_text_tokens(title)
    quoted = indent(text, "> ", lambda line: True)
    length = len(text) * max(0, limit) // estimated_text_tokens(quoted)
    while estimated_text_tokens(quoted) > limit:
        if length < LINE_CHARACTERS // 4:
            return ""
        quoted = indent(both_ends(text, length), "> ", lambda line: True)
        length = length * 4 // 5
    return f"{title}\n{quoted}"


def _earlier(previous: str | None, redact: Redact, limit: int) -> str:
    """Return the earlier record under a single heading, without its opening paragraph."""
    limit -= _tokens(_EARLIER)
    if not previous or limit <= 0:
        return ""
    body = re.sub(r"\ANo summary could be made of the [^\n]{0,400}\n*", "", previous.strip())
    body = re.sub(r"^#{1,6} +", "### ", body, flags=re.MULTILINE).replace(f"#{_EARLIER}\n", "")
    record = bounded_record(body, Tokens(limit), redact)
    return f"{_EARLIER}\n{record}" if record and estimated_text_tokens(record) <= limit else ""


_TITLES: Final = (
    "Completed Actions",
    "Blocked",
    "Key Decisions",
    "Pending User Asks",
    "Relevant Files",
    "Critical Context",
)


def _find(rows: Transcript, redact: Redact, *, max_lines: int) -> _Findings:
    found: _Findings = {title: {} for title in _TITLES}
    results: dict[str | None, Message] = {}  # ids can repeat, so a call's result is the nearest result after the call
    is_answered = False
    read = 0
    for row in reversed(rows):
        texts = [without_thoughts(row.text or "") if row.role is MessageRole.ASSISTANT else row.text or ""]
        texts += [call.arguments for call in row.body.calls] + [document.text for document in row.body.documents]
        text = clean("\n".join(texts), redact)[:QUOTED_CHARACTERS]
        read += len(text) + 1
        if read > READ_CHARACTERS:
            break
        lines = list(_find_in_text(text))
        if row.role is MessageRole.TOOL:
            results[row.tool_call_id] = row
        lines += [("Completed Actions", _action(call, results.pop(call.id, None), redact)) for call in row.body.calls]
        if row.role is MessageRole.ASSISTANT and row.text and not row.body.calls:
            is_answered = True
        elif row.origin is Origin.HUMAN and row.body.words_by is None and not is_answered and QUESTION.search(text):
            lines.append(("Pending User Asks", one_line(text, LINE_CHARACTERS)))
        for title, line in lines:
            if len(found[title]) < max_lines:
                found[title].setdefault(line, f"- {line} ({recall_id(row.id)})")
    return found


def _find_in_text(text: str) -> Iterator[tuple[str, str]]:
    for sentence in (text[start:end] for start, end in sentences(text)):
        if any_of("error").search(sentence):
            yield "Blocked", one_line(sentence, LINE_CHARACTERS)
        if any_of("decision").search(sentence):
            yield "Key Decisions", one_line(sentence, LINE_CHARACTERS)
    for match in _FILE.finditer(text):
        yield "Relevant Files", match[0].rstrip(".")
    for name in identifiers(_FILE.sub(" ", text)):
        yield "Critical Context", name


def _action(call: ToolCall, result: Message | None, redact: Redact) -> str:
    arguments = call.arguments
    with suppress(ValueError):  # arguments that are not JSON stay unchanged
        parsed = orjson.loads(arguments)
        if isinstance(parsed, dict):
            arguments = ", ".join(f"{name}={value}" for name, value in parsed.items())
    arguments = one_line(clean(arguments, redact), LINE_CHARACTERS // 2)
    outcome = "no result is known"
    if result is not None:
        outcome = one_line(clean(result.text or "", redact), LINE_CHARACTERS // 2)
    return f"{call.name} {arguments}: {outcome}"
