"""Cache of encoded prompt prefixes, so that a call in a long conversation only encodes its new rows.

Later rows never change the bytes of a prefix. A prefix is valid for one version of a session and one `WireStyle`. The
least recently used prefixes are evicted.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final, TypeAlias

import orjson

from agent.model.base import ModelRequest
from agent.model.wire import is_shown
from hermes_state.values import Message, MessageRole, Origin, Transcript

MIN_KEPT_ROWS: Final = 32
"""Minimum number of rows to cache. Encoding fewer rows takes only a tenth of a millisecond."""
MIN_NEW_ROWS: Final = 16
"""Minimum number of rows by which a prefix grows."""

Render: TypeAlias = Callable[[Transcript, set[str]], Sequence[Any] | None]
"""Renders rows as JSON elements and adds their call ids to a set. Returns None if the rows depend on other rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrompt:
    """Encoded prefix of a prompt's message list."""

    rows: int = 0
    """Number of rows in the prefix."""
    encoded: tuple[bytes, ...] = ()
    """The elements as comma-separated JSON, in pieces. Joining the pieces would fragment memory."""
    call_ids: frozenset[str] = frozenset()
    ends: tuple[Message, ...] = ()
    """The first and the last row of the prefix."""
    made_for: tuple[object, ...] = ()
    """All values, besides the rows, that determine the bytes."""

    @property
    def size(self) -> int:
        """Memory use in bytes, including about 500 for the object itself."""
        return 500 + sum(map(getsizeof, self.encoded))

    def before(self, elements: Sequence[Any], at: int = 0) -> Any:
        """Return `elements` as JSON, with this prefix inserted after the first `at` of them."""
        if not self.rows:
            return elements
        parts = (orjson.dumps(elements[:at])[1:-1], *self.encoded, orjson.dumps(elements[at:])[1:-1])
        return orjson.Fragment(b"[%b]" % b",".join(filter(None, parts)))

    def holds_for(self, rows: Transcript, made_for: tuple[object, ...]) -> bool:
        """True if `rows` begin with the prefix's rows, `made_for` is unchanged, and no later row affects the prefix."""
        if self.made_for != made_for or len(rows) < self.rows:
            return False
        return self.ends == (rows[0], rows[self.rows - 1]) and _are_answers_within(rows[self.rows :])


def _settled_rows(transcript: Transcript) -> int:
    """Return the number of initial rows whose messages no later row can change.

    The last of these rows is an answer, and the row after it is from a person. Later rows therefore cannot be merged
    into the messages of these rows.
    """
    turns = 0
    for index in range(len(transcript) - 1, 0, -1):
        row, before = transcript[index], transcript[index - 1]
        is_asked = row.role is MessageRole.USER and row.origin is Origin.HUMAN
        if is_asked and before.role is MessageRole.ASSISTANT and not before.body.calls and is_shown(before):
            turns += 1
            if turns == 3:  # the last three messages carry cache breakpoints
                return index if _are_answers_within(transcript[index:]) else 0
    return 0


def _are_answers_within(rows: Transcript) -> bool:
    """True if every tool result answers a call in these rows. A result for an earlier call would change its message."""
    asked: set[str | None] = set()
    for row in rows:
        if row.role is MessageRole.ASSISTANT:
            asked.update(call.id for call in row.body.calls)
        elif row.role is MessageRole.TOOL and row.tool_call_id not in asked:
            return False
    return True


NOTHING: Final = KeptPrompt()


class KeptPromptCache:
    """Cached prefixes of the prompts sent to one model."""

    def __init__(self, *, min_rows: int = MIN_KEPT_ROWS, min_new: int = MIN_NEW_ROWS, max_bytes: int = 8_000_000):
        self._min_rows, self._min_new, self._max_bytes = min_rows, min_new, max_bytes
        self._kept: OrderedDict[object, KeptPrompt] = OrderedDict()
        self._size = 0

    def beginning_of(self, request: ModelRequest, render: Render, *further: object) -> KeptPrompt:
        """Return the cached prefix of a request, extended if useful. `further`: other values that affect `render`."""
        rows, view = request.transcript, request.view
        if view is None or len(rows) < self._min_rows or request.style.image_urls or request.style.shape:
            return NOTHING
        made_for = (*view, request.style, *further)
        known = self._dropped(view[0])
        if not known.rows and known.made_for == made_for:  # rendering failed before, and later rows cannot change that
            self._keep(view[0], known)
            return NOTHING
        if not known.holds_for(rows, made_for):
            known = NOTHING
        if (end := _settled_rows(rows)) - known.rows >= self._min_new:
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
        """Remove a prefix and return it."""
        if key not in self._kept:
            return NOTHING
        self._size -= self._kept[key].size
        return self._kept.pop(key)
