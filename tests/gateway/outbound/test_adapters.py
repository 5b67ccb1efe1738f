import asyncio
from collections.abc import Sequence

import pytest

from gateway.outbound.adapters import AdapterRegistry, SupervisedAdapter
from hermes_state.aio import Backoff
from hermes_state.errors import PlatformUnavailable, TokenRejected
from hermes_state.outbox import AccountClaim
from hermes_state.values import ChatKey
from platforms.base import AdapterState, Intake
from tests.gateway.helpers import DIRECT, MemoryAdapter, eventually

CLAIM = AccountClaim(account="telegram", epoch=1)
NO_INTAKE: Intake = None  # type: ignore[assignment]  # these adapters receive nothing


class Restless(MemoryAdapter):
    """Adapter whose attempts end as scripted. The last attempt keeps running."""

    def __init__(self, ends: Sequence[BaseException | None]) -> None:
        super().__init__()
        self.ends = list(ends)
        self.attempts = 0

    async def run(self, intake: Intake) -> None:
        self.attempts += 1
        if not self.ends:
            await asyncio.Event().wait()
        end = self.ends.pop(0)
        if end is not None:
            raise end


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the backoff to milliseconds."""
    monkeypatch.setattr("gateway.outbound.adapters.RETRY_BACKOFF", Backoff(0.005, 0.005))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("end", [PlatformUnavailable("down"), KeyError("a bug"), asyncio.CancelledError(), None])
async def test_an_adapter_is_restarted_after_every_kind_of_end(end: BaseException | None) -> None:
    adapter = Restless([end] * 5)
    one = SupervisedAdapter(adapter)
    one.ownership = CLAIM
    task = asyncio.create_task(one.run(NO_INTAKE))
    await eventually(lambda: adapter.attempts == 6, "the sixth attempt")
    assert one.health().state is AdapterState.RUNNING
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_between_attempts_health_shows_the_reason_and_the_next_time() -> None:
    one = SupervisedAdapter(Restless([PlatformUnavailable("the network is down")]))
    one.ownership = CLAIM
    task = asyncio.create_task(one.run(NO_INTAKE))
    await eventually(lambda: one.health().state is AdapterState.BACKING_OFF, "the pause")
    assert one.health().detail.startswith("the network is down; next attempt in ")
    assert not one.health().is_ready
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.usefixtures("quick")
async def test_a_rejected_token_stops_only_its_own_adapter() -> None:
    rejected, healthy = Restless([TokenRejected("401: check telegram.token")]), Restless([])
    adapters = AdapterRegistry({"telegram": rejected, "discord": healthy})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run(NO_INTAKE)) for one in adapters.supervised.values()]
        for name, one in adapters.supervised.items():
            one.ownership = AccountClaim(account=name, epoch=1)
        await eventually(lambda: tasks[0].done(), "the rejected one gives up")
        health = adapters.supervised["telegram"].health()
        assert (health.state, health.detail) == (AdapterState.FAILED, "401: check telegram.token")
        assert rejected.attempts == 1
        assert not tasks[1].done()
        tasks[1].cancel()


async def test_serving_the_account_again_restores_its_health() -> None:
    one = SupervisedAdapter(Restless([TokenRejected("401: check telegram.token")]))
    one.ownership = CLAIM
    await one.run(NO_INTAKE)
    assert one.health().state is AdapterState.FAILED
    task = asyncio.create_task(one.run(NO_INTAKE))  # its node has lost its seat and taken another
    await eventually(lambda: one.health().state is AdapterState.RUNNING, "it runs")
    task.cancel()
    await asyncio.wait({task})


def test_a_chat_is_reached_through_its_account() -> None:
    adapter = MemoryAdapter()
    adapters = AdapterRegistry({"telegram": adapter})
    assert adapters.of(DIRECT) is adapter
    assert adapters.of(ChatKey(platform="discord", account="discord", chat_ref="1")) is None
