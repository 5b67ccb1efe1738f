"""The circuit breaker: when it opens, for how long, and when it closes."""

import asyncio
from collections.abc import Callable

import pytest

from agent.model.base import ModelReply, ModelRequest
from agent.model.client import MAX_FAILURES, OPEN_SECONDS, CircuitBreaker, ModelClient
from hermes_state.errors import (
    AuthRejected,
    ContentRejected,
    ContextOverflow,
    ModelError,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
)
from tests.agent.context.rows import human
from tests.agent.model.test_client import GOOD, POLICY, Scripted
from tests.clients import RecordedCalls


class Watch:
    """Clock that advances only on request."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def circuit(watch: Watch) -> CircuitBreaker:
    return CircuitBreaker("chat_completions:host", "model", now=watch)


def failed(circuit: CircuitBreaker, times: int = MAX_FAILURES, error: ModelError | None = None) -> None:
    for _ in range(times):
        circuit.failed(error or ModelUnavailable("x"))


def test_the_circuit_opens_after_three_consecutive_failures(circuit: CircuitBreaker) -> None:
    failed(circuit, MAX_FAILURES - 1)
    assert circuit.open is None
    failed(circuit, 1)
    assert (circuit.open.seconds, circuit.open.why) == (OPEN_SECONDS[0], "cannot be reached")


def test_a_success_resets_the_failure_count(circuit: CircuitBreaker) -> None:
    for _ in range(3):
        failed(circuit, MAX_FAILURES - 1)
        circuit.succeeded()
    assert circuit.open is None


@pytest.mark.parametrize("other", [ContextOverflow("x"), ContentRejected("x"), ModelError("x")])
def test_an_error_that_is_not_the_routes_fault_resets_the_count(circuit: CircuitBreaker, other: ModelError) -> None:
    failed(circuit, MAX_FAILURES - 1)
    failed(circuit, 1, other)
    failed(circuit, 1)
    assert circuit.open is None


def test_each_failed_trial_keeps_the_circuit_open_longer(circuit: CircuitBreaker, watch: Watch) -> None:
    failed(circuit)
    for seconds in (*OPEN_SECONDS, OPEN_SECONDS[-1]):
        assert circuit.open.seconds == pytest.approx(seconds)
        watch.seconds += seconds
        assert circuit.open is None
        assert circuit.is_tripped
        failed(circuit, 1)


def test_failures_do_not_extend_an_open_circuit_and_a_success_closes_it(circuit: CircuitBreaker, watch: Watch) -> None:
    failed(circuit)
    watch.seconds += 10
    failed(circuit, 5)
    assert circuit.open.seconds == OPEN_SECONDS[0] - 10
    circuit.succeeded()
    assert (circuit.open, circuit.is_tripped) == (None, False)
    failed(circuit)
    assert circuit.open.seconds == OPEN_SECONDS[0]


@pytest.mark.parametrize(("asked", "seconds"), [(5.0, 30.0), (90.0, 90.0), (9_000.0, 300.0), (None, 30.0)])
def test_the_provider_decides_how_long_it_is_open(circuit: CircuitBreaker, asked: float | None, seconds: float) -> None:
    failed(circuit, error=ModelRateLimited("x", retry_after=asked))
    assert circuit.open.seconds == seconds


async def complete(client: ModelClient, within: float | None = None) -> None:
    request = ModelRequest(system="", transcript=(human("hi"),), max_output_tokens=10)
    await client.complete(request, purpose="turn", within=within)


async def test_a_call_with_all_its_retries_is_one_failure() -> None:
    model = Scripted(*[ModelUnavailable("x")] * 20)
    client = ModelClient(model, RecordedCalls(), policy=POLICY)
    for done in range(1, MAX_FAILURES + 1):
        assert client.breaker.open is None
        with pytest.raises(ModelUnavailable):
            await complete(client)
        assert model.calls == 4 * done
    assert client.breaker.open is not None


async def test_a_tripped_circuit_allows_one_attempt_and_a_success_closes_it() -> None:
    model = Scripted(*[AuthRejected("x")] * MAX_FAILURES, ModelUnavailable("x"), GOOD)
    client = ModelClient(model, RecordedCalls(), policy=POLICY)
    for _ in range(MAX_FAILURES):
        with pytest.raises(AuthRejected):
            await complete(client)
    with pytest.raises(ModelUnavailable):
        await complete(client)
    assert model.calls == MAX_FAILURES + 1, "no retry"
    await complete(client)
    assert client.breaker.open is None


async def test_a_call_that_hits_our_own_time_limit_is_not_the_routes_failure() -> None:
    class Slow(Scripted):
        async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
            await asyncio.Event().wait()
            raise AssertionError("nobody waits so long")

    client = ModelClient(Slow(), RecordedCalls(), policy=POLICY)
    for _ in range(MAX_FAILURES):
        with pytest.raises(ModelTimeout):
            await complete(client, within=0.01)
    assert client.breaker.open is None


async def test_routes_have_separate_circuits() -> None:
    broken, sound = (
        ModelClient(Scripted(*[AuthRejected("x")] * 9), RecordedCalls(), policy=POLICY),
        ModelClient(Scripted(GOOD), RecordedCalls()),
    )
    for _ in range(MAX_FAILURES):
        with pytest.raises(AuthRejected):
            await complete(broken)
    assert sound.breaker.open is None
    await complete(sound)
    assert broken.breaker.open is not None
