"""Clients for models. A client checks spending caps, retries calls, calculates costs and has a circuit breaker.

Only this module retries a model call. The SDKs' own retries are disabled.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, Self, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.base import CalledModel, Caps, ChatModel, FinishReason, Ledger, ModelReply, ModelRequest, Payer
from agent.model.catalog import Price, cost_of
from agent.model.errors import OUTCOME_CANCELLED, OUTCOME_OK, remedy_for
from agent.model.errors.classifier import MIN_OUTPUT_ROOM
from agent.model.usage import estimated_reply_usage
from hermes_state import errors
from hermes_state.aio import Backoff
from hermes_state.models.ledger import ModelCall
from hermes_state.values import CanonicalUsage, MicroUsd

log = structlog.get_logger()

T = TypeVar("T")

MAX_FAILURES = 3
"""Number of consecutive failed calls after which the circuit opens. A call and its retries count as one."""
OPEN_SECONDS = (30.0, 60.0, 300.0)
"""Seconds for which a circuit stays open: initially, after one failed trial, and after each further failed trial."""


class CircuitState(msgspec.Struct, frozen=True, kw_only=True):
    """State of an open circuit, which temporarily disables its route."""

    seconds: float
    """Seconds until the next trial."""
    why: str
    """Fault of the route, worded to follow the model's name, such as "cannot be reached"."""


class CircuitBreaker:
    """Circuit breaker for a route. It opens after consecutive failures and later allows single trial attempts.

    Calling a provider that is down would only delay the fallback's answer. The state is kept in memory, so a restart or
    a configuration change resets it.
    """

    def __init__(self, route: str, model: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """Create a closed circuit breaker. `now` returns the monotonic time in seconds."""
        self._route, self._model, self._now = route, model, now
        self._failures = self._times_opened = 0
        self._open_until, self._why = 0.0, ""

    @property
    def open(self) -> CircuitState | None:
        """Return the circuit's state while it is open; None if the route may be called."""
        left = self._open_until - self._now()
        return CircuitState(seconds=left, why=self._why) if left > 0 else None

    @property
    def is_tripped(self) -> bool:
        """True from the time the circuit opens until a call succeeds. Until then, each call makes only one attempt."""
        return self._times_opened > 0

    def succeeded(self) -> None:
        """Close the circuit after a successful call."""
        if self._times_opened:
            log.info("circuit.closed", route=self._route, model=self._model)
        self._failures = self._times_opened = 0
        self._open_until = 0.0

    def failed(self, error: errors.ModelError) -> None:
        """Count a failed call. An error that is not the route's fault resets the count, because the route responded."""
        remedy = remedy_for(error)
        if remedy.trouble is None:
            self._failures = 0
            return
        if self.open is not None:
            return  # already open: concurrent calls can fail together, and some calls ignore an open circuit
        self._failures += 1
        self._why = remedy.trouble
        if not self._times_opened and self._failures < MAX_FAILURES:
            return
        seconds = OPEN_SECONDS[min(self._times_opened, len(OPEN_SECONDS) - 1)]
        seconds = max(seconds, min(error.retry_after or 0.0, OPEN_SECONDS[-1]))
        self._times_opened += 1
        self._open_until = self._now() + seconds
        log.warning("circuit.opened", route=self._route, model=self._model, kind=remedy.outcome, seconds=seconds)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses between the attempts of a call, in seconds. `Remedy.attempts` limits the attempts per kind of error."""

    max_attempts: int = 6
    """Maximum number of attempts per call, counting all kinds of errors."""
    first_pause: float = 0.5
    """Pause after the first attempt. Each later pause is twice as long as the previous one."""
    max_pause: float = 8.0
    """Longest pause, unless the provider asks for more."""
    max_retry_after: float = 30.0
    """Longest pause that a provider may request. If it requests more, the call fails immediately."""

    def pause(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds to wait after an attempt (1, 2, …), with jitter so that chats do not retry together."""
        backoff = Backoff(self.first_pause, self.max_pause).after(attempt) * random.uniform(0.75, 1.25)
        return max(backoff, retry_after or 0.0)


class CompletedCall(msgspec.Struct, frozen=True, kw_only=True):
    """Successful model call: the reply, and the row for the ledger."""

    reply: ModelReply
    call: ModelCall


M = TypeVar("M", bound=CalledModel)


class BaseClient(Generic[M]):
    """Client for a model. It applies spending caps, retries, prices and a circuit breaker to all calls."""

    def __init__(
        self,
        model: M,
        ledger: Ledger,
        *,
        policy: RetryPolicy | None = None,
        price: Price | None = None,
        caps: Caps | None = None,
    ) -> None:
        self.model, self.route, self.name = model, model.route, model.name
        self.ledger = ledger
        self.breaker = CircuitBreaker(self.route, self.name)
        self._policy, self._price, self._caps = policy or RetryPolicy(), price, caps

    def with_policy(self, policy: RetryPolicy) -> Self:
        """Return a client for the same model with a different retry policy and its own circuit breaker."""
        return type(self)(self.model, self.ledger, policy=policy, price=self._price, caps=self._caps)

    async def call(
        self,
        attempt: Callable[[Callable[[str], None]], Awaitable[T]],
        *,
        payer: Payer,
        purpose: str,
        on_text: Callable[[str], None] | None = None,
        within: float | None = None,
        estimate: Callable[[str], CanonicalUsage] | None = None,
    ) -> tuple[T, int]:
        """Return the result of the first successful attempt, and its duration in milliseconds.

        Every failed attempt is recorded in the ledger before anything else happens. While the circuit breaker is
        tripped, only one attempt is made. Raises the last `ModelError`.

        `attempt` makes a call and passes the text received so far to the function it is given. `within`: time limit in
        seconds for all attempts together. `estimate` returns the usage of an incomplete attempt, given its text.
        """
        failures: Counter[str] = Counter()
        is_tripped = self.breaker.is_tripped
        loop = asyncio.get_running_loop()
        deadline = None if within is None else loop.time() + within
        while True:
            if self._caps is not None:
                await self._caps.check(payer)
            tried = _Attempt(payer=payer, purpose=purpose, on_text=on_text, estimate=estimate)
            try:
                done = await self._recorded(attempt(tried.show), tried, deadline)
            except errors.ModelError as error:
                failures[remedy_for(error).outcome] += 1
                pause = None if is_tripped else self._pause(error, failures, tried)
                if pause is None or (deadline is not None and loop.time() + pause >= deadline):
                    if deadline is None or loop.time() < deadline:  # otherwise our own time limit caused the failure
                        self.breaker.failed(error)
                    raise
                await asyncio.sleep(pause)
            else:
                self.breaker.succeeded()
                return done

    async def _recorded(self, call: Awaitable[T], tried: "_Attempt", deadline: float | None) -> tuple[T, int]:
        """Return the result and duration of one attempt. Record an attempt that fails or is cancelled."""
        started, purpose, estimate = time.perf_counter(), tried.purpose, tried.estimate
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    return await call, _elapsed_ms(started)
            except TimeoutError as error:
                raise errors.ModelTimeout("the reply took too long") from error
        except asyncio.CancelledError:
            usage = estimate(tried.text) if estimate is not None else None
            row = self.row(purpose, OUTCOME_CANCELLED, _elapsed_ms(started), usage, is_estimated=usage is not None)
            await record_cancelled(self.ledger, tried.payer, row)
            raise
        except errors.ModelError as error:
            await self._record_refused(error.refused, tried.payer, purpose)
            usage = error.usage
            if usage is None and estimate is not None and tried.text:
                usage = estimate(tried.text)  # providers also charge for the text of a failed attempt
            outcome, is_estimated = remedy_for(error).outcome, usage is not error.usage
            took_ms, cost = _elapsed_ms(started), error.reported_cost
            row = self.row(purpose, outcome, took_ms, usage, is_estimated=is_estimated, cost=cost)
            await self.ledger.record(tried.payer, row)
            raise

    async def _record_refused(self, refused: Sequence[errors.ModelError], payer: Payer, purpose: str) -> None:
        """Record the calls that were refused before the `ChatModel` sent the request in another form."""
        for error in refused:
            await self.ledger.record(payer, self.row(purpose, remedy_for(error).outcome, 0))

    def _pause(self, error: errors.ModelError, failures: Counter[str], tried: "_Attempt") -> float | None:
        """Return the seconds until the next attempt; None to stop retrying."""
        remedy, policy, retry_after, has_text = remedy_for(error), self._policy, error.retry_after, bool(tried.text)
        was_shown = has_text and tried.on_text is not None
        attempts = remedy.attempts + (isinstance(error, errors.ReplyUnfinished) and not was_shown)
        is_hopeless = failures[remedy.outcome] >= attempts or failures.total() >= policy.max_attempts
        # If the server fell silent, another attempt would take just as long. A stall (a subclass of the timeout) is
        # retried, because the server is still running.
        fell_silent = type(error) is errors.ModelTimeout and has_text
        if is_hopeless or fell_silent or (retry_after or 0.0) > policy.max_retry_after:
            return None
        return policy.pause(failures.total(), retry_after)

    def row(
        self,
        purpose: str,
        outcome: str,
        took_ms: int,
        usage: CanonicalUsage | None = None,
        *,
        is_estimated: bool = False,
        cost: MicroUsd | None = None,
    ) -> ModelCall:
        """Log a call, and return its row for the ledger. A `cost` reported by the provider overrides the price list."""
        if cost is None and usage is not None:
            cost = cost_of(usage, self._price)
            is_estimated = is_estimated or (self._price is not None and self._price.is_estimated)
        facts = {"purpose": purpose, "outcome": outcome, "took_ms": took_ms, "usage": usage, "cost": cost}
        log.debug("model.called", route=self.route, model=self.name, **facts)
        return ModelCall(
            purpose=purpose,
            route=self.route,
            model=self.name,
            outcome=outcome,
            usage=usage,
            took_ms=took_ms,
            is_estimated=is_estimated,
            cost=cost,
        )


class ModelClient(BaseClient[ChatModel]):
    """Client for a chat model. It learns the highest output limit that the model accepts."""

    _output_cap: int | None = None
    _has_asked_memory = False

    def expire_learned(self) -> None:
        """Make the next call read the output limit again, because another process might have learned a new limit."""
        self._has_asked_memory = False

    async def complete(
        self,
        request: ModelRequest,
        on_text: Callable[[str], None] | None = None,
        *,
        purpose: str,
        within: float | None = None,
    ) -> CompletedCall:
        """Call the model until it answers.

        Raises the last `ModelError` when another attempt is pointless or not allowed.

        Every failed or cancelled attempt is recorded in the ledger before anything else happens. The caller stores the
        row of the successful call together with the reply. If an attempt is cancelled or breaks off after
        some text, any unreported usage is estimated. `within`: time limit in seconds for all attempts together.
        """

        def estimate(text: str) -> CanonicalUsage:
            return estimated_reply_usage(request, ModelReply(text=text, finish=FinishReason.STOP, usage=None))

        async def attempt(show: Callable[[str], None]) -> ModelReply:
            reply = await self.model.complete(request, show)
            is_cut = bool(reply.calls) and reply.finish is FinishReason.LENGTH
            if is_cut or not (reply.calls or reply.text.strip()):
                reason = "the output limit cut off a tool call" if is_cut else "the reply is empty"
                error = errors.ReplyMalformed(reason)
                error.usage, error.reported_cost = reply.usage, reply.cost
                raise error
            return reply

        request = await self._within_cap(request)
        try:
            reply, took_ms = await self.call(
                attempt, payer=request.payer, purpose=purpose, on_text=on_text, within=within, estimate=estimate
            )
        except errors.ModelError as error:
            await self._learn_cap(*error.refused, error)
            raise
        await self._record_refused(reply.refused, request.payer, purpose)
        await self._learn_cap(*reply.refused)
        usage = reply.usage or estimated_reply_usage(request, reply)
        row = self.row(purpose, OUTCOME_OK, took_ms, usage, is_estimated=reply.usage is None, cost=reply.cost)
        return CompletedCall(reply=reply, call=row)

    async def _within_cap(self, request: ModelRequest) -> ModelRequest:
        """Return the request with an output limit that the model accepts, as far as is known."""
        if not self._has_asked_memory:
            self._has_asked_memory = True
            with suppress(errors.StateError):  # if this fails, the provider's next refusal states the limit again
                self._output_cap = await self.ledger.output_cap(self.route, self.name) or self._output_cap
        cap, wanted = self._output_cap, request.max_output_tokens
        if cap is None or (request.output_cap or cap + 1) <= cap:
            return request
        return replace(request, output_cap=cap, max_output_tokens=None if wanted is None else min(wanted, cap))

    async def _learn_cap(self, *refusals: errors.ModelError) -> None:
        """Remember the model's own output limit. Ignore limits caused by a long prompt or by low credit."""
        for error in refusals:
            cap = error.cap if isinstance(error, errors.OutputCapExceeded) and error.is_of_model else None
            if cap is None or cap < MIN_OUTPUT_ROOM or cap == self._output_cap:
                continue
            self._output_cap = cap
            log.info("model.output_cap_learned", model=self.name, cap=cap)
            await self.ledger.learn_output_cap(self.route, self.name, cap)


class _Attempt(msgspec.Struct, kw_only=True):
    payer: Payer
    purpose: str
    on_text: Callable[[str], None] | None
    estimate: Callable[[str], CanonicalUsage] | None
    text: str = ""
    """Text received so far."""

    def show(self, text: str) -> None:
        self.text = text
        if self.on_text is not None:
            self.on_text(text)


async def record_cancelled(ledger: Ledger, payer: Payer, call: ModelCall) -> None:
    """Record a cancelled call. This delays the cancellation by at most one second; a queued write still completes."""
    with suppress(errors.StateError, TimeoutError):
        async with asyncio.timeout(1.0):
            await ledger.record(payer, call)


def _elapsed_ms(started: float) -> int:
    return round((time.perf_counter() - started) * 1_000)
