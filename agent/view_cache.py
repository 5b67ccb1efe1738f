"""Cache of decoded views. Without it, every model call would spend milliseconds on decoding thousands of rows."""

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
"""Minimum number of rows in a cached view. Reading fewer rows takes well under a millisecond."""
MAX_CACHED_BYTES = 8_000_000
"""Maximum estimated memory of all cached views together, in bytes."""
MAX_IDLE_SECONDS = 300.0
"""Seconds after which an unused view is dropped."""


@dataclass(frozen=True, slots=True)
class _CachedView:
    view: View
    size: int
    used_at: float


class ViewCache:
    """Cached results of `transcripts.load_view`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: OrderedDict[LineageId, _CachedView] = OrderedDict()
        self._size = 0

    async def load(self, lineage_id: LineageId) -> View:
        """Return the view of a lineage, from the cache if possible. Raises `SessionNotFound`."""
        oldest = time.monotonic() - MAX_IDLE_SECONDS
        while self._cached and next(iter(self._cached.values())).used_at < oldest:
            self._drop(next(iter(self._cached)))
        before, start, size = self._cached.get(lineage_id), 0, 0
        view = await self._store.read_short(_load_since, lineage_id, before.view if before is not None else None)
        self._drop(lineage_id)
        if len(view.transcript) >= MIN_CACHED_ROWS:
            if before is not None and _has_only_grown(before.view, view.session):
                start, size = len(before.view.transcript), before.size
            size += sum(map(_size, view.transcript[start:]))
            self._cached[lineage_id] = _CachedView(view, size, time.monotonic())
            self._size += size
            while self._size > MAX_CACHED_BYTES and self._cached:
                self._drop(next(iter(self._cached)))
        return view

    def _drop(self, lineage_id: LineageId) -> None:
        cached = self._cached.pop(lineage_id, None)
        if cached is not None:
            self._size -= cached.size


def _load_since(db: Connection, lineage_id: LineageId, known: View | None) -> View:
    """Return the current view. If only new rows were added since `known`, load only those rows."""
    if known is None or not _has_only_grown(known, session := load_tip(db, lineage_id)):
        return load_view(db, lineage_id)
    rows = load_own_rows(db, session.id, known.session.next_seq, behind=known.transcript)
    return View(session=session, transcript=known.transcript + rows)


def _has_only_grown(known: View, tip: Session) -> bool:
    before = known.session
    return (before.id, before.version, before.next_view_seq) == (tip.id, tip.version, tip.next_view_seq)


def _size(message: Message) -> int:
    """Return the estimated size of a message in memory, in bytes. Python uses up to four bytes per character."""
    body = message.body
    texts = [message.text, *(document.text for document in body.documents), *(call.arguments for call in body.calls)]
    return 250 + sum(map(getsizeof, texts))
