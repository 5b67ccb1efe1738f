"""The one place that repeats a model call. The SDKs' own retries are off."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.model.base import ChatModel, Finish, ModelReply, ModelRequest
from agent.model.failures import OUTCOME_OK, remedy_for
from agent.model.usage import estimated_reply_usage
from hermes_state.errors import ModelError, ModelRateLimited, ModelTimeout, ReplyMalformed
from hermes_state.values import ModelCallRecord

RecordFailure = Callable[[ModelCallRecord], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait between attempts, in seconds; how many there are depends on the failures, see `Remedy`."""

    most_attempts: int = 6
    """Of one call, whatever its failures are."""
    first_pause: float = 0.5
    longest_pause: float = 8.0
    longest_retry_after: float = 30.0
    """A provider that asks for more is not waited for: the person is told instead."""

    def pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds after the `attempt`-th attempt (1, 2, …), jittered so that chats do not return in step."""
        backoff: float = min(self.longest_pause, self.first_pause * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
        return max(backoff, retry_after or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A reply, and its row for the ledger."""

    reply: ModelReply
    call: ModelCallRecord


async def complete(
    model: ChatModel,
    request: ModelRequest,
    on_text: Callable[[str], None],
    *,
    purpose: str,
    policy: RetryPolicy,
    record_failure: RecordFailure,
    within: float | None = None,
) -> Completion:
    """Call a model until it has answered or trying again is pointless; then raise the last `ModelError`.

    Every failed attempt goes to `record_failure` before anything else happens. The successful one is left to the
    caller, who stores it together with the reply. An attempt that is cancelled leaves no record. `within`: seconds for
    all attempts together, however steadily the reply comes in.
    """
    failures: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    deadline = None if within is None else loop.time() + within
    while True:
        watch = _Watch(on_text)
        started = time.perf_counter()
        try:
            reply = _checked(await _by(deadline, model.complete(request, watch.on_text)))
        except ModelError as error:
            outcome = remedy_for(error).outcome
            await record_failure(_failure_record(model, purpose, outcome, started))
            failures[outcome] += 1
            is_hopeless = failures[outcome] >= remedy_for(error).attempts or failures.total() >= policy.most_attempts
            if is_hopeless or not _may_repeat(error, policy, has_text=watch.has_text):
                raise
            retry_after = error.retry_after if isinstance(error, ModelRateLimited) else None
            pause = policy.pause(failures.total(), retry_after)
            if deadline is not None and loop.time() + pause >= deadline:
                raise
            await asyncio.sleep(pause)
            continue
        return Completion(reply=reply, call=_success_record(model, purpose, request, reply, started))


async def _by(deadline: float | None, call: Awaitable[ModelReply]) -> ModelReply:
    """The reply, if it is whole by then."""
    try:
        async with asyncio.timeout_at(deadline):
            return await call
    except TimeoutError as error:
        raise ModelTimeout("the reply took too long") from error


class _Watch:
    """Remembers whether any text of the attempt was seen."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.has_text = False

    def on_text(self, text: str) -> None:
        self.has_text = True
        self._on_text(text)


def _may_repeat(error: ModelError, policy: RetryPolicy, *, has_text: bool) -> bool:
    if isinstance(error, ModelTimeout):
        return not has_text  # a model that began and stalled takes as long again
    if isinstance(error, ModelRateLimited):
        return (error.retry_after or 0.0) <= policy.longest_retry_after
    return True


def _checked(reply: ModelReply) -> ModelReply:
    """Refuse what cannot become a row: nothing at all, or calls whose arguments were cut off."""
    if reply.calls and reply.finish is Finish.LENGTH:
        raise ReplyMalformed("the output limit cut a tool call")
    if not reply.calls and not reply.text.strip():
        raise ReplyMalformed("the reply is empty")
    return reply


def _success_record(
    model: ChatModel, purpose: str, request: ModelRequest, reply: ModelReply, started: float
) -> ModelCallRecord:
    is_estimated = reply.usage is None
    return ModelCallRecord(
        purpose=purpose,
        route=model.route,
        model=model.name,
        outcome=OUTCOME_OK,
        usage=estimated_reply_usage(request, reply) if reply.usage is None else reply.usage,
        took_ms=_since(started),
        is_estimated=is_estimated,
    )


def _failure_record(model: ChatModel, purpose: str, outcome: str, started: float) -> ModelCallRecord:
    return ModelCallRecord(
        purpose=purpose, route=model.route, model=model.name, outcome=outcome, usage=None, took_ms=_since(started)
    )


def _since(started: float) -> int:
    return round((time.perf_counter() - started) * 1_000)
