"""Live previews: an answer is shown while it grows. What streams is a preview; the outbox row is the truth."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import structlog

from gateway.outbound.gates import FloodControl, Gate
from hermes_state.aio import make_way, own_cancellation, wait_until
from hermes_state.errors import PlatformError, StateError
from hermes_state.turns import RunningTurn
from platforms.base import Capabilities, PlatformAdapter, Preview

log = structlog.get_logger()

FIRST_SIGN_SECONDS = 0.4
"""Seconds before the first preview: an answer that is there sooner needs none, which costs more than it shows."""

REQUEST_SECONDS = 10.0
"""Longest request for one preview, in seconds: the final answer must not wait for it."""

TYPING_OVERLAP_SECONDS = 1.0
"""Seconds before the end of a typing signal at which it is renewed."""

PREVIEW_OVERLAP_SECONDS = 5.0
"""Seconds before the end of a fading preview at which it is renewed: room for a pause and a slow request."""


class LivePreview:
    """Preview of one turn: takes the text so far, and shows it as often as the platform likes.

    `text` stays readable after the end: it is the partial answer of a turn that is stopped.
    """

    def __init__(
        self,
        turn: RunningTurn,
        adapter: PlatformAdapter | None,
        gate: Gate,
        flood: FloodControl,
        save_ref: Callable[[str], Awaitable[None]],
    ) -> None:
        self._turn = turn
        self._adapter = adapter
        self._gate = gate
        self._flood = flood
        self._save_ref = save_ref
        self._ref = self._saved_ref = turn.preview_ref
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self._shown = ""
        self._shown_at = self._typed_at = 0.0
        self._first_sign: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.text = ""

    def show(self, text: str) -> None:
        """Take the whole text of the answer so far; never waits."""
        self.text = text
        self._changed.set()

    def forget(self) -> None:
        """Take back what was shown, which is no part of an answer: it stays in sight until there is something else."""
        self.text = ""

    def open(self) -> None:
        """Begin to show previews. Whoever opens a preview awaits `close`."""
        if self._adapter is not None:
            pause = min(FIRST_SIGN_SECONDS, self._interval(self._adapter))
            self._first_sign = asyncio.get_running_loop().call_later(pause, self._begin, self._adapter)

    def _begin(self, adapter: PlatformAdapter) -> None:
        self._task = asyncio.create_task(self._run(adapter), name=f"preview-{self._turn.id}")

    async def close(self) -> None:
        """Show no more previews. Returns when nothing is in flight, so that the final answer comes last."""
        self._closed.set()
        self._changed.set()
        if self._first_sign is not None:
            self._first_sign.cancel()
        if self._task is None:
            return
        await self._task
        with contextlib.suppress(StateError):  # a stale copy beside the answer is better than no answer
            await self._save()

    async def _run(self, adapter: PlatformAdapter) -> None:
        capabilities, interval = adapter.capabilities, self._interval(adapter)
        while True:
            await make_way()
            if self._closed.is_set():
                return
            try:
                with own_cancellation():
                    async with asyncio.timeout(REQUEST_SECONDS):
                        await self._show_something(adapter)
            except (PlatformError, StateError, TimeoutError) as error:
                log.debug("preview.failed", error=type(error).__name__)
            except Exception:  # an SDK's bug must not cost the answer, which this only foreshadows
                log.exception("preview.crashed")
                return
            self._changed.clear()
            if self.text == self._shown and not self._closed.is_set():
                await wait_until(self._changed, self._renewal_seconds(capabilities))
            await wait_until(self._closed, max(interval, self._flood.penalty_seconds))

    def _interval(self, adapter: PlatformAdapter) -> float:
        """Seconds from one preview to the next."""
        capabilities, is_shared = adapter.capabilities, self._turn.chat_kind.is_shared
        return capabilities.shared_preview_interval_seconds if is_shared else capabilities.preview_interval_seconds

    async def _show_something(self, adapter: PlatformAdapter) -> None:
        if not self._gate.is_free or self._flood.penalty_seconds > 0:
            return
        async with self._gate.passing():
            with self._flood.obeyed():
                left = self._fades_in(adapter.capabilities)
                is_fading = left is not None and left <= 0  # it may be a long time until a tool is done
                if self.text.strip() and (self.text != self._shown or is_fading):
                    await self._show_text(adapter, self.text)
                elif self._is_typing_due(adapter):
                    await adapter.show_typing(self._turn.chat)
                    self._typed_at = time.monotonic()

    async def _show_text(self, adapter: PlatformAdapter, text: str) -> None:
        preview = Preview(
            chat=self._turn.chat,
            is_shared=self._turn.chat_kind.is_shared,
            number=self._turn.id,
            text=text,
            ref=self._ref,
            reply_to=self._turn.question_ref if self._turn.chat_kind.is_shared else None,
        )
        self._ref = await adapter.show(preview) or self._ref
        self._shown = text
        self._shown_at = time.monotonic()
        await self._save()

    async def _save(self) -> None:
        """Store which message is the placeholder, unless that is known."""
        if self._ref is not None and self._ref != self._saved_ref:
            await self._save_ref(self._ref)
            self._saved_ref = self._ref

    def _is_typing_due(self, adapter: PlatformAdapter) -> bool:
        fades = adapter.capabilities.typing_seconds
        return fades is not None and time.monotonic() - self._typed_at >= fades - TYPING_OVERLAP_SECONDS

    def _fades_in(self, capabilities: Capabilities) -> float | None:
        """Seconds until what is shown must be shown again, None if it stays by itself."""
        if capabilities.preview_seconds is None or self._ref is not None or not self._shown:
            return None
        return self._shown_at + capabilities.preview_seconds - PREVIEW_OVERLAP_SECONDS - time.monotonic()

    def _renewal_seconds(self, capabilities: Capabilities) -> float | None:
        """Seconds until something must be renewed though there is no new text; None: never."""
        typing = None if capabilities.typing_seconds is None else capabilities.typing_seconds - TYPING_OVERLAP_SECONDS
        waits = [wait for wait in (typing, self._fades_in(capabilities)) if wait is not None]
        return max(0.1, min(waits)) if waits else None
