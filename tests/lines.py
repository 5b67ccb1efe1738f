"""Models as the agent calls them, with pauses too short to wait for."""

from agent.model.base import ChatModel
from agent.model.client import ModelClient, RetryPolicy

FAST_RETRY = RetryPolicy(first_pause=0.001, max_pause=0.002)


def line_to(model: ChatModel) -> ModelClient:
    """A line without price and caps."""
    return ModelClient(model, policy=FAST_RETRY)
