"""Previews of turns that run on one node while another node serves the chat's account.

The node that runs the turn stores the text written so far. The node that serves the account reads and shows it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from gateway.outbound.adapters import AdapterRegistry
from gateway.turns.previews import LivePreview, TurnPreview
from hermes_state.aio import wait_until
from hermes_state.errors import StateError
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn, StoredText, load_previews, store_preview
from hermes_state.values import ChatId, Clock, TurnId

log = structlog.get_logger()

STORE_SECONDS = 1.0
"""Minimum seconds between two writes of a preview."""
BEAT_SECONDS = 2.0
"""Maximum seconds between two writes of a preview. If the writes stop, as after a crash, the preview disappears."""
SILENT_SECONDS = 3 * BEAT_SECONDS
"""Seconds without a write after which a preview ends."""


class StoredPreview(TurnPreview):
    """Preview that stores its text, so that another node can show it. Nothing is stored after the turn has ended."""

    def __init__(self, turn: RunningTurn, store: Store, clock: Clock) -> None:
        super().__init__(turn)
        self._store = store
        self._clock = clock

    async def _run(self) -> None:
        self.is_stored = True
        while True:
            self._changed.clear()
            text, state = self.text, self._state
            try:
                line = await self._line()
                await self._store.write(store_preview, self._turn, text, self._clock.now(), line)
            except StateError as error:
                log.debug("preview.failed", error=type(error).__name__)
            await asyncio.sleep(STORE_SECONDS)
            if self._state == state:
                await wait_until(self._changed, BEAT_SECONDS - STORE_SECONDS)


class RemotePreview(LivePreview):
    """Preview of a turn on another node. That node stores it at least every `BEAT_SECONDS` while the turn runs."""

    _typing_overlap_seconds = BEAT_SECONDS + 0.5  # the typing signal is renewed only after a write
    heard_at = 0.0
    line = ""
    """Stored line about the turn's steps."""

    @property
    def turn(self) -> RunningTurn:
        return self._turn

    def show(self, text: str) -> None:
        super().show(text)
        self.heard_at = time.monotonic()

    async def _line(self) -> str:
        return self.line

    @property
    def _state(self) -> tuple[str, object]:
        return self.text, self.line

    def move(self, turn: RunningTurn) -> None:
        """Continue the preview of a turn that another node has resumed, and store its placeholder again if needed."""
        self._turn, self._saved_ref = turn, turn.preview_ref

    async def _rest(self, was_sent: bool, pause: float) -> None:
        """Pause after showing text, then wait for new text. Text that arrives during the wait is shown immediately."""
        if was_sent or self._state != self._shown_state:
            await wait_until(self._closed, pause)
        if self._state == self._shown_state and not self._closed.is_set():
            await wait_until(self._changed, None)

    def _is_typing_due(self) -> bool:
        return time.monotonic() - self.heard_at <= 1.0 and super()._is_typing_due()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class RemotePreviews:
    """Shows the stored previews of other nodes, from the first hint about a turn until the turn's answer."""

    store: Store
    adapters: AdapterRegistry
    make: Callable[[RunningTurn], RemotePreview]
    _hinted: set[TurnId] = field(default_factory=set, init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _shown: dict[TurnId, RemotePreview] = field(default_factory=dict, init=False)
    _closed: set[ChatId] = field(default_factory=set, init=False)
    """Chats whose previews were closed after the current read began."""

    def note(self, turn_id: TurnId) -> None:
        """Read this turn's preview soon, because a hint says that it was stored."""
        if self.adapters.serves_any:
            self._hinted.add(turn_id)
            self._arrived.set()

    async def run(self) -> None:
        """Show stored previews until cancelled."""
        try:
            while True:
                await wait_until(self._arrived, BEAT_SECONDS if self._shown else None)
                self._arrived.clear()
                try:
                    await self._read()
                except StateError as error:  # the next write sends another hint
                    log.debug("preview.failed", error=type(error).__name__)
                silent_since = time.monotonic() - SILENT_SECONDS
                for one in [one for one in self._shown.values() if one.heard_at < silent_since]:
                    await self._close(one)
        finally:
            await self.abandon()

    async def close(self, chat_id: ChatId) -> Mapping[TurnId, str]:
        """End the previews of a chat's turns, and return the placeholder messages by turn.

        If a turn stores more text, its preview starts again. The sender calls this while it holds the chat's gate, so a
        read that began earlier cannot show anything afterwards.
        """
        self._closed.add(chat_id)
        shown = [one for one in self._shown.values() if one.turn.chat_id == chat_id]
        refs = {one.turn.id: await self._close(one) for one in shown}
        return {turn_id: ref for turn_id, ref in refs.items() if ref is not None}

    async def abandon(self) -> None:
        """Stop showing and storing previews, because other nodes may now serve the accounts."""
        while self._shown:
            _, one = self._shown.popitem()
            await one.abandon()

    async def _read(self) -> None:
        turn_ids, self._hinted = sorted(self._hinted), set()
        if turn_ids:
            self._closed.clear()
            known = {turn_id: one.turn.epoch for turn_id, one in self._shown.items()}
            for stored in await self.store.read_short(load_previews, turn_ids, known):
                self._show(stored)

    def _show(self, stored: StoredText) -> None:
        one, turn = self._shown.get(stored.turn_id), stored.moved
        if one is None:
            if turn is None or turn.chat_id in self._closed or self.adapters.ownership_of(turn.chat) is None:
                return
            one = self._shown[turn.id] = self.make(turn)
            one.begin()
        elif turn is not None:
            one.move(turn)
        one.line = stored.line
        one.show(stored.text)

    async def _close(self, one: RemotePreview) -> str | None:
        self._shown.pop(one.turn.id, None)
        await one.close()
        return one.ref
