"""Retries of failed calls, pauses between attempts, and the rows in the ledger."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from agent.model.base import Caps, FinishReason, Ledger, ModelReply, ModelRequest, Payer
from agent.model.catalog import Price
from agent.model.client import CompletedCall, ModelClient, RetryPolicy
from agent.model.errors import REMEDIES, remedy_for, sentence_for
from agent.model.usage import estimated_text_tokens
from hermes_state import errors
from hermes_state.errors import (
    AuthRejected,
    ContentRejected,
    ContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    OutputCapExceeded,
    PriceNotFound,
    QuotaExceeded,
    ReplyMalformed,
    SpendingCapExceeded,
    StoreUnavailable,
)
from hermes_state.models.ledger import ModelCall
from hermes_state.values import CanonicalUsage, MicroUsd, ToolCall
from tests.agent.context.rows import human
from tests.clients import RecordedCalls

POLICY = RetryPolicy(first_pause=0.001, max_pause=0.002, max_retry_after=0.01)
GOOD = ModelReply(text="ok", finish=FinishReason.STOP, usage=CanonicalUsage(input=3, output=1))
PRICE = Price(input=10.0, output=20.0, cache_read=1.0, cache_write=1.0)
CALL = ToolCall(id="a", name="look", arguments="{")


class Scripted:
    """Model with a scripted list of replies and errors. Each can show some text first."""

    route, name = "scripted", "scripted-1"

    def __init__(self, *script: ModelReply | ModelError | tuple[str, ModelError]) -> None:
        self._script = list(script)
        self.calls = 0

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        self.calls += 1
        step = self._script.pop(0)
        if isinstance(step, tuple):
            on_text(step[0])
            step = step[1]
        if isinstance(step, ModelError):
            raise step
        on_text(step.text)
        return step

    async def close(self) -> None:
        pass


async def run(
    model: Scripted, price: Price | None = None, caps: Caps | None = None
) -> tuple[CompletedCall | ModelError, Sequence[ModelCall], list[str]]:
    ledger = RecordedCalls()
    shown: list[str] = []
    request = ModelRequest(system="", transcript=(human("hi"),), max_output_tokens=10)
    try:
        done: CompletedCall | ModelError = await ModelClient(
            model, ledger, policy=POLICY, price=price, caps=caps
        ).complete(request, shown.append, purpose="turn")
    except ModelError as error:
        done = error
    return done, ledger.calls, shown


ATTEMPTS: dict[type[ModelError], int] = {
    **{ModelUnavailable: 4, ModelRateLimited: 4, ModelTimeout: 2, ReplyMalformed: 2, AuthRejected: 1},
    **{QuotaExceeded: 1, ContentRejected: 1, ContextOverflow: 1, OutputCapExceeded: 1, ModelError: 1},
}


@pytest.mark.parametrize("kind", ATTEMPTS)
async def test_each_kind_of_failure_has_its_number_of_attempts(kind: type[ModelError]) -> None:
    error, calls = kind("x"), ATTEMPTS[kind]
    model = Scripted(*[error] * 10)
    done, failures, _ = await run(model)
    assert (done, model.calls) == (error, calls)
    assert [failure.outcome for failure in failures] == [remedy_for(error).outcome] * calls


async def test_alternating_failures_are_limited_together() -> None:
    model = Scripted(*[error for _ in range(9) for error in (ModelUnavailable("x"), ModelRateLimited("x"))])
    await run(model)
    assert model.calls == POLICY.max_attempts


async def test_a_successful_call_is_recorded_by_the_caller() -> None:
    done, failures, shown = await run(Scripted(ModelUnavailable("x"), ("half", ReplyMalformed("x")), GOOD))
    assert (done.reply, done.call.outcome, done.call.usage) == (GOOD, "ok", GOOD.usage)
    assert ([failure.outcome for failure in failures], shown) == (["unavailable", "malformed"], ["half", "ok"])


async def test_a_timeout_after_some_text_is_not_retried() -> None:
    model = Scripted(("some", ModelTimeout("x")), GOOD)
    done, _, _ = await run(model)
    assert (type(done), model.calls) == (ModelTimeout, 1)


@pytest.mark.parametrize("kind", [ModelRateLimited, ModelUnavailable])
@pytest.mark.parametrize(("seconds", "calls"), [(0.005, 2), (60.0, 1)])
async def test_a_call_fails_if_the_provider_requests_too_long_a_pause(
    seconds: float, calls: int, kind: type[ModelRateLimited | ModelUnavailable]
) -> None:
    model = Scripted(kind("x", retry_after=seconds), GOOD)
    await run(model)
    assert model.calls == calls


@pytest.mark.parametrize("attempt", [1, 2, 3, 10])
def test_pauses_grow_have_jitter_and_respect_retry_after(attempt: int) -> None:
    policy = RetryPolicy()
    pauses = {policy.pause(attempt, None) for _ in range(50)}
    middle = min(8.0, 0.5 * 2 ** (attempt - 1))
    assert len(pauses) > 1
    assert all(0.75 * middle <= pause <= 1.25 * middle for pause in pauses)
    assert policy.pause(attempt, 20.0) == 20.0


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply(text="", finish=FinishReason.STOP, usage=None),
        ModelReply(text=" \n", finish=FinishReason.LENGTH, usage=None),
        ModelReply(text="Let me", calls=(CALL,), finish=FinishReason.LENGTH, usage=None),
    ],
    ids=["empty", "blank", "a call cut off"],
)
async def test_a_reply_that_cannot_be_stored_is_a_failure(reply: ModelReply) -> None:
    done, failures, _ = await run(Scripted(reply, reply))
    assert isinstance(done, ReplyMalformed)
    assert len(failures) == 2


async def test_missing_usage_is_estimated_and_marked() -> None:
    done, _, _ = await run(Scripted(ModelReply(text="x" * 400, finish=FinishReason.STOP, usage=None)))
    assert done.call.is_estimated
    assert done.call.usage.output == estimated_text_tokens("x" * 400)
    assert done.reply.usage is None


async def test_a_failed_call_keeps_the_reported_usage() -> None:
    used = CanonicalUsage(input=3, output=1)
    late = ModelUnavailable("x")
    late.usage = used
    empty = ModelReply(text="", finish=FinishReason.STOP, usage=used, cost=MicroUsd(70))
    done, failures, _ = await run(Scripted(late, ModelUnavailable("x"), empty, GOOD), price=PRICE)
    assert [(failure.outcome, failure.usage, failure.cost) for failure in failures] == [
        ("unavailable", used, 50),
        ("unavailable", None, None),
        ("malformed", used, 70),
    ]
    assert done.call.cost == 50


async def test_a_call_that_breaks_off_after_some_text_is_recorded_with_an_estimate() -> None:
    used = CanonicalUsage(input=3, output=1)
    text = "x" * 400
    told = ModelUnavailable("x")
    told.usage = used
    done, (told_row, broken), _ = await run(Scripted((text, told), (text, ReplyMalformed("x")), GOOD), price=PRICE)
    assert (done.reply, told_row.usage, told_row.is_estimated) == (GOOD, used, False), (
        "reported usage overrides the estimate"
    )
    assert broken.is_estimated
    assert broken.usage.output == estimated_text_tokens(text)
    assert broken.cost > 0


async def test_a_cost_from_an_estimated_price_is_an_estimate_unless_reported() -> None:
    guessed = msgspec.structs.replace(PRICE, is_estimated=True)
    done, (failure,), _ = await run(Scripted(ModelUnavailable("x"), GOOD), price=guessed)
    assert (done.call.cost, done.call.is_estimated) == (50, True)
    assert not failure.is_estimated, "it has no usage"
    done, _, _ = await run(Scripted(replace(GOOD, cost=MicroUsd(7))), price=guessed)
    assert (done.call.cost, done.call.is_estimated) == (7, False)


class Hanging(Scripted):
    """Model that shows some text and then hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        on_text("x" * 400)
        self.has_begun.set()
        await asyncio.Event().wait()
        raise AssertionError


async def _cancelled(ledger: Ledger) -> None:
    """Make a call that is cancelled after 400 characters."""
    model = Hanging()
    request = ModelRequest(system="", transcript=(human("hi"),), max_output_tokens=10)
    client = ModelClient(model, ledger, policy=POLICY, price=PRICE)
    call = asyncio.create_task(client.complete(request, purpose="turn"))
    await model.has_begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancelled_call_is_recorded_with_an_estimate() -> None:
    ledger = RecordedCalls()
    await _cancelled(ledger)
    (cut,) = ledger.calls
    assert (cut.outcome, cut.is_estimated) == ("cancelled", True)
    assert cut.usage.output == estimated_text_tokens("x" * 400)
    assert cut.cost > 0


async def test_cancelling_a_call_does_not_wait_for_a_blocked_database() -> None:
    class Refusing(RecordedCalls):
        async def record(self, payer: Payer, call: ModelCall) -> None:
            raise StoreUnavailable("locked")

    class Hanging(RecordedCalls):
        async def record(self, payer: Payer, call: ModelCall) -> None:
            await asyncio.Event().wait()

    for ledger in (Refusing(), Hanging()):
        async with asyncio.timeout(3):
            await _cancelled(ledger)


class Closed:
    """Caps that are reached after some calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def check(self, payer: Payer) -> None:
        if not self.left:
            raise SpendingCapExceeded("x", spent=MicroUsd(2), limit=MicroUsd(1))
        self.left -= 1


@pytest.mark.parametrize("calls", [0, 1, 2])
async def test_the_cap_is_checked_before_every_attempt(calls: int) -> None:
    model = Scripted(*[ModelUnavailable("x")] * 9)
    done, failures, _ = await run(model, caps=Closed(calls))
    assert isinstance(done, SpendingCapExceeded)
    assert model.calls == len(failures) == calls


# ---- the table


def test_every_kind_of_model_error_has_a_remedy() -> None:
    declared = {kind for kind in ModelError.__subclasses__() if kind.__module__ == errors.__name__}
    assert set(REMEDIES) == {ModelError, *declared}
    assert len({remedy.outcome for remedy in REMEDIES.values()}) == len(REMEDIES)


@pytest.mark.parametrize("kind", REMEDIES)
def test_every_error_has_short_sentences_without_placeholders(kind: type[ModelError]) -> None:
    said = sentence_for(kind("HTTP 400 with a secret"))
    assert said.endswith(".")
    assert all(len(sentence.split()) <= 25 for sentence in said.split(". "))
    assert not [part for part in ("secret", "{") if part in said]
    assert "`model." not in REMEDIES[kind].sentence, "no key of another model is named"


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (ModelRateLimited("x", retry_after=0.2), "in a second."),
        (ModelRateLimited("x", retry_after=20), "in 20 seconds"),
        (ModelRateLimited("x", retry_after=600), "in 10 minutes"),
        (ModelRateLimited("x", retry_after=7_200), "in 2 hours"),
        (ModelRateLimited("x"), "in a minute"),
        (ModelUnavailable("x", retry_after=600), "in 10 minutes"),
        (ModelUnavailable("x"), "in a minute"),
        (ModelTimeout("x"), "took too long to answer. Send /retry to try again."),
        (ContextOverflow("x", window=8_192), "of 8,192 tokens. Send /compress"),
        (ContextOverflow("x"), "context window. Send /compress"),
        (OutputCapExceeded("x", cap=4_096), "(4,096 tokens)"),
        (SpendingCapExceeded("x"), "try again tomorrow. The owner of this bot can raise `costs.daily_cap`."),
        (SpendingCapExceeded("x", spent=MicroUsd(1_020_000), limit=MicroUsd(1_000_000)), "($1.02 of $1.00)"),
        (SpendingCapExceeded("x", cap="costs.chat_daily_cap"), "The daily spending cap of this chat has been reached"),
        (SpendingCapExceeded("x", cap="costs.conversation_cap"), "Send /new to start another one"),
        (PriceNotFound("x", model="lab-4k"), "the price of the model `lab-4k` is unknown"),
        (PriceNotFound("x", model="lab-4k"), "`costs.prices`"),
    ],
)
def test_sentences_contain_the_known_details(error: ModelError, part: str) -> None:
    assert part in sentence_for(error)
