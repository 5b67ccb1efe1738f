"""Converts stored rows to a message list for an engine, and the engine's list back to rows.

A returned message matches a sent message if it is the same unchanged object, or if it has the same role, content and
call ids. Calls and results can also match by call ids alone. All other text was written by the engine and becomes the
handoff. The newest request from a person is restored if the engine dropped it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.context.cuts import REMADE, handoff_for, handoff_in, joined, open_request
from agent.engines.contract import ListMessage
from agent.engines.lists import (
    INSTRUCTING,
    MessageKey,
    MessageListError,
    calls_of,
    checked_list,
    ids_of,
    key_of,
    text_of,
)
from agent.handoff import parse_handoff, unframed
from agent.model.wire import WireStyle, traced_messages
from hermes_state.compressions import ContextItem
from hermes_state.transcripts import NewMessage
from hermes_state.values import Message, MessageId, MessageRole, Origin, Transcript, recall_id

UNSAID: Final = "The engine that shortened this conversation left these messages out without a summary."
"""Text of the handoff if an engine dropped rows without a summary."""


class SentMessages(msgspec.Struct, frozen=True):
    """A list that was sent to an engine. The engine may change `messages`, but never sees `keys` and `contents`."""

    transcript: Transcript
    messages: tuple[ListMessage, ...]
    sources: tuple[tuple[Message, ...], ...]
    keys: tuple[MessageKey, ...]
    contents: tuple[str, ...]

    @property
    def ids(self) -> list[list[str]]:
        """Recall ids of the rows in each message. The system prompt, handoffs and to-do lists have no recall ids."""
        return [[recall_id(row.id) for row in rows if row.origin not in REMADE] for rows in self.sources]


class MappedMessages(msgspec.Struct, frozen=True, kw_only=True):
    context: tuple[ContextItem, ...]
    removed: Transcript
    """Rows that left the view or were shortened."""
    summarised: int
    """Number of rows that the handoff replaces. Earlier handoffs do not count."""


def sent_messages(system: str, transcript: Transcript, style: WireStyle) -> SentMessages:
    """Return the message list of a view. A handoff is a separate message, so it is not mixed with people's messages."""
    traced = traced_messages(system, transcript, style, handoff_stands_alone=True)
    keys = tuple(map(key_of, traced.messages))
    contents = tuple(text_of(message.get("content")) for message in traced.messages)
    return SentMessages(transcript, tuple(traced.messages), tuple(traced.sources), keys, contents)


def mapped_messages(sent: SentMessages, returned: object, redact: Callable[[str], str]) -> MappedMessages | None:
    """Return the view that an engine's list describes, or None if the list is unchanged.

    Raises `MessageListError` if the list is unusable.
    """
    messages = checked_list(returned)
    # Ignore changes to the system prompt, because it belongs to the gateway.
    if messages[0]["role"] in INSTRUCTING and sent.messages[0]["role"] in INSTRUCTING:
        messages = messages[1:]
    reader = _ListReader(sent)
    reader.read(messages)
    return reader.mapped(redact)


def _matches(sent: SentMessages, messages: Sequence[ListMessage], keys: Sequence[MessageKey]) -> list[int | None]:
    """Return each message's index in the sent list, or None for messages that the engine wrote."""
    objects = zip(map(id, sent.messages), sent.keys, strict=True)
    unchanged = {known: index for index, known in enumerate(objects)}
    matches = [unchanged.get((id(message), key)) for message, key in zip(messages, keys, strict=True)]
    first = 1 if sent.messages and sent.messages[0]["role"] in INSTRUCTING else 0
    _match_run(sent.keys, keys, matches, range(len(keys)), range(first, len(sent.keys)))
    _match_run(sent.keys, keys, matches, range(len(keys))[::-1], range(len(sent.keys))[::-1])
    _match_between(sent.keys, keys, matches)
    _match_between(_pairs(sent.messages), _pairs(messages), matches)
    found = [index for index in matches if index is not None]
    if any(after <= before for before, after in pairwise(found)):
        raise MessageListError("it repeats messages or changes their order")
    return matches


def _match_run(
    known: Sequence[MessageKey], keys: Sequence[MessageKey], matches: list[int | None], order: range, candidates: range
) -> None:
    """Match messages one by one from the beginning or from the end, and stop at the first pair that differs."""
    taken = {index for index in matches if index is not None}
    for position, index in zip(order, candidates, strict=False):
        is_free = matches[position] == index or (matches[position] is None and index not in taken)
        if known[index] != keys[position] or not is_free:
            return
        matches[position] = index


def _match_between(known: Sequence[object], keys: Sequence[object], matches: list[int | None]) -> None:
    """Match each remaining message with the first sent message that has the same key and keeps the order."""
    indexes: dict[object, list[int]] = {}
    for index, key in enumerate(known):
        if key is not None:
            indexes.setdefault(key, []).append(index)
    ends = _next_matches(matches, len(known))
    before = -1
    for position, key in enumerate(keys):
        if matches[position] is None and key is not None:
            candidates = indexes.get(key, [])
            first = bisect_right(candidates, before)
            if first < len(candidates) and candidates[first] < ends[position]:
                matches[position] = candidates[first]
        match = matches[position]
        before = before if match is None else max(before, match)


def _next_matches(matches: Sequence[int | None], end: int) -> list[int]:
    ends: list[int] = []
    for index in reversed(matches):
        ends.append(end)
        end = end if index is None else index
    return ends[::-1]


def _pairs(messages: Sequence[ListMessage]) -> list[object]:
    """Return the role and call ids of each call or result, for matching without the text; None for other messages."""
    return [(message["role"], ids) if (ids := ids_of(message)) else None for message in messages]


class _ListReader(msgspec.Struct):
    sent: SentMessages
    kept: list[ContextItem] = msgspec.field(default_factory=list)
    """Rows that stay, and shortened results that replace their rows."""
    kept_ids: set[MessageId] = msgspec.field(default_factory=set)
    shortened: list[Message] = msgspec.field(default_factory=list)
    words: list[str] = msgspec.field(default_factory=list)
    """Text that the engine wrote, and the text of earlier handoffs."""
    handoffs: list[Message] = msgspec.field(default_factory=list)
    handoff_index: int | None = None
    """Index in `kept` at which to insert the handoff."""
    has_own_words: bool = False

    def read(self, messages: Sequence[ListMessage]) -> None:
        keys = [key_of(message) for message in messages]
        matches = _matches(self.sent, messages, keys)
        ends = _next_matches(matches, len(self.sent.messages))
        calls: tuple[str, ...] = ()
        for message, key, index, end in zip(messages, keys, matches, ends, strict=True):
            if message["role"] == "assistant":
                calls = ids_of(message) if index is not None else ()
            if index is None or (message["role"] == "tool" and message.get("tool_call_id") not in calls):
                self._read_own(message, end - 1)
            elif self.sent.keys[index] == key:
                self._keep(index)
            else:
                self._read_changed(message, index)
        self._restore_request()

    def _read_own(self, message: ListMessage, index: int) -> None:
        """Read text that the engine wrote. An engine may append a sent message to it, because roles must alternate."""
        text, before, sent = text_of(message.get("content")), "", self.sent.messages[max(0, index)]
        if index >= 0 and message["role"] == sent["role"] in ("user", "assistant") and not ids_of(sent):
            rows = self.sent.sources[index]
            if all(row.origin is not Origin.SUMMARY and row.id not in self.kept_ids for row in rows):
                before = self.sent.contents[index]  # a plain message whose rows are not kept yet
        if before and text.endswith(before):
            self._add_words(text.removesuffix(before))
            self._keep(index)
        else:
            self._add_words("\n".join([text, *(f"(called {call.name})" for call in calls_of(message))]))

    def _read_changed(self, message: ListMessage, index: int) -> None:
        """Read a message whose text was changed. Calls keep their old text, but results can become shorter."""
        before, after = self.sent.contents[index], text_of(message.get("content"))
        if after.endswith(before):
            self._add_words(after.removesuffix(before))
        elif message["role"] == "tool" and self.sent.sources[index]:
            [row] = self.sent.sources[index]
            stub = _stub(row, after)
            if len(stub.text or "") < len(row.text or ""):
                self.kept.append(stub)
                self.kept_ids.add(row.id)
                self.shortened.append(row)
                return
        elif len(after) > len(before):
            self._add_words(after)
        self._keep(index)

    def _keep(self, index: int) -> None:
        for row in self.sent.sources[index]:
            record = handoff_in(row)
            if record is not None:
                self._place_words(record.text)
                self.handoffs.append(row)
            else:
                self.kept.append(row.id)
                self.kept_ids.add(row.id)

    def _add_words(self, text: str) -> None:
        body = unframed(text)
        words = parse_handoff(body).text if body is not None else text.strip()
        if words:
            self.has_own_words = True
            self._place_words(words)

    def _place_words(self, words: str) -> None:
        if self.handoff_index is None:
            self.handoff_index = len(self.kept)
        if words:
            self.words.append(words)

    def _restore_request(self) -> None:
        """If the engine dropped the newest request from a person, restore its rows in order."""
        for row in (self.sent.transcript[index] for index in open_request(self.sent.transcript)):
            if row.id in self.kept_ids:
                continue
            index = self._index_for(row)
            self.kept.insert(index, row.id)
            self.kept_ids.add(row.id)
            if self.handoff_index is not None and index < self.handoff_index:
                self.handoff_index += 1

    def _index_for(self, row: Message) -> int:
        """Return the index in `kept` at which to insert a row so that the transcript's order is kept."""
        order = {other.id: index for index, other in enumerate(self.sent.transcript)}
        known = [-1 if isinstance(item, NewMessage) else order[item] for item in self.kept]
        return next((index for index, other in enumerate(known) if other > order[row.id]), len(known))

    def mapped(self, redact: Callable[[str], str]) -> MappedMessages | None:
        # Rows that are never sent, such as a result without a call, do not count as removed.
        seen = {row.id for sources in self.sent.sources for row in sources}
        gone = [row for row in self.sent.transcript if row.id in seen and row.id not in self.kept_ids]
        earlier = [row for row in gone if row.origin is Origin.SUMMARY]
        removed = [row for row in gone if row.origin is not Origin.SUMMARY]
        if not removed and not self.shortened and not self.has_own_words and len(earlier) == len(self.handoffs):
            return None
        items = [
            replace(item, text=redact(item.text or "")) if isinstance(item, NewMessage) else item for item in self.kept
        ]
        handoff = self._handoff(removed, earlier, redact)
        if handoff is not None:
            index = self._index_for(removed[0]) if removed else 0
            items.insert(index if self.handoff_index is None else self.handoff_index, handoff)
        roles = {row.id: row.role for row in self.sent.transcript}
        begins = [item.role if isinstance(item, NewMessage) else roles[item] for item in items[:1]]
        if begins != [MessageRole.USER]:
            raise MessageListError("it begins neither with a person's message nor with a summary")
        is_new = handoff is None or isinstance(handoff, NewMessage)
        return MappedMessages(
            context=tuple(items),
            removed=(*removed, *(earlier if is_new else ()), *self.shortened),
            summarised=len(removed),
        )

    def _handoff(
        self, removed: Sequence[Message], earlier: Sequence[Message], redact: Callable[[str], str]
    ) -> ContextItem | None:
        """Return the handoff for the removed rows. It is a new row, unless an earlier handoff can stay unchanged."""
        if not removed and not self.has_own_words and len(self.handoffs) == len(earlier) == 1:
            return self.handoffs[0].id
        if not removed and not self.words and not earlier:
            return None
        records = [record for record in map(handoff_in, earlier) if record is not None]
        rows = removed or self.shortened or self.sent.transcript[:1]
        record = handoff_for(rows, joined(records), redact("\n\n".join(self.words)) or UNSAID)
        return NewMessage(role=MessageRole.USER, origin=Origin.SUMMARY, text=record.stored())


def _stub(row: Message, text: str) -> NewMessage:
    """Return a shortened result with the recall id of the full result, unless the row exists only in a view."""
    if row.seq >= 0:
        text = f'{text}\n[shortened: history_open(id="{recall_id(row.id)}") reads all of it]'
    return NewMessage(
        role=MessageRole.TOOL,
        origin=Origin.TOOL,
        text=text,
        turn_id=row.turn_id,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
    )
