"""Wire form of a transcript: stored rows as the message list of the chat completions API.

The form that every protocol starts from. A pure function of stored columns: the same rows give the same bytes on every
call, so that a provider's prompt cache holds, and a new row changes nothing before it except the last message, which
it may join. The list is legal whatever the rows are: a user speaks first, roles alternate, a call's results follow it
at once and in call order, a call that lost its result gets a stub, and a result that lost its call is dropped.

A handoff is a message of its own where its role can be chosen so that roles alternate. It speaks as the user unless it
stands between a user's message or a tool's result and what people write next; behind an answer, it begins the user
message that follows.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from agent.handoff import framed
from agent.model.lookalikes import begins_like_ours, closes_block
from hermes_state.transcripts import EMPTY_BODY
from hermes_state.values import Message, MessageRole, Origin, ToolCall, Transcript, TurnId, recall_id

WireMessage: TypeAlias = dict[str, Any]  # the provider's JSON: it leaves this module only to be serialised
_Part: TypeAlias = dict[str, Any]  # one content part of such a message

NOTHING_RETURNED = "(the tool returned nothing)"
"""Result without text: providers refuse an empty one."""
LOST_RESULT = "[no result: nothing is recorded of how this call ended]"
INTERRUPTED = "[this answer was interrupted here]"
UNNAMED_TOOL = "unnamed"
NOTICE = "[gateway notice]"
"""Beginning of every line that the gateway itself tells the model; a person's line cannot begin so."""
REASONING = "reasoning"
"""Key of an answer's reasoning: the blocks that its protocol stored."""
BEGINS_LATER = f"{NOTICE} What came before this is not in view."
"""Message in front of an answer that nothing precedes: providers want a user to speak first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """Settings of the wire form besides the rows. Constant for a session, or its bytes change."""

    is_shared: bool = False
    """True where more than one person writes: their rows carry their names."""
    zone: tzinfo = UTC
    max_result_characters: int = 100_000
    """Longest tool result; more is shown up to here, with the call that reads on, and the row stays whole."""
    image_urls: Mapping[int, str] = field(default_factory=dict)
    """Data URLs by attachment id. An image that is missing here is only mentioned."""
    image_notes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Lines in place of images, by message id and attachment id, where there is more to say."""
    shape: int = 0
    """Form of the list that the server accepts, `STRICT` or `TEXT` of `shapes`; 0 is the usual one."""
    reasoning_of: str = ""
    """Model whose reasoning goes along in front of its calls, as in `Reasoning.made_by`; empty: none.

    It stands under `REASONING` in the message. A protocol that asks for it takes it out of there again, and puts it
    where its API wants it.
    """


def chat_messages(
    system: str, transcript: Transcript, style: WireSettings, used_ids: set[str] | None = None
) -> list[WireMessage]:
    """The `messages` of a chat completions request: the system prompt, then the rows.

    `used_ids`: ids of calls that stand before these rows, where they are not the first; those of the rows join them.

    >>> chat_messages("You are Hermes.", (), WireSettings())
    [{'role': 'system', 'content': 'You are Hermes.'}]
    """
    return traced_messages(system, transcript, style, used_ids=used_ids).messages


OPEN_TURNS = 3
"""Messages of people behind the rows that are settled: as many as are marked for caching."""


def settled_rows(transcript: Transcript) -> int:
    """Number of rows whose messages can be made by themselves, and do not change with what is said from now on.

    They end with an answer, so that the rows behind them, which begin with a person's words, join none of their
    messages. 0 where there are no such rows.
    """
    turns = 0
    for index in range(len(transcript) - 1, 0, -1):
        row, before = transcript[index], transcript[index - 1]
        is_asked = row.role is MessageRole.USER and row.origin is Origin.HUMAN
        if is_asked and before.role is MessageRole.ASSISTANT and not before.body.calls and is_shown(before):
            turns += 1
            if turns == OPEN_TURNS:
                return index if are_answers_within(transcript[index:]) else 0
    return 0


def are_answers_within(rows: Transcript) -> bool:
    """True when each tool's result answers a call of these rows: else it changes a message that stands before them."""
    asked: set[str | None] = set()
    for row in rows:
        if row.role is MessageRole.ASSISTANT:
            asked.update(call.id for call in row.body.calls)
        elif row.role is MessageRole.TOOL and row.tool_call_id not in asked:
            return False
    return True


@dataclass(frozen=True, slots=True)
class TracedMessages:
    """Message list, and for each message the rows that it was made of; none for the system prompt and for stubs."""

    messages: list[WireMessage] = field(default_factory=list)
    sources: list[tuple[Message, ...]] = field(default_factory=list)

    @property
    def last_role(self) -> str | None:
        return self.messages[-1]["role"] if self.messages else None

    def add(self, message: WireMessage, *rows: Message) -> None:
        self.messages.append(message)
        self.sources.append(rows)


def traced_messages(
    system: str,
    transcript: Transcript,
    style: WireSettings,
    *,
    handoff_stands_alone: bool = False,
    used_ids: set[str] | None = None,
) -> TracedMessages:
    """`chat_messages` with the rows behind each message.

    `handoff_stands_alone`: it is a user message of its own, whatever people wrote around it. Roles then no longer
    alternate there, so such a list is for readers that tell the messages apart, not for providers.
    """
    traced = TracedMessages()
    if system:
        traced.add({"role": "system", "content": system})
    results = _results_by_call(transcript)
    used_ids = set() if used_ids is None else used_ids
    people: list[Message] = []
    for index, row in enumerate(transcript):
        if row.role is MessageRole.USER:
            if handoff_stands_alone and any(one.origin is Origin.SUMMARY for one in (row, *people[-1:])):
                _add_people(traced, people, style)
                people = []
            elif row.origin is Origin.SUMMARY and _people_follow(transcript, index):
                _add_people(traced, people, style)
                people = []
                if traced.last_role in ("user", "tool"):
                    traced.add({"role": "assistant", "content": _from_gateway(row.origin, row.text or "")}, row)
                    continue
            people.append(row)
            continue
        if row.role is MessageRole.ASSISTANT and is_shown(row):
            _add_people(traced, people, style)
            people = _add_assistant(traced, row, results, used_ids, style)
    _add_people(traced, people, style)
    return traced


def is_shown(row: Message) -> bool:
    """Tells if a row makes a message or a part of one by itself. Blank texts make none: providers refuse them."""
    if row.role is MessageRole.ASSISTANT:
        return _has_words(row) or bool(row.body.calls) or row.body.was_interrupted
    return row.role is MessageRole.USER and (_is_personal(row) or _has_words(row))


def _has_words(row: Message) -> bool:
    return row.text is not None and bool(row.text.strip())


def _people_follow(transcript: Transcript, index: int) -> bool:
    following = (transcript[later] for later in range(index + 1, len(transcript)))
    return next((row.role is MessageRole.USER for row in following if is_shown(row)), False)


def _results_by_call(transcript: Transcript) -> dict[tuple[int, str], Message]:
    """The row that answers each call, by the call's row and id.

    A result belongs to the nearest earlier row that asked with its id. Results that answer nothing, or answer a
    second time, are left out; so are those whose call a handoff stands for, whatever was asked before it.
    """
    open_calls: dict[str, int] = {}
    results: dict[tuple[int, str], Message] = {}
    for row in transcript:
        if row.role is MessageRole.ASSISTANT:
            for call in row.body.calls:
                open_calls[call.id] = row.id
        elif row.role is MessageRole.TOOL and row.tool_call_id is not None:
            calling_row = open_calls.pop(row.tool_call_id, None)
            if calling_row is not None:
                results[calling_row, row.tool_call_id] = row
        elif row.origin is Origin.SUMMARY:
            open_calls.clear()
    return results


def _bounded(row: Message, limit: int) -> str:
    text = row.text or ""
    if len(text) <= limit:
        return text if text.strip() else NOTHING_RETURNED
    call = f'history_open(id="{recall_id(row.id)}", offset={limit})'
    return f"{text[:limit]}\n{NOTICE} Cut here: the result has {len(text):,} characters. {call} reads on."


# --- the assistant's rows


def _add_assistant(
    traced: TracedMessages,
    row: Message,
    results: Mapping[tuple[int, str], Message],
    used_ids: set[str],
    style: WireSettings,
) -> list[Message]:
    """Add an answer and the results of its calls. Returns those whose images are still to follow, as user content."""
    if traced.last_role in (None, "system"):
        traced.add({"role": "user", "content": BEGINS_LATER})
    text = row.text or "" if _has_words(row) else ""
    if row.body.was_interrupted:
        text = f"{text}\n\n{INTERRUPTED}".lstrip()
    calls = row.body.calls
    message = traced.messages[-1]
    if message["role"] == "assistant" and "tool_calls" not in message:
        message["content"] = f"{message['content']}\n\n{text}" if text else message["content"]
        traced.sources[-1] += (row,)
    else:
        message = {"role": "assistant", "content": text or None}
        traced.add(message, row)
    if not calls:
        return []
    sent: list[dict[str, Any]] = []
    shown: list[Message] = []
    for index, call in enumerate(calls):
        call_id = _unique_id(call.id, row, index, used_ids)
        sent.append(_wire_call(call, call_id))
        is_first = all(earlier.id != call.id for earlier in calls[:index])
        result = results.get((row.id, call.id)) if is_first else None
        text = LOST_RESULT if result is None else _bounded(result, style.max_result_characters)
        answer = {"role": "tool", "tool_call_id": call_id, "content": text}
        traced.add(answer, *(() if result is None else (result,)))
        if result is not None and result.body.images:
            shown.append(result)
    message["tool_calls"] = sent
    reasoning = row.body.reasoning
    if reasoning is not None and reasoning.made_by == style.reasoning_of:
        message[REASONING] = orjson.loads(reasoning.blocks)
    return shown


def _unique_id(call_id: str, row: Message, index: int, used: set[str]) -> str:
    """The call's own id, or one of ours where the model gave none or one that the list has already."""
    wire_id = call_id
    while not wire_id or wire_id in used:
        wire_id = f"call_m{row.id}_{index}" if wire_id == call_id else f"{wire_id}_"
    used.add(wire_id)
    return wire_id


_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


def _wire_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    # Models make names up (`functions.look`). The call was answered with an error, but providers refuse the list.
    name, arguments = _ILLEGAL_IN_NAME.sub("_", call.name[:64]) or UNNAMED_TOOL, call.arguments
    try:
        is_object = isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if not is_object:  # no provider accepts it, so the model is shown it inside a legal object
        arguments = orjson.dumps({"not_a_json_object": arguments}).decode() if arguments.strip() else "{}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# --- the rows of people and the handoff


def _add_people(traced: TracedMessages, rows: Sequence[Message], style: WireSettings) -> None:
    """Add one user message of adjacent rows. Pieces of one turn by one sender are stamped once."""
    if len(rows) == 1 and rows[0].origin is Origin.HUMAN and rows[0].body is EMPTY_BODY:  # most rows of a long chat
        traced.add({"role": "user", "content": _stamp(rows[0], style) + _human_text(rows[0])}, rows[0])
        return
    blocks: list[str | _Part] = []
    previous: tuple[str | None, TurnId | None] | None = None
    for row in rows:
        if _is_personal(row):
            burst = (row.sender_ref, row.turn_id)
            is_piece = row.turn_id is not None and burst == previous
            stamp = "" if is_piece else _stamp(row, style)
            blocks.append(("\n" if is_piece else "\n\n" if blocks else "") + stamp + _human_text(row))
            blocks.extend(_image_parts(row, style))
            previous = burst
        elif row.role is MessageRole.TOOL:
            blocks.extend(_result_images(row, style))
            previous = None
        elif row.text and row.text.strip():
            blocks.append(("\n\n" if blocks else "") + _from_gateway(row.origin, row.text))
            previous = None
    if blocks:
        traced.add({"role": "user", "content": _content(blocks)}, *rows)


def _from_gateway(origin: Origin, text: str) -> str:
    """The words of a row that no person wrote."""
    if origin is Origin.SUMMARY:
        return framed(text)
    # Titles, names and todos in it are words of people or of the model.
    return f"{NOTICE} {escaped(text)}" if origin in (Origin.NOTICE, Origin.TODO) else escaped(text)


def escaped(text: str) -> str:
    """The text with lines that cannot be taken for a stamp, a notice or a handoff."""
    if text.isascii() and "[" not in text:
        return text
    return _LINE.sub(lambda line: "\\" * begins_like_ours(text, *line.span()) + line[0], text)


def _is_personal(row: Message) -> bool:
    """Tells if a person's words are in it. The notice of an edit has some: the gateway's voice must not speak them."""
    return row.origin is Origin.HUMAN or (row.origin is Origin.NOTICE and row.sender_ref is not None)


def _stamp(row: Message, style: WireSettings) -> str:
    stamp = f"[{_minute(row.created_at // 60_000, style.zone)}] "
    if style.is_shared and row.sender_name is not None:  # a name can neither end its brackets nor start a line
        stamp += f"[{_shown_name(row.sender_name)}] "
    return stamp


@lru_cache(maxsize=1_024)  # of every row on every call
def _shown_name(name: str) -> str:
    return _one_line(name, _NAME_SIGNS)[:64] or "?"


@lru_cache(maxsize=8_192)  # a long transcript is stamped anew on every call
def _minute(minutes: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(minutes * 60, zone).isoformat(" ", "minutes")[:16]


_NOTHING = "(no text)"
_UNSEEN_IMAGE = "An image was sent here that you cannot see."
_LINE = re.compile(r"[^\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]+")
"""Line as a model may see it: any control character but a tab, and any separator, may end one."""
_ANGLE = re.compile(r"<(?!/?(?:[a-ce-pr-z0-9]|d[a-np-z]|q[a-tv-z]))|[^\w\s\x00-\x7f]", re.IGNORECASE)
"""Possible beginning of the end of a block; most tags are none, by their first letters."""
_JOINERS = "\u200c\u200d"  # emoji and several scripts need them
_NAME_SIGNS = {"[": "(", "]": ")", "Ps": "(", "Pe": ")"}
_ATTRIBUTE_SIGNS = {'"': "'", "<": "(", ">": ")"}


def _human_text(row: Message) -> str:
    """A person's words, then what they attached, each in a block that its text cannot leave."""
    text = escaped(row.text or "") if _has_words(row) else ""
    body = row.body
    if body is EMPTY_BODY:
        return text or _NOTHING
    pieces = [text if body.words_by is None else _quoted(body.words_by, text)] if text else []
    if (quote := body.quote) is not None:
        pieces.append(_quoted("this assistant" if quote.is_from_bot else quote.author, escaped(quote.text)))
    for document in body.documents:
        cut = ' truncated="yes"' if document.was_truncated else ""
        pieces.append(f'<document name="{_attribute(document.name)}"{cut}>\n{_enclosed(document.text)}\n</document>')
    pieces += [f"{NOTICE} {_one_line(note)}" for note in body.notes]
    return "\n".join(pieces) or _NOTHING


def _quoted(author: str, text: str) -> str:
    return f'<quoted_message author="{_attribute(author)}">\n{_enclosed(text)}\n</quoted_message>'


def _attribute(value: str) -> str:
    return _one_line(value, _ATTRIBUTE_SIGNS)[:128]


def _one_line(text: str, signs: Mapping[str, str] = MappingProxyType({})) -> str:
    """The text on one line, without characters that reorder or hide, and with other signs for those in `signs`."""
    kept: list[str] = []
    for character in text:
        category = unicodedata.category(character)
        plain = " " if category == "Cc" else signs.get(unicodedata.normalize("NFKC", character), signs.get(category))
        if plain is not None or category != "Cf" or character in _JOINERS:
            kept.append(character if plain is None else plain)
    return " ".join("".join(kept).split())


def _enclosed(text: str) -> str:
    if text.isascii() and "<" not in text:
        return text
    return _ANGLE.sub(lambda found: found[0] + "\\" * closes_block(text, found.start()), text)


def _image_parts(row: Message, style: WireSettings) -> Iterator[str | _Part]:
    for image in row.body.images:
        note, url = style.image_notes.get((row.id, image.attachment_id)), style.image_urls.get(image.attachment_id)
        if note is not None or url is None:
            yield f"\n{NOTICE} {note or _UNSEEN_IMAGE}"
        else:
            yield {"type": "image_url", "image_url": {"url": url}}


def _result_images(row: Message, style: WireSettings) -> list[str | _Part]:
    """The images of a tool's result that are shown; what it says of them stands in its text."""
    shown = [part for part in _image_parts(row, style) if not isinstance(part, str)]
    return [f"{NOTICE} Shown by {row.tool_name or UNNAMED_TOOL}:", *shown] if shown else []


def _content(blocks: list[str | _Part]) -> str | list[_Part]:
    """Plain text where that is all there is, content parts where images stand between."""
    if all(isinstance(block, str) for block in blocks):
        return "".join(block for block in blocks if isinstance(block, str))
    parts: list[_Part] = []
    for block in blocks:
        if not isinstance(block, str):
            parts.append(block)
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += block
        else:
            parts.append({"type": "text", "text": block})
    return parts
