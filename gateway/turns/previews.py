"""Previews show an answer while the model writes it. The final answer is a separate outbox row."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from agent.tools.registry import Step
from gateway.outbound.adapters import AdapterRegistry, FloodControl, Gate, GateRegistry
from gateway.switches import STEPS, StepLevel
from gateway.turns.steps import StepLine, with_line
from hermes_state.aio import cancel_all, crash_logged, make_way, own_cancellation, wait_until
from hermes_state.errors import PlatformError, StateError
from hermes_state.redaction import redact
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn, TurnClaim, note_preview
from hermes_state.values import Button, Millis
from platforms.base import PlatformAdapter, Preview

log = structlog.get_logger()

FIRST_SIGN_SECONDS = 0.4
"""Seconds before the first preview. A faster answer needs no preview."""

MESSAGE_SECONDS = 10.0
"""Seconds after which a preview without a message gets one, because only a message can have a Stop button."""

REQUEST_SECONDS = 10.0
"""Timeout of a preview request in seconds. It is short because the final answer waits for the request."""

PREVIEW_OVERLAP_SECONDS = 5.0
"""Seconds between a preview's renewal and its removal by the platform. Allows for a pause and a slow request."""


class TurnPreview:
    """Base class of previews. It shows nothing itself. After a stop, `text` is the partial answer."""

    is_stored = False
    """True if the text might be stored in the database, so that another node can show it."""
    _first_sign_seconds = FIRST_SIGN_SECONDS

    def __init__(self, turn: RunningTurn) -> None:
        self._turn = turn
        self._changed = asyncio.Event()
        self._first_sign: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.text = ""
        self.steps: StepLine | None = None
        """Line about the turn's steps, if it has any."""
        self.make_steps: Callable[[float], StepLine] = StepLine
        """Creates the line. The argument is the start of the turn, in seconds of the monotonic clock."""
        self._made_at = time.monotonic()
        self.is_paused = False
        """True if the turn waits for people, so that the preview ends without its Stop button."""

    def note_step(self, step: Step) -> None:
        """Record a tool call that begins or has ended. Never waits."""
        if self.steps is None:
            self.steps = self.make_steps(self._made_at)
        self.steps.note(step)
        self._changed.set()

    async def _line(self) -> str:
        """Return the line about the turn's steps, which belongs below the text."""
        return "" if self.steps is None else await self.steps.text()

    @property
    def _state(self) -> tuple[str, object]:
        """Values that differ if there is something new to show."""
        return self.text, self.steps and self.steps.version

    def show(self, text: str) -> None:
        """Set the text that the model has written so far. Never waits."""
        self.text = text
        self._changed.set()

    def forget(self) -> None:
        """Forget the text, which is not part of the answer. The chat still shows it until new text arrives."""
        self.text = ""

    def open(self, ref: str | None = None) -> None:
        """Start showing the text, in the placeholder message `ref` if it is given. The caller must await `close`."""
        self._first_sign = asyncio.get_running_loop().call_later(self._first_sign_seconds, self.begin)

    def begin(self) -> None:
        """Start showing the text immediately."""
        self._task = asyncio.create_task(self._run(), name=f"preview-{self._turn.id}")

    async def close(self) -> None:
        """End the preview. Wait until no request is in flight, so that the final answer arrives last."""
        await self.abandon()

    async def abandon(self) -> None:
        """End the preview without storing anything, because another node may now have the turn or the account."""
        if self._first_sign is not None:
            self._first_sign.cancel()
        if self._task is not None:
            await cancel_all([self._task])

    async def _run(self) -> None:
        """Show the text until closed."""


class LivePreview(TurnPreview):
    """Preview that is updated as often as the platform allows."""

    _typing_overlap_seconds = 1.0
    """Time in seconds between the renewal of a typing signal and its end."""

    def __init__(
        self,
        turn: RunningTurn,
        adapter: PlatformAdapter,
        gate: Gate,
        flood: FloodControl,
        save_ref: Callable[[TurnClaim, str], Awaitable[None]],
        *,
        is_certain: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_certain` returns True as long as no other node can have taken over the account."""
        super().__init__(turn)
        self._adapter = adapter
        self._gate = gate
        self._flood = flood
        self._save_ref = save_ref
        self._is_certain = is_certain
        self._closed = asyncio.Event()
        self._saved_ref = self.ref = turn.preview_ref
        self._shown = ""
        self._shown_state: tuple[str, object] = self._state
        self._has_buttons = False
        self._shown_at = self._typed_at = 0.0
        self._first_sign_seconds = min(FIRST_SIGN_SECONDS, self._interval)

    def open(self, ref: str | None = None) -> None:
        self.ref = ref or self.ref
        if self._is_lost:
            self.begin()
        else:
            super().open()

    async def close(self) -> None:
        self._closed.set()
        self._changed.set()
        if self._first_sign is not None:
            self._first_sign.cancel()
        if self._task is None:
            return
        await self._task
        if self.is_paused and self._has_buttons:
            await self._remove_buttons()
        with contextlib.suppress(StateError):  # a stale preview next to the answer is better than no answer
            await self._save()

    async def _remove_buttons(self) -> None:
        """Show the text once more, without buttons, because a question follows and later text gets a new message."""
        with crash_logged("preview.crashed"):  # a bug in an SDK must not stop the question
            try:
                with own_cancellation():
                    async with asyncio.timeout(REQUEST_SECONDS), self._gate.passing():
                        with self._flood.obeyed():
                            await self._adapter.show(self._preview(self._shown))
            except (PlatformError, StateError, TimeoutError) as error:  # a press then says that nothing is running
                log.debug("preview.failed", error=type(error).__name__)

    @property
    def _is_lost(self) -> bool:
        """True if a killed process may have sent a placeholder without storing its reference."""
        return self.ref is None and self._turn.restarts > 0 and self._adapter.capabilities.finds_previews

    async def _find(self) -> None:
        """Find the lost placeholder, so that the answer can replace it. Retries while the adapter connects."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                with own_cancellation():
                    async with asyncio.timeout(REQUEST_SECONDS), self._gate.passing():
                        with self._flood.obeyed():
                            self.ref = await self._adapter.show(self._preview("", self._turn.started_at))
                return await self._save()
            except (PlatformError, StateError, TimeoutError) as error:
                log.debug("preview.not_found", error=type(error).__name__)
            await asyncio.sleep(0.5)

    async def _run(self) -> None:
        if self._is_lost:
            with crash_logged("preview.crashed"):  # a bug in an SDK must not stop the preview
                await self._find()
        with crash_logged("preview.crashed"):  # nor the answer
            await self._show_until_closed()

    async def _show_until_closed(self) -> None:
        while True:
            await make_way()
            if self._closed.is_set():
                return
            was_sent = False
            try:
                with own_cancellation():
                    async with asyncio.timeout(REQUEST_SECONDS):
                        was_sent = await self._show_something()
            except (PlatformError, StateError, TimeoutError) as error:
                log.debug("preview.failed", error=type(error).__name__)
            self._changed.clear()
            await self._rest(was_sent, max(self._interval, self._flood.penalty_seconds))

    async def _rest(self, was_sent: bool, pause: float) -> None:
        """Wait for new text or until a renewal is due, and then for another `pause` seconds."""
        if self._state == self._shown_state and not self._closed.is_set():
            await wait_until(self._changed, self._renewal_seconds())
        await wait_until(self._closed, pause)

    @property
    def _interval(self) -> float:
        capabilities, is_shared = self._adapter.capabilities, self._turn.chat_kind.is_shared
        return capabilities.shared_preview_interval_seconds if is_shared else capabilities.preview_interval_seconds

    async def _show_something(self) -> bool:
        """Show the text or a typing signal if one of them is due. Return True if something was sent."""
        state, line = self._state, await self._line() if self._adapter.capabilities.shows_steps else ""
        if not self._gate.is_free or self._flood.penalty_seconds > 0 or not self._is_certain():
            return False
        text = with_line(self.text, line) if line else self.text
        async with self._gate.passing():
            with self._flood.obeyed():
                left = self._fades_in()
                is_fading = left is not None and left <= 0  # a tool may run for a long time without new text
                if text.strip() and (text != self._shown or is_fading):
                    buttons = self._buttons()
                    self.ref = await self._adapter.show(self._preview(text, buttons=buttons)) or self.ref
                    self._shown, self._shown_state, self._shown_at = text, state, time.monotonic()
                    self._has_buttons = bool(buttons)
                    await self._save()
                    return True
                self._shown_state = state  # the change does not show, for example because the chat wants no line
                if not self._is_typing_due():
                    return False
                await self._adapter.show_typing(self._turn.chat)
                self._typed_at = time.monotonic()
        return True

    def _buttons(self) -> tuple[Button, ...]:
        """Return the Stop button, unless a preview without a message shows the answer."""
        capabilities = self._adapter.capabilities
        is_long = time.monotonic() - self._made_at >= MESSAGE_SECONDS
        is_always = self._turn.chat_kind.is_shared or capabilities.preview_seconds is None
        has_message = is_always or is_long or self.ref is not None
        stop = Button(label="Stop", command=f"/stop t{self._turn.id}")
        return (stop,) if capabilities.shows_steps and has_message else ()

    def _preview(self, text: str, since: Millis | None = None, buttons: tuple[Button, ...] = ()) -> Preview:
        return Preview(
            chat=self._turn.chat,
            is_shared=self._turn.chat_kind.is_shared,
            number=self._turn.id,
            text=text,
            ref=self.ref,
            reply_to=self._turn.question_ref if self._turn.chat_kind.is_shared else None,
            buttons=buttons,
            since=since,
        )

    async def _save(self) -> None:
        """Store the placeholder's reference unless it is already stored."""
        if self.ref is not None and self.ref != self._saved_ref:
            await self._save_ref(self._turn, self.ref)
            self._saved_ref = self.ref

    def _is_typing_due(self) -> bool:
        fades = self._adapter.capabilities.typing_seconds
        if self._typed_at and self._line_due_in() is not None:
            return False  # the line shows that the turn goes on
        return fades is not None and time.monotonic() - self._typed_at >= fades - self._typing_overlap_seconds

    def _fades_in(self) -> float | None:
        """Return the seconds until the preview must be renewed, or None if the platform does not remove previews."""
        seconds = self._adapter.capabilities.preview_seconds
        if seconds is None or self.ref is not None or not self._shown:
            return None
        return self._shown_at + seconds - PREVIEW_OVERLAP_SECONDS - time.monotonic()

    def _renewal_seconds(self) -> float | None:
        """Return the seconds until a renewal is due, or None if a request is needed only after new text."""
        fades = self._adapter.capabilities.typing_seconds
        typing = None if fades is None else fades - self._typing_overlap_seconds
        waits = [wait for wait in (typing, self._fades_in(), self._line_due_in()) if wait is not None]
        return max(0.1, min(waits)) if waits else None

    def _line_due_in(self) -> float | None:
        """Return the seconds until the line about steps changes, or None if the chat shows no line."""
        return self.steps.due_in() if self.steps is not None and self._adapter.capabilities.shows_steps else None


LivePreviewT = TypeVar("LivePreviewT", bound=LivePreview)


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class PreviewMaker:
    """Creates the previews of turns."""

    store: Store
    adapters: AdapterRegistry
    gates: GateRegistry
    elsewhere: Callable[[RunningTurn], TurnPreview] | None = None
    """Creates the preview of a turn whose chat another process might serve. None if this process serves all chats."""

    level: Callable[[], StepLevel] = lambda: "short"
    """Returns the level of chats that have not chosen a level with `/steps`."""
    redact: Callable[[str], str] = redact

    def of(self, turn: RunningTurn) -> TurnPreview:
        """Return the preview for a turn that runs in this process."""
        preview = self._of(turn)
        preview.make_steps = lambda began: StepLine(
            began, lambda: STEPS.load(self.store, turn.chat_id, self.level()), self.redact
        )
        return preview

    def _of(self, turn: RunningTurn) -> TurnPreview:
        if self.elsewhere is not None and self.adapters.ownership_of(turn.chat) is None:
            return self.elsewhere(turn)
        return TurnPreview(turn) if self.adapters.of(turn.chat) is None else self.live(turn, LivePreview)

    def live(self, turn: RunningTurn, kind: type[LivePreviewT]) -> LivePreviewT:
        """Return a preview for a chat whose account is configured in this process."""
        adapter = self.adapters.of(turn.chat)
        assert adapter is not None, "only configured accounts are served"
        return kind(
            turn,
            adapter,
            gate=self.gates.of(turn.chat_id),
            flood=self.gates.flood_of(turn.chat),
            save_ref=lambda claim, ref: self.store.write(note_preview, claim, ref),
            is_certain=self.adapters.is_certain,
        )
