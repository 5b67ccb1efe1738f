"""Model clients whose pauses between retries are very short."""

from agent.model.base import ChatModel, Payer
from agent.model.caps import StoreLedger
from agent.model.client import ModelClient, RetryPolicy
from hermes_state.models.ledger import ModelCall
from hermes_state.store.writer import Store
from hermes_state.values import Clock, SystemClock

FAST_RETRY = RetryPolicy(first_pause=0.001, max_pause=0.002)


class RecordedCalls:
    """A ledger that keeps calls in memory."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    async def record(self, payer: Payer, call: ModelCall) -> None:
        self.calls.append(call)

    async def output_cap(self, route: str, model: str) -> int | None:
        return None

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Do nothing."""


def client_of(
    model: ChatModel, store: Store, clock: Clock | None = None, policy: RetryPolicy = FAST_RETRY
) -> ModelClient:
    """Return a client without prices and caps, whose calls are recorded in a database."""
    return ModelClient(model, StoreLedger(store, clock or SystemClock()), policy=policy)
