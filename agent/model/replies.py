"""Replies put together from a provider's events, within bounds, and with only text that can be stored and read."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Final

import orjson

from agent.model.base import FinishReason, ModelReply, ModelRequest
from agent.model.text_calls import find_calls, first_doubt
from agent.think_tags import ThinkTagParser
from hermes_state.errors import ReplyMalformed, ReplyUnfinished
from hermes_state.text import ends_in_half, well_formed
from hermes_state.values import CanonicalUsage, MicroUsd, Reasoning, ToolCall

MAX_CHARACTERS: Final = 800_000
"""Longest reply with its calls: more than any model writes. A stream without an end stops here."""
MAX_CALLS: Final = 128
"""Most tool calls in one reply."""
MAX_ITEMS: Final = 5_000
"""Most other parts of a reply."""


@dataclass(slots=True)
class _PartialCall:
    index: int
    """Index of the call in its reply; the server may state another."""
    id: str
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)  # a list of single characters takes eighty times their size
    length: int = 0
    """Characters of the arguments."""
    last: str = ""
    """Last piece of the arguments."""
    looks: int = 0
    """Times that the arguments were parsed to see if they are whole; each costs their length."""

    def add(self, name: str, arguments: str) -> None:
        """Add a piece. Its name may be the next part of the call's name, the whole so far, or the same again."""
        self.name = name if name.startswith(self.name) else self.name + name
        if not self._is_repeated(arguments):
            self.arguments.write(arguments)
            self.length += len(arguments)
            self.last = arguments or self.last

    def is_followed(self, call_id: str, name: str, arguments: str) -> bool:
        """True if a piece at the same index begins another call: some servers give all of them the same, or none."""
        if not name:  # some give every piece another id
            return False
        if call_id and self.id and call_id != self.id:
            return name != self.name or not self.length or self._is_whole()
        is_more = bool(arguments.strip()) and not (call_id and self._is_repeated(arguments))
        return (is_more or name != self.name) and self._is_whole()

    def _is_repeated(self, arguments: str) -> bool:
        """True for arguments that have all come before: some servers end with the whole call."""
        return 2 < len(arguments) == self.length and arguments == self.arguments.getvalue() and self._is_whole()

    def _is_whole(self) -> bool:
        """True if the arguments can have no further piece."""
        if not self.last.rstrip().endswith("}") or self.looks >= 64:
            return False
        self.looks += 1
        try:
            orjson.loads(self.arguments.getvalue())
        except orjson.JSONDecodeError:
            return False
        return True


class ReplyBuilder(ABC):
    """Unfinished reply; each protocol reads its own events in a subclass."""

    usage: CanonicalUsage | None = None
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    is_stream = True
    """The reply comes in pieces, which may break off."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        """`on_text` receives the whole text so far, each time it has grown. `made_by`: see `Reasoning`."""
        self.request = request
        self._on_text = on_text
        self._made_by = made_by
        self._is_begun = False
        self._shown = ""
        self._clear = 0
        """Characters of the shown text that are certainly no call."""
        self._unshown = StringIO()
        self._unshown_length = 0
        self.length = 0
        """Characters that have come, reasoning and calls included."""
        self._tags = ThinkTagParser()
        self._calls: list[_PartialCall] = []
        self._calls_at: dict[Hashable, list[_PartialCall]] = {}

    def add(self, event: object) -> None:
        """Add one event of a stream, or the whole reply of a server that does not stream.

        Raises the kinds of `ModelError`: the provider's own error, and `ReplyMalformed` for an unknown shape.
        """
        self._is_begun = True
        try:
            self.read_event(event)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("an event of the provider's reply has an unknown shape") from error

    def broken_off(self, how: str) -> ReplyMalformed:
        """Return the error for a reply without its end, or for none at all."""
        return (ReplyUnfinished if self.is_stream and self._is_begun else ReplyMalformed)(how)

    @abstractmethod
    def read_event(self, event: Any) -> None:
        """Add one event, which is the provider's JSON."""

    @abstractmethod
    def finished(self) -> ModelReply:
        """Return the whole reply. Raises `ReplyMalformed` if it broke off, `ContentRejected` if it was stopped."""

    def add_text(self, text: object) -> None:
        """Add a piece of the answer. Raises `TypeError` unless it is text, `ReplyMalformed` if it is too much."""
        self._add_shown(self._tags.feed(self.counted(text)))

    def _add_shown(self, added: str) -> None:
        if not added:
            return
        self._unshown.write(added)
        self._unshown_length += len(added)
        # Up to 65,536 characters every piece is shown at once. To copy a longer text each time would be quadratic.
        if self._unshown_length * 64 >= len(self._shown) - 65_536 and not ends_in_half(added):
            self._show()

    def add_call(self, index: Hashable, *, call_id: object = "", name: object = "", arguments: object = "") -> int:
        """Add a piece of the call at `index`, unless it looks like the next call. Returns its own index in the reply.

        Raises as `add_text` does.
        """
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_id, name, arguments = (self.counted(part) for part in (call_id, name, arguments))
        calls = self._calls_at.setdefault(index, [])
        call = next((call for call in reversed(calls) if call_id and call.id == call_id), calls[-1] if calls else None)
        if call is None or call.is_followed(call_id, name, arguments):
            if len(self._calls) >= MAX_CALLS:
                raise ReplyMalformed(f"a reply with more than {MAX_CALLS} tool calls")
            self._add_shown(self._tags.restart())
            call = _PartialCall(len(self._calls), call_id)
            calls.append(call)
            self._calls.append(call)
        call.id = call.id or call_id
        call.add(name, arguments)
        return call.index

    def counted(self, text: object) -> str:
        """Return a piece of the reply, which counts for its length. Raises as `add_text` does."""
        if not isinstance(text, str):
            raise TypeError("text is expected here")
        self.length += len(text)
        if self.length > MAX_CHARACTERS:
            raise ReplyMalformed(f"a reply with more than {MAX_CHARACTERS:,} characters")
        return text

    def built(self, *, is_cut_off: bool, reasoning: Callable[[str], Reasoning | None]) -> ModelReply:
        """Return the reply, with its calls in the order in which they began. `is_cut_off`: the output limit ended it.

        `reasoning` is called only if there are calls, with the text that the model wrote between tags. Raises
        `ReplyMalformed` for a call without a name.
        """
        self._show()
        text, thought = self._tags.finish(self._shown)
        calls = _whole_calls(self._calls)
        if (request := self.request) is not None and request.tools:
            schemas = {tool.name: tool.parameters for tool in request.tools}
            if (found := find_calls(text, schemas, lambda source: _is_said(source, request))) is not None:
                text = text[: found[0]].rstrip()
                left = enumerate(found[1])
                calls = calls or tuple(
                    ToolCall(id=f"call_{at}", name=name, arguments=rest) for at, (name, rest) in left
                )
                if not calls:
                    raise ReplyMalformed("a tool call was left in the text")
        if text != self._shown:
            self._shown = well_formed(text)
            self._on_text(self._shown)
        finish = FinishReason.LENGTH if is_cut_off else FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return ModelReply(
            text=self._shown,
            calls=calls,
            finish=finish,
            usage=self.usage,
            reasoning=reasoning(thought) if calls else None,
            cost=self.cost,
        )

    def _show(self) -> None:
        if self._unshown_length:
            self._shown += well_formed(self._unshown.getvalue())
            self._unshown = StringIO()
            self._unshown_length = 0
            end = len(self._shown)
            if self.request is not None and self.request.tools:
                end = first_doubt(self._shown, self._clear)
                self._clear = end if end < len(self._shown) else max(0, end - 128)
            if shown := self._shown[:end].rstrip() if end < len(self._shown) else self._shown:
                self._on_text(shown)


def _is_said(source: str, request: ModelRequest) -> bool:
    """True for the text of a call that the conversation holds already, perhaps as a quotation."""
    said = [request.system, *(row.text or "" for row in request.transcript)]
    said += [row.body.quote.text for row in request.transcript if row.body.quote is not None]
    said += [document.text for row in request.transcript for document in row.body.documents]
    whole, part = (re.sub(r"[\s\\\"'`]+", "", text) for text in ("\0".join(said), source))
    return part in whole


def padded_json(value: object) -> str:
    """Return the JSON of a value that is kept, with ten blanks for each object and list, which take more memory.

    >>> len(padded_json({"a": []}))
    29
    """
    text = json.dumps(value)
    return text + " " * (10 * (text.count("{") + text.count("[")))


def serialized_reasoning(made_by: str, blocks: object) -> Reasoning:
    """Return reasoning for the database. Raises `ReplyMalformed` for blocks that would fail every later call."""
    try:
        text = well_formed(json.dumps(blocks, ensure_ascii=False, allow_nan=False))
        orjson.dumps([[[[[[[[orjson.loads(text)]]]]]]]])  # no deeper does a request hold it
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplyMalformed("reasoning that cannot be sent back") from error
    return Reasoning(made_by=made_by, blocks=text)


def _whole_calls(partial: list[_PartialCall]) -> tuple[ToolCall, ...]:
    """Return the calls with ids that differ: some servers send none, or the same for all."""
    calls: list[ToolCall] = []
    for index, call in enumerate(partial):
        if not (name := well_formed(call.name.partition("<|")[0])):  # gpt-oss may leave markup at its end
            raise ReplyMalformed("a tool call without a name")
        call_id = well_formed(call.id) or f"call_{index}"
        while any(earlier.id == call_id for earlier in calls):
            call_id = f"{call_id}_{index}"
        arguments = well_formed(call.arguments.getvalue())
        more = arguments.removeprefix("{}")  # some servers begin with empty ones
        calls.append(ToolCall(id=call_id, name=name, arguments=more if more.strip() else arguments))
    return tuple(calls)
