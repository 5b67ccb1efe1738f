"""Previews of turns that run at other nodes, shown by the node that serves their chat's account."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from gateway.outbound.adapters import AdapterRegistry
from gateway.turns.previews import BEAT_SECONDS, LivePreview
from hermes_state import previews
from hermes_state.aio import wait_until
from hermes_state.errors import StateError
from hermes_state.previews import StoredText
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, TurnId

log = structlog.get_logger()

SILENT_SECONDS = 3 * BEAT_SECONDS
"""Seconds without a word from a turn's node after which its preview ends."""


@dataclass(slots=True, kw_only=True)
class _Shown:
    turn: RunningTurn
    preview: LivePreview
    heard_at: float


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class RemotePreviews:
    """Shows what other nodes store of their turns, from the first hint of a turn until its answer is sent."""

    store: Store
    adapters: AdapterRegistry
    make: Callable[[RunningTurn], LivePreview]
    """Makes the preview of a turn whose chat this node serves."""
    _hinted: set[TurnId] = field(default_factory=set, init=False)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _shown: dict[TurnId, _Shown] = field(default_factory=dict, init=False)
    _closed: set[ChatId] = field(default_factory=set, init=False)
    """Chats whose previews were closed since what is being read was asked for."""

    def note(self, turn_id: TurnId) -> None:
        """Note that something was stored of a turn."""
        if self.adapters.serves_any:
            self._hinted.add(turn_id)
            self._arrived.set()

    async def run(self) -> None:
        """Show what is stored until cancelled."""
        try:
            while True:
                await wait_until(self._arrived, BEAT_SECONDS if self._shown else None)
                self._arrived.clear()
                try:
                    await self._read()
                except StateError as error:  # the next write comes with a hint, too
                    log.debug("preview.failed", error=type(error).__name__)
                await self._close_silent()
        finally:
            await self.abandon()

    async def close(self, chat_id: ChatId) -> Mapping[TurnId, str]:
        """Show no more of a chat's turns before their next write; returns the placeholders that there are by now.

        Whoever sends calls this once it holds the chat's gate: what was read before shows nothing any more.
        """
        self._closed.add(chat_id)
        shown = [one for one in self._shown.values() if one.turn.chat_id == chat_id]
        refs = {one.turn.id: await self._close(one) for one in shown}
        return {turn_id: ref for turn_id, ref in refs.items() if ref is not None}

    async def abandon(self) -> None:
        """Show nothing more, and store nothing: the accounts may be another node's by now."""
        while self._shown:
            _, one = self._shown.popitem()
            await one.preview.abandon()

    async def _read(self) -> None:
        turn_ids, self._hinted = sorted(self._hinted), set()
        if turn_ids:
            self._closed.clear()
            known = {turn_id: one.turn.epoch for turn_id, one in self._shown.items()}
            for stored in await self.store.read_short(previews.load, turn_ids, known):
                self._show(stored)

    def _show(self, stored: StoredText) -> None:
        one, turn = self._shown.get(stored.turn_id), stored.moved
        if one is None:
            if turn is None or turn.chat_id in self._closed or self.adapters.claim_of(turn.chat) is None:
                return
            one = self._shown[turn.id] = _Shown(turn=turn, preview=self.make(turn), heard_at=0.0)
            one.preview.begin()
        elif turn is not None:
            one.turn = turn
            one.preview.move(turn)
        one.heard_at = time.monotonic()
        one.preview.show(stored.text)

    async def _close_silent(self) -> None:
        silent_since = time.monotonic() - SILENT_SECONDS
        for one in [one for one in self._shown.values() if one.heard_at < silent_since]:
            await self._close(one)

    async def _close(self, one: _Shown) -> str | None:
        self._shown.pop(one.turn.id, None)
        await one.preview.close()
        return one.preview.ref
