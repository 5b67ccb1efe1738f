"""Cache of decoded views: a long conversation in use is decoded once, then only what was said since.

A view of thousands of rows takes milliseconds to decode, at every turn and between tools. Only so many bytes of them
are cached, and none that was idle for a while when the next one is loaded.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from sys import getsizeof

from hermes_state.sessions import Session, load_tip
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import View, load_own_rows, load_view
from hermes_state.values import LineageId, Message

MIN_CACHED_ROWS = 64
"""Rows from which on a view is cached: fewer are a short read, which takes well under a millisecond."""

MAX_CACHED_BYTES = 8_000_000
"""Estimated memory of all cached views together."""
MAX_IDLE_SECONDS = 300.0
"""Time without use after which a view is dropped."""
ROW_BYTES = 250
"""Memory of a row beside its text."""


@dataclass(frozen=True, slots=True)
class _CachedView:
    view: View
    size: int
    used_at: float


class ViewCache:
    """Views for one reader of the store, the same as `transcripts.load_view` would return."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: OrderedDict[LineageId, _CachedView] = OrderedDict()
        self._size = 0

    async def load(self, lineage_id: LineageId) -> View:
        """The view of a lineage, from the cache as far as it holds. Raises `SessionNotFound`."""
        self._drop_idle()
        cached = self._cached.get(lineage_id)
        view = await self._store.read_short(_load_since, lineage_id, cached.view if cached is not None else None)
        self._drop(lineage_id)
        if len(view.transcript) >= MIN_CACHED_ROWS:
            self._put(lineage_id, view, cached)
        return view

    def _put(self, lineage_id: LineageId, view: View, before: _CachedView | None) -> None:
        start = size = 0
        if before is not None and _has_only_grown(before.view, view.session):
            start, size = len(before.view.transcript), before.size
        size += sum(map(_size, view.transcript[start:]))
        self._cached[lineage_id] = _CachedView(view, size, time.monotonic())
        self._size += size
        while self._size > MAX_CACHED_BYTES and self._cached:
            self._drop(next(iter(self._cached)))

    def _drop_idle(self) -> None:
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while self._cached and next(iter(self._cached.values())).used_at < oldest:
            self._drop(next(iter(self._cached)))

    def _drop(self, lineage_id: LineageId) -> None:
        cached = self._cached.pop(lineage_id, None)
        if cached is not None:
            self._size -= cached.size


def _load_since(db: Connection, lineage_id: LineageId, known: View | None) -> View:
    """The view, from `known` and what was appended to it since, if nothing else has changed."""
    if known is None:
        return load_view(db, lineage_id)
    session = load_tip(db, lineage_id)
    if not _has_only_grown(known, session):
        return load_view(db, lineage_id)
    rows = load_own_rows(db, session.id, known.session.next_seq, behind=known.transcript)
    return View(session=session, transcript=known.transcript + rows)


def _has_only_grown(known: View, tip: Session) -> bool:
    """True when rows at the end are all that `tip`'s view has more than `known`."""
    before = known.session
    return (before.id, before.version, before.next_view_seq) == (tip.id, tip.version, tip.next_view_seq)


def _size(message: Message) -> int:
    """Bytes in memory; a text with one emoji in it takes four for each of its characters."""
    body = message.body
    texts = [message.text, *(document.text for document in body.documents), *(call.arguments for call in body.calls)]
    return ROW_BYTES + sum(map(getsizeof, texts))
