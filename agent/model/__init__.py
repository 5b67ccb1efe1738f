"""Model calls: one protocol for every model, and a client that retries, counts and caps them.

A `ChatModel` is a model at the end of a route, such as `protocols.chat_completions.ChatCompletionsModel`. It takes a
`ModelRequest`, which holds stored rows (`wire` renders them), and gives a `ModelReply` or raises a kind of
`hermes_state.errors.ModelError`. Callers use it through a `ModelClient`, which repeats a call as its `RetryPolicy` and
the table in `errors` allow, checks the spending caps, writes failed attempts into the `Ledger`, prices the call, and
knows by its `CircuitBreaker` when a route is better left alone. `sentence_for` says to the person what went wrong.

>>> import asyncio
>>> from agent.model.protocols.offline import OfflineModel
>>> request = ModelRequest(system="You are Hermes.", transcript=(), max_output_tokens=None)
>>> reply = asyncio.run(OfflineModel(pause_seconds=0.0).complete(request, on_text=lambda text: None))
>>> reply.finish.value, reply.calls
('stop', ())

Names are imported when they are asked for: the command line knows models only by name, and starts without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.model.base import (
        ChatModel,
        FinishReason,
        Ledger,
        ModelLimits,
        ModelReply,
        ModelRequest,
        Payer,
        ToolSchema,
    )
    from agent.model.circuit_breaker import CircuitBreaker, CircuitState
    from agent.model.client import CompletedCall, ModelClient, RetryPolicy
    from agent.model.errors import remedy_for, sentence_for
    from agent.model.usage import normalize_usage
    from agent.model.wire import WireSettings, chat_messages
    from hermes_state.values import CanonicalUsage

__all__ = [
    "CanonicalUsage",
    "ChatModel",
    "CircuitBreaker",
    "CircuitState",
    "CompletedCall",
    "FinishReason",
    "Ledger",
    "ModelClient",
    "ModelLimits",
    "ModelReply",
    "ModelRequest",
    "Payer",
    "RetryPolicy",
    "ToolSchema",
    "WireSettings",
    "chat_messages",
    "normalize_usage",
    "remedy_for",
    "sentence_for",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in ("base", "circuit_breaker", "client", "errors", "usage", "wire"):
            found = getattr(import_module(f"{__name__}.{home}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
