"""`SummaryClient`: the summary models of a conversation, for the `compress` of a plugin's engine.

Each call keeps to the spending caps, is a row in the ledger, and carries no secrets. A route that fails is disabled for
a while, as for the built-in engine. All calls of a compression end with it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from threading import Event

from agent.context.excerpt import without_thoughts
from agent.context.job import CompressionJob
from agent.context.model_handle import SummaryRoute
from agent.context.state import ContextState
from agent.context.summary import SummaryError, asking_row
from agent.model.base import FinishReason, ModelRequest
from agent.model.errors import remedy_for
from agent.model.sizes import MIN_OUTPUT, room_beside
from hermes_state.errors import ModelError, ModelTimeout, ModelUnavailable
from hermes_state.values import Clock


class SummaryClient:
    """Model calls of one compression. `state` includes the cooldowns of failed ones."""

    def __init__(
        self, job: CompressionJob, state: ContextState, *, redact: Callable[[str], str], clock: Clock, seconds: float
    ) -> None:
        """`seconds`: time for all calls together."""
        self.state = state
        self._job, self._redact, self._clock = job, redact, clock
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._waiting: set[Future[str]] = set()
        self._closed = Event()

    async def ask(self, prompt: str, system: str = "") -> str:
        """Return the answer of the first route that has one. Raises `ModelError`."""
        failure: ModelError = ModelUnavailable("there is no model that could be asked now")
        for route in self._job.routes:
            key = route.cooldown_key(self._job.layer)
            if self.state.is_cooling(key, self._clock.now()):
                continue
            try:
                text = await self._answer(route, prompt, system)
            except ModelError as error:
                failure = error
                outcome = error.outcome if isinstance(error, SummaryError) else remedy_for(error).outcome
                if not self.state.is_cooling(key, self._clock.now()):  # a parallel call may have failed first
                    self.state = self.state.failed(key, outcome, self._clock.now())
            else:
                self.state = self.state.answered(key)
                return text
        raise failure

    def ask_and_wait(self, prompt: str, system: str = "") -> str:
        """`ask` from a thread of an engine that is not async."""
        if self._closed.is_set():
            raise ModelTimeout("the compression is over")
        waiting = asyncio.run_coroutine_threadsafe(self.ask(prompt, system), self._loop)
        self._waiting.add(waiting)
        if self._closed.is_set():  # meanwhile: `close` has not seen this call
            waiting.cancel()
        try:
            return waiting.result()
        except CancelledError as error:
            raise ModelTimeout("the compression is over") from error
        finally:
            self._waiting.discard(waiting)

    def close(self) -> None:
        """End the calls that still run, and allow no more."""
        self._closed.set()
        for waiting in list(self._waiting):
            waiting.cancel()

    async def _answer(self, route: SummaryRoute, prompt: str, system: str) -> str:
        job, seconds = self._job, self._deadline - self._loop.time()
        if self._closed.is_set() or seconds <= 0:
            raise ModelTimeout("the compression is over")
        texts = [await asyncio.to_thread(self._redact, text) for text in (prompt, system)]
        row = asking_row(texts[0], self._clock.now())
        request = ModelRequest(system=texts[1], transcript=(row,), max_output_tokens=None, payer=job.request.payer)
        room = room_beside(job.estimator.whole(request), route.context_length or job.limits.context_length)
        request = replace(request, output_cap=max(MIN_OUTPUT, room))
        done = await route.client.complete(request, purpose="summary", within=seconds)
        is_cut = done.reply.finish is FinishReason.LENGTH
        call = replace(done.call, outcome="truncated") if is_cut else done.call
        await route.client.ledger.record(job.request.payer, call)
        if is_cut:
            raise SummaryError("truncated", "The summary was cut off by the model's output limit.")
        return await asyncio.to_thread(self._redact, without_thoughts(done.reply.text).strip())
