import asyncio
import gc

import pytest

from gateway.outbound.gates import Gate, GateRegistry
from hermes_state.values import ChatId


async def test_what_is_sent_passes_one_at_a_time_in_order() -> None:
    gate = Gate()
    passed: list[int] = []
    inside = 0

    async def send(number: int) -> None:
        nonlocal inside
        async with gate.passing():
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            passed.append(number)
            inside -= 1

    await asyncio.gather(*(send(number) for number in range(10)))
    assert passed == list(range(10))


async def test_what_may_be_shed_passes_only_when_nobody_waits() -> None:
    gate = Gate()
    assert is_free(gate)
    async with gate.passing():
        assert not is_free(gate)
        waiting = asyncio.create_task(_pass(gate))
        await asyncio.sleep(0)
    assert not is_free(gate)
    await waiting
    assert is_free(gate)


async def test_who_stops_waiting_is_forgotten_and_a_failed_send_opens_the_gate() -> None:
    gate = Gate()
    async with gate.passing():
        waiting = asyncio.create_task(_pass(gate))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert is_free(gate)
    with pytest.raises(ValueError, match="broken"):
        async with gate.passing():
            raise ValueError("broken")
    assert is_free(gate)


async def test_a_penalty_closes_the_gate_and_a_shorter_one_does_not_shorten_it() -> None:
    gate = Gate()
    gate.close_for(0.1)
    gate.close_for(0.01)
    assert gate.penalty_seconds > 0.05
    assert not is_free(gate)
    await asyncio.sleep(0.12)
    assert is_free(gate)
    assert gate.penalty_seconds == 0


async def test_a_chat_has_one_gate_for_as_long_as_anybody_holds_it() -> None:
    gates = GateRegistry()
    held = gates.of(ChatId(1))
    for number in range(5_000):
        gates.of(ChatId(number))
    assert gates.of(ChatId(1)) is held
    assert gates.of(ChatId(2)) is not held


async def test_a_penalty_is_remembered_when_nobody_holds_the_gate() -> None:
    gates = GateRegistry()
    gates.of(ChatId(1)).close_for(30)
    gates.of(ChatId(2))
    gc.collect()
    assert gates.of(ChatId(1)).penalty_seconds > 0
    assert gates.of(ChatId(2)).penalty_seconds == 0


def is_free(gate: Gate) -> bool:
    return gate.is_free  # a call: the type checker takes an attribute for unchanged


async def _pass(gate: Gate) -> None:
    async with gate.passing():
        pass
