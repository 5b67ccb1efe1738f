"""Stored rows as a message list for an engine, and the engine's list as rows again.

A message of the engine's list is one that it was given when it is the same object, unchanged; else when role, content
and call ids are the same; else, for calls and their results, when the call ids are. What matches nothing is the
engine's own words and becomes the one handoff. Rows are referenced, never copied, and the newest request of a person
is in the result even if the engine has lost it.

Message lists in the form of the chat completions API, as engines of others read and write them.

What is wrong with one, what a message says, and when two are the same. Nothing here knows of stored rows.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import orjson

from agent.context.cuts import Middle, handoff_in, joined, open_request, record_for
from agent.engines.contract import ListMessage
from agent.handoff import parse_handoff, unframed
from agent.model.wire import WireSettings, traced_messages
from hermes_state.compressions import ContextItem
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, MessageId, MessageRole, Origin, Transcript, recall_id

Key: TypeAlias = tuple[str, bytes, tuple[str, ...], str]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
INSTRUCTING = frozenset({"system", "developer"})


class MessageListError(Exception):
    """A list that no provider would accept, or that cannot be the compression of the list it was made from."""


def checked_list(value: object) -> list[ListMessage]:
    """`value` as a legal list. Raises `MessageListError` with what is wrong with it."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise MessageListError(f"it is no list of messages but {type(value).__name__}")
    if not value:
        raise MessageListError("it is empty")
    messages: list[ListMessage] = []
    waiting: set[str] = set()
    for place, message in enumerate(value):
        if not isinstance(message, dict):
            raise MessageListError(f"message {place} is {type(message).__name__}")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise MessageListError(f"message {place} has no known role")
        _check_content(place, role, message.get("content"))
        if role == "tool":
            _answer(place, message, waiting)
        elif waiting:
            raise MessageListError(f"calls have no result before message {place}")
        if role == "assistant":
            waiting = _asked(place, message)
        messages.append(message)
    if waiting:
        raise MessageListError("calls at its end have no result")
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
            raise MessageListError(f"message {place} has a content part without a type")
    elif not isinstance(content, str):
        raise MessageListError(f"message {place} has no content")


def _answer(place: int, message: Mapping[str, Any], waiting: set[str]) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in waiting:
        raise MessageListError(f"message {place} is the result of no call")
    waiting.discard(call_id)


def _asked(place: int, message: Mapping[str, Any]) -> set[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return set()
    ids = call_ids(message)
    if not isinstance(calls, list) or len(ids) != len(calls) or not all(ids) or len(set(ids)) != len(ids):
        raise MessageListError(f"message {place} has calls without ids of their own")
    for call in calls:
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MessageListError(f"message {place} calls no function")
    return set(ids)


UNSAID: Final = "The engine that shortened this conversation left these messages out without a summary."


@dataclass(frozen=True, slots=True)
class SentMessages:
    """What an engine was given. It may change the messages: what they were is known by their keys."""

    transcript: Transcript
    messages: tuple[ListMessage, ...]
    sources: tuple[tuple[Message, ...], ...]
    keys: tuple[Key, ...]
    contents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedMessages:
    """An engine's list as a child's view."""

    context: tuple[ContextItem, ...]
    removed: Transcript
    """Rows that are in view no longer, or only shortened."""
    added: tuple[NewMessage, ...]
    """The handoff and shortened results among `context`."""
    summarised: int
    """How many rows the handoff stands for, earlier handoffs left out."""


def sent_messages(system: str, transcript: Transcript, style: WireSettings) -> SentMessages:
    """The list of a view. An earlier handoff is a message of its own, so that an engine can tell it from a person's."""
    traced = traced_messages(system, transcript, style, handoff_stands_alone=True)
    return SentMessages(
        transcript,
        tuple(traced.messages),
        tuple(traced.sources),
        tuple(key_of(message) for message in traced.messages),
        tuple(text_of(message.get("content")) for message in traced.messages),
    )


def mapped_messages(handed: SentMessages, returned: object, redact: Callable[[str], str]) -> MappedMessages | None:
    """The view that an engine's list stands for; None when it is the list that the engine was given.

    Raises `MessageListError`.
    """
    messages = checked_list(returned)
    # The system prompt is ours: whatever the engine wrote into it is not taken over.
    if messages[0]["role"] in INSTRUCTING and handed.messages[0]["role"] in INSTRUCTING:
        messages = messages[1:]
    reading = _ListReader(handed)
    reading.read(messages)
    return reading.mapped(redact)


# ---- which message is which


def _places(handed: SentMessages, messages: Sequence[ListMessage], keys: Sequence[Key]) -> list[int | None]:
    """For each message the place of the one that it is among those handed over, None for the engine's own."""
    by_object = {id(message): place for place, message in enumerate(handed.messages)}
    places: list[int | None] = []
    for message, key in zip(messages, keys, strict=True):
        place = by_object.get(id(message))
        places.append(place if place is not None and handed.keys[place] == key else None)
    start = 1 if handed.messages and handed.messages[0]["role"] in INSTRUCTING else 0
    _match_run(handed, keys, places, range(len(messages)), start)
    _match_run(handed, keys, places, range(len(messages) - 1, -1, -1), len(handed.messages) - 1)
    _match_between(handed.keys, keys, places)
    _match_between(_pairs(handed.messages), _pairs(messages), places)
    known = [place for place in places if place is not None]
    if any(after <= before for before, after in pairwise(known)):
        raise MessageListError("it repeats messages, or changes their order")
    return places


def _match_run(
    handed: SentMessages, keys: Sequence[Key], places: list[int | None], order: Sequence[int], at: int
) -> None:
    """Messages that are the same from one end on, one after the other."""
    step = 1 if not order or order[0] == 0 else -1
    taken = {place for place in places if place is not None}
    for index in order:
        if not 0 <= at < len(handed.keys) or handed.keys[at] != keys[index] or places[index] not in (None, at):
            return
        if places[index] is None and at in taken:
            return
        places[index] = at
        at += step


def _match_between(known: Sequence[object], keys: Sequence[object], places: list[int | None]) -> None:
    """The rest: the first of the same that keeps the order."""
    spots: dict[object, list[int]] = {}
    for place, key in enumerate(known):
        if key is not None:
            spots.setdefault(key, []).append(place)
    ends = _next_places(places, len(known))
    before = -1
    for index, key in enumerate(keys):
        if places[index] is None and key is not None:
            candidates = spots.get(key, [])
            first = bisect_right(candidates, before)
            if first < len(candidates) and candidates[first] < ends[index]:
                places[index] = candidates[first]
        here = places[index]
        before = before if here is None else max(before, here)


def _next_places(places: Sequence[int | None], end: int) -> list[int]:
    """For each message the place of the next one that is known."""
    ends: list[int] = []
    for place in reversed(places):
        ends.append(end)
        end = end if place is None else place
    return ends[::-1]


def _pairs(messages: Sequence[ListMessage]) -> list[object]:
    """What calls and results are known by when their words were changed."""
    return [(message["role"], call_ids(message) or message.get("tool_call_id")) if _is_paired(message) else None
            for message in messages]  # fmt: skip


def _is_paired(message: ListMessage) -> bool:
    return bool(call_ids(message)) or message["role"] == "tool"


# ---- what the list says


@dataclass(slots=True)
class _ListReader:
    """The engine's list, read from its start."""

    handed: SentMessages
    kept: list[MessageId | NewMessage] = field(default_factory=list)
    """Rows that stay, and shortened results in the place of theirs."""
    kept_ids: set[MessageId] = field(default_factory=set)
    shortened: list[Message] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """The engine's own, and what earlier handoffs say."""
    handoffs: list[Message] = field(default_factory=list)
    handoff_at: int | None = None
    """How many of `kept` stand before the handoff."""
    has_own_words: bool = False

    def read(self, messages: Sequence[ListMessage]) -> None:
        keys = [key_of(message) for message in messages]
        places = _places(self.handed, messages, keys)
        ends = _next_places(places, len(self.handed.messages))
        calls = {id for index, message in enumerate(messages) if places[index] is not None for id in call_ids(message)}
        for message, key, place, end in zip(messages, keys, places, ends, strict=True):
            if place is None or (message["role"] == "tool" and message.get("tool_call_id") not in calls):
                self._read_own(message, end - 1)
            elif self.handed.keys[place] == key:
                self._keep(place)
            else:
                self._read_changed(message, place)
        self._restore_request()

    def _read_own(self, message: ListMessage, place: int) -> None:
        """Words of the engine's. They may stand in front of a person's, in one message, to keep roles alternating."""
        text, merged = text_of(message.get("content")), self._is_free(place)
        said = self.handed.contents[place] if merged else ""
        if said and self.handed.messages[place]["role"] == message["role"] and text.endswith(said):
            self._say(text.removesuffix(said))
            self._keep(place)
        else:
            calls = [f"(called {call['function']['name']})" for call in message.get("tool_calls") or ()]
            self._say("\n".join([text, *calls]))

    def _is_free(self, place: int) -> bool:
        if place < 0 or self.handed.messages[place]["role"] not in ("user", "assistant"):
            return False
        sources = self.handed.sources[place]
        is_plain = not call_ids(self.handed.messages[place]) and all(
            row.origin is not Origin.SUMMARY for row in sources
        )
        return is_plain and all(row.id not in self.kept_ids for row in sources)

    def _read_changed(self, message: ListMessage, place: int) -> None:
        """A call or a result whose words are others. A call keeps its own; a result may become shorter."""
        before, after = self.handed.contents[place], text_of(message.get("content"))
        if after.endswith(before):
            self._say(after.removesuffix(before))
        elif message["role"] == "tool" and self.handed.sources[place]:
            [row] = self.handed.sources[place]
            stub = _stub(row, after)
            if len(stub) < len(row.text or ""):
                self._shorten(row, stub)
                return
        elif len(after) > len(before):
            self._say(after)
        self._keep(place)

    def _keep(self, place: int) -> None:
        for row in self.handed.sources[place]:
            if row.origin is Origin.SUMMARY:
                record = handoff_in(row)
                self._note_words(record.text if record is not None else "")
                self.handoffs.append(row)
            else:
                self.kept.append(row.id)
                self.kept_ids.add(row.id)

    def _shorten(self, row: Message, text: str) -> None:
        stub = NewMessage(
            role=MessageRole.TOOL,
            origin=Origin.TOOL,
            text=text,
            turn_id=row.turn_id,
            tool_call_id=row.tool_call_id,
            tool_name=row.tool_name,
        )
        self.kept.append(stub)
        self.kept_ids.add(row.id)
        self.shortened.append(row)

    def _say(self, text: str) -> None:
        body = unframed(text)
        words = parse_handoff(body).text if body is not None else text.strip()
        if words:
            self.has_own_words = True
            self._note_words(words)

    def _note_words(self, words: str) -> None:
        if self.handoff_at is None:
            self.handoff_at = len(self.kept)
        if words:
            self.words.append(words)

    def _restore_request(self) -> None:
        """The newest request of a person stays, in its own row, behind the handoff."""
        transcript = self.handed.transcript
        order = {row.id: place for place, row in enumerate(transcript)}
        for place in open_request(transcript):
            row = transcript[place]
            if row.id in self.kept_ids:
                continue
            at = next((at for at, item in enumerate(self.kept) if self._order(item, order) > place), len(self.kept))
            self.kept.insert(at, row.id)
            self.kept_ids.add(row.id)
            if self.handoff_at is not None and at < self.handoff_at:
                self.handoff_at += 1

    @staticmethod
    def _order(item: MessageId | NewMessage, order: dict[MessageId, int]) -> int:
        return -1 if isinstance(item, NewMessage) else order[item]

    # ---- the result

    def mapped(self, clean: Callable[[str], str]) -> MappedMessages | None:
        # Rows that have no form on the wire (a result that answers nothing) are no loss, and no gain.
        seen = {row.id for sources in self.handed.sources for row in sources}
        gone = [row for row in self.handed.transcript if row.id in seen and row.id not in self.kept_ids]
        removed = [row for row in gone if row.origin is not Origin.SUMMARY]
        if not removed and not self.shortened and not self.has_own_words and len(gone) == len(self.handoffs):
            return None
        items: list[ContextItem] = [_cleaned(item, clean) for item in self.kept]
        handoff = self._handoff(removed, gone, clean)
        added = [item for item in items if isinstance(item, NewMessage)]
        if isinstance(handoff, NewMessage):
            added.append(handoff)
        if handoff is not None:
            items.insert(self._handoff_place(removed), handoff)
        self._check_start(items)
        is_kept_as_it_was = handoff is not None and not isinstance(handoff, NewMessage)
        old = [row for row in gone if row.origin is Origin.SUMMARY and not is_kept_as_it_was]
        return MappedMessages(
            context=tuple(items),
            removed=(*removed, *old, *self.shortened),
            added=tuple(added),
            summarised=len(removed),
        )

    def _handoff(
        self, removed: Sequence[Message], gone: Sequence[Message], clean: Callable[[str], str]
    ) -> ContextItem | None:
        """What stands for the rows that are gone: one row, made anew unless an earlier one is all there is to say."""
        earlier = [row for row in gone if row.origin is Origin.SUMMARY]
        if not removed and not self.has_own_words and len(self.handoffs) == len(earlier) == 1:
            return self.handoffs[0].id
        if not removed and not self.words and not earlier:
            return None
        records = [record for record in map(handoff_in, earlier) if record is not None]
        middle = Middle(rows=tuple(removed or self.shortened or self.handed.transcript[:1]), previous=joined(records))
        text = clean("\n\n".join(self.words)) or UNSAID
        stored = record_for(middle, text).stored()
        return NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=stored)

    def _handoff_place(self, removed: Sequence[Message]) -> int:
        if self.handoff_at is not None:
            return self.handoff_at
        first = removed[0].id if removed else 0
        before = {row.id for row in self.handed.transcript[: self._index(first)]}
        return sum(not isinstance(item, NewMessage) and item in before for item in self.kept)

    def _index(self, row_id: int) -> int:
        return next((place for place, row in enumerate(self.handed.transcript) if row.id == row_id), 0)

    def _check_start(self, items: Sequence[ContextItem]) -> None:
        roles = {row.id: row.role for row in self.handed.transcript}
        first = items[0] if items else None
        role = first.role if isinstance(first, NewMessage) else roles[first] if first is not None else None
        if role is not MessageRole.USER:
            raise MessageListError("it does not begin with what a person said, nor with a summary")


def _cleaned(item: ContextItem, clean: Callable[[str], str]) -> ContextItem:
    return replace(item, text=clean(item.text or "")) if isinstance(item, NewMessage) else item


def _stub(row: Message, text: str) -> str:
    """A shortened result with where the whole is. A row that was made for a view has no id to be read by."""
    return text if row.seq < 0 else f'{text}\n[shortened: history_open(id="{recall_id(row.id)}") reads the whole]'
