"""Encoded beginnings of prompts: a call of a long conversation encodes what is new in it, not what was sent before.

A beginning ends where nothing that follows can change its bytes, see `wire.settled_rows`. It holds for one version of
one view, shown in one way. Only so many bytes are kept, those of the conversations that were last in use.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final, TypeAlias

import orjson

from agent.model.base import ModelRequest
from agent.model.wire import are_answers_within, settled_rows
from hermes_state.values import Message, Transcript

MIN_KEPT_ROWS: Final = 32
"""Rows from which on a beginning is kept: fewer are encoded in a tenth of a millisecond."""
MIN_NEW_ROWS: Final = 16
"""Rows by which a beginning grows at least."""
BEGINNING_BYTES: Final = 500
"""Room that a beginning takes beside its text."""
MAX_KEPT_BYTES: Final = 8_000_000
"""Most bytes of all beginnings that a model keeps; one that is longer is not kept."""

Render: TypeAlias = Callable[[Transcript, set[str]], Sequence[Any] | None]
"""Elements of the prompt's list that rows make, and whose call ids join the given ones.

None where they depend on rows before or behind them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrompt:
    """Encoded beginning of a prompt's list."""

    rows: int = 0
    """Rows that it is made of."""
    encoded: tuple[bytes, ...] = ()
    """JSON of its elements, with commas between them; pieces as they came: joined, they would leave holes."""
    call_ids: frozenset[str] = frozenset()
    ends: tuple[Message, ...] = ()
    """The first and the last row."""
    made_for: tuple[object, ...] = ()
    """Everything besides the rows that its bytes depend on."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return BEGINNING_BYTES + sum(map(getsizeof, self.encoded))

    def before(self, elements: Sequence[Any], at: int = 0) -> Any:
        """The whole list as JSON: the first `at` elements, this beginning, and the others."""
        if not self.rows:
            return elements
        parts = (orjson.dumps(elements[:at])[1:-1], *self.encoded, orjson.dumps(elements[at:])[1:-1])
        return orjson.Fragment(b"[%b]" % b",".join(filter(None, parts)))

    def holds_for(self, rows: Transcript, made_for: tuple[object, ...]) -> bool:
        """True when the rows begin with these, as they are to be shown, and no later one changes their messages."""
        if self.made_for != made_for or len(rows) < self.rows:
            return False
        return self.ends == (rows[0], rows[self.rows - 1]) and are_answers_within(rows[self.rows :])


NOTHING: Final = KeptPrompt()


class KeptPromptCache:
    """Beginnings of the prompts that one model has been sent."""

    def __init__(self, *, min_rows: int = MIN_KEPT_ROWS, min_new: int = MIN_NEW_ROWS, max_bytes: int = MAX_KEPT_BYTES):
        self._min_rows, self._min_new, self._max_bytes = min_rows, min_new, max_bytes
        self._kept: OrderedDict[object, KeptPrompt] = OrderedDict()
        self._size = 0

    def beginning_of(self, request: ModelRequest, render: Render, *further: object) -> KeptPrompt:
        """The beginning of a request's rows that is known, or is from now on; `further`: what `render` depends on."""
        rows, view = request.transcript, request.view
        if view is None or len(rows) < self._min_rows or request.style.image_urls or request.style.shape:
            return NOTHING
        made_for = (*view, request.style, *further)
        known = self._dropped(view[0])
        if not known.rows and known.made_for == made_for:  # it was tried before, and more rows make it no better
            self._keep(view[0], known)
            return NOTHING
        if not known.holds_for(rows, made_for):
            known = NOTHING
        if (end := settled_rows(rows)) - known.rows >= self._min_new:
            call_ids = set(known.call_ids)
            added = render(rows[known.rows : end], call_ids)
            if added is None:
                self._keep(view[0], KeptPrompt(made_for=made_for))
                return NOTHING
            known = KeptPrompt(
                rows=end,
                encoded=(*known.encoded, orjson.dumps(added)[1:-1]),
                call_ids=frozenset(call_ids),
                ends=(rows[0], rows[end - 1]),
                made_for=made_for,
            )
        if known.rows:
            self._keep(view[0], known)
        return known

    def _keep(self, key: object, beginning: KeptPrompt) -> None:
        self._kept[key] = beginning
        self._size += beginning.size
        while self._size > self._max_bytes:
            self._dropped(next(iter(self._kept)))

    def _dropped(self, key: object) -> KeptPrompt:
        """The beginning that is no longer kept."""
        if key not in self._kept:
            return NOTHING
        self._size -= self._kept[key].size
        return self._kept.pop(key)
