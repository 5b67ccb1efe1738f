"""Assembly of replies from a provider's events. The size of replies is limited, and their text can always be stored."""

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
"""Maximum length of a reply, including its tool calls. No model writes more, so this stops an endless stream."""
MAX_CALLS: Final = 128
"""Maximum number of tool calls in a reply."""
MAX_ITEMS: Final = 5_000
"""Maximum number of other parts in a reply, such as reasoning blocks."""


@dataclass(slots=True)
class _PartialCall:
    index: int
    """The call's index in our reply. The server's index can be different."""
    id: str
    name: str = ""
    arguments: StringIO = field(default_factory=StringIO)  # a list of single characters would be eighty times as large
    length: int = 0
    """Number of characters in the arguments."""
    last: str = ""
    """Last piece of the arguments that was not empty."""
    looks: int = 0
    """Number of attempts to parse the arguments, which is limited because each attempt parses them from the beginning.
    """

    def add(self, name: str, arguments: str) -> None:
        """Add a piece of the call. `name` can repeat or extend the name so far, or contain only its next part."""
        self.name = name if name.startswith(self.name) else self.name + name
        if not self._is_repeated(arguments):
            self.arguments.write(arguments)
            self.length += len(arguments)
            self.last = arguments or self.last

    def is_followed(self, call_id: str, name: str, arguments: str) -> bool:
        """True if a piece with the same index begins a new call. Some servers send no index, or always the same one."""
        if not name:  # some servers send a new id with every piece
            return False
        if call_id and self.id and call_id != self.id:
            return name != self.name or not self.length or self._is_whole()
        is_more = bool(arguments.strip()) and not (call_id and self._is_repeated(arguments))
        return (is_more or name != self.name) and self._is_whole()

    def _is_repeated(self, arguments: str) -> bool:
        """True if the piece repeats all arguments, because some servers send the complete call again at the end."""
        return 2 < len(arguments) == self.length and arguments == self.arguments.getvalue() and self._is_whole()

    def _is_whole(self) -> bool:
        """True if the arguments are complete JSON."""
        if not self.last.rstrip().endswith("}") or self.looks >= 64:
            return False
        self.looks += 1
        try:
            orjson.loads(self.arguments.getvalue())
        except orjson.JSONDecodeError:
            return False
        return True


class ReplyBuilder(ABC):
    """Builder for a reply. Each protocol has a subclass that reads its own events."""

    usage: CanonicalUsage | None = None
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    is_stream = True
    """True if the reply arrives in pieces and can therefore break off."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        """`on_text` receives the complete text so far, each time it grows. `made_by`: see `Reasoning`."""
        self.request = request
        self._on_text = on_text
        self._made_by = made_by
        self._is_begun = False
        self._shown = ""
        self._clear = 0
        """Length of the initial text that is known to contain no tool call."""
        self._unshown = StringIO()
        self._unshown_length = 0
        self.length = 0
        """Number of characters received, including reasoning and calls."""
        self._tags = ThinkTagParser()
        self._calls: list[_PartialCall] = []
        self._calls_at: dict[Hashable, list[_PartialCall]] = {}

    def add(self, event: object) -> None:
        """Add an event of a stream, or the complete reply of a server that does not stream.

        Raises `ModelError`: an error sent by the provider, or `ReplyMalformed` for an unknown shape.
        """
        self._is_begun = True
        try:
            self.read_event(event)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("an event of the provider's reply has an unknown shape") from error

    def broken_off(self, how: str) -> ReplyMalformed:
        """Return the error for a reply that ended too early or never began."""
        return (ReplyUnfinished if self.is_stream and self._is_begun else ReplyMalformed)(how)

    @abstractmethod
    def read_event(self, event: Any) -> None:
        """Add an event, given as the provider's JSON."""

    @abstractmethod
    def finished(self) -> ModelReply:
        """Return the complete reply.

        Raises `ReplyMalformed` if the reply broke off, and `ContentRejected` if it was filtered.
        """

    def add_text(self, text: object) -> None:
        """Add a piece of text. Raises `TypeError` for a non-string, `ReplyMalformed` if the reply gets too long."""
        self._add_shown(self._tags.feed(self.counted(text)))

    def _add_shown(self, added: str) -> None:
        if not added:
            return
        self._unshown.write(added)
        self._unshown_length += len(added)
        # Up to 65,536 characters, show every piece at once. Copying a longer text for each piece would be quadratic.
        if self._unshown_length * 64 >= len(self._shown) - 65_536 and not ends_in_half(added):
            self._show()

    def add_call(self, index: Hashable, *, call_id: object = "", name: object = "", arguments: object = "") -> int:
        """Add a piece of the call at `index`, or start a new call. Return the call's index in our reply.

        Raises the same errors as `add_text`.
        """
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_id, name, arguments = (self.counted(part) for part in (call_id, name, arguments))
        calls = self._calls_at.setdefault(index, [])
        call = next((call for call in reversed(calls) if call_id and call.id == call_id), calls[-1] if calls else None)
        if call is None or call.is_followed(call_id, name, arguments):
            if len(self._calls) >= MAX_CALLS:
                raise ReplyMalformed(f"the reply has more than {MAX_CALLS} tool calls")
            self._add_shown(self._tags.restart())
            call = _PartialCall(len(self._calls), call_id)
            calls.append(call)
            self._calls.append(call)
        call.id = call.id or call_id
        call.add(name, arguments)
        return call.index

    def counted(self, text: object) -> str:
        """Add a piece's length to the reply's length, and return the piece. Raises the same errors as `add_text`."""
        if not isinstance(text, str):
            raise TypeError("expected text")
        self.length += len(text)
        if self.length > MAX_CHARACTERS:
            raise ReplyMalformed(f"the reply has more than {MAX_CHARACTERS:,} characters")
        return text

    def built(self, *, is_cut_off: bool, reasoning: Callable[[str], Reasoning | None]) -> ModelReply:
        """Return the reply, with its calls in the order in which they began.

        `is_cut_off`: the reply reached the output limit. `reasoning` returns the reasoning to store, given the text
        between think tags. It is only called if there are calls. Raises `ReplyMalformed` for a call without a name.
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
                    raise ReplyMalformed("the text contains a tool call that cannot be used")
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
    """True if the conversation already contains the text of this call. The model is then probably quoting it."""
    said = [request.system, *(row.text or "" for row in request.transcript)]
    said += [row.body.quote.text for row in request.transcript if row.body.quote is not None]
    said += [document.text for row in request.transcript for document in row.body.documents]
    whole, part = (re.sub(r"[\s\\\"'`]+", "", text) for text in ("\0".join(said), source))
    return part in whole


def padded_json(value: object) -> str:
    """Return a value's JSON, with ten more blanks for each object and list, so that its length reflects memory use.

    >>> len(padded_json({"a": []}))
    29
    """
    text = json.dumps(value)
    return text + " " * (10 * (text.count("{") + text.count("[")))


def serialized_reasoning(made_by: str, blocks: object) -> Reasoning:
    """Return the reasoning to store. Raises `ReplyMalformed` for blocks that would make every later call fail."""
    try:
        text = well_formed(json.dumps(blocks, ensure_ascii=False, allow_nan=False))
        orjson.dumps([[[[[[[[orjson.loads(text)]]]]]]]])  # nested as deeply as in a request
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplyMalformed("the reply has reasoning that cannot be sent back") from error
    return Reasoning(made_by=made_by, blocks=text)


def _whole_calls(partial: list[_PartialCall]) -> tuple[ToolCall, ...]:
    """Return the calls with unique ids, because some servers send no ids or repeat them."""
    calls: list[ToolCall] = []
    for index, call in enumerate(partial):
        if not (name := well_formed(call.name.partition("<|")[0])):  # gpt-oss can leave markup after the name
            raise ReplyMalformed("the reply has a tool call without a name")
        call_id = well_formed(call.id) or f"call_{index}"
        while any(earlier.id == call_id for earlier in calls):
            call_id = f"{call_id}_{index}"
        arguments = well_formed(call.arguments.getvalue())
        more = arguments.removeprefix("{}")  # some servers first send empty arguments
        calls.append(ToolCall(id=call_id, name=name, arguments=more if more.strip() else arguments))
    return tuple(calls)
