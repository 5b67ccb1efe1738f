"""Replies put together from the events in which a provider sends them.

Bounds what one reply may hold, and lets only text through that can be stored and read again.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agent.model.base import FinishReason, ModelReply
from hermes_state.errors import ReplyMalformed
from hermes_state.text import ends_in_half, well_formed
from hermes_state.values import CanonicalUsage, MicroUsd, Reasoning, ToolCall

MAX_CHARACTERS: Final = 2_000_000
"""Longest reply, its calls included: several times what any model writes. A stream without an end stops here."""

MAX_CALLS: Final = 128
"""Most tool calls in one reply."""

_EAGER_CHARACTERS = 65_536
"""Length up to which every piece is shown at once. Copying a longer text for every piece would be quadratic."""


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyBuilder(ABC):
    """One reply in the making; each protocol reads its own events in a subclass."""

    usage: CanonicalUsage | None = None
    """Usage as far as it was reported."""
    cost: MicroUsd | None = None
    """Cost that the provider reported itself."""

    def __init__(self, on_text: Callable[[str], None], made_by: str) -> None:
        """`on_text` receives the whole text so far, each time it has grown. `made_by`: see `Reasoning`."""
        self._on_text = on_text
        self._made_by = made_by
        self._shown = ""
        self._unshown: list[str] = []
        self._unshown_length = 0
        self._length = 0
        self._calls: dict[Hashable, _PartialCall] = {}

    def add(self, event: object) -> None:
        """Take in one event of a stream, or the whole reply of a server that does not stream.

        Raises the kinds of `ModelError`: what the provider says went wrong, and `ReplyMalformed` for what is not
        shaped like an event.
        """
        try:
            self.read_event(event)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("an event of the provider's reply has an unknown shape") from error

    @abstractmethod
    def read_event(self, event: Any) -> None:
        """Take in one event, which is the provider's JSON."""

    @abstractmethod
    def finished(self) -> ModelReply:
        """The whole reply. Raises `ReplyMalformed` when it broke off, `ContentFiltered` when it was stopped."""

    def add_text(self, text: object) -> None:
        """Add a piece of the answer. Raises `TypeError` for what is not text, `ReplyMalformed` when it is too much."""
        self._unshown.append(added := self.counted(text))
        self._unshown_length += len(added)
        if self._unshown_length * 64 >= len(self._shown) - _EAGER_CHARACTERS and not ends_in_half(added):
            self._show()

    def add_call(
        self, index: Hashable | None, *, call_id: object = "", name: object = "", arguments: object = ""
    ) -> None:
        """Add a piece of a tool call: pieces with the same `index` belong together, None begins another call.

        Ids are replaced, names and arguments go on. Raises as `add_text` does.
        """
        call = self._calls.setdefault(("no index", len(self._calls)) if index is None else index, _PartialCall())
        if len(self._calls) > MAX_CALLS:
            raise ReplyMalformed(f"a reply with more than {MAX_CALLS} tool calls")
        call.id = self.counted(call_id) or call.id
        call.name += self.counted(name)
        call.arguments.append(self.counted(arguments))

    def counted(self, text: object) -> str:
        """A piece of the reply: what is not text would be stored, and could not be read again."""
        if not isinstance(text, str):
            raise TypeError("text is expected here")
        self._length += len(text)
        if self._length > MAX_CHARACTERS:
            raise ReplyMalformed(f"a reply with more than {MAX_CHARACTERS:,} characters")
        return text

    def built(self, *, is_cut_off: bool, reasoning: Callable[[], Reasoning | None]) -> ModelReply:
        """The reply, its calls in the order in which they began. `is_cut_off`: the output limit ended it.

        `reasoning` is asked for only where there are calls: else nobody wants it back. Raises `ReplyMalformed` for a
        call without a name.
        """
        self._show()
        calls = _whole_calls(list(self._calls.values()))
        finish = FinishReason.LENGTH if is_cut_off else FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return ModelReply(
            text=self._shown,
            calls=calls,
            finish=finish,
            usage=self.usage,
            reasoning=reasoning() if calls else None,
            cost=self.cost,
        )

    def _show(self) -> None:
        if self._unshown:
            self._shown += well_formed("".join(self._unshown))
            self._unshown.clear()
            self._unshown_length = 0
            self._on_text(self._shown)


def serialized_reasoning(made_by: str, blocks: object) -> Reasoning:
    """Reasoning as it is stored.

    Raises `ReplyMalformed` for what could not be read or sent again: it would fail every later call.
    """
    try:
        text = well_formed(json.dumps(blocks, ensure_ascii=False, allow_nan=False))
        orjson.dumps([[[[[[[[orjson.loads(text)]]]]]]]])  # no deeper does a request hold it
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplyMalformed("reasoning that cannot be sent back") from error
    return Reasoning(made_by=made_by, blocks=text)


def _whole_calls(partial: list[_PartialCall]) -> tuple[ToolCall, ...]:
    """The calls with ids that are there and differ: some servers send none, or the same for all."""
    calls: list[ToolCall] = []
    for index, call in enumerate(partial):
        if not (name := well_formed(call.name)):
            raise ReplyMalformed("a tool call without a name")
        call_id = well_formed(call.id) or f"call_{index}"
        while any(earlier.id == call_id for earlier in calls):
            call_id = f"{call_id}_{index}"
        calls.append(ToolCall(id=call_id, name=name, arguments=well_formed("".join(call.arguments))))
    return tuple(calls)
